"""Judging functions of C0 to C2: multipliers in or out of the norm that clips (section 4.3)."""

from __future__ import annotations

import pandas as pd

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement, reads
from analysis.quantities.grad_clipping import (
    EARLY,
    EXCLUDED,
    INCLUDED,
    NONE,
    clipped,
    early,
    gradient_norms,
)
from analysis.quantities.losses import losses_by_arm
from analysis.tables.results import Tables


def c0(tables: Tables, criterion: dict) -> Judgement:
    """Loss with multipliers in the norm minus that without multipliers, paired."""
    losses = losses_by_arm(tables)
    gap = losses[INCLUDED] - losses[NONE]
    parts = [at_least("included − no multipliers (nats)", gap, -criterion["thresholds"]["margin"])]
    return _clipping(tables, criterion, parts)


@reads(gradients=EARLY)
def c1(tables: Tables, criterion: dict) -> Judgement:
    """Early in training: multipliers' share of the squared norm, and how much is clipped."""
    limits = criterion["thresholds"]
    norms = early(gradient_norms(tables))
    included = norms[norms["arm"] == INCLUDED].pivot_table("value", ["seed", "step"], "quantity")
    share = ((included["multipliers"] / included["all"]) ** 2).groupby("seed").mean()
    shares = clipped(tables)
    # Of all early steps: what is left out of the norm is not in the global one.
    excluded = tables.pick(arm=EXCLUDED, stat="global_gradient_norm")
    largest = early(excluded).groupby("seed")["value"].max()
    dominate, below = "multipliers dominate the norm", "the norm without them is small"
    parts = [
        at_least("multipliers' share of the squared norm", share, limits["share"], dominate),
        at_least("included: share of steps clipped", shares[INCLUDED], limits["clipped"], dominate),
        at_most("excluded: largest norm", largest, limits["below"], below),
        at_most("excluded: share of steps clipped", shares[EXCLUDED], limits["free"], below),
    ]
    return judgement(criterion, parts)


def c2(tables: Tables, criterion: dict) -> Judgement:
    """Loss with multipliers in the norm minus that with them left out, paired."""
    gap = _gain(tables)
    parts = [at_least("included − excluded (nats)", gap, criterion["thresholds"]["better"])]
    return _clipping(tables, criterion, parts)


def c2_2(tables: Tables, criterion: dict) -> Judgement:
    """The same against 0, with the smallest gain that matters."""
    limit, matters = criterion["thresholds"]["better"], criterion["smallest_effect"]
    parts = [at_least("included − excluded (nats)", _gain(tables), limit, matters=matters)]
    return _clipping(tables, criterion, parts)


def _gain(tables: Tables) -> pd.Series:
    losses = losses_by_arm(tables)
    return losses[INCLUDED] - losses[EXCLUDED]


def _clipping(tables: Tables, criterion: dict, parts: list[Part]) -> Judgement:
    """A difference of losses means something only where an arm clips."""
    shares = clipped(tables)[INCLUDED]
    contrast = [at_least("included: early steps clipped", shares, criterion["clips"])]
    losses = losses_by_arm(tables)
    means = (losses.sub(losses[NONE], axis=0)).mean()
    note = "minus no multipliers: " + ", ".join(
        f"{arm.lower()} {means[arm]:+.4f}" for arm in (EXCLUDED, INCLUDED)
    )
    return judgement(criterion, parts, note, contrast=contrast)
