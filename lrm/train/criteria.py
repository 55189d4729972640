"""What layers, and the updates of single steps, may do in the worst case over inputs.

The criteria are those of ``lrm.optim.criteria``, of effective weights. Vectors beside norms,
convolutions and whatever else *Beyond MuP 3* does not treat have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lrm.optim import criteria
from lrm.plan.rules import TensorPlan
from lrm.train.probes import Scalars, Views, to_floats

_BY_ROLE = {"matrix": criteria.of_linear, "norm": criteria.of_gain}
_BY_NAME = {"embedding": criteria.of_embedding, "projector": criteria.of_head}


class Criteria:
    """Those of the tensors of ``views``; and, of the step after ``hold``, of their updates."""

    def __init__(self, views: Views):
        self._views = views
        self._before: dict[str, Tensor] = {}

    def hold(self) -> None:
        """Keep the values there are: a step comes whose update will be measured."""
        self._before = {plan.key: self._value(plan).clone() for plan in self._views.plans
                        if _of(plan) is not None}  # fmt: skip

    @torch.no_grad()
    def result(self) -> Scalars:
        """``criterion`` of every tensor that has one, and ``update_criterion`` since ``hold``.

        The latter only directly after a step that was held; nothing is held afterwards.
        """
        found: dict[str, dict[str, Tensor]] = {"criterion": {}}
        for plan in self._views.plans:
            criterion = _of(plan)
            if criterion is None:
                continue
            value = self._value(plan)
            found["criterion"][plan.key] = _finite(criterion, value)
            if self._before:
                update = _finite(criterion, value - self._before[plan.key])
                found.setdefault("update_criterion", {})[plan.key] = update
        self._before = {}
        return to_floats(found)

    def _value(self, plan: TensorPlan) -> Tensor:
        value = self._views.effective(plan)
        return value.float() if value.dtype.itemsize < 4 else value


def _finite(criterion: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """NaN where a value is not finite: the loop ends such a run at the next losses it writes."""
    return criterion(value) if value.isfinite().all() else value.new_tensor(math.nan)


def _of(plan: TensorPlan):
    return _BY_NAME.get(plan.address.name) or _BY_ROLE.get(plan.address.role)
