"""Judging functions of WS1 to WS6 (section 4.2). Exponents of d, one per seed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import width_scaling as ws
from analysis.judging import Judgement, at_least, at_most, within
from analysis.norms import at_step, over_layers, stage_end_of


def ws1(frame, runs, criterion) -> Judgement:
    """Matrix norms barely depend on the width."""
    limit, found = criterion["thresholds"]["constant"], []
    for group in ws.MATRICES:
        values = ws.exponents(ws.matrices(frame, runs, ws.LEARNED, group))
        found += within(f"exponent of ‖W‖, {group}", values, -limit, limit, group)
    return Judgement(found, criterion["seeds"]["minimum"])


def ws2(frame, runs, criterion) -> Judgement:
    """Logits, Q·K and dt are constant where multipliers learn; they are not where s is fixed."""
    limits, found, contrast = criterion["thresholds"], [], []
    for name in ws.SCALES_KNOWN:
        learned, fixed = (
            ws.exponents(ws.activations(frame, runs, arm, name)) for arm in (ws.LEARNED, ws.FIXED)
        )
        found += within(f"exponent of {name}", learned, -limits["constant"], limits["constant"],
                        name)  # fmt: skip
        contrast.append(at_least(f"exponent of {name}, s fixed", fixed, limits["contrast"]))
    return Judgement(found, criterion["seeds"]["minimum"], contrast=contrast)


def ws2b(frame, runs, criterion) -> Judgement:
    """Embedding and block outputs grow jointly with the width; the gate lies between."""
    limits = criterion["thresholds"]

    def exponent(name: str) -> pd.Series:
        return ws.exponents(ws.activations(frame, runs, ws.LEARNED, name))

    grown = {name: exponent(name) for name in ws.SCALES_FREE}
    found = [at_least(f"exponent of {name}", v, limits["growth"]) for name, v in grown.items()]
    gate, outputs = exponent("gate"), pd.concat(grown, axis=1).mean(axis=1)
    known = pd.concat([exponent(name) for name in ws.SCALES_KNOWN], axis=1).mean(axis=1)
    found.append(at_least("exponent of gate less that of logits, Q·K, dt", gate - known, 0.0))
    found.append(at_most("exponent of gate less that of outputs", gate - outputs, 0.0))
    return Judgement(found, criterion["seeds"]["minimum"])


def ws3(frame, runs, criterion) -> Judgement:
    """Learned multipliers follow d⁻¹ and d⁻², slightly slower."""
    limits, found = criterion["thresholds"], []
    for name, expected in ws.MULTIPLIERS.items():
        share = ws.exponents(ws.multipliers(frame, runs, name)) / expected
        found += within(f"exponent of s over {expected:g}, {name}", share, limits["least"],
                        limits["most"], name)  # fmt: skip
    return Judgement(found, criterion["seeds"]["minimum"])


def ws4(frame, runs, criterion) -> Judgement:
    """The alignment decays with the width."""
    found = [
        at_most(f"exponent of α, {name}", ws.exponents(ws.alignment(frame, runs, name)),
                criterion["thresholds"]["decay"], name)
        for name in ws.MULTIPLIERS
    ]  # fmt: skip
    return Judgement(found, criterion["seeds"]["minimum"])


def ws6(frame, runs, criterion) -> Judgement:
    """Outputs grow late in training, with an offset per width; the projector's end at one level."""
    limits, end = criterion["thresholds"], stage_end_of(runs)
    found = []
    for name, tensor in (("embedding", "embedding"), ("attention", "attention.out"),
                         ("MLP", "mlp.down")):  # fmt: skip
        growth = np.log(_output(frame, tensor, end) / _output(frame, tensor, end // 2))
        found.append(at_least(f"late ln growth, {name}", growth.mean(axis=1), limits["growth"],
                              name))  # fmt: skip
    logits = _output(frame, "projector", end)
    late = np.log(logits / _output(frame, "projector", end // 2)).abs().max(axis=1)
    level = np.log(logits.max(axis=1) / logits.min(axis=1))
    found.append(at_most("projector: largest late change in ln", late, limits["still"],
                         "projector"))  # fmt: skip
    found.append(at_most("projector: ln range over widths", level, limits["level"], "projector"))
    return Judgement(found, criterion["seeds"]["minimum"])


def _output(frame: pd.DataFrame, tensor: str, step: int) -> pd.DataFrame:
    """Norm of an output at ``step``, geometric mean over layers: seeds × widths."""
    chosen = frame[(frame["arm"] == ws.LEARNED) & (frame["stat"] == "activation_norm")]
    chosen = at_step(chosen[chosen["tensor"] == tensor], step)
    return over_layers(chosen).pivot_table("value", "seed", "width").astype(float)


JUDGES = {"WS1": ws1, "WS2": ws2, "WS2b": ws2b, "WS3": ws3, "WS4": ws4, "WS6": ws6}
