"""Judging functions of S0 to S6, EM1 and LOG1 (sections 4.1, C.1).

"Late" is the second half of the constant stage, at whose end everything else is read.
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
    """Late change of a table by seed (and layer) and step."""
    first, last = symmetry.late(table.index.get_level_values("step"), stage_end_of(runs))
    return table.xs(last, level="step") - table.xs(first, level="step")


def late_drift(frame: pd.DataFrame, runs: pd.DataFrame, arm: str) -> pd.Series:
    """Late change of ln Q/K, root mean square over layers, by seed."""
    ratio = symmetry.paths(frame, arm).set_index(["seed", "layer", "step"])["ratio"]
    return np.sqrt((late_change(ratio, runs) ** 2).groupby("seed").mean())


def joint_growth(frame: pd.DataFrame, runs: pd.DataFrame, arm: str) -> pd.Series:
    """Late change of ln of the norms of ``WRITERS``: the least of them, by seed.

    Along the symmetry all of them grow alike; without it some grow and others do not.
    """
    return late_change(symmetry.written(frame, arm), runs).min(axis=1)


def s0(frame, runs, criterion) -> Judgement:
    """Without multipliers Q/K of the matrices' norms and the stream stay; with them they do not."""
    limits = criterion["thresholds"]
    still, drift = late_drift(frame, runs, NONE), late_drift(frame, runs, FREE)
    growth = late_change(symmetry.residual(frame, NONE), runs)
    found = [at_most("late drift of ln Q/K", still, limits["drift"])]
    found += within("late change of ln residual norm", growth, -limits["growth"], limits["growth"])
    contrast = [at_least("ln (drift of Q/K with multipliers / without)", np.log(drift / still),
                         limits["contrast"])]  # fmt: skip
    return Judgement(found, criterion["seeds"]["minimum"], contrast=contrast)


def _head(runs: pd.DataFrame) -> int:
    return runs["description"].iloc[0]["settings"]["model"]["head_dim"]


def _rms(table: pd.DataFrame, by: str) -> pd.DataFrame:
    return np.sqrt((table**2).groupby(level=by).mean())


def s1(frame, vectors, runs, criterion) -> Judgement:
    """Without weight decay products of rotated pairs are the data's, ratios drift like noise."""
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
        at_least("ln (ratio / product), difference between two data orders",
                 np.log(apart["ratio"] / apart["product"]), limits["excess"]),
        at_least("ratio over that of Brownian motion", drift, limits["drift"]),
        at_least("correlation of products between data orders", repeats["product"],
                 limits["repeats"]),
    ]  # fmt: skip
    return _judgement(criterion, found, f"of ratios {repeats['ratio'].mean():.2f}")


def s2(frame, runs, criterion) -> Judgement:
    """Light weight decay stops the drift of Q/K."""
    limits = criterion["thresholds"]
    free, light = (late_drift(frame, runs, arm) for arm in (FREE, LIGHT))
    literal = np.log(late_drift(frame, runs, LITERAL) / free).mean()
    found = [at_most("ln (late drift of Q/K with / without)", np.log(light / free), limits["less"])]
    return _judgement(criterion, found, f"literal 2e-3: {literal:+.3f}")


def s3(frame, runs, criterion) -> Judgement:
    """Without weight decay all that is written to the residual stream grows."""
    limits = criterion["thresholds"]
    growth, without = (joint_growth(frame, runs, arm) for arm in (FREE, NONE))
    means = late_change(symmetry.written(frame, FREE), runs).mean()
    note = ", ".join(f"{name} {means[name]:+.3f}" for name in WRITERS)
    return _judgement(criterion, [
        at_least("late change of ln norms, least of four", growth, limits["growth"]),
        at_least("the same, less that without multipliers", growth - without, limits["growth"]),
    ], note)  # fmt: skip


def s4(frame, runs, criterion) -> Judgement:
    """Light weight decay stops the growth."""
    free, light = (joint_growth(frame, runs, arm) for arm in (FREE, LIGHT))
    literal = joint_growth(frame, runs, LITERAL).mean()
    found = [at_most("late change of ln norms, least of four", light,
                     criterion["thresholds"]["growth"])]  # fmt: skip
    contrast = [at_least("the same without weight decay, less it", free - light,
                         criterion["thresholds"]["contrast"])]  # fmt: skip
    note = f"literal 2e-3: {literal:+.3f}"
    return Judgement(found, criterion["seeds"]["minimum"], note, contrast=contrast)


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
    """What half precision costs where drift is ten times as fast, beyond what it costs anyway."""
    losses = final_losses(frame)
    ordinary = losses["LIGHT_BF16"] - losses["LIGHT"]
    gap = losses["FAST_BF16"] - losses["FAST"] - ordinary
    grown = {
        arm: symmetry.residual(frame, arm).groupby("seed").agg(np.ptp).mean()
        for arm in ("LIGHT", "FAST", "FAST_BF16")
    }
    note = f"bfloat16 under light weight decay {ordinary.mean():+.4f}; range of ln residual norm "
    note += ", ".join(f"{arm} {value:.2f}" for arm, value in grown.items())
    limit = criterion["thresholds"]["harm"]
    return _judgement(criterion, [at_least("(bfloat16 − float32), drifting less held (nats)", gap,
                                           limit)], note)  # fmt: skip


def log1(frame, runs, criterion) -> Judgement:
    """Log-scale multipliers: at most a slight gain, and instability."""
    limits, losses = criterion["thresholds"], final_losses(frame)
    rises = {arm: rise(frame, runs, arm) for arm in ("FREE", "LOG", "FAST", "LOG_FAST")}
    found = [at_most("direct − log-scale (nats)", losses["FREE"] - losses["LOG"], limits["gain"],
                     "gain")]  # fmt: skip
    for direct, log in (("FREE", "LOG"), ("FAST", "LOG_FAST")):
        more = rises[log] - rises[direct]
        found.append(at_least(f"largest rise of the training loss, {log} − {direct} (nats)", more,
                              limits["rise"], "instability"))  # fmt: skip
    fast = (losses["LOG_FAST"] - losses["FAST"]).mean()
    return _judgement(criterion, found, f"loss at ten times the LR, log-scale − direct {fast:+.4f}")


def _judgement(criterion: dict, found: list, note: str = "") -> Judgement:
    return Judgement(found, criterion["seeds"]["minimum"], note)


JUDGES = {"S0": s0, "S2": s2, "S3": s3, "S4": s4, "S5": s5, "EM1": em1, "S6": s6, "LOG1": log1}
VECTOR_JUDGES = {"S1": s1}
VECTOR_TENSORS = {"S1": (symmetry.Q, symmetry.K)}
