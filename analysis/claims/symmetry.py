"""Judging functions of S0 to S4: multipliers along symmetries (section 4.1).

"Late" is the second half of the constant stage, at whose end everything but losses is read.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.claims.judging import Judgement, at_least, at_most, judgement, reads, within
from analysis.quantities import symmetry
from analysis.quantities.symmetry import FREE, FREE_ORDER, LIGHT, LITERAL, NONE, WRITERS
from analysis.tables.results import Tables


@reads(symmetry.Q, symmetry.K)
def s0(tables: Tables, criterion: dict) -> Judgement:
    """Without multipliers nothing moves along the symmetries; with them rows of Q and K do."""
    limits = criterion["thresholds"]
    still = symmetry.pairs(tables, NONE, "row_norms")
    moved = symmetry.pairs(tables, FREE, "effective_row_norms")
    still, moved = (symmetry.spread(table)["ratio"] for table in (still, moved))
    growth = symmetry.joint_growth(tables, NONE)
    found = [
        at_most("spread of ln Q/K over rotated pairs", still, limits["drift"]),
        *within("late change of ln norms, common to four", growth, -limits["growth"],
                limits["growth"]),
    ]  # fmt: skip
    contrast = [at_least("ln (spread with multipliers / without)", np.log(moved / still),
                         limits["contrast"])]  # fmt: skip
    means = symmetry.late_change(tables, NONE).mean()
    note = ", ".join(f"{name} {means[name]:+.3f}" for name in WRITERS)
    return judgement(criterion, found, note, contrast=contrast)


@reads(symmetry.Q, symmetry.K)
def s1(tables: Tables, criterion: dict) -> Judgement:
    """Without weight decay ratios of rotated pairs drift like noise, products are the data's."""
    limits = criterion["thresholds"]
    one, other = (symmetry.pairs(tables, arm) for arm in (FREE, FREE_ORDER))
    apart = symmetry.spread(one - other)
    noise = symmetry.spread(symmetry.brownian_pairs(tables, FREE), "draw").mean()
    drift = symmetry.spread(one)["ratio"] / noise["ratio"]
    repeats = {
        name: pd.Series({
            seed: np.corrcoef(table[name], other.loc[seed][name])[0, 1]
            for seed, table in one.groupby(level="seed")
        })
        for name in ("product", "ratio")
    }  # fmt: skip
    found = [
        at_least("spread of ratios over that of Brownian motion", drift, limits["drift"], "drifts"),
        at_most("correlation of ratios between data orders", repeats["ratio"], limits["random"],
                "drifts"),
        at_least("correlation of products between data orders", repeats["product"],
                 limits["repeats"], "learned"),
        at_least("ln (ratio / product), difference between two data orders",
                 np.log(apart["ratio"] / apart["product"]), limits["excess"], "stable"),
    ]  # fmt: skip
    return judgement(criterion, found)


@reads(symmetry.Q, symmetry.K)
def s2(tables: Tables, criterion: dict) -> Judgement:
    """Light weight decay stops the drift of Q/K."""
    limits = criterion["thresholds"]
    free, light, literal = (
        symmetry.spread(symmetry.pairs(tables, arm))["ratio"] for arm in (FREE, LIGHT, LITERAL)
    )
    found = [at_most("ln (spread of ratios with / without)", np.log(light / free), limits["less"])]
    return judgement(criterion, found, f"literal 2e-3: {np.log(literal / free).mean():+.3f}")


def s3(tables: Tables, criterion: dict) -> Judgement:
    """Without weight decay all that is written to the residual stream grows."""
    limits = criterion["thresholds"]
    growth, without = (symmetry.joint_growth(tables, arm) for arm in (FREE, NONE))
    means = symmetry.late_change(tables, FREE).mean()
    note = ", ".join(f"{name} {means[name]:+.3f}" for name in WRITERS)
    return judgement(criterion, [
        at_least("late change of ln norms, common to four", growth, limits["growth"]),
        at_least("the same, less that without multipliers", growth - without, limits["growth"]),
    ], note)  # fmt: skip


def s4(tables: Tables, criterion: dict) -> Judgement:
    """Light weight decay stops the growth."""
    free, light = (symmetry.joint_growth(tables, arm) for arm in (FREE, LIGHT))
    literal = symmetry.joint_growth(tables, LITERAL).mean()
    found = [
        at_least("half of late change of ln norms without weight decay, less that with",
                 free / 2 - light, 0.0, "slows"),
        at_most("late change of ln norms, common to four", light,
                criterion["thresholds"]["growth"], "stops"),
    ]  # fmt: skip
    return judgement(criterion, found, f"without: {free.mean():+.3f}, literal 2e-3: {literal:+.3f}")
