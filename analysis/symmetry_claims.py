"""Judging functions of S0 to S6, EM1 and LOG1 (sections 4.1, C.1).

Drifts are changes of logarithms over the second half of the constant stage, root mean square over
layers. A product and a ratio of independent noise change alike, so that what tells them apart is
that the model sees the one and not the other.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import symmetry
from analysis.judging import Judgement, at_least, at_most
from analysis.losses import final_losses
from analysis.norms import stage_end_of
from analysis.symmetry import (
    FAST,
    FAST_BF16,
    FREE,
    LIGHT,
    LITERAL,
    LOG,
    NO_EMBEDDING,
    NONE,
    SYMMETRY_FREE,
)  # fmt: skip


def late_drift(frame: pd.DataFrame, runs: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Columns product, ratio: root mean square over layers of the late change, by seed."""
    found = symmetry.paths(frame, arm).set_index(["seed", "layer", "step"])
    first, last = _late(found.index.get_level_values("step"), stage_end_of(runs))
    change = found.xs(last, level="step") - found.xs(first, level="step")
    return np.sqrt((change**2).groupby("seed").mean())


def late_growth(frame: pd.DataFrame, runs: pd.DataFrame, arm: str) -> pd.Series:
    """Late change of ln of the residual stream's norm, by seed."""
    found = symmetry.residual(frame, arm)
    first, last = _late(found.index.get_level_values("step"), stage_end_of(runs))
    return found.xs(last, level="step") - found.xs(first, level="step")


def _late(steps: pd.Index, end: int) -> tuple[int, int]:
    """The measured steps nearest below half of and at the end of the constant stage."""
    early = steps[steps <= end]
    return int(early[early <= end // 2].max()), int(early.max())


def s0(frame, runs, criterion) -> Judgement:
    """Without multipliers the ratio of Q's and K's norms, and the stream's, stay."""
    limits = criterion["thresholds"]
    ratio = late_drift(frame, runs, NONE)["ratio"]
    growth = late_growth(frame, runs, NONE)
    return _judgement(criterion, [
        at_most("late drift of ln Q/K", ratio, limits["drift"]),
        at_most("late change of ln residual norm", growth, limits["growth"]),
    ])  # fmt: skip


def s1(frame, runs, criterion) -> Judgement:
    """Without weight decay the ratio drifts and the product does not."""
    limits = criterion["thresholds"]
    drift = late_drift(frame, runs, FREE)
    excess = np.log(drift["ratio"] / drift["product"])
    return _judgement(criterion, [
        at_least("ln (drift of the ratio / of the product)", excess, limits["excess"]),
        at_least("late drift of ln Q/K", drift["ratio"], limits["drift"]),
    ])  # fmt: skip


def s2(frame, runs, criterion) -> Judgement:
    """Light weight decay stops the drift."""
    free, light = (late_drift(frame, runs, arm)["ratio"] for arm in (FREE, LIGHT))
    less = np.log(light / free)
    literal = np.log(late_drift(frame, runs, LITERAL)["ratio"] / free).mean()
    found = [at_most("ln (drift of Q/K with / without)", less, criterion["thresholds"]["less"])]
    return _judgement(criterion, found, f"literal 2e-3: {literal:+.3f}")


def s3(frame, runs, criterion) -> Judgement:
    """Without weight decay the residual stream grows."""
    growth = late_growth(frame, runs, FREE)
    without = late_growth(frame, runs, NONE)
    limits = criterion["thresholds"]
    return _judgement(criterion, [
        at_least("late change of ln residual norm", growth, limits["growth"]),
        at_least("the same, less that without multipliers", growth - without, limits["growth"]),
    ])  # fmt: skip


def s4(frame, runs, criterion) -> Judgement:
    """Light weight decay stops the growth."""
    free, light = (late_growth(frame, runs, arm) for arm in (FREE, LIGHT))
    literal = (late_growth(frame, runs, LITERAL) - free).mean()
    less = light - criterion["thresholds"]["share"] * free
    found = [at_most("late change of ln residual norm, less half of that without", less, 0.0)]
    return _judgement(criterion, found, f"literal 2e-3, less that without: {literal:+.3f}")


def _gap(frame: pd.DataFrame, arm: str, other: str = LIGHT) -> pd.Series:
    losses = final_losses(frame)
    return losses[arm] - losses[other]


def s5(frame, runs, criterion) -> Judgement:
    """The symmetry-free placement is slightly worse than all with light weight decay."""
    limits, gap = criterion["thresholds"], _gap(frame, SYMMETRY_FREE)
    return _judgement(criterion, [
        at_least("symmetry-free − all, light (nats)", gap, limits["worse"]),
        at_most("symmetry-free − all, light (nats), slightly", gap, limits["slightly"]),
    ])  # fmt: skip


def s6(frame, runs, criterion) -> Judgement:
    """Drift ten times as fast: what half precision loses."""
    gap = _gap(frame, FAST_BF16, FAST)
    found = [at_least("bfloat16 − float32 (nats)", gap, criterion["thresholds"]["harm"])]
    drift = symmetry.residual(frame, FAST_BF16).groupby("seed").agg(np.ptp)
    note = f"range of ln residual norm under bfloat16: {drift.mean():.2f}"
    return _judgement(criterion, found, note)


def em1(frame, runs, criterion) -> Judgement:
    """Without the embedding's multipliers."""
    gap = _gap(frame, NO_EMBEDDING)
    found = [at_least("none on the embedding − all, light (nats)", gap,
                      criterion["thresholds"]["worse"])]  # fmt: skip
    return _judgement(criterion, found)


def log1(frame, runs, criterion) -> Judgement:
    """Log-scale multipliers: at most a slight gain, and instability."""
    limits = criterion["thresholds"]
    gain = -_gap(frame, LOG)
    rougher = np.log(_roughness(frame, LOG) / _roughness(frame, LIGHT))
    return _judgement(criterion, [
        at_most("all, light − log-scale (nats)", gain, limits["gain"], "gain"),
        at_least("ln (largest over median gradient norm, log-scale / direct)", rougher,
                 limits["rougher"], "instability"),
    ])  # fmt: skip


def _roughness(frame: pd.DataFrame, arm: str) -> pd.Series:
    """Largest over median gradient norm after a tenth of the steps, by seed."""
    norms = frame[(frame["arm"] == arm) & (frame["stat"] == "global_gradient_norm")]
    norms = norms[norms["step"] > 0.1 * norms["step"].max()].groupby("seed")["value"]
    return norms.max() / norms.median()


def _judgement(criterion: dict, found: list, note: str = "") -> Judgement:
    return Judgement(found, criterion["seeds"]["minimum"], note)


JUDGES = {
    "S0": s0, "S1": s1, "S2": s2, "S3": s3, "S4": s4, "S5": s5, "S6": s6, "EM1": em1, "LOG1": log1,
}  # fmt: skip
