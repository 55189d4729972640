"""Judging functions of S0 to S4: multipliers along symmetries (section 4.1).

All values are natural logarithms, and norms are root mean squares. "Late" is the second half of the
constant stage, at whose end everything is read. Those who write to the residual stream are the
embedding and the outputs of attention, SSM and MLP, each a mean over layers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement, reads, within
from analysis.quantities import symmetry
from analysis.quantities.symmetry import FREE, FREE_ORDER, LIGHT, LITERAL, NONE, WRITERS
from analysis.tables.results import Tables

ATTENTION, STREAM, GROWS = "Q against K", "residual stream", "the stream grows"


@reads(symmetry.Q, symmetry.K)
def s0(tables: Tables, criterion: dict) -> Judgement:
    """Without multipliers nothing moves along the symmetries; with them rows of Q and K do."""
    limits = criterion["thresholds"]
    still, contrast = _rotated_pairs(tables, limits)
    common = within("late change of ln norms, common to the four writers",
                    symmetry.joint_growth(tables, NONE), -limits["growth"], limits["growth"],
                    STREAM)  # fmt: skip
    return judgement(criterion, [still, common], _by_writer(tables, NONE), [contrast])


@reads(symmetry.Q, symmetry.K)
def s0_2(tables: Tables, criterion: dict) -> Judgement:
    """The same, of the stream by the mean over the writers, which multipliers do move."""
    limits = criterion["thresholds"]
    still, contrast = _rotated_pairs(tables, limits)
    with_them, without = (symmetry.mean_growth(tables, arm) for arm in (FREE, NONE))
    mean = within("late change of ln norms, mean over the four writers", without,
                  -limits["growth"], limits["growth"], STREAM)  # fmt: skip
    moves = at_least("late change of ln norms with multipliers, less that without",
                     with_them - without, limits["moves"], STREAM)  # fmt: skip
    return judgement(criterion, [still, mean], _by_writer(tables, NONE), [contrast, moves])


def _rotated_pairs(tables: Tables, limits: dict) -> tuple[Part, Part]:
    """How far rows of Q and K lie apart without multipliers; how much further with them."""
    still = symmetry.spread(symmetry.pairs(tables, NONE, "row_norms"))["ratio"]
    moved = symmetry.spread(symmetry.pairs(tables, FREE, "effective_row_norms"))["ratio"]
    return (
        at_most("spread of ln (Q / K) over rotated pairs", still, limits["drift"], ATTENTION),
        at_least("ln of that spread with multipliers over that without", np.log(moved / still),
                 limits["contrast"], ATTENTION),
    )  # fmt: skip


@reads(symmetry.Q, symmetry.K)
def s1(tables: Tables, criterion: dict) -> Judgement:
    """Ratios of rotated pairs drift, products stay; ours: the data decide products alone."""
    limits = criterion["thresholds"]
    one, other = (symmetry.pairs(tables, arm) for arm in (FREE, FREE_ORDER))
    apart = symmetry.spread(one.sub(other))
    noise = symmetry.spread(symmetry.brownian_pairs(tables, FREE), "draw").mean()
    drift = symmetry.spread(one)["ratio"] / noise["ratio"]
    repeats = {
        name: [
            np.corrcoef(table[name], other.loc[seed][name])[0, 1]
            for seed, table in one.groupby(level="seed")
        ]
        for name in ("product", "ratio")
    }
    return judgement(criterion, [
        at_least("spread of ln (Q / K), relative to Brownian motion's", drift, limits["drift"],
                 "the ratio drifts"),
        at_least("ln (ratios' / products' difference between two data orders)",
                 np.log(apart["ratio"] / apart["product"]), limits["excess"],
                 "the product is stable"),
        at_most("correlation of ln (Q / K) between data orders", repeats["ratio"],
                limits["random"], "the ratio is random", ours=True),
        at_least("correlation of ln (Q · K) between data orders", repeats["product"],
                 limits["repeats"], "the product is learned", ours=True),
    ])  # fmt: skip


@reads(symmetry.Q, symmetry.K)
def s2(tables: Tables, criterion: dict) -> Judgement:
    """Light weight decay stops the drift of Q/K."""
    free, light, literal = (
        symmetry.spread(symmetry.pairs(tables, arm))["ratio"] for arm in (FREE, LIGHT, LITERAL)
    )
    less = at_most("ln of the spread of ln (Q / K) with light weight decay over that without",
                   np.log(light / free), criterion["thresholds"]["less"],
                   matters=criterion["smallest_effect"])  # fmt: skip
    return judgement(criterion, [less], f"literal 2e-3: {np.log(literal / free).mean():+.3f}")


def s3(tables: Tables, criterion: dict) -> Judgement:
    """Without weight decay all that is written to the residual stream grows."""
    growth, without = (symmetry.joint_growth(tables, arm) for arm in (FREE, NONE))
    parts = _grows("late change of ln norms, common to the four writers", growth,
                   growth - without, criterion)  # fmt: skip
    return judgement(criterion, parts, _by_writer(tables, FREE))


def s3_2(tables: Tables, criterion: dict) -> Judgement:
    """The same by the mean over the writers; ours: by more than Brownian motion of multipliers."""
    growth, without = (symmetry.mean_growth(tables, arm) for arm in (FREE, NONE))
    noise = symmetry.brownian_growth(tables, FREE)
    parts = _grows("late change of ln norms, mean over the four writers", growth,
                   growth - without, criterion)  # fmt: skip
    least = at_least("late change of ln norms, least of the four writers",
                     symmetry.late_change(tables, FREE).min(axis=1, skipna=False),
                     criterion["thresholds"]["each"], GROWS)  # fmt: skip
    beyond = at_least("the mean, less the growth of multipliers in Brownian motion",
                      growth - noise, criterion["thresholds"]["noise"],
                      "more than noise alone would give", ours=True,
                      matters=criterion["smallest_effect"])  # fmt: skip
    note = f"{_by_writer(tables, FREE)}; Brownian motion {noise:+.3f}"
    return judgement(criterion, [*parts, least, beyond], note)


def _grows(name: str, growth: pd.Series, excess: pd.Series, criterion: dict) -> list[Part]:
    limit = criterion["thresholds"]["growth"]
    return [
        at_least(name, growth, limit, GROWS, matters=criterion["smallest_effect"]),
        at_least("the same, less that without multipliers", excess, limit, GROWS,
                 matters=criterion["smallest_effect"]),
    ]  # fmt: skip


def s4(tables: Tables, criterion: dict) -> Judgement:
    """Light weight decay stops the growth."""
    free, light, literal = (
        symmetry.joint_growth(tables, arm) for arm in (FREE, LIGHT, LITERAL)
    )  # fmt: skip
    return _slows("common to the four writers", free, light, literal, criterion)


def s4_2(tables: Tables, criterion: dict) -> Judgement:
    """The same by the mean over the writers."""
    free, light, literal = (
        symmetry.mean_growth(tables, arm) for arm in (FREE, LIGHT, LITERAL)
    )  # fmt: skip
    return _slows("mean over the four writers", free, light, literal, criterion)


def _slows(
    what: str, free: pd.Series, light: pd.Series, literal: pd.Series, criterion: dict
) -> Judgement:
    name = f"late change of ln norms, {what}"
    return judgement(criterion, [
        at_least(f"half of the {name}, without weight decay, less that with",
                 free / 2 - light, 0.0, "slows the growth"),
        at_most(f"{name}, with light weight decay", light, criterion["thresholds"]["growth"],
                "stops the growth"),
    ], f"without: {free.mean():+.3f}, literal 2e-3: {literal.mean():+.3f}")  # fmt: skip


def _by_writer(tables: Tables, arm: str) -> str:
    means = symmetry.late_change(tables, arm).mean()
    return ", ".join(f"{name} {means[name]:+.3f}" for name in WRITERS)
