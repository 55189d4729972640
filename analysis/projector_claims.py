"""Judging functions of the projector experiment: P0 to P7, PR1, PR2.

Each takes the tidy frame, the table of runs and the claim's entry of criteria.yaml, whose
``thresholds`` it reads, and returns a ``Judgement``. Norms and slopes are read at the end of the
constant stage, losses after the decay.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.judging import Component, Judgement, at_least, at_most, within
from analysis.norms import at_step
from analysis.stats import log_range, log_slope

LEARNED = ("SPN", "VPN")
ARMS = ("FPN", *LEARNED)
SMALL, LARGE = "small S", "large S"


class Sweep:
    """The quantities of the projector sweep as tables: seeds in rows, S in columns."""

    def __init__(self, frame: pd.DataFrame, runs: pd.DataFrame):
        self.frame, self.runs = frame, runs
        settings = runs[runs["kind"] == "train"].iloc[0]["description"]["settings"]
        self.steps = settings["train"]["steps"]
        self.stage_end = self.steps - settings["schedule"]["decay_steps"]

    def table(self, arm: str, tensor: str, stat: str, step: int, kind: str = "train"):
        """``stat`` of ``tensor`` at the last probe up to ``step``."""
        f = self.frame
        chosen = f[
            (f["arm"] == arm) & (f["kind"] == kind) & (f["tensor"] == tensor) & (f["stat"] == stat)
        ]
        return at_step(chosen, step).pivot_table("value", "seed", "S")

    def loss(self, arm: str) -> pd.DataFrame:
        """Validation loss after the decay."""
        return self.table(arm, "model", "validation_loss", self.steps)

    def weight(self, arm: str, step: int | None = None) -> pd.DataFrame:
        """‖W‖ of the projector."""
        return self.table(arm, "projector", "weight_norm", step or self.stage_end)

    def multiplier(self, arm: str, step: int | None = None) -> pd.DataFrame:
        """‖c‖, |s| for the scalar."""
        return self.table(arm, "norm.final", "effective_norm", step or self.stage_end)

    def noise(self, tensor: str) -> pd.Series:
        """The Brownian twin's norm at the end of the constant stage, by S."""
        return self.table(LEARNED[-1], tensor, "weight_norm", self.stage_end, "brownian").iloc[0]

    def multiplier_lr(self, arm: str) -> float:
        """LR of c or s, from the stored rule table."""
        rows = self.runs[(self.runs["arm"] == arm) & (self.runs["kind"] == "train")]
        rules = rows.iloc[0]["description"]["rules"]
        return max(r["lr"] for r in rules if r["tensor"] == "norm.final" and r["trainable"])

    def judged(self, criterion: dict) -> list[float]:
        """The S at which every learned arm can travel to where it has to go.

        Needed is the value learned at S = 1 (between grid points: interpolated in logs) over S.
        Not judged: a change beyond a third of Ση, or one step of more than a tenth of the value.
        """
        limits = criterion["travel"]
        allowed = None
        for arm in LEARNED:
            values = self.multiplier(arm)
            lr = self.multiplier_lr(arm)
            logs = np.log(values.mean())
            at_one = float(np.exp(np.interp(0.0, np.log(values.columns), logs)))
            good = {
                s
                for s in values.columns
                if abs(at_one / s - 1) <= limits["fraction"] * lr * self.stage_end
                and lr <= limits["step"] * at_one / s
            }
            allowed = good if allowed is None else allowed & good
        return sorted(allowed)

    def early(self) -> int:
        """Three quarters into the constant stage: what has settled does not move from there."""
        return self.stage_end * 3 // 4

    def slopes(self, table: pd.DataFrame, points: list[float]) -> pd.Series:
        """Log-log slope against S over ``points``, one per seed."""
        return table[points].apply(lambda row: log_slope(row.index, row), axis=1)

    def sides(self, judged: list[float]) -> dict[str, float]:
        """The extreme judged S on either side of 1."""
        found = {}
        if judged and judged[0] < 1:
            found[SMALL] = judged[0]
        if judged and judged[-1] > 1:
            found[LARGE] = judged[-1]
        return found

    def judgement(
        self,
        components: list[Component],
        criterion: dict,
        judged: list[float],
        settled: list[Component] = (),
    ) -> Judgement:
        note = "judged at S = " + ", ".join(f"{s:g}" for s in judged)
        minimum = criterion["seeds"]["minimum"]
        return Judgement(components, minimum, note, contrast=list(settled))


