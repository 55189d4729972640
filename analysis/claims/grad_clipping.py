"""Judging functions of C0 to C2: multipliers in or out of the norm that clips (section 4.3)."""

from __future__ import annotations

from analysis.claims.judging import Component, Judgement, at_least, at_most, judgement, reads
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
    found = [at_least("included − no multipliers (nats)", gap, -criterion["thresholds"]["margin"])]
    return _clipping(tables, criterion, found)


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
    found = [
        at_least("multipliers' share of the squared norm", share, limits["share"]),
        at_least("included: share of steps clipped", shares[INCLUDED], limits["clipped"]),
        at_most("excluded: largest norm", largest, limits["below"]),
        at_most("excluded: share of steps clipped", shares[EXCLUDED], limits["free"]),
    ]
    return judgement(criterion, found)


def c2(tables: Tables, criterion: dict) -> Judgement:
    """Loss with multipliers in the norm minus that with them left out, paired."""
    losses = losses_by_arm(tables)
    gap = losses[INCLUDED] - losses[EXCLUDED]
    found = [at_least("included − excluded (nats)", gap, criterion["thresholds"]["better"])]
    return _clipping(tables, criterion, found)


def _clipping(tables: Tables, criterion: dict, found: list[Component]) -> Judgement:
    """A difference of losses means something only where an arm clips."""
    shares = clipped(tables)[INCLUDED]
    contrast = [at_least("included: early steps clipped", shares, criterion["clips"])]
    losses = losses_by_arm(tables)
    means = (losses.sub(losses[NONE], axis=0)).mean()
    note = "minus no multipliers: " + ", ".join(
        f"{arm.lower()} {means[arm]:+.4f}" for arm in (EXCLUDED, INCLUDED)
    )
    return judgement(criterion, found, note, contrast=contrast)
