"""Where a training step's time goes, by marks that are set from outside the model.

Every moment belongs to the part of the last mark. In the forward pass modules and kernels set
marks as they are entered and left. Autograd numbers its nodes as they are made and, on one device,
runs them one by one in the opposite order; so in the backward pass a part begins when the last
node of its forward is about to run.
"""

from __future__ import annotations

import functools
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from lrm.model import ops
from lrm.multipliers.attach import Multipliers

# Modules by the last part of their name: the part they are, and what comes when they are left.
_MODULES = {
    "input_layernorm": ("norms", "norms"),
    "pre_ff_layernorm": ("norms", "norms"),
    "final_layernorm": ("norms", "projector, loss"),
    "mamba": ("ssm in_proj", "residual"),
    "linear_attn": ("gdn in_proj", "residual"),
    "self_attn": ("attention", "residual"),
    "feed_forward": ("mlp", "residual"),
}
# Kernels by their name in ``lrm.model.ops``, which the model looks up at every call; of the mixer
# that calls them.
_KERNELS = {
    "causal_conv1d": ("conv", "scan"),
    "ssd": ("scan", "out"),
    "gated_delta": ("scan", "out"),
}
FORWARD, BACKWARD, NEITHER = "forward", "backward", ""
# The time that goes into finding where the parts of the backward pass begin.
MEASURING = ("measuring", NEITHER)
# Nodes that add up the gradient of a leaf carry no number of their own; they run when they can.
_NUMBERED = 2**62


class Marks:
    """While entered as a context, notes when each part of a step begins.

    The model must run eagerly, and its gradients must be taken by ``backward``. On a GPU ``wait``
    waits until it has done what it was given, so that a part's work is done when the next begins.
    """

    def __init__(self, model: nn.Module, wait: Callable[[], None] = lambda: None):
        self.model, self.wait = model, wait
        # ((part, direction), time at which it began)
        self.events: list[tuple[tuple[str, str], float]] = []
        # Of the forward under way: its parts, and autograd's next number as each began.
        self.entered: list[str] = []
        self.numbers: list[int] = []
        self._patches = ExitStack()

    def enter(self, part: str, direction: str = NEITHER) -> None:
        """From now on it is ``part``."""
        self.wait()
        self.events.append(((part, direction), time.perf_counter()))

    def seconds(self) -> dict[tuple[str, str], float]:
        """Time of every (part, direction) between the first mark and the last."""
        totals: Counter[tuple[str, str]] = Counter()
        for (key, start), (_, end) in pairwise(self.events):
            totals[key] += end - start
        del totals[MEASURING]
        return dict(totals)

    def __enter__(self) -> Marks:
        patch = self._patches.enter_context
        patch(self.model.register_forward_pre_hook(self._hook("embedding")))
        for name, module in self.model.named_modules():
            if (parts := _MODULES.get(name.rpartition(".")[2])) is not None:
                patch(module.register_forward_pre_hook(self._hook(parts[0])))
                patch(module.register_forward_hook(self._hook(parts[1])))
        for name, parts in _KERNELS.items():
            patch(mock.patch.object(ops, name, self._kernel(getattr(ops, name), *parts)))
        for name, direction in (("hold_all", FORWARD), ("release_all", BACKWARD)):
            marked = self._multipliers(getattr(Multipliers, name), direction)
            patch(mock.patch.object(Multipliers, name, marked))
        backward = functools.partial(self._backward, torch.autograd.backward)
        patch(mock.patch.object(torch.autograd, "backward", backward))
        return self

    def __exit__(self, *error) -> None:
        self.enter("end")
        self._patches.close()

    def _hook(self, part: str) -> Callable[..., None]:
        return lambda *_: self._enter_forward(part)

    def _kernel(self, function: Callable, part: str, after: str) -> Callable:
        def marked(*arguments, **named):
            mixer = self.entered[-1].partition(" ")[0]
            self._enter_forward(f"{mixer} {part}")
            output = function(*arguments, **named)
            self._enter_forward(f"{mixer} {after}")
            return output

        return marked

    def _multipliers(self, function: Callable, direction: str) -> Callable:
        """Of the implementation in the optimizer, which builds W̄ before all else, once."""

        def marked(*arguments):
            self.enter("multipliers", direction)
            function(*arguments)
            self.enter("optimizer")

        return marked

    def _enter_forward(self, part: str) -> None:
        self.enter(part, FORWARD)
        self.entered.append(part)
        self.numbers.append(torch._C._autograd._get_sequence_nr())

    def _backward(self, backward: Callable, loss: Any, *arguments, **named) -> None:
        """``torch.autograd.backward``; its nodes enter the parts that their forward belongs to.

        What comes from no loss, W̄'s gradients on their way to W, is left alone.
        """
        if not isinstance(loss, Tensor):
            backward(loss, *arguments, **named)
            return
        self.enter(*MEASURING)
        with ExitStack() as hooks:
            last = len(self.entered) - 1
            for number, node in sorted(_nodes(loss), key=lambda item: -item[0]):
                here = bisect_right(self.numbers, number) - 1
                if here != last and here >= 0:
                    enter = functools.partial(self._enter_backward, self.entered[here])
                    hooks.enter_context(node.register_prehook(enter))
                    last = here
            self.enter(self.entered[-1], BACKWARD)
            backward(loss, *arguments, **named)
            self.enter("optimizer")
        self.entered.clear()
        self.numbers.clear()

    def _enter_backward(self, part: str, *_) -> None:
        self.enter(part, BACKWARD)


def _nodes(loss: Tensor) -> list[tuple[int, Any]]:
    """Every numbered node of the graph behind ``loss``, with its number."""
    waiting = [loss.grad_fn]
    seen, numbered = set(waiting), []
    while waiting:
        node = waiting.pop()
        if (number := node._sequence_nr()) < _NUMBERED:
            numbered.append((number, node))
        children = {child for child, _ in node.next_functions if child is not None} - seen
        seen |= children
        waiting += children
    return numbered
