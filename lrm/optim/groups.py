"""What the plans mean for a model: its values, multipliers, and each learnable tensor's group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from lrm.model.falcon_h1 import FalconH1
from lrm.model.gpu.adapters import PLAIN, Kernels
from lrm.model.init import initialize
from lrm.model.transformers import take_weights
from lrm.multipliers.attach import Multipliers
from lrm.multipliers.groups import Entry, multiplier_entries
from lrm.multipliers.multiplier import Target
from lrm.multipliers.sharding import is_distributed
from lrm.optim.rows import Rows
from lrm.plan.config import Settings
from lrm.plan.rules import TensorPlan, point_factors


def initial_model(
    settings: Settings,
    seed: int,
    plans: Sequence[TensorPlan],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    kernels: Kernels = PLAIN,
) -> FalconH1:
    """The model with the initial values that ``plans`` and ``seed`` give it, and its factors.

    Without multipliers yet (``attach``). On the meta device it has no values.
    """
    forward = {plan.key: plan.forward for plan in plans if plan.forward != 1.0}
    forward |= point_factors(settings)
    with torch.device(device):
        model = FalconH1(settings.model, forward, kernels).to(dtype)
    if torch.device(device).type != "meta":
        scales = {plan.key: plan.init_scale for plan in plans if plan.init_scale != 1.0}
        seeds = {plan.key: plan.init_seed for plan in plans if plan.init_seed is not None}
        initialize(model, settings.model, seed, scales, seeds)
        if settings.train.start is not None:
            take_weights(model, settings.train.start)
    return model


def attach(model: nn.Module, plans: Sequence[TensorPlan], implementation: str) -> Multipliers:
    """Multipliers of ``plans`` on ``model``; frozen tensors stop requiring gradients.

    A frozen slice of a merged matrix that learns elsewhere is only left out of the optimizer.
    """
    learning = {plan.address.parameter for plan in plans if plan.trainable}
    frozen = {plan.address.parameter for plan in plans} - learning
    targets = [
        Target(plan.key, plan.address.parameter, plan.address.rows, plan.multipliers)
        for plan in plans
        if plan.multipliers
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
        base = parameters[name]
        for same in _neighbours(group):
            first = same[0]
            if not first.trainable:
                continue
            whole = len(same) == len(group)
            rows = None if whole else (same[0].address.rows[0], same[-1].address.rows[1])
            leaf = base
            if rows is not None or is_distributed(base):
                leaf = nn.Parameter(Rows(base, rows).take(base.data))
            keys = tuple(plan.key for plan in same)
            matrix = first.matrix.name if first.matrix else None
            rates = (first.lr, first.weight_decay)
            mover = (first.optimizer, matrix, first.options)
            found.append(Entry(keys, leaf, base, rows, *rates, True, *mover))
    found += multiplier_entries(multipliers)
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
    # What is normalised as one is no longer than an address.
    own = plan.key if plan.optimizer == "normalized" else None
    return (plan.trainable, plan.lr, plan.weight_decay, plan.matrix, plan.optimizer, plan.options,
            own)  # fmt: skip


def _check_complete(found: list[Entry], plans: Sequence[TensorPlan]) -> None:
    have = [key for entry in found for key in entry.keys]
    want = [plan.key for plan in plans if plan.trainable]
    want += [f"{plan.key}.{each.axis}" for plan in plans for each in plan.multipliers]
    assert sorted(have) == sorted(want), "every tensor belongs to exactly one group"
