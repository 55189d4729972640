"""A point of the search, and the layer of settings that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lrm.errors import UserError
from lrm.model.tensors import matches
from lrm.plan.rules import TensorPlan
from lrm.plan.run import TrainRun
from lrm.plan.search import Quantity, Search


@dataclass(frozen=True)
class Point:
    """A base LR, in steps of the grid from the arm's, and the factors that are not 1.

    ``factors`` maps, as sorted items, what is tuned and of which group to its factor.
    """

    lr: int = 0
    factors: tuple[tuple[tuple[Quantity, str], float], ...] = ()

    def factor(self, tune: Quantity, group: str) -> float:
        return dict(self.factors).get((tune, group), 1.0)

    def times(self, tune: Quantity, group: str, factor: float) -> Point:
        """The point with one more factor on a group."""
        found = dict(self.factors)
        found[tune, group] = self.factor(tune, group) * factor
        kept = {key: value for key, value in found.items() if value != 1.0}
        return Point(self.lr, tuple(sorted(kept.items())))

    def at(self, lr: int) -> Point:
        """The same factors at another base LR."""
        return Point(lr, self.factors)

    @property
    def said(self) -> tuple[str, ...]:
        """Its factors in words."""
        return tuple(f"{tune.replace('_', ' ')} of {group} ×{value:g}"
                     for (tune, group), value in self.factors)  # fmt: skip


def layer(point: Point, search: Search, base: TrainRun) -> dict[str, Any]:
    """Settings that make of the run ``base`` the point's: base LR, multipliers' LR, rules.

    A forward factor of tensors with multipliers is where their multipliers start, the rows where
    there are two axes, with an LR in proportion (a step is the same share). With ``scaled_decay``
    their weight decay is in inverse proportion (so is what it takes off). Raises UserError for a
    group of which some tensors have multipliers and others not.
    """
    settings, plans = base.settings, base.plans
    own_lr, decay = settings.multipliers.lr, settings.multipliers.weight_decay
    own_decay = decay if search.scaled_decay and decay else None
    for (tune, group), factor in point.factors:
        if tune == "lr" and search.has_multipliers(group):
            own_lr *= factor
    rules = []
    for group in search.groups:
        for pattern in search.patterns(group):
            matched = [plan for plan in plans if matches(pattern, plan.address)]
            if rule := _rule(point, group, pattern, matched, own_lr, own_decay):
                rules.append({"match": pattern, **rule})
    found: dict[str, Any] = {"optimizer": {"lr": _rounded(
        settings.optimizer.lr * search.lr_ratio**point.lr)}}  # fmt: skip
    if own_lr != settings.multipliers.lr and any(plan.multipliers for plan in plans):
        found["multipliers"] = {"lr": _rounded(own_lr)}
    return {**found, **({"rules": rules} if rules else {})}


def _rule(
    point: Point,
    group: str,
    pattern: str,
    matched: Sequence[TensorPlan],
    own_lr: float,
    own_decay: float | None,
) -> dict[str, Any]:
    rule: dict[str, Any] = {}
    if not matched:
        return rule
    for tune, name in (("lr", "lr_scale"), ("weight_decay", "wd_scale")):
        if (factor := point.factor(tune, group)) != 1.0:
            rule[name] = factor
    factor = point.factor("forward", group)
    if factor == 1.0:
        return rule
    axes = {plan.multipliers[0].axis if plan.multipliers else None for plan in matched}
    if len(axes) > 1:
        raise UserError(
            f"search.groups.{group}: some tensors of {pattern!r} have multipliers and others have "
            "none, or other ones; make two groups of them"
        )
    axis = axes.pop()
    if axis is None:
        return {**rule, "forward_scale": factor}
    start = {"init": factor, "lr": _rounded(factor * own_lr)}
    if own_decay is not None:
        start["weight_decay"] = _rounded(own_decay / factor)
    return {**rule, "multiplier": start if axis == "scalar" else {axis: start}}


def _rounded(value: float) -> float:
    """To six digits, so that a file shows the number that was used."""
    return float(f"{value:.6g}")
