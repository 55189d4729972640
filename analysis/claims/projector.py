"""Judging functions of P0 to P7: the projector's norm scale (section 3).

Norms and slopes are read at the end of the constant stage, losses after the decay. Every value is
one per seed; the parts of a claim are the two sides of S = 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.claims.judging import Component, Judgement, at_least, at_most, judgement, within
from analysis.quantities.projector import ARMS, LEARNED, ProjectorSweep
from analysis.quantities.stats import log_range
from analysis.quantities.sweep import excess, slopes
from analysis.tables.results import Tables

SMALL, LARGE = "small S", "large S"


def _sides(judged: list[float]) -> dict[str, float]:
    """The extreme judged S on either side of 1."""
    found = {}
    if judged and judged[0] < 1:
        found[SMALL] = judged[0]
    if judged and judged[-1] > 1:
        found[LARGE] = judged[-1]
    return found


def _judgement(
    components: list[Component],
    criterion: dict,
    judged: list[float],
    contrast: Sequence[Component] = (),
) -> Judgement:
    note = "judged at S = " + ", ".join(f"{s:g}" for s in judged)
    return judgement(criterion, components, note, contrast)


def p0(tables: Tables, criterion: dict) -> Judgement:
    """Stationarity: change of ‖W‖ over the last quarter of the constant stage, worst arm and S."""
    sweep = ProjectorSweep(tables)
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
    return _judgement(components, criterion, judged)


def p1(tables: Tables, criterion: dict) -> Judgement:
    """Excess of the loss over each arm's own minimum, at the extreme S of either side."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    components = []
    judged = sweep.judged(criterion)
    for side, s in _sides(judged).items():
        lost = {arm: excess(sweep.loss(arm), s) for arm in ARMS}
        name = f"excess loss at S = {s:g}"
        components.append(_degraded(f"FPN {name}", lost["FPN"], limits["degradation"], side))
        for arm in LEARNED:
            components.append(at_most(f"{arm} {name}", lost[arm], limits["flat"], side))
            ratio = limits["share"]
            gap = lost[arm] - ratio * lost["FPN"]
            share = f"{arm} − {ratio:g} FPN {name}"
            components.append(at_most(share, gap, 0.0, side, heavy_tailed=True))
    return _judgement(components, criterion, judged)


def _degraded(name: str, lost: pd.Series, limit: float, side: str | None = None) -> Component:
    """FPN's excess at an extreme S: some seeds become unstable there, which is a heavy tail."""
    return at_least(name, lost, limit, side, heavy_tailed=True)


def p2(tables: Tables, criterion: dict) -> Judgement:
    """Range of the centred logits norm over S, as ln(max / min)."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if len(judged) < 2:
        return _judgement([], criterion, judged)
    ranges = {}
    for arm in ARMS:
        logits = sweep.logits(arm)[judged]
        ranges[arm] = logits.apply(log_range, axis=1)
    components = [at_least("FPN ln range of logits", ranges["FPN"], limits["varies"])]
    for arm in LEARNED:
        components.append(at_most(f"{arm} ln range of logits", ranges[arm], limits["stable"]))
        gap = ranges[arm] - limits["share"] * ranges["FPN"]
        components.append(at_most(f"{arm} − {limits['share']:g} FPN ln range", gap, 0.0))
    return _judgement(components, criterion, judged)


def p3(tables: Tables, criterion: dict) -> Judgement:
    """Log-log slope of ‖W‖ against S, and FPN's ‖W‖ over the learned arms' at small S."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if len(judged) < 3 or judged[0] >= 1:
        return _judgement([], criterion, judged)
    frozen = sweep.weight("FPN")
    components = []
    for arm in LEARNED:
        components += _slope(sweep.weight(arm), f"{arm} slope of ‖W‖", judged, limits)
    upper = [s for s in frozen.columns if s >= 1]
    components += _slope(frozen, "FPN slope of ‖W‖ at S ≥ 1", upper, limits)
    for arm in LEARNED:
        pulled = frozen[judged[0]] / sweep.weight(arm)[judged[0]]
        name = f"‖W‖ of FPN over {arm}'s at S = {judged[0]:g}"
        components.append(at_least(name, pulled, limits["pulled_above"]))
    return _judgement(components, criterion, judged)


def p4(tables: Tables, criterion: dict) -> Judgement:
    """Log-log slope of ‖c‖ against S."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if len(judged) < 3:
        return _judgement([], criterion, judged)
    components = []
    for arm in LEARNED:
        components += _slope(sweep.multiplier(arm), f"{arm} slope of ‖c‖", judged, limits)
    return _judgement(components, criterion, judged)


def _slope(norms: pd.DataFrame, name: str, points: list[float], limits: dict):
    return within(name, slopes(norms, points), *limits["slope"])


def p5(tables: Tables, criterion: dict) -> Judgement:
    """Distance of the trajectories of ‖W‖ from ABM: RMS over time of ln(‖W‖ / ‖W‖_ABM)."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    components = []
    judged = sweep.judged(criterion)
    for side, s in _sides(judged).items():
        limit = limits["coincide"] if side == SMALL else limits["close"]
        for arm in LEARNED:
            distance = sweep.distance(arm, s)
            components.append(
                at_most(f"{arm} distance from ABM at S = {s:g}", distance, limit, side)
            )
    return _judgement(components, criterion, judged)


def p6(tables: Tables, criterion: dict) -> Judgement:
    """|ln(‖c‖ / ‖c‖_ABM)| at the extreme S of either side, plain and in ABM's own spread."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    components = []
    judged = sweep.judged(criterion)
    for side, s in _sides(judged).items():
        for arm in LEARNED:
            tensor = "norm.final.scalar" if arm == "SPN" else "norm.final"
            noise = sweep.noise(tensor, arm)[s]
            spread = sweep.noise(tensor, arm, "weight_norm_sd")[s] / noise
            values = np.log(sweep.multiplier(arm)[s] / noise).abs()
            name = f"{arm} |ln c / ABM| at S = {s:g}"
            components.append(at_least(name, values, limits["unlike"], side))
            name += ", in sd of ABM's draws"
            components.append(at_least(name, values / spread, limits["draws"], side))
    return _judgement(components, criterion, judged)


def p7(tables: Tables, criterion: dict) -> Judgement:
    """Best loss of FPN minus that of each learned arm, each at its best judged S; paired."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if not judged:
        return _judgement([], criterion, judged)
    losses = {arm: sweep.loss(arm)[judged] for arm in ARMS}
    best = {arm: table[table.mean().idxmin()] for arm, table in losses.items()}
    components = [
        at_least(f"best FPN − best {arm} (nats)", best["FPN"] - best[arm], -limits["margin"])
        for arm in LEARNED
    ]
    contrast = [
        _degraded(f"FPN excess loss at S = {s:g}", excess(losses["FPN"], s), limits["contrast"])
        for s in _sides(judged).values()
    ]
    return _judgement(components, criterion, judged, contrast)
