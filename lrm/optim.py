"""Parameter groups, AdamW beside Muon, and clipping.

Every learnable tensor is in exactly one group; groups collect equal (optimizer, LR, weight
decay). Which optimizer moves a tensor is said by its plan (``lrm.rules``). The schedule
multiplies each group's initial LR. Weight decay is decoupled and multiplied by the raw LR:
``W <- W - lr * weight_decay * W`` before the step (torch's AdamW).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from lrm.config import OptimizerConfig, TrainConfig
from lrm.errors import UserError
from lrm.multipliers import Multipliers, Target
from lrm.muon import Muon
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
    optimizer: str = "adamw"
    matrix: str | None = None  # entries of one name are orthogonalised as one matrix by Muon


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
    parameters = {**dict(model.named_parameters()), **multipliers.weights}
    found: list[Entry] = []
    by_parameter: dict[str, list[TensorPlan]] = {}
    for plan in plans:
        by_parameter.setdefault(plan.address.parameter, []).append(plan)
    for name, group in by_parameter.items():
        base = parameters[name]
        for same in _neighbours(group):
            first = same[0]
            if not first.trainable:
                continue
            whole = len(same) == len(group)
            rows = None if whole else (same[0].address.rows[0], same[-1].address.rows[1])
            leaf = base if whole else nn.Parameter(base.data[rows[0] : rows[1]])
            keys = tuple(plan.key for plan in same)
            matrix = first.matrix.name if first.matrix else None
            rates = (first.lr, first.weight_decay)
            found.append(Entry(keys, leaf, base, rows, *rates, True, first.optimizer, matrix))
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
        if runs and _optimized(plan) == _optimized(runs[-1][0]):
            runs[-1].append(plan)
        else:
            runs.append([plan])
    return runs


def _optimized(plan: TensorPlan) -> tuple:
    return plan.trainable, plan.lr, plan.weight_decay, plan.matrix


def _check_complete(found: list[Entry], plans: Sequence[TensorPlan]) -> None:
    have = [key for entry in found for key in entry.keys]
    want = [plan.key for plan in plans if plan.trainable]
    want += [f"{plan.key}.{factor.axis}" for plan in plans for factor in plan.factors]
    assert sorted(have) == sorted(want), "every tensor belongs to exactly one group"


def _adamw(groups: list[dict], members: list[Entry], config: OptimizerConfig) -> AdamW:
    betas = (config.beta1, config.beta2)
    return AdamW(groups, betas=betas, eps=config.eps, fused=True)


def _muon(groups: list[dict], members: list[Entry], config: OptimizerConfig) -> Muon:
    matrices: dict[str | None, list[nn.Parameter]] = {}
    for entry in members:
        matrices.setdefault(entry.matrix, []).append(entry.leaf)
    return Muon(groups, list(matrices.values()), config)


_BUILDERS = {"adamw": _adamw, "muon": _muon}


class Optimizer:
    """AdamW and Muon over the entries, with clipping that leaves multipliers out (section 4.3).

    ``parts`` holds torch's optimizer of each name that an entry asks for.

    The clipping norm is the global L2 norm of the gradients of all entries with
    ``in_clip_norm``, and only those are scaled: what is not in the norm is not clipped.
    """

    def __init__(self, found: Sequence[Entry], config: OptimizerConfig, train: TrainConfig):
        self.entries = list(found)
        if not self.entries:
            raise UserError("the rules freeze every tensor; leave something to train")
        self.clip_norm = train.clip_norm
        self.parts: dict[str, torch.optim.Optimizer] = {}
        self.groups: dict[str, list[tuple[tuple[float, float], list[Entry]]]] = {}
        for name in dict.fromkeys(entry.optimizer for entry in self.entries):
            members = [entry for entry in self.entries if entry.optimizer == name]
            groups: dict[tuple[float, float], list[Entry]] = {}
            for entry in members:
                groups.setdefault((entry.lr, entry.weight_decay), []).append(entry)
            self.groups[name] = list(groups.items())
            self.parts[name] = _BUILDERS[name](
                [
                    {"params": [entry.leaf for entry in same], "lr": lr, "weight_decay": decay}
                    for (lr, decay), same in self.groups[name]
                ],
                members,
                config,
            )
        self._clipped = [entry.leaf for entry in self.entries if entry.in_clip_norm]
        self._views = [entry for entry in self.entries if entry.rows is not None]

    def table(self) -> list[dict]:
        """The groups as records: optimizer, LR, weight decay, their product, members, size."""
        return [
            {
                "optimizer": name,
                "lr": lr,
                "weight_decay": decay,
                "lr_wd": lr * decay,
                "parameters": sum(entry.leaf.numel() for entry in members),
                "tensors": [key for entry in members for key in entry.keys],
            }
            for name, groups in self.groups.items()
            for (lr, decay), members in groups
        ]

    def step(self, lr_factor: float) -> tuple[Tensor, Tensor]:
        """Clip and update with every group's LR times ``lr_factor``.

        Returns (global gradient norm before clipping, whether it was clipped), both scalars.
        """
        for entry in self._views:
            entry.leaf.grad = entry.base.grad[entry.rows[0] : entry.rows[1]]
        gradients = [leaf.grad for leaf in self._clipped if leaf.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        # Where asking costs nothing a factor of 1 is not multiplied by.
        if self.clip_norm and (norm.is_cuda or norm > self.clip_norm - 1e-5):
            torch.nn.utils.clip_grads_with_norm_(self._clipped, self.clip_norm, norm)
        for name, part in self.parts.items():
            for group, ((lr, _), _) in zip(part.param_groups, self.groups[name], strict=True):
                group["lr"] = lr * lr_factor
            part.step()
        return norm, norm > self.clip_norm if self.clip_norm else torch.zeros_like(norm, dtype=bool)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for entry in self.entries:
            entry.base.grad = None
            entry.leaf.grad = None
