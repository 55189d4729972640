"""Judging functions of P0 to P7: the projector's norm scale (section 3).

``S`` multiplies the projector's LR and divides its weight decay. Norms are root mean squares, read
at the end of the constant stage; losses are nats per token after the decay. Every value is one per
seed. FPN has no learned scale, SPN a scalar, VPN a vector.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement, within
from analysis.quantities.projector import ARMS, LEARNED, ProjectorSweep
from analysis.quantities.stats import log_range
from analysis.quantities.sweep import excess, slopes
from analysis.tables.results import Tables

SMALL, LARGE = "small S", "large S"
STRONG, WEAK = "strong weight decay", "weak weight decay"


def p0(tables: Tables, criterion: dict) -> Judgement:
    """Stationarity: change of ‖W‖ over the last quarter of the constant stage, worst arm and S."""
    sweep = ProjectorSweep(tables)
    judged = sweep.judged(criterion)
    sides = {SMALL: [s for s in judged if s < 1], LARGE: [s for s in judged if s >= 1]}
    early = sweep.stage_end * 3 // 4
    parts = []
    for side, points in sides.items():
        if points:
            moved = [_moved(sweep, arm, early)[points] for arm in ARMS]
            worst = pd.concat(moved, axis=1).max(axis=1)
            name = f"largest |change of ln ‖W‖| at {side}"
            parts.append(at_most(name, worst, criterion["thresholds"]["change"], side))
    return judgement(criterion, parts, _note(judged))


def p1(tables: Tables, criterion: dict) -> Judgement:
    """Excess of the loss over each arm's own minimum, at the extreme S of either side."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged = sweep.judged(criterion)
    parts = []
    for side, s in _sides(judged).items():
        lost = {arm: excess(sweep.loss(arm), s) for arm in ARMS}
        where = f"at S = {s:g} (nats)"
        parts.append(
            _degraded(f"FPN: excess loss {where}", lost["FPN"], limits["degradation"], side,
                      matters=criterion["smallest_effect"])
        )  # fmt: skip
        for arm in LEARNED:
            name = f"{arm}: excess loss {where}"
            parts.append(at_most(name, lost[arm], limits["flat"], side))
            parts.append(_share(arm, lost, limits["share"], where, side))
    return judgement(criterion, parts, _note(judged))


def p1_2(tables: Tables, criterion: dict) -> Judgement:
    """Rise of the loss from the centre to the extreme S of either side, paired by seed."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged, centre = sweep.judged(criterion), criterion["centre"]
    losses = {arm: sweep.loss(arm) for arm in ARMS}
    parts = []
    medians = []
    for side, s in _sides(judged).items():
        rise = {arm: losses[arm][s] - losses[arm][centre] for arm in ARMS}
        where = f"from S = {centre:g} to {s:g} (nats)"
        parts.append(
            _degraded(f"FPN: rise of the loss {where}", rise["FPN"], limits["degradation"], side,
                      matters=criterion["smallest_effect"])
        )  # fmt: skip
        parts += [_share(arm, rise, limits["share"], where, side) for arm in LEARNED]
        medians += [f"{arm} to S = {s:g} {rise[arm].median():+.3f}" for arm in ARMS]
    return judgement(criterion, parts, _note(judged) + "; median rise: " + ", ".join(medians))


def p2(tables: Tables, criterion: dict) -> Judgement:
    """Range of the centred logits norm over S, as ln(max / min)."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if len(judged) < 2:
        return judgement(criterion, [], _note(judged))
    ranges = {arm: sweep.logits(arm)[judged].apply(log_range, axis=1) for arm in ARMS}
    name = "ln(largest / smallest logits norm)"
    parts = [at_least(f"FPN: {name}", ranges["FPN"], limits["varies"], "FPN varies")]
    for arm in LEARNED:
        group = f"{arm} is stable"
        parts.append(at_most(f"{arm}: {name}", ranges[arm], limits["stable"], group))
        gap = ranges[arm] - limits["share"] * ranges["FPN"]
        parts.append(at_most(f"{arm}: range minus {limits['share']:g} of FPN's", gap, 0.0, group))
    return judgement(criterion, parts, _note(judged))


def p3(tables: Tables, criterion: dict) -> Judgement:
    """Log-log slope of ‖W‖ against S, and FPN's ‖W‖ over the learned arms' at small S."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if len(judged) < 3 or judged[0] >= 1:
        return judgement(criterion, [], _note(judged))
    frozen, lowest = sweep.weight("FPN"), judged[0]
    follows = {arm: f"{arm} follows S" for arm in ARMS}
    parts = [
        _slope(f"{arm}: slope of ‖W‖", sweep.weight(arm), judged, limits, follows[arm])
        for arm in LEARNED
    ]
    upper = [s for s in frozen.columns if s >= 1]
    parts.append(_slope("FPN: slope of ‖W‖ at S ≥ 1", frozen, upper, limits, follows["FPN"]))
    for arm in LEARNED:
        pulled = frozen[lowest] / sweep.weight(arm)[lowest]
        name = f"FPN's ‖W‖ over {arm}'s at S = {lowest:g}"
        parts.append(
            at_least(name, pulled, limits["pulled_above"], "FPN is pulled above at small S")
        )
    return judgement(criterion, parts, _note(judged))


def p4(tables: Tables, criterion: dict) -> Judgement:
    """Log-log slope of ‖c‖ against S."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if len(judged) < 3:
        return judgement(criterion, [], _note(judged))
    parts = [
        _slope(f"{arm}: slope of ‖c‖", sweep.multiplier(arm), judged, limits, arm)
        for arm in LEARNED
    ]
    return judgement(criterion, parts, _note(judged))


