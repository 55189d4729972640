"""Judging functions of WS1 to WS6 but WS5: norms and scalar multipliers over the width (4.2).

Exponents are those of the width d, one per seed. Changes over time are in ln. A start is where
learned multipliers begin: at s ∝ 1/d or at 1.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement, within
from analysis.quantities import width_scaling as ws
from analysis.tables.results import Tables

OUTPUTS = {"embedding": "embedding", "attention": "attention.out", "MLP": "mlp.down"}


def ws1(tables: Tables, criterion: dict) -> Judgement:
    """Matrix norms barely depend on the width, and have come to rest.

    At rest: neither their mean over widths nor their exponent still moves. Of one width alone the
    norm of a matrix of a hundred entries wanders by more.
    """
    limits, parts, contrast = criterion["thresholds"], [], []
    for group in ws.MATRICES:
        parts.append(_exponent_of_norm(tables, ws.LEARNED, group, limits["constant"], group))
        contrast += _at_rest(tables, ws.LEARNED, group, limits, group)
    return judgement(criterion, parts, contrast=contrast)


def ws1_2(tables: Tables, criterion: dict) -> Judgement:
    """The same from both starts, and the norms of no width alone still move."""
    limits, parts, contrast = criterion["thresholds"], [], []
    for group in ws.MATRICES:
        for arm, start in ws.STARTS.items():
            name = f"{group}, {start}"
            parts.append(_exponent_of_norm(tables, arm, group, limits["constant"], name))
            contrast += _at_rest(tables, arm, group, limits, name)
            most = _last_quarter(tables, arm, group).abs().max(axis=1)
            contrast.append(at_most(f"{name}: largest change of ‖W‖ in ln at one width, last "
                                    "quarter", most, limits["each"], group))  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


def _exponent_of_norm(tables: Tables, arm: str, group: str, limit: float, name: str) -> Part:
    values = ws.exponents(ws.matrices(tables, arm, group))
    return within(f"{name}: exponent of ‖W‖ in d", values, -limit, limit, group)


def _last_quarter(tables: Tables, arm: str, group: str) -> pd.DataFrame:
    """Change of ln ‖W‖ over the last quarter of the constant stage: seeds × widths."""
    before, last = (
        ws.course(tables, arm, ws.MATRICES[group], "weight_norm", step)
        for step in (tables.stage_end * 3 // 4, tables.stage_end)
    )
    return np.log(last / before)


def _at_rest(tables: Tables, arm: str, group: str, limits: dict, name: str) -> list[Part]:
    change = _last_quarter(tables, arm, group)
    return [
        within(f"{name}: change of ‖W‖ in ln, mean over widths, last quarter",
               change.mean(axis=1), -limits["rest"], limits["rest"], group),
        within(f"{name}: change of the exponent of ‖W‖, last quarter",
               ws.exponents(np.exp(change)), -limits["still"], limits["still"], group),
    ]  # fmt: skip


def ws2(tables: Tables, criterion: dict) -> Judgement:
    """Logits, Q·K and dt are constant where multipliers learn, and a fixed s would move them.

    A quantity that is the same with s fixed and with s ∝ 1/d says nothing of multipliers.
    """
    limits, parts, contrast, unlearned = criterion["thresholds"], [], [], []
    for name in ws.FIXED_BY_MODEL:
        for arm, start in ws.STARTS.items():
            learned = ws.exponents(ws.activations(tables, arm, name))
            parts.append(within(f"{name}, {start}: exponent of the norm in d", learned,
                                -limits["constant"], limits["constant"], name))  # fmt: skip
        fixed, scaled = (
            ws.exponents(ws.activations(tables, arm, name)) for arm in (ws.FIXED, ws.SCALED)
        )
        contrast.append(at_least(f"{name}: exponent with s fixed at 1 less that with s ∝ 1/d",
                                 fixed - scaled, limits["contrast"], name))  # fmt: skip
        unlearned.append(f"{name} {fixed.mean():+.2f} and {scaled.mean():+.2f}")
    return judgement(criterion, parts, f"s fixed and s ∝ 1/d: {', '.join(unlearned)}", contrast)


def ws2_2(tables: Tables, criterion: dict) -> Judgement:
    """The same from a start at 1 alone, at the widths whose heads are more than one.

    The contrast is a fixed s of 1: what it does not move says nothing of multipliers.
    """
    limits, widths = criterion["thresholds"], criterion["widths"]
    parts, contrast, unlearned = [], [], []
    for name in ws.FIXED_BY_MODEL:
        learned, fixed = (
            ws.exponents(ws.activations(tables, arm, name)[widths])
            for arm in (ws.FROM_ONE, ws.FIXED)
        )
        parts.append(within(f"{name}: exponent of the norm in d", learned, -limits["constant"],
                            limits["constant"], name))  # fmt: skip
        contrast.append(at_least(f"{name}: exponent with s fixed at 1 less that", fixed - learned,
                                 limits["contrast"], name))  # fmt: skip
        unlearned.append(f"{name} {fixed.mean():+.2f} (median learned {learned.median():+.2f})")
    return judgement(criterion, parts, f"s fixed: {', '.join(unlearned)}", contrast)


def ws2b(tables: Tables, criterion: dict) -> Judgement:
    """Embedding and block outputs grow jointly with the width; the gate lies between."""
    limits, parts = criterion["thresholds"], []
    for arm, start in ws.STARTS.items():
        outputs, gate, known = (
            pd.concat(
                {name: ws.exponents(ws.activations(tables, arm, name)) for name in names},
                axis=1,
            )
            for names in (ws.FREE_IN_STREAM, ws.GATE, ws.FIXED_BY_MODEL)
        )
        parts += [
            at_least(f"{name}, {start}: exponent of the norm in d", outputs[name],
                     limits["growth"], start)
            for name in outputs
        ]  # fmt: skip
        apart = outputs.max(axis=1) - outputs.min(axis=1)
        parts.append(at_most(f"outputs, {start}: largest less smallest exponent", apart,
                             limits["jointly"], start))  # fmt: skip
        above = gate["gate"] - known.mean(axis=1)
        below = gate["gate"] - outputs.mean(axis=1)
        parts.append(at_least(f"gate, {start}: exponent less that of logits, Q·K, dt", above,
                              0.0, start))  # fmt: skip
        parts.append(at_most(f"gate, {start}: exponent less that of outputs", below, 0.0,
                             start))  # fmt: skip
    return judgement(criterion, parts)


def ws3(tables: Tables, criterion: dict) -> Judgement:
    """Learned multipliers follow d⁻¹ and d⁻², slightly slower, wherever they began."""
    limits, parts = criterion["thresholds"], []
    for name, (_, expected) in ws.MULTIPLIERS.items():
        for arm, start in ws.STARTS.items():
            share = ws.exponents(ws.multipliers(tables, name, arm)) / expected
            parts.append(within(f"{name}, {start}: exponent of |s| over {expected:g}", share,
                                limits["least"], limits["most"], name))  # fmt: skip
    return judgement(criterion, parts)


def ws4(tables: Tables, criterion: dict) -> Judgement:
    """The alignment decays with the width, more slowly than in a model that learned nothing."""
    limits, parts, contrast = criterion["thresholds"], [], []
    for name, (_, expected) in ws.MULTIPLIERS.items():
        for arm, start in ws.STARTS.items():
            learned, untrained = (
                _alignment(tables, name, arm, expected, before) for before in (False, True)
            )
            exponent = ws.exponents(np.exp(learned))
            parts.append(within(f"{name}, {start}: exponent of α in d", exponent,
                                limits["random"], limits["decay"], name))  # fmt: skip
            gain = (learned - untrained).iloc[:, -1]
            contrast.append(at_least(f"{name}, {start}: ln of α over that of the untrained, "
                                     "largest width", gain, limits["learned"], name))  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


def ws4_2(tables: Tables, criterion: dict) -> Judgement:
    """The alignment decays from every width to the next; small and large widths apart."""
    limits, parts, contrast = criterion["thresholds"], [], []
    for name, (_, expected) in ws.MULTIPLIERS.items():
        for arm, start in ws.STARTS.items():
            learned, untrained = (
                _alignment(tables, name, arm, expected, before) for before in (False, True)
            )
            slopes, gain = ws.local_slopes(learned), learned - untrained
            middle = gain.columns[len(gain.columns) // 2]
            for (low, high), values in slopes.items():
                group = f"{name} {_side(high, middle)} width {middle}"
                parts.append(at_most(f"{name}, {start}: slope of ln α in ln d, {low} to {high}",
                                     values, limits["decay"], group,
                                     matters=criterion["smallest_effect"]))  # fmt: skip
            for width in (middle, gain.columns[-1]):
                group = f"{name} {_side(width, middle)} width {middle}"
                contrast.append(at_least(f"{name}, {start}: ln of α over that of the untrained, "
                                         f"width {width}", gain[width], limits["learned"],
                                         group))  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


def _side(width: int, middle: int) -> str:
    return "up to" if width <= middle else "beyond"


def _alignment(
    tables: Tables, name: str, arm: str, expected: float, untrained: bool
) -> pd.DataFrame:
    """ln α, of Q·K per factor (it is the product of two): seeds × widths."""
    return np.log(ws.alignment(tables, name, arm, untrained)) / -expected


def ws6(tables: Tables, criterion: dict) -> Judgement:
    """Outputs grow late in training, with an offset per width; the projector's end at one level."""
    limits, end, parts = criterion["thresholds"], tables.stage_end, []
    arm = ws.drifting(tables)

    def output(tensor: str, step: int) -> pd.DataFrame:
        return np.log(ws.course(tables, arm, (tensor,), "activation_norm", step))

    for name, tensor in OUTPUTS.items():
        last = output(tensor, end)
        growth = (last - output(tensor, end // 2)).min(axis=1, skipna=False)
        offset = last.max(axis=1, skipna=False) - last.min(axis=1, skipna=False)
        parts.append(at_least(f"{name}: late growth in ln, least of the widths", growth,
                              limits["growth"], name))  # fmt: skip
        parts.append(at_least(f"{name}: ln range over widths", offset, limits["offset"], name))
    logits = output("projector", end)
    late = (logits - output("projector", end // 2)).abs().max(axis=1)
    level = logits.max(axis=1) - logits.min(axis=1)
    parts.append(at_most("projector: largest late change in ln", late, limits["still"],
                         "projector at rest"))  # fmt: skip
    parts.append(at_most("projector: ln range over widths", level, limits["level"],
                         "projector at one level"))  # fmt: skip
    return judgement(criterion, parts)
