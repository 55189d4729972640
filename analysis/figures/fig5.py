"""Figure 5 (section 4.2): norms and scalar multipliers over the width, η and λ fixed.

a: matrix norms; b: activation norms that the model fixes, and the gate's; c: those that are free in
the residual stream; d: multipliers, learned and fixed factor together, with the slopes that muP
expects, which are those of the start. The multipliers begin ∝ 1/d. Beside each line stands its
exponent of d, fitted over all widths, mean and 95% interval over seeds; a star marks that of a
curve which is no power law. Below it, but for matrices, stands that of the arm whose multipliers
begin at 1, dashed and hollow: what both have in common may be learned. Lines are medians, bands
the range of seeds. The csv has the other arms too, which ``width_contrasts`` draws.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator

from analysis.drawing.axes import end, median, name_ends
from analysis.drawing.page import (
    caption,
    finding,
    headline,
    key,
    label,
    legend_below,
    page,
    written_of,
)
from analysis.drawing.style import BANDS_RANGE, BLOCK_LOOKS, log_axis, shade, widen
from analysis.quantities import width_scaling as ws
from analysis.quantities.stats import interval, with_half
from analysis.tables.context import Context, planned, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("width_scaling",)
# The block whose colour a quantity has.
BLOCKS = {
    "logits": "projector", "Q·K": "attention", "dt": "SSM", "gate": "MLP",
    "attention output": "attention", "SSM output": "SSM", "MLP output": "MLP",
}  # fmt: skip
MESSAGE = "Started at s ∝ 1/d, matrices and logits keep their norms, and outputs stay or fall"
# Panels of the drawing: title (what the published runs show, and of others), axis, quantities'
# panel, and which of them.
PANELS = (
    (("a   Norms of matrices hardly change\n", "a   Norms of matrices\n"),
     r"RMS norm $\|W\|$", "matrices", tuple(ws.MATRICES)),
    (("b   Logits stay; dt and gate fall (solid);\n     Q·K shows no steady trend",
      "b   Norms that the model fixes,\n     and the gate's"),
     "RMS norm", "activations", (*ws.FIXED_BY_MODEL, *ws.GATE)),
    (("c   Outputs to the stream stay or fall;\n     from 1 (dashed) they grow (MLP: open)",
      "c   Outputs to the residual stream\n"),
     "RMS norm", "activations", tuple(ws.FREE_IN_STREAM)),
    (("d   Multipliers fall; projector's and\n     Q·K's more slowly than in muP",
      "d   Multipliers\n"),
     r"$|s|$", "multipliers", tuple(ws.MULTIPLIERS)),
)  # fmt: skip
# An exponent has a star where its power law misses a median by more than this factor.
BENT = 1.2
# Slopes that muP expects of multipliers, and that they start with, dotted in their colours.
EXPECTED = {"projector": -1.0, "dt": -1.0, "Q·K": -2.0}
GUIDE = {"lw": 0.9, "ls": (0, (1, 1)), "zorder": 1}
DASHED = {"lw": 0.9, "ls": "--", "zorder": 2, "markerfacecolor": "white", "ms": 2.8, "mew": 0.7}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, quantity, seed, width, value, exponent (the same for all widths)."""
    table = tables["width_scaling"]
    parts = []

    def put(panel: str, arm: str, quantity: str, values: pd.DataFrame) -> None:
        rows = stacked(values, panel=panel, arm=arm, quantity=quantity)
        parts.append(rows.assign(exponent=rows["seed"].map(ws.exponents(values))))

    for arm in (ws.LEARNED, ws.FROM_ONE, ws.FIXED, ws.SCALED):
        for group in ws.MATRICES:
            put("matrices", arm, group, ws.matrices(table, arm, group))
        for name in ws.ACTIVATIONS:
            put("activations", arm, name, ws.activations(table, arm, name))
    for arm in ws.STARTS:
        for name in ws.MULTIPLIERS:
            put("multipliers", arm, name, ws.multipliers(table, name, arm))
            put("alignment", arm, name, ws.alignment(table, name, arm))
    columns = ["panel", "arm", "quantity", "seed", "width", "value", "exponent"]
    return pd.concat(parts)[columns].sort_values(columns[:-2], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels, each line named at its right."""
    figure, axes = page(2, 2, 5.7, w_pad=0.05, h_pad=0.05)
    headline(figure, MESSAGE, context)
    groups = dict(tuple(numbers.groupby(["arm", "panel", "quantity"])))
    ends: list[dict] = []
    for axis, (title, name, panel, quantities) in zip(axes.flat, PANELS, strict=True):
        ends.append({})
        for quantity in quantities:
            rows = groups[ws.LEARNED, panel, quantity]
            look = BLOCK_LOOKS[BLOCKS.get(quantity, quantity)]
            median(axis, rows, "width", **look)
            said = f"{quantity.removesuffix(' output')}\n{_exponent(rows)}"
            other = groups.get((ws.FROM_ONE, panel, quantity))
            if other is not None and panel != "matrices":  # whose lines would lie on each other
                median(axis, other, "width", None, **look | DASHED)
                said += f"\n○ {_exponent(other)}"
            ends[-1][said] = end(rows, "width"), shade(look["color"], -0.25)
        if panel == "multipliers":
            _guides(axis, {name: groups[ws.LEARNED, "multipliers", name] for name in EXPECTED})
        width_axis(axis, numbers)
        axis.margins(y=0.1)  # so that no name beside a line's end reaches the title
        log_axis(axis)
        if panel == "matrices":
            widen(axis, 0.4)
            if written_of(context):
                axis.yaxis.set_major_locator(FixedLocator([0.04, 0.05, 0.06, 0.08, 0.1]))
        label(axis, finding(context, *title), ylabel=name, xlabel="width $d$")
    of_guides = "d: slopes of muP and of the start, −1 and −2 (Q·K)"
    handles = [
        key("start at s ∝ 1/d", marker="o"),
        key("b–d: start at 1 (○)", marker="o", **DASHED),
    ]
    legend_below(figure, [*handles, key(of_guides, **GUIDE)], 3)
    lr = planned("width_scaling", context)[ws.LEARNED]["multipliers"]["lr"]
    note = f"s: a matrix's scale, learned × fixed; multipliers' LR {lr:g}"
    numbered = "numbers: exponents of d over all widths"
    if numbers["seed"].nunique() > 1:
        note += f"\n{BANDS_RANGE}\ndashed: medians, no bands; those not seen lie under solid lines"
        numbered += ", ± 95%"
    numbered += f"; *: a power law misses a median by more than {BENT - 1:.0%}"
    caption(figure, context, f"{note}\n{numbered}")
    figure.get_layout_engine().execute(figure)  # names keep apart by the axis' height
    for axis, named in zip(axes.flat, ends, strict=True):
        name_ends(axis, named)
    return figure


def _exponent(rows: pd.DataFrame) -> str:
    """The exponent of the width, with a star where no power law goes through the medians."""
    medians = np.log(rows.groupby("width")["value"].median())
    d = np.log(medians.index.to_numpy(dtype=float))
    missed = np.abs(medians - np.polyval(np.polyfit(d, medians, 1), d)).max()
    star = "*" if missed > np.log(BENT) else ""
    values = rows.drop_duplicates("seed")["exponent"]
    found = interval(values)
    narrow = found.n > 1 and found.high - found.low < 0.01  # else it would seem to be 0
    return with_half(values, 3 if narrow else 2) + star


def width_axis(axis, numbers: pd.DataFrame) -> None:
    """A logarithmic axis with every width named."""
    widths = sorted(numbers["width"].unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(widths, [str(width) for width in widths])
    axis.minorticks_off()


def _guides(axis, multipliers: dict[str, pd.DataFrame]) -> None:
    """Lines of the slopes expected, from where the multipliers of the least width are."""
    for quantity, exponent in EXPECTED.items():
        values = multipliers[quantity].groupby("width")["value"].median()
        d = values.index.to_numpy(dtype=float)
        guide = float(values.iloc[0]) * (d / d[0]) ** exponent
        axis.plot(d, guide, color=BLOCK_LOOKS[BLOCKS.get(quantity, quantity)]["color"], **GUIDE)