def p5(tables: Tables, criterion: dict) -> Judgement:
    """Distance of the trajectories of ‖W‖ from Brownian motion's: RMS over time of ln(ratio)."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged = sweep.judged(criterion)
    parts = []
    for side, s in _sides(judged).items():
        group, limit = {SMALL: (STRONG, "coincide"), LARGE: (WEAK, "close")}[side]
        for arm in LEARNED:
            name = f"{arm}: distance of ‖W‖ from Brownian motion's at S = {s:g}, RMS of ln"
            parts.append(at_most(name, sweep.distance(arm, s), limits[limit], group))
    return judgement(criterion, parts, _note(judged))


def p6(tables: Tables, criterion: dict) -> Judgement:
    """|ln(‖c‖ / ‖c‖ of Brownian motion)| at the extreme S, plain and in its draws' spread."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged = sweep.judged(criterion)
    parts = []
    signs = []
    for side, s in _sides(judged).items():
        for arm in LEARNED:
            tensor = "norm.final.scalar" if arm == "SPN" else "norm.final"
            noise = sweep.noise(tensor, arm)[s]
            spread = sweep.noise(tensor, arm, "weight_norm_sd")[s] / noise
            apart = np.log(sweep.multiplier(arm)[s]) - np.log(noise)
            name = f"{arm}: |ln(‖c‖ / Brownian motion's)| at S = {s:g}"
            parts.append(at_least(name, apart.abs(), limits["unlike"], side))
            name = f"{arm}: the same at S = {s:g}, in sd of the draws"
            parts.append(at_least(name, apart.abs() / spread, limits["draws"], side))
            signs.append(f"{arm} at S = {s:g} times {np.exp(apart.mean()):.2g}")
    note = f"{_note(judged)}; ‖c‖ over Brownian motion's: {', '.join(signs)}"
    return judgement(criterion, parts, note)


def p7(tables: Tables, criterion: dict) -> Judgement:
    """Best loss of FPN minus that of each learned arm, each at its best judged S; paired."""
    sweep, limits = ProjectorSweep(tables), criterion["thresholds"]
    judged = sweep.judged(criterion)
    if not judged:
        return judgement(criterion, [], _note(judged))
    losses = {arm: sweep.loss(arm)[judged] for arm in ARMS}
    best = {arm: table[table.mean().idxmin()] for arm, table in losses.items()}
    parts = [
        at_least(f"best FPN − best {arm} (nats)", best["FPN"] - best[arm], -limits["margin"], arm)
        for arm in LEARNED
    ]
    contrast = [
        _degraded(
            f"FPN: excess loss at S = {s:g} (nats)", excess(losses["FPN"], s), limits["contrast"]
        )
        for s in _sides(judged).values()
    ]
    return judgement(criterion, parts, _note(judged), contrast)


def _note(judged: list[float]) -> str:
    return "judged at S = " + ", ".join(f"{s:g}" for s in judged)


def _sides(judged: list[float]) -> dict[str, float]:
    """The extreme judged S on either side of 1."""
    sides = {}
    if judged and judged[0] < 1:
        sides[SMALL] = judged[0]
    if judged and judged[-1] > 1:
        sides[LARGE] = judged[-1]
    return sides


def _moved(sweep: ProjectorSweep, arm: str, early: int) -> pd.DataFrame:
    """|ln ‖W‖ − its value at step ``early``|."""
    return (np.log(sweep.weight(arm)) - np.log(sweep.weight(arm, early))).abs()


def _degraded(name: str, lost: pd.Series, limit: float, side: str | None = None, **more) -> Part:
    """What FPN loses at an extreme S: some seeds become unstable there, which is a heavy tail."""
    return at_least(name, lost, limit, side, robust=True, **more)


def _share(arm: str, lost: dict[str, pd.Series], share: float, where: str, side: str) -> Part:
    """What an arm loses minus this share of what FPN does, seed by seed."""
    gap = lost[arm] - share * lost["FPN"]
    return at_most(f"{arm}: loss minus {share:g} of FPN's {where}", gap, 0.0, side, robust=True)


def _slope(name: str, norms: pd.DataFrame, points: list[float], limits: dict, group: str) -> Part:
    low, high = limits["slope"]
    return within(name, slopes(norms, points), low, high, group)
