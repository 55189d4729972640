"""Judging functions of WS1 to WS6 but WS5 (section 4.2). Exponents of d, one per seed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import width_scaling as ws
from analysis.judging import Judgement, at_least, at_most, within
from analysis.norms import at_step, over_layers, stage_end_of


def ws1(frame, runs, criterion) -> Judgement:
    """Matrix norms barely depend on the width, and have come to rest."""
    limits, end = criterion["thresholds"], stage_end_of(runs)
    found, contrast = [], []
    for group, tensors in ws.MATRICES.items():
        values = ws.exponents(ws.matrices(frame, runs, ws.LEARNED, group))
        found += within(f"exponent of ‖W‖, {group}", values, -limits["constant"],
                        limits["constant"], group)  # fmt: skip
        late = [_course(frame, tensors, "weight_norm", step) for step in (end * 3 // 4, end)]
        change = np.log(late[1] / late[0]).abs().max(axis=1)
        contrast.append(at_most(f"{group}: largest change in ln, last quarter", change,
                                limits["rest"]))  # fmt: skip
    return Judgement(found, criterion["seeds"]["minimum"], contrast=contrast)


def ws2(frame, runs, criterion) -> Judgement:
    """Logits, Q·K and dt are constant where multipliers learn, and a fixed s would move them.

    A quantity that is the same with s fixed and with s ∝ 1/d says nothing of multipliers.
    """
    limits, found, unlearned = criterion["thresholds"], [], []
    for name in ws.FIXED_BY_MODEL:
        learned, fixed, scaled = (
            ws.exponents(ws.activations(frame, runs, arm, name))
            for arm in (ws.LEARNED, ws.FIXED, ws.SCALED)
        )
        found += within(f"exponent of {name}", learned, -limits["constant"], limits["constant"],
                        name)  # fmt: skip
        found.append(at_least(f"exponent of {name}, s fixed less s ∝ 1/d", fixed - scaled,
                              limits["contrast"], name))  # fmt: skip
        unlearned.append(f"{name} {fixed.mean():+.2f} and {scaled.mean():+.2f}")
    note = f"s fixed and s ∝ 1/d: {', '.join(unlearned)}"
    return Judgement(found, criterion["seeds"]["minimum"], note)


def ws2b(frame, runs, criterion) -> Judgement:
    """Embedding and block outputs grow jointly with the width; the gate lies between."""
    limits = criterion["thresholds"]

    def exponent(name: str) -> pd.Series:
        return ws.exponents(ws.activations(frame, runs, ws.LEARNED, name))

    grown = pd.concat({name: exponent(name) for name in ws.FREE_IN_STREAM}, axis=1)
    found = [at_least(f"exponent of {name}", grown[name], limits["growth"]) for name in grown]
    apart = grown.max(axis=1) - grown.min(axis=1)
    found.append(at_most("largest less smallest of these exponents", apart, limits["jointly"]))
    known = pd.concat([exponent(name) for name in ws.FIXED_BY_MODEL], axis=1).mean(axis=1)
    gate = exponent("gate")
    found.append(at_least("exponent of gate less that of logits, Q·K, dt", gate - known, 0.0))
    found.append(at_most("exponent of gate less that of outputs", gate - grown.mean(axis=1), 0.0))
    return Judgement(found, criterion["seeds"]["minimum"])


def ws3(frame, runs, criterion) -> Judgement:
    """Learned multipliers follow d⁻¹ and d⁻², slightly slower."""
    limits, found = criterion["thresholds"], []
    for name, (_, expected) in ws.MULTIPLIERS.items():
        share = ws.exponents(ws.multipliers(frame, runs, name)) / expected
        found += within(f"exponent of s over {expected:g}, {name}", share, limits["least"],
                        limits["most"], name)  # fmt: skip
    return Judgement(found, criterion["seeds"]["minimum"])


def ws4(frame, runs, criterion) -> Judgement:
    """The alignment decays with the width, more slowly than in a model that learned nothing."""
    limits, found, contrast = criterion["thresholds"], [], []
    for name, (_, expected) in ws.MULTIPLIERS.items():
        factors = -expected  # of Q·K it is the product of two
        learned, start = (ws.alignment(frame, runs, name, untrained) for untrained in (False, True))
        exponent = ws.exponents(learned) / factors
        found.append(at_most(f"exponent of α, {name}", exponent, limits["decay"], name))
        found.append(at_least(f"exponent of α, {name}", exponent, limits["random"], name))
        gain = np.log(learned / start).iloc[:, -1] / factors
        contrast.append(at_least(f"{name}: ln of α over that at the start, largest width", gain,
                                 limits["learned"]))  # fmt: skip
    return Judgement(found, criterion["seeds"]["minimum"], contrast=contrast)


def ws6(frame, runs, criterion) -> Judgement:
    """Outputs grow late in training, with an offset per width; the projector's end at one level."""
    limits, end = criterion["thresholds"], stage_end_of(runs)
    found = []
    for name, tensor in (("embedding", "embedding"), ("attention", "attention.out"),
                         ("MLP", "mlp.down")):  # fmt: skip
        last = np.log(_output(frame, tensor, end))
        growth = (last - np.log(_output(frame, tensor, end // 2))).min(axis=1)
        offset = last.max(axis=1) - last.min(axis=1)
        found.append(at_least(f"{name}: late growth in ln, least of the widths", growth,
                              limits["growth"], name))  # fmt: skip
        found.append(at_least(f"{name}: ln range over widths", offset, limits["offset"], name))
    logits = np.log(_output(frame, "projector", end))
    late = (logits - np.log(_output(frame, "projector", end // 2))).abs().max(axis=1)
    level = logits.max(axis=1) - logits.min(axis=1)
    found.append(at_most("projector: largest late change in ln", late, limits["still"],
                         "projector"))  # fmt: skip
    found.append(at_most("projector: ln range over widths", level, limits["level"], "projector"))
    return Judgement(found, criterion["seeds"]["minimum"])


def _output(frame: pd.DataFrame, tensor: str, step: int) -> pd.DataFrame:
    return _course(frame, (tensor,), "activation_norm", step)


def _course(frame: pd.DataFrame, tensors: tuple[str, ...], stat: str, step: int) -> pd.DataFrame:
    """``stat`` of LEARNED at ``step``, geometric mean over layers and tensors: seeds × widths."""
    chosen = frame[(frame["arm"] == ws.LEARNED) & (frame["stat"] == stat)]
    chosen = at_step(chosen[chosen["tensor"].isin(tensors)], step)
    keys = ["seed", "width", "value"]
    return over_layers(chosen[keys]).pivot_table("value", "seed", "width").astype(float)


JUDGES = {"WS1": ws1, "WS2": ws2, "WS2b": ws2b, "WS3": ws3, "WS4": ws4, "WS6": ws6}
