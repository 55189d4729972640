"""Judging functions of WS1 to WS6 but WS5 (section 4.2). Exponents of d, one per seed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.claims.judging import Judgement, at_least, at_most, judgement, within
from analysis.quantities import width_scaling as ws
from analysis.tables.results import Tables


def ws1(tables: Tables, criterion: dict) -> Judgement:
    """Matrix norms barely depend on the width, and have come to rest.

    At rest: neither their mean over widths nor their exponent still moves. Of one width alone the
    norm of a matrix of a hundred entries wanders by more.
    """
    limits, end = criterion["thresholds"], tables.stage_end
    found, contrast = [], []
    for group, tensors in ws.MATRICES.items():
        values = ws.exponents(ws.matrices(tables, ws.LEARNED, group))
        found += within(f"exponent of ‖W‖, {group}", values, -limits["constant"],
                        limits["constant"], group)  # fmt: skip
        before, last = (
            ws.course(tables, ws.LEARNED, tensors, "weight_norm", step)
            for step in (end * 3 // 4, end)
        )
        change = np.log(last / before).mean(axis=1)
        contrast += within(f"{group}: mean change in ln, last quarter", change, -limits["rest"],
                           limits["rest"])  # fmt: skip
        change = ws.exponents(last) - ws.exponents(before)
        contrast += within(f"{group}: change of the exponent, last quarter", change,
                           -limits["still"], limits["still"])  # fmt: skip
    return judgement(criterion, found, contrast=contrast)


def ws2(tables: Tables, criterion: dict) -> Judgement:
    """Logits, Q·K and dt are constant where multipliers learn, and a fixed s would move them.

    A quantity that is the same with s fixed and with s ∝ 1/d says nothing of multipliers.
    """
    limits, found, unlearned = criterion["thresholds"], [], []
    for name in ws.FIXED_BY_MODEL:
        for arm, start in ws.STARTS.items():
            learned = ws.exponents(ws.activations(tables, arm, name))
            found += within(f"exponent of {name}, {start}", learned, -limits["constant"],
                            limits["constant"], name)  # fmt: skip
        fixed, scaled = (
            ws.exponents(ws.activations(tables, arm, name)) for arm in (ws.FIXED, ws.SCALED)
        )
        found.append(at_least(f"exponent of {name}, s fixed less s ∝ 1/d", fixed - scaled,
                              limits["contrast"], name))  # fmt: skip
        unlearned.append(f"{name} {fixed.mean():+.2f} and {scaled.mean():+.2f}")
    note = f"s fixed and s ∝ 1/d: {', '.join(unlearned)}"
    return judgement(criterion, found, note)


def ws2b(tables: Tables, criterion: dict) -> Judgement:
    """Embedding and block outputs grow jointly with the width; the gate lies between."""
    limits, found = criterion["thresholds"], []
    for arm, start in ws.STARTS.items():
        outputs, gate, known = (
            pd.concat(
                {name: ws.exponents(ws.activations(tables, arm, name)) for name in names},
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
    return judgement(criterion, found)


def ws3(tables: Tables, criterion: dict) -> Judgement:
    """Learned multipliers follow d⁻¹ and d⁻², slightly slower, wherever they began."""
    limits, found = criterion["thresholds"], []
    for name, (_, expected) in ws.MULTIPLIERS.items():
        for arm, start in ws.STARTS.items():
            share = ws.exponents(ws.multipliers(tables, name, arm)) / expected
            found += within(f"exponent of s over {expected:g}, {name}, {start}", share,
                            limits["least"], limits["most"], name)  # fmt: skip
    return judgement(criterion, found)


def ws4(tables: Tables, criterion: dict) -> Judgement:
    """The alignment decays with the width, more slowly than in a model that learned nothing."""
    limits, found, contrast = criterion["thresholds"], [], []
    for name, (_, expected) in ws.MULTIPLIERS.items():
        factors = -expected  # of Q·K it is the product of two
        for arm, start in ws.STARTS.items():
            learned, untrained = (
                ws.alignment(tables, name, arm, untrained) for untrained in (False, True)
            )
            exponent = ws.exponents(learned) / factors
            found += within(f"exponent of α, {name}, {start}", exponent, limits["random"],
                            limits["decay"], name)  # fmt: skip
            gain = np.log(learned / untrained).iloc[:, -1] / factors
            contrast.append(at_least(f"{name}, {start}: ln of α over that of the untrained, "
                                     "largest width", gain, limits["learned"]))  # fmt: skip
    return judgement(criterion, found, contrast=contrast)


def ws6(tables: Tables, criterion: dict) -> Judgement:
    """Outputs grow late in training, with an offset per width; the projector's end at one level."""
    limits, end = criterion["thresholds"], tables.stage_end
    arm, found = ws.drifting(tables), []

    def output(tensor: str, step: int) -> pd.DataFrame:
        return np.log(ws.course(tables, arm, (tensor,), "activation_norm", step))

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
    return judgement(criterion, found)
