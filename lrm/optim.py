"""Parameter groups, AdamW and clipping.

Every learnable tensor is in exactly one group; groups collect equal (LR, weight decay). The
schedule multiplies each group's initial LR. Weight decay is decoupled and multiplied by the
raw LR: ``W <- W - lr * weight_decay * W`` before the step (torch's AdamW).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lrm.config import OptimizerConfig, TrainConfig
from lrm.errors import UserError
from lrm.multipliers import Multipliers, Target
from lrm.rules import TensorPlan


@dataclass(frozen=True)
class Entry:
    """One learnable tensor as the optimizer sees it.

    ``leaf`` is the parameter, or a view of its rows with memory of its own for the state;
    ``base`` is where backward leaves the gradient.
    """

    keys: tuple[str, ...]  # addresses, with ``.row`` etc. for a multiplier
    leaf: nn.Parameter
    base: nn.Parameter
    rows: tuple[int, int] | None
    lr: float
    weight_decay: float
    in_clip_norm: bool


def attach(model: nn.Module, plans: Sequence[TensorPlan], implementation: str) -> Multipliers:
    """Multipliers of ``plans`` on ``model``; frozen tensors stop requiring gradients.

    A frozen slice of a merged matrix that learns elsewhere is only left out of the optimizer.
    """
    learning = {plan.address.parameter for plan in plans if plan.trainable}
    frozen = {plan.address.parameter for plan in plans} - learning
    targets = [
        Target(plan.key, plan.address.parameter, plan.address.rows, plan.factors)
        for plan in plans
        if plan.factors
    ]
    parameters = dict(model.named_parameters())
    for name in frozen - {target.parameter for target in targets}:
        parameters[name].requires_grad_(False)
    return Multipliers(model, targets, implementation, frozen)


def entries(model: nn.Module, plans: Sequence[TensorPlan], multipliers: Multipliers) -> list[Entry]:
    """Every learnable tensor of the model and its multipliers, each entry exactly once."""
    parameters = dict(model.named_parameters())
    found: list[Entry] = []
    by_parameter: dict[str, list[TensorPlan]] = {}
    for plan in plans:
        by_parameter.setdefault(plan.address.parameter, []).append(plan)
    for name, group in by_parameter.items():
        base = multipliers.weights[name] if name in multipliers.weights else parameters[name]
        for same in _neighbours(group):
            first = same[0]
            if not first.trainable:
                continue
            whole = len(same) == len(group)
            rows = None if whole else (same[0].address.rows[0], same[-1].address.rows[1])
            leaf = base if whole else nn.Parameter(base.data[rows[0] : rows[1]])
            keys = tuple(plan.key for plan in same)
            found.append(Entry(keys, leaf, base, rows, first.lr, first.weight_decay, True))
    settings = {(plan.key, factor.axis): factor for plan in plans for factor in plan.factors}
    for key, axis, parameter in multipliers.named_factors():
        factor = settings[key, axis]
        found.append(
            Entry(
                (f"{key}.{axis}",),
                parameter,
                parameter,
                None,
                factor.lr,
                factor.weight_decay,
                factor.in_clip_norm,
            )
        )
    _check_complete(found, plans)
    return found


def _neighbours(group: list[TensorPlan]) -> list[list[TensorPlan]]:
    """Slices of one parameter in runs of equal optimizer settings."""
    runs: list[list[TensorPlan]] = []
    for plan in sorted(group, key=lambda plan: plan.address.rows or (0, 0)):
        settings = (plan.trainable, plan.lr, plan.weight_decay)
        if runs and settings == (runs[-1][0].trainable, runs[-1][0].lr, runs[-1][0].weight_decay):
            runs[-1].append(plan)
        else:
            runs.append([plan])
    return runs


def _check_complete(found: list[Entry], plans: Sequence[TensorPlan]) -> None:
    have = [key for entry in found for key in entry.keys]
    want = [plan.key for plan in plans if plan.trainable]
    want += [f"{plan.key}.{factor.axis}" for plan in plans for factor in plan.factors]
    assert sorted(have) == sorted(want), "every tensor belongs to exactly one group"


class Optimizer:
    """AdamW over the entries, with clipping that leaves multipliers out (section 4.3).

    The clipping norm is the global L2 norm of the gradients of all entries with
    ``in_clip_norm``, and only those are scaled: what is not in the norm is not clipped.
    """

    def __init__(self, found: Sequence[Entry], config: OptimizerConfig, train: TrainConfig):
        self.entries = list(found)
        if not self.entries:
            raise UserError("the rules freeze every tensor; leave something to train")
        self.clip_norm = train.clip_norm
        groups: dict[tuple[float, float], list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault((entry.lr, entry.weight_decay), []).append(entry)
        self.groups = list(groups.items())
        self.adamw = torch.optim.AdamW(
            [
                {"params": [entry.leaf for entry in members], "lr": lr, "weight_decay": decay}
                for (lr, decay), members in self.groups
            ],
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )
        self._clipped = [entry.leaf for entry in self.entries if entry.in_clip_norm]
        self._views = [entry for entry in self.entries if entry.rows is not None]

    def table(self) -> list[dict]:
        """The groups as records: LR, weight decay, their product, members, size."""
        return [
            {
                "lr": lr,
                "weight_decay": decay,
                "lr_wd": lr * decay,
                "parameters": sum(entry.leaf.numel() for entry in members),
                "tensors": [key for entry in members for key in entry.keys],
            }
            for (lr, decay), members in self.groups
        ]

    def step(self, lr_factor: float) -> tuple[Tensor, Tensor]:
        """Clip and update with every group's LR times ``lr_factor``.

        Returns (global gradient norm before clipping, whether it was clipped), both scalars.
        """
        for entry in self._views:
            entry.leaf.grad = entry.base.grad[entry.rows[0] : entry.rows[1]]
        gradients = [leaf.grad for leaf in self._clipped if leaf.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(self._clipped, self.clip_norm, norm)
        for group, ((lr, _), _) in zip(self.adamw.param_groups, self.groups, strict=True):
            group["lr"] = lr * lr_factor
        self.adamw.step()
        return norm, norm > self.clip_norm if self.clip_norm else torch.zeros_like(norm, dtype=bool)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for entry in self.entries:
            entry.base.grad = None
            entry.leaf.grad = None
