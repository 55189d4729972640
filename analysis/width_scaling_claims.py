"""Judging functions of WS1 to WS6 but WS5 (section 4.2). Exponents of d, one per seed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import width_scaling as ws
from analysis.judging import Judgement, at_least, at_most, within
from analysis.norms import at_step, over_layers, stage_end_of


def ws1(frame, runs, criterion) -> Judgement:
    """Matrix norms barely depend on the width, and have come to rest.

    At rest: neither their mean over widths nor their exponent still moves. Of one width alone the
    norm of a matrix of a hundred entries wanders by more.
    """
    limits, end = criterion["thresholds"], stage_end_of(runs)
    found, contrast = [], []
    for group, tensors in ws.MATRICES.items():
        values = ws.exponents(ws.matrices(frame, runs, ws.LEARNED, group))
        found += within(f"exponent of ‖W‖, {group}", values, -limits["constant"],
                        limits["constant"], group)  # fmt: skip
        before, last = (
            _course(frame, ws.LEARNED, tensors, "weight_norm", step) for step in (end * 3 // 4, end)
        )
        change = np.log(last / before).mean(axis=1)
        contrast += within(f"{group}: mean change in ln, last quarter", change, -limits["rest"],
                           limits["rest"])  # fmt: skip
        change = ws.exponents(last) - ws.exponents(before)
        contrast += within(f"{group}: change of the exponent, last quarter", change,
                           -limits["still"], limits["still"])  # fmt: skip
    return Judgement(found, criterion["seeds"]["minimum"], contrast=contrast)


def ws2(frame, runs, criterion) -> Judgement:
    """Logits, Q·K and dt are constant where multipliers learn, and a fixed s would move them.

    A quantity that is the same with s fixed and with s ∝ 1/d says nothing of multipliers.
    """
    limits, found, unlearned = criterion["thresholds"], [], []
    for name in ws.FIXED_BY_MODEL:
        for arm, start in ws.STARTS.items():
            learned = ws.exponents(ws.activations(frame, runs, arm, name))
            found += within(f"exponent of {name}, {start}", learned, -limits["constant"],
                            limits["constant"], name)  # fmt: skip
        fixed, scaled = (
            ws.exponents(ws.activations(frame, runs, arm, name)) for arm in (ws.FIXED, ws.SCALED)
        )
        found.append(at_least(f"exponent of {name}, s fixed less s ∝ 1/d", fixed - scaled,
                              limits["contrast"], name))  # fmt: skip
        unlearned.append(f"{name} {fixed.mean():+.2f} and {scaled.mean():+.2f}")
    note = f"s fixed and s ∝ 1/d: {', '.join(unlearned)}"
    return Judgement(found, criterion["seeds"]["minimum"], note)


def ws2b(frame, runs, criterion) -> Judgement:
    """Embedding and block outputs grow jointly with the width; the gate lies between."""
    limits, found = criterion["thresholds"], []
    for arm, start in ws.STARTS.items():
        outputs, gate, known = (
            pd.concat(
                {name: ws.exponents(ws.activations(frame, runs, arm, name)) for name in names},
                axis=1,
            )
            for names in (ws.FREE_IN_STREAM, ws.GATE, ws.FIXED_BY_MODEL)
        )
        found += [
            at_least(f"exponent of {name}, {start}", outputs[name], limits["growth"], start)
            for name in outputs
        ]
        apart = outputs.max(axis=1) - outputs.min(axis=1)
        found.append(at_most(f"largest less smallest of these exponents, {start}", apart,
                             limits["jointly"], start))  # fmt: skip
        above = gate["gate"] - known.mean(axis=1)
        below = gate["gate"] - outputs.mean(axis=1)
        found.append(at_least(f"exponent of gate less that of logits, Q·K, dt, {start}", above,
                              0.0, start))  # fmt: skip
        found.append(at_most(f"exponent of gate less that of outputs, {start}", below, 0.0,
                             start))  # fmt: skip
    return Judgement(found, criterion["seeds"]["minimum"])


def ws3(frame, runs, criterion) -> Judgement:
    """Learned multipliers follow d⁻¹ and d⁻², slightly slower, wherever they began."""
    limits, found = criterion["thresholds"], []
    for name, (_, expected) in ws.MULTIPLIERS.items():
        for arm, start in ws.STARTS.items():
            share = ws.exponents(ws.multipliers(frame, runs, name, arm)) / expected
            found += within(f"exponent of s over {expected:g}, {name}, {start}", share,
                            limits["least"], limits["most"], name)  # fmt: skip
    return Judgement(found, criterion["seeds"]["minimum"])


def ws4(frame, runs, criterion) -> Judgement:
    """The alignment decays with the width, more slowly than in a model that learned nothing."""
    limits, found, contrast = criterion["thresholds"], [], []
    for name, (_, expected) in ws.MULTIPLIERS.items():
        factors = -expected  # of Q·K it is the product of two
        for arm, start in ws.STARTS.items():
            learned, untrained = (
                ws.alignment(frame, runs, name, arm, untrained) for untrained in (False, True)
            )
            exponent = ws.exponents(learned) / factors
            found += within(f"exponent of α, {name}, {start}", exponent, limits["random"],
                            limits["decay"], name)  # fmt: skip
            gain = np.log(learned / untrained).iloc[:, -1] / factors
            contrast.append(at_least(f"{name}, {start}: ln of α over that of the untrained, "
                                     "largest width", gain, limits["learned"]))  # fmt: skip
    return Judgement(found, criterion["seeds"]["minimum"], contrast=contrast)


def ws6(frame, runs, criterion) -> Judgement:
    """Outputs grow late in training, with an offset per width; the projector's end at one level."""
    limits, end = criterion["thresholds"], stage_end_of(runs)
    arm, found = ws.drifting(frame), []

    def output(tensor: str, step: int) -> pd.DataFrame:
        return np.log(_course(frame, arm, (tensor,), "activation_norm", step))

    for name, tensor in (("embedding", "embedding"), ("attention", "attention.out"),
                         ("MLP", "mlp.down")):  # fmt: skip
        last = output(tensor, end)
        growth = (last - output(tensor, end // 2)).min(axis=1)
        offset = last.max(axis=1) - last.min(axis=1)
        found.append(at_least(f"{name}: late growth in ln, least of the widths", growth,
                              limits["growth"], name))  # fmt: skip
        found.append(at_least(f"{name}: ln range over widths", offset, limits["offset"], name))
    logits = output("projector", end)
    late = (logits - output("projector", end // 2)).abs().max(axis=1)
    level = logits.max(axis=1) - logits.min(axis=1)
    found.append(at_most("projector: largest late change in ln", late, limits["still"],
                         "projector"))  # fmt: skip
    found.append(at_most("projector: ln range over widths", level, limits["level"], "projector"))
    return Judgement(found, criterion["seeds"]["minimum"])


def _course(
    frame: pd.DataFrame, arm: str, tensors: tuple[str, ...], stat: str, step: int
) -> pd.DataFrame:
    """``stat`` of ``arm`` at ``step``, geometric mean over layers and tensors: seeds × widths."""
    chosen = frame[(frame["arm"] == arm) & (frame["stat"] == stat)]
    chosen = at_step(chosen[chosen["tensor"].isin(tensors)], step)
    keys = ["seed", "width", "value"]
    return over_layers(chosen[keys]).pivot_table("value", "seed", "width").astype(float)


JUDGES = {"WS1": ws1, "WS2": ws2, "WS2b": ws2b, "WS3": ws3, "WS4": ws4, "WS6": ws6}
