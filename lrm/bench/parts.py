"""Where a training step's time goes, by marks that are set from outside the model.

Every moment belongs to the part of the last mark. In the forward pass modules and kernels set
marks as they are entered and left. Autograd numbers its nodes as they are made and, on a CPU,
runs them one by one in the opposite order; so in the backward pass a part begins when the last
node of its forward is about to run.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lrm.model import ops

# Modules by the last part of their name: the part they are, and what comes when they are left.
_MODULES = {
    "input_layernorm": ("norms", "norms"),
    "pre_ff_layernorm": ("norms", "norms"),
    "final_layernorm": ("norms", "projector, loss"),
    "mamba": ("ssm in_proj", "residual"),
    "self_attn": ("attention", "residual"),
    "feed_forward": ("mlp", "residual"),
}
# Kernels by their name in ``lrm.model.ops``, which the model looks up at every call.
_KERNELS = {
    "causal_conv1d": ("ssm conv", "ssm scan"),
    "ssd": ("ssm scan", "ssm out"),
}
FORWARD, BACKWARD, NEITHER = "forward", "backward", ""
# The time that goes into finding where the parts of the backward pass begin.
MEASURING = ("measuring", NEITHER)
# Nodes that add up the gradient of a leaf carry no number of their own; they run when they can.
_NUMBERED = 2**62
Key = tuple[str, str]


class Marks:
    """While entered as a context, notes when each part of a step begins.

    The model must run eagerly, on a CPU, and its gradients must be taken by ``backward``.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.events: list[tuple[Key, float]] = []
        # Of the forward under way: its parts, and autograd's next number as each began.
        self.entered: list[str] = []
        self.numbers: list[int] = []
        self._undo: list[Callable[[], None]] = []

    def enter(self, part: str, direction: str = NEITHER) -> None:
        """From now on it is ``part``."""
        self.events.append(((part, direction), time.perf_counter()))

    def seconds(self) -> dict[Key, float]:
        """Time of every (part, direction) between the first mark and the last."""
        found: dict[Key, float] = {}
        for (key, start), (_, end) in zip(self.events, self.events[1:], strict=False):
            found[key] = found.get(key, 0.0) + end - start
        found.pop(MEASURING, None)
        return found

    def __enter__(self) -> Marks:
        self._hook(self.model, "embedding", None)
        for name, module in self.model.named_modules():
            if (parts := _MODULES.get(name.rpartition(".")[2])) is not None:
                self._hook(module, *parts)
        for name, parts in _KERNELS.items():
            self._replace(ops, name, self._kernel(getattr(ops, name), *parts))
        self._replace(torch.autograd, "backward", self._backward(torch.autograd.backward))
        return self

    def __exit__(self, *error) -> None:
        self.enter("end")
        for undo in reversed(self._undo):
            undo()

    def _hook(self, module: nn.Module, part: str, after: str | None) -> None:
        def before(*_):
            self._forward(part)

        def behind(*_):
            self._forward(after)

        self._undo.append(module.register_forward_pre_hook(before).remove)
        if after is not None:
            self._undo.append(module.register_forward_hook(behind).remove)

    def _kernel(self, function: Callable, part: str, after: str) -> Callable:
        def marked(*arguments, **named):
            self._forward(part)
            output = function(*arguments, **named)
            self._forward(after)
            return output

        return marked

    def _forward(self, part: str) -> None:
        self.enter(part, FORWARD)
        self.entered.append(part)
        self.numbers.append(torch._C._autograd._get_sequence_nr())

    def _backward(self, function: Callable) -> Callable:
        def marked(tensors, *arguments, **named):
            self.enter(*MEASURING)
            handles = self._mark_nodes([tensors] if isinstance(tensors, Tensor) else tensors)
            self.enter(self.entered[-1], BACKWARD)
            function(tensors, *arguments, **named)
            self.enter("optimizer")
            for handle in handles:
                handle.remove()
            self.entered.clear(), self.numbers.clear()

        return marked

    def _mark_nodes(self, roots: Sequence[Tensor]) -> list[Any]:
        """Have the first node of every part in the backward pass enter it; the hooks' handles."""
        handles, last = [], len(self.entered) - 1
        for number, node in sorted(_nodes(roots), key=lambda item: -item[0]):
            here = bisect_right(self.numbers, number) - 1
            if here != last and here >= 0:
                part = self.entered[here]
                handles.append(node.register_prehook(lambda *_, p=part: self.enter(p, BACKWARD)))
                last = here
        return handles

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        original = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, original))


def _nodes(roots: Sequence[Tensor]) -> list[tuple[int, Any]]:
    """Every numbered node of the graph behind ``roots``, with its number."""
    waiting = [root.grad_fn for root in roots]
    seen, found = set(waiting), []
    while waiting:
        node = waiting.pop()
        if (number := node._sequence_nr()) < _NUMBERED:
            found.append((number, node))
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return found