def p0(frame, runs, criterion) -> Judgement:
    """Stationarity: change of ‖W‖ over the last quarter of the constant stage, worst arm and S."""
    sweep = Sweep(frame, runs)
    judged = sweep.judged(criterion)
    limit = criterion["thresholds"]["change"]
    drifts = {
        arm: np.log(sweep.weight(arm) / sweep.weight(arm, sweep.early())).abs() for arm in ARMS
    }
    components = []
    for side, points in (
        (SMALL, [s for s in judged if s < 1]),
        (LARGE, [s for s in judged if s >= 1]),
    ):
        if points:
            worst = pd.concat([drifts[arm][points] for arm in ARMS], axis=1).max(axis=1)
            components.append(at_most(f"largest |Δ ln ‖W‖| at {side}", worst, limit, side))
    return sweep.judgement(components, criterion, judged)


def p1(frame, runs, criterion) -> Judgement:
    """Excess of the loss over each arm's own minimum, at the extreme S of either side."""
    sweep, limits = Sweep(frame, runs), criterion["thresholds"]
    components = []
    judged = sweep.judged(criterion)
    for side, s in sweep.sides(judged).items():
        excess = {arm: _excess(sweep.loss(arm), s) for arm in ARMS}
        name = f"excess loss at S = {s:g}"
        components.append(at_least(f"FPN {name}", excess["FPN"], limits["degradation"], side))
        for arm in LEARNED:
            components.append(at_most(f"{arm} {name}", excess[arm], limits["flat"], side))
            ratio = limits["share"]
            gap = excess[arm] - ratio * excess["FPN"]
            components.append(at_most(f"{arm} − {ratio:g} FPN {name}", gap, 0.0, side))
    return sweep.judgement(components, criterion, judged)


def _excess(losses: pd.DataFrame, s: float) -> pd.Series:
    return losses[s] - losses[losses.mean().idxmin()]


def p2(frame, runs, criterion) -> Judgement:
    """Range of the centred logits norm over S, as ln(max / min)."""
    sweep, limits = Sweep(frame, runs), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if len(judged) < 2:
        return sweep.judgement([], criterion, judged)
    ranges = {}
    for arm in ARMS:
        logits = sweep.table(arm, "projector", "centred_norm", sweep.stage_end)[judged]
        ranges[arm] = logits.apply(log_range, axis=1)
    components = [at_least("FPN ln range of logits", ranges["FPN"], limits["varies"])]
    for arm in LEARNED:
        components.append(at_most(f"{arm} ln range of logits", ranges[arm], limits["stable"]))
        gap = ranges[arm] - limits["share"] * ranges["FPN"]
        components.append(at_most(f"{arm} − {limits['share']:g} FPN ln range", gap, 0.0))
    return sweep.judgement(components, criterion, judged)


def p3(frame, runs, criterion) -> Judgement:
    """Log-log slope of ‖W‖ against S, and FPN's ‖W‖ over its Brownian twin at small S."""
    sweep, limits = Sweep(frame, runs), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if len(judged) < 3:
        return sweep.judgement([], criterion, judged)
    frozen = sweep.weight("FPN")
    upper = [s for s in frozen.columns if s >= 1]
    found = [_slope(sweep, sweep.weight, arm, judged, "‖W‖", limits) for arm in LEARNED]
    found.append(_slope(sweep, sweep.weight, "FPN", upper, "‖W‖ at S ≥ 1", limits))
    smallest = frozen.columns.min()
    pulled = frozen[smallest] / sweep.noise("projector")[smallest]
    components = [component for both, _ in found for component in both]
    components.append(
        at_least(f"FPN ‖W‖ / ABM at S = {smallest:g}", pulled, limits["pulled_above"])
    )
    return sweep.judgement(components, criterion, judged, [gate for _, gate in found])


def p4(frame, runs, criterion) -> Judgement:
    """Log-log slope of ‖c‖ against S."""
    sweep, limits = Sweep(frame, runs), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if len(judged) < 3:
        return sweep.judgement([], criterion, judged)
    found = [_slope(sweep, sweep.multiplier, arm, judged, "‖c‖", limits) for arm in LEARNED]
    components = [component for both, _ in found for component in both]
    return sweep.judgement(components, criterion, judged, [gate for _, gate in found])


def _slope(sweep: Sweep, norm, arm: str, points: list[float], name: str, limits: dict):
    """Components that ask an exponent of S to be within limits, and the gate: it has settled."""
    slopes = sweep.slopes(norm(arm), points)
    moved = (slopes - sweep.slopes(norm(arm, sweep.early()), points)).abs()
    name = f"{arm} slope of {name}"
    gate = at_most(f"{name}: moved in the last quarter", moved, limits["settled"])
    return within(name, slopes, *limits["slope"]), gate


def p5(frame, runs, criterion) -> Judgement:
    """Distance of the trajectories of ‖W‖ from ABM: RMS over time of ln(‖W‖ / ‖W‖_ABM)."""
    sweep, limits = Sweep(frame, runs), criterion["thresholds"]
    components = []
    judged = sweep.judged(criterion)
    for side, s in sweep.sides(judged).items():
        limit = limits["coincide"] if side == SMALL else limits["close"]
        for arm in LEARNED:
            distance = _distance(sweep, arm, s)
            components.append(
                at_most(f"{arm} distance from ABM at S = {s:g}", distance, limit, side)
            )
    return sweep.judgement(components, criterion, judged)


