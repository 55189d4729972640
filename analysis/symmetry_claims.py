"""Judging functions of S0 to S6, EM1 and LOG1 (sections 4.1, C.1).

"Late" is the second half of the constant stage, at whose end everything but losses is read.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import symmetry
from analysis.judging import Judgement, at_least, at_most, within
from analysis.losses import final_losses, rise
from analysis.norms import stage_end_of
from analysis.symmetry import (
    FREE,
    FREE_ORDER,
    LIGHT,
    LITERAL,
    NO_EMBEDDING,
    NONE,
    SYMMETRY_FREE,
    SYMMETRY_FREE_LIGHT,
    WRITERS,
)  # fmt: skip


def late_change(table: pd.DataFrame | pd.Series, runs: pd.DataFrame):
    """Late change of a table by seed and step."""
    first, last = symmetry.late(table.index.get_level_values("step"), stage_end_of(runs))
    return table.xs(last, level="step") - table.xs(first, level="step")


def joint_growth(frame: pd.DataFrame, runs: pd.DataFrame, arm: str) -> pd.Series:
    """What late changes of ln of the norms of ``WRITERS`` have in common, by seed.

    Along the symmetry all change alike: the smallest change where all grow or all fall, and 0
    where some grow and others fall.
    """
    changes = late_change(symmetry.written(frame, arm), runs)
    return changes.clip(lower=0).min(axis=1) + changes.clip(upper=0).max(axis=1)


def _head(runs: pd.DataFrame) -> int:
    return runs["description"].iloc[0]["settings"]["model"]["head_dim"]


def _rms(table: pd.DataFrame, by: str) -> pd.DataFrame:
    return np.sqrt((table**2).groupby(level=by).mean())


def s0(frame, vectors, runs, criterion) -> Judgement:
    """Without multipliers nothing moves along the symmetries; with them rows of Q and K do."""
    limits, end, head = criterion["thresholds"], stage_end_of(runs), _head(runs)
    still = symmetry.pairs(vectors, NONE, end, head, "row_norms")
    moved = symmetry.pairs(vectors, FREE, end, head, "effective_row_norms")
    still, moved = (_rms(table, "seed")["ratio"] for table in (still, moved))
    growth = joint_growth(frame, runs, NONE)
    found = [
        at_most("spread of ln Q/K over rotated pairs", still, limits["drift"]),
        *within("late change of ln norms, common to four", growth, -limits["growth"],
                limits["growth"]),
    ]  # fmt: skip
    contrast = [at_least("ln (spread with multipliers / without)", np.log(moved / still),
                         limits["contrast"])]  # fmt: skip
    means = late_change(symmetry.written(frame, NONE), runs).mean()
    note = ", ".join(f"{name} {means[name]:+.3f}" for name in WRITERS)
    return Judgement(found, criterion["seeds"]["minimum"], note, contrast=contrast)


def s1(frame, vectors, runs, criterion) -> Judgement:
    """Without weight decay ratios of rotated pairs drift like noise, products are the data's."""
    limits, end, head = criterion["thresholds"], stage_end_of(runs), _head(runs)
    one, other = (symmetry.pairs(vectors, arm, end, head) for arm in (FREE, FREE_ORDER))
    apart = _rms(one - other, "seed")
    noise = _rms(symmetry.brownian_pairs(vectors, FREE, end, head), "draw").mean()
    drift = _rms(one, "seed")["ratio"] / noise["ratio"]
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
    return _judgement(criterion, found)


def s2(frame, vectors, runs, criterion) -> Judgement:
    """Light weight decay stops the drift of Q/K."""
    limits, end, head = criterion["thresholds"], stage_end_of(runs), _head(runs)
    free, light, literal = (
        _rms(symmetry.pairs(vectors, arm, end, head), "seed")["ratio"]
        for arm in (FREE, LIGHT, LITERAL)
    )
    found = [at_most("ln (spread of ratios with / without)", np.log(light / free), limits["less"])]
    return _judgement(criterion, found, f"literal 2e-3: {np.log(literal / free).mean():+.3f}")


def s3(frame, runs, criterion) -> Judgement:
    """Without weight decay all that is written to the residual stream grows."""
    limits = criterion["thresholds"]
    growth, without = (joint_growth(frame, runs, arm) for arm in (FREE, NONE))
    means = late_change(symmetry.written(frame, FREE), runs).mean()
    note = ", ".join(f"{name} {means[name]:+.3f}" for name in WRITERS)
    return _judgement(criterion, [
        at_least("late change of ln norms, common to four", growth, limits["growth"]),
        at_least("the same, less that without multipliers", growth - without, limits["growth"]),
    ], note)  # fmt: skip


