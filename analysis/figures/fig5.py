"""Figure 5 (section 4.2): norms and scalar multipliers over the width, η and λ fixed.

a: matrix norms; b: activation norms that the model fixes, and the gate's; c: those that are free in
the residual stream; d: multipliers, learned and fixed factor together, with the slopes that muP
expects. The multipliers begin ∝ 1/d. Beside each line stands its exponent of d, fitted over all
widths, mean and 95% interval over seeds. Lines are medians, bands the range of seeds. The csv has
the other arms too, which ``width_contrasts`` draws.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import end, median, name_ends
from analysis.drawing.page import caption, label, page
from analysis.drawing.style import BANDS_RANGE, BLOCK_LOOKS, log_axis, shade, widen
from analysis.figures.symmetry_stress import planned
from analysis.quantities import width_scaling as ws
from analysis.quantities.stats import with_interval
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("width_scaling",)
# The block whose colour a quantity has.
BLOCKS = {
    "logits": "projector", "Q·K": "attention", "dt": "SSM", "gate": "MLP",
    "attention output": "attention", "SSM output": "SSM", "MLP output": "MLP",
}  # fmt: skip
# Panels of the drawing: title, axis, quantities' panel, and which of them.
PANELS = (
    ("a   Norms of matrices hardly change", r"RMS norm $\|W\|$", "matrices", tuple(ws.MATRICES)),
    ("b   Logits stay, gate falls; Q·K, dt: open", "RMS norm", "activations",
     (*ws.FIXED_BY_MODEL, *ws.GATE)),
    ("c   Outputs to the stream do not grow", "RMS norm", "activations", tuple(ws.FREE_IN_STREAM)),
    ("d   Multipliers fall with the width", r"$|s|$", "multipliers", tuple(ws.MULTIPLIERS)),
)  # fmt: skip
# Slopes that muP expects of multipliers, dotted in their colours.
EXPECTED = {"projector": -1.0, "dt": -1.0, "Q·K": -2.0}
GUIDE = {"lw": 0.9, "ls": (0, (1, 1)), "zorder": 1}


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
    figure, axes = page(2, 2, 4.0, w_pad=0.05, h_pad=0.05, sharex=True)
    groups = dict(tuple(numbers[numbers["arm"] == ws.LEARNED].groupby(["panel", "quantity"])))
    for axis, (title, name, panel, quantities) in zip(axes.flat, PANELS, strict=True):
        ends = {}
        for quantity in quantities:
            rows = groups[panel, quantity]
            look = BLOCK_LOOKS[BLOCKS.get(quantity, quantity)]
            median(axis, rows, "width", **look)
            fitted = with_interval(rows.drop_duplicates("seed")["exponent"], 2)
            fitted = fitted.replace("-0.00", "0.00").replace("-", "−")
            if panel == "multipliers":
                fitted += f"\nmuP: {EXPECTED[quantity]:.0f}".replace("-", "−")
            ends[f"{quantity}\n{fitted}"] = end(rows, "width"), shade(look["color"], -0.25)
        if panel == "multipliers":
            _guides(axis, {name: groups["multipliers", name] for name in EXPECTED})
        width_axis(axis, numbers)
        log_axis(axis)
        if panel == "matrices":
            widen(axis, 0.2)
        name_ends(axis, ends, size=6.5)
        label(axis, title, ylabel=name)
    for axis in axes[1]:
        axis.set_xlabel("width $d$")
    lr = planned("width_scaling", context)[ws.LEARNED]["multipliers"]["lr"]
    note = f"multipliers' LR {lr:g}; dotted: muP; numbers: exponents of the width"
    if numbers["seed"].nunique() > 1:
        note += f", 95%; {BANDS_RANGE}"
    return caption(figure, context, note)


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