def _distance(sweep: Sweep, arm: str, s: float) -> pd.Series:
    f = sweep.frame
    f = f[(f["tensor"] == "projector") & (f["stat"] == "weight_norm") & (f["S"] == s)]
    noise = f[(f["kind"] == "brownian")].set_index("step")["value"]
    paths = f[(f["kind"] == "train") & (f["arm"] == arm)].pivot_table("value", "step", "seed")
    both = paths.index.intersection(noise.index)
    both = both[both > 0]
    ratio = np.log(paths.loc[both].div(noise.loc[both], axis=0))
    return ratio.pow(2).mean().pow(0.5)


def p6(frame, runs, criterion) -> Judgement:
    """|ln(‖c‖ / ‖c‖_ABM)| at the extreme S of either side."""
    sweep, limit = Sweep(frame, runs), criterion["thresholds"]["unlike"]
    noise = sweep.noise("norm.final")
    components = []
    judged = sweep.judged(criterion)
    for side, s in sweep.sides(judged).items():
        for arm in LEARNED:
            values = np.log(sweep.multiplier(arm)[s] / noise[s]).abs()
            components.append(at_least(f"{arm} |ln c / ABM| at S = {s:g}", values, limit, side))
    return sweep.judgement(components, criterion, judged)


def p7(frame, runs, criterion) -> Judgement:
    """Best loss of FPN minus that of each learned arm, each at its own best S, paired by seed."""
    sweep, margin = Sweep(frame, runs), criterion["thresholds"]["margin"]
    best = {arm: (lambda t: t[t.mean().idxmin()])(sweep.loss(arm)) for arm in ARMS}
    components = [
        at_least(f"best FPN − best {arm} (nats)", best["FPN"] - best[arm], -margin)
        for arm in LEARNED
    ]
    losses = sweep.loss("FPN")
    spread = losses.max(axis=1) - losses.min(axis=1)
    contrast = [at_least("FPN loss range over S", spread, criterion["thresholds"]["contrast"])]
    return Judgement(components, criterion["seeds"]["minimum"], contrast=contrast)


def pr1(frame, runs, criterion) -> Judgement:
    """Loss with row multipliers on the projector, at their best LR, minus without; paired."""
    losses = _final_losses(frame)
    base = _series(losses, "COLUMNS")
    rows = losses[losses["arm"] == "ROWS"].pivot_table("value", "seed", "row_lr")
    best = rows.mean().idxmin()
    gap = (rows[best] - base).dropna()
    limit = criterion["thresholds"]["worse"]
    components = [at_least(f"rows (LR {best:g}) − columns (nats)", gap, limit)]
    every = ", ".join(f"{lr:g}: {(rows[lr] - base).mean():+.4f}" for lr in rows.columns)
    return Judgement(components, criterion["seeds"]["minimum"], f"by LR of the rows: {every}")


def pr2(frame, runs, criterion) -> Judgement:
    """Best loss over fixed scalars without column multipliers, minus that with them; paired."""
    losses = _final_losses(frame)
    base = _series(losses, "COLUMNS")
    fixed = losses[losses["arm"] == "FIXED"].pivot_table("value", "seed", "s")
    best = fixed.mean().idxmin()
    gap = (fixed[best] - base).dropna()
    margin = criterion["thresholds"]["margin"]
    components = [at_least(f"fixed s = {best:g} − columns (nats)", gap, -margin)]
    every = ", ".join(f"{s:g}: {(fixed[s] - base).mean():+.4f}" for s in fixed.columns)
    edge = best in (fixed.columns.min(), fixed.columns.max())
    note = f"by s: {every}" + ("; the best s is at the sweep's edge" if edge else "")
    spread = fixed.max(axis=1) - fixed.min(axis=1)
    contrast = [at_least("loss range over s", spread, criterion["thresholds"]["contrast"])]
    # A best value at the edge of its sweep is not known to be the best.
    return Judgement(
        [] if edge else components, criterion["seeds"]["minimum"], note, contrast=contrast
    )


def _final_losses(frame: pd.DataFrame) -> pd.DataFrame:
    losses = frame[(frame["stat"] == "validation_loss") & (frame["kind"] == "train")]
    return losses[losses["step"] == losses["step"].max()]


def _series(losses: pd.DataFrame, arm: str) -> pd.Series:
    return losses[losses["arm"] == arm].set_index("seed")["value"]


JUDGES = {
    "P0": p0,
    "P1": p1,
    "P2": p2,
    "P3": p3,
    "P4": p4,
    "P5": p5,
    "P6": p6,
    "P7": p7,
    "PR1": pr1,
    "PR2": pr2,
}