def s4(frame, runs, criterion) -> Judgement:
    """Light weight decay stops the growth."""
    free, light = (joint_growth(frame, runs, arm) for arm in (FREE, LIGHT))
    literal = joint_growth(frame, runs, LITERAL).mean()
    found = [
        at_least("half of late change of ln norms without weight decay, less that with",
                 free / 2 - light, 0.0, "slows"),
        at_most("late change of ln norms, common to four", light,
                criterion["thresholds"]["growth"], "stops"),
    ]  # fmt: skip
    return _judgement(
        criterion, found, f"without: {free.mean():+.3f}, literal 2e-3: {literal:+.3f}"
    )


def s5(frame, runs, criterion) -> Judgement:
    """The symmetry-free placement is slightly worse than all with light weight decay."""
    limits, losses = criterion["thresholds"], final_losses(frame)
    gap = losses[SYMMETRY_FREE] - losses[LIGHT]
    same = (losses[SYMMETRY_FREE_LIGHT] - losses[LIGHT]).mean()
    return _judgement(criterion, [
        at_least("symmetry-free − all, light (nats)", gap, limits["worse"]),
        at_most("symmetry-free − all, light (nats), slightly", gap, limits["slightly"]),
    ], f"with light weight decay on both: {same:+.4f}")  # fmt: skip


def em1(frame, runs, criterion) -> Judgement:
    """Without the embedding's multipliers."""
    losses = final_losses(frame)
    gap = losses[NO_EMBEDDING] - losses[LIGHT]
    limit = criterion["thresholds"]["worse"]
    return _judgement(
        criterion, [at_least("none on the embedding − all, light (nats)", gap, limit)]
    )


def s6(frame, runs, criterion) -> Judgement:
    """What half precision costs where multipliers drift, beyond its cost where they are held."""
    losses = final_losses(frame)
    held = losses["FASTER_LIGHT_BF16"] - losses["FASTER_LIGHT"]
    gap = losses["FASTER_BF16"] - losses["FASTER"] - held
    usual = (losses["FREE_BF16"] - losses["FREE"]).mean()
    norms = {
        arm: np.exp(symmetry.residual(frame, arm).xs(stage_end_of(runs), level="step").mean())
        for arm in ("FREE", "FREE_BF16", "FASTER_LIGHT", "FASTER", "FASTER_BF16")
    }
    note = f"bfloat16 − float32: held {held.mean():+.4f}, usual LR {usual:+.4f}; residual norm "
    note += ", ".join(f"{arm} {value:.3g}" for arm, value in norms.items())
    found = [at_least("(bfloat16 − float32), drifting less held (nats)", gap,
                      criterion["thresholds"]["harm"])]  # fmt: skip
    return _judgement(criterion, found, note)


def log1(frame, runs, criterion) -> Judgement:
    """Log-scale multipliers: at most a slight gain, and instability."""
    limits, losses = criterion["thresholds"], final_losses(frame)
    rises = {arm: rise(frame, runs, arm) for arm in ("FREE", "LOG", "FAST", "LOG_FAST")}
    found = [
        at_most("direct − log-scale (nats)", losses["FREE"] - losses["LOG"], limits["gain"],
                "gain"),
        at_least("largest rise of the training loss, log-scale − direct (nats)",
                 rises["LOG"] - rises["FREE"], limits["worse"], "instability"),
        at_least("five times the LR: loss, log-scale − direct (nats)",
                 losses["LOG_FAST"] - losses["FAST"], limits["worse"], "instability, larger LR"),
    ]  # fmt: skip
    more = (rises["LOG_FAST"] - rises["FAST"]).mean()
    return _judgement(
        criterion, found, f"rise at five times the LR, log-scale − direct {more:+.3f}"
    )


def _judgement(criterion: dict, found: list, note: str = "") -> Judgement:
    return Judgement(found, criterion["seeds"]["minimum"], note)


JUDGES = {"S3": s3, "S4": s4, "S5": s5, "EM1": em1, "S6": s6, "LOG1": log1}
VECTOR_JUDGES = {"S0": s0, "S1": s1, "S2": s2}
VECTOR_TENSORS = dict.fromkeys(VECTOR_JUDGES, (symmetry.Q, symmetry.K))
