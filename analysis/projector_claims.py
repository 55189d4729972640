"""Judging functions of the projector experiment: P0 to P7, PR1, PR2.

Each takes the tidy frame, the table of runs and the claim's entry of criteria.yaml, whose
``thresholds`` it reads, and returns a ``Judgement``. Norms and slopes are read at the end of the
constant stage, losses after the decay.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.judging import Component, Judgement, at_least, at_most, within
from analysis.norms import at_step, stage_end
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
        self.stage_end = stage_end(settings)

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

    def multiplier(self, arm: str) -> pd.DataFrame:
        """‖c‖, |s| for the scalar."""
        return self.table(arm, "norm.final", "effective_norm", self.stage_end)

    def noise(self, tensor: str, arm: str = "VPN", stat: str = "weight_norm") -> pd.Series:
        """The Brownian twin's norm (or its sd over draws) as the constant stage ends, by S."""
        return self.table(arm, tensor, stat, self.stage_end, "brownian").iloc[0]

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
        contrast: list[Component] = (),
    ) -> Judgement:
        note = "judged at S = " + ", ".join(f"{s:g}" for s in judged)
        minimum = criterion["seeds"]["minimum"]
        return Judgement(components, minimum, note, contrast=list(contrast))


def p0(frame, runs, criterion) -> Judgement:
    """Stationarity: change of ‖W‖ over the last quarter of the constant stage, worst arm and S."""
    sweep = Sweep(frame, runs)
    judged = sweep.judged(criterion)
    limit = criterion["thresholds"]["change"]
    drifts = {
        arm: np.log(sweep.weight(arm) / sweep.weight(arm, sweep.stage_end * 3 // 4)).abs()
        for arm in ARMS
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
        components.append(_degraded(f"FPN {name}", excess["FPN"], limits["degradation"], side))
        for arm in LEARNED:
            components.append(at_most(f"{arm} {name}", excess[arm], limits["flat"], side))
            ratio = limits["share"]
            gap = excess[arm] - ratio * excess["FPN"]
            share = f"{arm} − {ratio:g} FPN {name}"
            components.append(at_most(share, gap, 0.0, side, heavy_tailed=True))
    return sweep.judgement(components, criterion, judged)


def _degraded(name: str, excess: pd.Series, limit: float, side: str | None = None) -> Component:
    """FPN's excess at an extreme S: some seeds become unstable there, which is a heavy tail."""
    return at_least(name, excess, limit, side, heavy_tailed=True)


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
    """Log-log slope of ‖W‖ against S, and FPN's ‖W‖ over the learned arms' at small S."""
    sweep, limits = Sweep(frame, runs), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if len(judged) < 3 or judged[0] >= 1:
        return sweep.judgement([], criterion, judged)
    frozen = sweep.weight("FPN")
    components = []
    for arm in LEARNED:
        components += _slope(sweep, sweep.weight(arm), f"{arm} slope of ‖W‖", judged, limits)
    upper = [s for s in frozen.columns if s >= 1]
    components += _slope(sweep, frozen, "FPN slope of ‖W‖ at S ≥ 1", upper, limits)
    for arm in LEARNED:
        pulled = frozen[judged[0]] / sweep.weight(arm)[judged[0]]
        name = f"‖W‖ of FPN over {arm}'s at S = {judged[0]:g}"
        components.append(at_least(name, pulled, limits["pulled_above"]))
    return sweep.judgement(components, criterion, judged)


def p4(frame, runs, criterion) -> Judgement:
    """Log-log slope of ‖c‖ against S."""
    sweep, limits = Sweep(frame, runs), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if len(judged) < 3:
        return sweep.judgement([], criterion, judged)
    components = []
    for arm in LEARNED:
        components += _slope(sweep, sweep.multiplier(arm), f"{arm} slope of ‖c‖", judged, limits)
    return sweep.judgement(components, criterion, judged)


def _slope(sweep: Sweep, norms: pd.DataFrame, name: str, points: list[float], limits: dict):
    return within(name, sweep.slopes(norms, points), *limits["slope"])


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
    """|ln(‖c‖ / ‖c‖_ABM)| at the extreme S of either side, plain and in ABM's own spread."""
    sweep, limits = Sweep(frame, runs), criterion["thresholds"]
    components = []
    judged = sweep.judged(criterion)
    for side, s in sweep.sides(judged).items():
        for arm in LEARNED:
            tensor = "norm.final.scalar" if arm == "SPN" else "norm.final"
            noise = sweep.noise(tensor, arm)[s]
            spread = sweep.noise(tensor, arm, "weight_norm_sd")[s] / noise
            values = np.log(sweep.multiplier(arm)[s] / noise).abs()
            name = f"{arm} |ln c / ABM| at S = {s:g}"
            components.append(at_least(name, values, limits["unlike"], side))
            name += ", in sd of ABM's draws"
            components.append(at_least(name, values / spread, limits["draws"], side))
    return sweep.judgement(components, criterion, judged)


def p7(frame, runs, criterion) -> Judgement:
    """Best loss of FPN minus that of each learned arm, each at its best judged S; paired."""
    sweep, limits = Sweep(frame, runs), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if not judged:
        return sweep.judgement([], criterion, judged)
    losses = {arm: sweep.loss(arm)[judged] for arm in ARMS}
    best = {arm: table[table.mean().idxmin()] for arm, table in losses.items()}
    components = [
        at_least(f"best FPN − best {arm} (nats)", best["FPN"] - best[arm], -limits["margin"])
        for arm in LEARNED
    ]
    contrast = [
        _degraded(f"FPN excess loss at S = {s:g}", _excess(losses["FPN"], s), limits["contrast"])
        for s in sweep.sides(judged).values()
    ]
    return sweep.judgement(components, criterion, judged, contrast)


def pr1(frame, runs, criterion) -> Judgement:
    """Loss with row multipliers on the projector minus without, at the columns' LR; paired."""
    losses = _final_losses(frame)
    base = _series(losses, "COLUMNS")
    rows = losses[losses["arm"] == "ROWS"].pivot_table("value", "seed", "row_lr")
    gap = (rows[criterion["row_lr"]] - base).dropna()
    name = f"rows (LR {criterion['row_lr']:g}) − columns (nats)"
    components = [at_least(name, gap, criterion["thresholds"]["worse"])]
    every = ", ".join(f"{lr:g}: {(rows[lr] - base).mean():+.4f}" for lr in rows.columns)
    return Judgement(components, criterion["seeds"]["minimum"], f"by LR of the rows: {every}")


def pr2(frame, runs, criterion) -> Judgement:
    """Best loss over inner fixed scalars without column multipliers minus that with them; paired.

    The contrast: both ends of the sweep are worse than its centre, so that the best scalar lies
    inside.
    """
    losses, limits = _final_losses(frame), criterion["thresholds"]
    base = _series(losses, "COLUMNS")
    fixed = losses[losses["arm"] == "FIXED"].pivot_table("value", "seed", "s")
    low, *inner, high = fixed.columns
    best = fixed[inner].mean().idxmin()
    gap = (fixed[best] - base).dropna()
    components = [at_least(f"fixed s = {best:g} − columns (nats)", gap, -limits["margin"])]
    contrast = [
        at_least(f"fixed s = {s:g} − s = 1 (nats)", fixed[s] - fixed[1.0], limits["contrast"])
        for s in (low, high)
    ]
    every = ", ".join(f"{s:g}: {(fixed[s] - base).mean():+.4f}" for s in fixed.columns)
    minimum = criterion["seeds"]["minimum"]
    return Judgement(components, minimum, f"by s: {every}", contrast=contrast)


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
