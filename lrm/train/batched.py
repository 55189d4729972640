"""Runs of one shape, trained at once: their parameters lie stacked, and one pass serves all.

The parameters of every run are views of stacked tensors with a leading dimension of runs. The
forward and the backward pass go over the stack (``torch.func.vmap``). Everything else stays that of
each run: its multipliers, its optimizer with its rates and its clipping, what is measured, and what
a checkpoint holds. Hence a run that was begun here may go on by itself, and the other way around.

The passes of one run do not depend on what the others compute, be it no number. They differ from
those of a run by itself by rounding, since products of stacks add in another order.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lrm.model.gpu.adapters import PLAIN, Kernels
from lrm.model.loss import linear_cross_entropy
from lrm.optim.groups import entries
from lrm.optim.together import OptimizersTogether
from lrm.plan.config import Settings
from lrm.plan.schedule import lr_factor
from lrm.train import compiled
from lrm.train.learner import Learner


def usable(kernels: Kernels) -> bool:
    """Whether all operations are torch's own, which know of a leading dimension."""
    return kernels == PLAIN


class Each(nn.Module):
    """A module of one model, and its parameters in each run: ``stacked``, by their names in it."""

    def __init__(self, module: nn.Module, stacked: dict[str, Tensor]):
        super().__init__()
        self.module, self.stacked = module, stacked

    def forward(self, parameters: dict[str, Tensor], *inputs: Tensor) -> Any:
        """Of ``parameters``, which are ``stacked``, and inputs; all have a dimension of runs first.

        Compiled code takes as an argument what changes from step to step.
        """
        return vmap(functools.partial(functional_call, self.module))(parameters, inputs)


class _Weight(nn.Module):
    """What readers of a module's weight get: W̄ where it has multipliers."""

    def __init__(self, of: nn.Module):
        super().__init__()
        self.of = of

    def forward(self) -> Tensor:
        return self.of.weight


class Batch:
    """``learners`` of one shape, whose training steps are taken together.

    Their parameters are moved into the stack, so that a learner is used and loaded as before.
    ``settings`` are those of each; what ``lrm.sweep.together.shape`` tells apart must be equal.
    """

    def __init__(self, learners: Sequence[Learner], settings: Sequence[Settings]):
        self.learners, self.settings = list(learners), list(settings)
        self._named = [dict(learner.model.named_parameters()) for learner in self.learners]
        self._stacked: dict[str, Tensor] = {}
        for name, first in self._named[0].items():
            stack = torch.stack([own[name].detach() for own in self._named])
            for own, part in zip(self._named, stack.unbind(), strict=True):
                own[name].data = part
            self._stacked[name] = stack.requires_grad_(first.requires_grad)
        for learner in self.learners:
            # Slices of merged matrices are leaves with the memory of what they are slices of.
            found = entries(learner.model, learner.plans, learner.multipliers)
            learner.optimizer = learner.optimizer.of(found)
        self._optimizers: OptimizersTogether | None = None
        model = self.learners[0].model
        self._embedding = self._each("model.embed_tokens", model.model.embed_tokens)
        self.layers = nn.ModuleList(
            self._each(f"model.layers.{number}", layer)
            for number, layer in enumerate(model.model.layers)
        )
        self._norm = self._each("model.final_layernorm", model.model.final_layernorm)
        self._projector = self._each("lm_head", _Weight(model.lm_head), "of.")
        self._factors = model.forward_multipliers

    def _each(self, name: str, module: nn.Module, within: str = "") -> Each:
        prefix = f"{name}."
        own = [key for key in self._stacked if key.startswith(prefix)]
        return Each(module, {within + key.removeprefix(prefix): self._stacked[key] for key in own})

    def add_gradients(self, batches: Tensor, autocast: Any = None) -> Tensor:
        """Gradients of each run's mean objective over its batch; the cross-entropies (runs,).

        ``batches`` (runs, sequences, length + 1), int64. The gradients are in the stack alone.
        """
        z_loss = self.settings[0].train.z_loss
        tokens, targets = batches[..., :-1], batches[..., 1:]
        with autocast or contextlib.nullcontext():
            stream = self._embedding(self._embedding.stacked, tokens)
            stream = stream * self._factors.get("embedding", 1.0)
            for layer in self.layers:
                stream = layer(layer.stacked, stream)
            hidden = self._norm(self._norm.stacked, stream)
            weight = self._projector(self._projector.stacked)
            loss = functools.partial(
                linear_cross_entropy, z_loss=z_loss, factor=self._factors.get("projector", 1.0)
            )
            if batches.is_cuda:
                losses, objectives = vmap(loss)(hidden, weight, targets)
            else:  # the logits of one run fit a core's cache
                found = map(loss, hidden.unbind(), weight.unbind(), targets.unbind())
                losses, objectives = map(torch.stack, zip(*found, strict=True))
        # Not torch.autograd.grad, whose gradients need not lie as the parameters do; the fused
        # AdamW goes through both as they lie.
        objectives.sum().backward()
        return losses.detach()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Those that are in the stack, by the names of parameters; a dimension of runs first."""
        for name, stack in self._stacked.items():
            if stack.grad is not None:
                yield name, stack.grad

    def zero_grad(self) -> None:
        """Forget the gradients in the stack."""
        for stack in self._stacked.values():
            stack.grad = None

    def step(
        self, batches: Tensor, step: int, taking_part: Sequence[bool], autocast: Any = None
    ) -> list[tuple[Tensor, Tensor, Tensor] | None]:
        """One update of each run on its batch; what ``train_step`` returns of each.

        A run that is not ``taking_part`` is computed, and left as it is: it has None.
        """
        if self._optimizers is None:  # by now every run has the state that it goes on from
            schedules = [each.schedule for each in self.settings]
            optimizers = [learner.optimizer for learner in self.learners]
            self._optimizers = OptimizersTogether(optimizers, schedules)
        self.zero_grad()
        compiled.begin_step()
        losses = self.add_gradients(batches, autocast)
        for name, gradient in self.gradients():
            for own, part in zip(self._named, gradient.unbind(), strict=True):
                own[name].grad = part
        factors = [lr_factor(each.schedule, each.train.steps, step) for each in self.settings]
        for learner, moves in zip(self.learners, taking_part, strict=True):
            if not moves:
                learner.zero_grad()
        moved = self._optimizers.step(factors, taking_part)
        return [
            None if found is None else (loss, *found)
            for loss, found in zip(losses, moved, strict=True)
        ]
