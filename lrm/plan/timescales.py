"""Dimensionless products that decide what a run can show. No torch here.

At a small scale the paper's constants mean nothing; these do:

* ``lr_wd_t``: Σ_t η_t λ, how often the initial weights are forgotten; an equilibrium is judged
  from 5 on, and where it also exceeds ``needed``, ln(‖W₀‖ / 0.3 ‖W‖eq);
* ``travel``: Σ_t η_t, the farthest that Adam moves one multiplier;
* ``step``: η over the initial value, one step at the constant stage relative to the multiplier
  (η itself where its logarithm is learned).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lrm.plan.config import Settings
from lrm.plan.newton_schulz import noise_gain
from lrm.plan.rules import TensorPlan
from lrm.plan.schedule import lr_factors


def equilibrium_norm(lr: float, weight_decay: float) -> float:
    """sqrt(η / 2λ): the leading order for Adam without schedule; infinite without decay.

    Muon's is ``lrm.plan.newton_schulz.noise_gain`` times that.
    A guide for tables. Measured norms are compared with Brownian motion under the schedule.
    """
    return math.sqrt(lr / (2 * weight_decay)) if weight_decay else math.inf


def initial_norm(plan: TensorPlan, settings: Settings) -> float:
    """Root mean square of a tensor's entries at initialisation."""
    spread = settings.model.initializer_range
    if spread == "fan_in":
        spread = plan.address.shape[-1] ** -0.5
    return plan.address.initial.size(spread) * plan.init_scale


def products(plans: Sequence[TensorPlan], settings: Settings) -> list[dict[str, Any]]:
    """One record for each decaying tensor, each multiplier and each norm that learns.

    The equilibrium under noise is known for AdamW and Muon alone.
    """
    total = float(lr_factors(settings.schedule, settings.train.steps).sum())
    found: list[dict[str, Any]] = []
    for plan in plans:
        if plan.trainable and plan.weight_decay and plan.lr:
            start, target = (
                initial_norm(plan, settings),
                equilibrium_norm(plan.lr, plan.weight_decay),
            )
            if plan.matrix:
                target *= noise_gain(plan.matrix.rows, plan.matrix.columns, settings.optimizer)
            lr_wd_t = plan.lr * plan.weight_decay * total
            record = {"tensor": plan.key, "lr_wd_t": lr_wd_t, "initial_norm": start}
            if plan.optimizer in ("adamw", "muon"):
                record["needed"] = max(0.0, math.log(start / (0.3 * target))) if start else 0.0
                record["equilibrium_norm"] = target
            if plan.address.role == "norm":
                record |= {"travel": plan.lr * total, "step": plan.lr}
            found.append(record)
        for each in plan.multipliers:
            found.append(
                {
                    "tensor": f"{plan.key}.{each.axis}",
                    "lr_wd_t": each.lr * each.weight_decay * total,
                    "travel": each.lr * total,
                    "step": each.parametrization.relative_step(each.lr, each.init),
                }
            )
        if plan.trainable and plan.address.role == "norm" and not plan.weight_decay:
            found.append(
                {
                    "tensor": plan.key,
                    "lr_wd_t": 0.0,
                    "travel": plan.lr * total,
                    "step": plan.lr,
                }
            )
    return found
