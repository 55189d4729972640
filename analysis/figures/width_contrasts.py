"""Beside figure 5: the same norms and multipliers from another start, and with a fixed scale.

Top: activations that the model fixes, and the gate's. Middle: outputs to the residual stream.
Bottom: multipliers, learned and fixed factor together, and the matrices of the MLP. What both
starts of the learned scalars share has been learned. Lines are medians, bands the range of seeds.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import median
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_COLOURS, log_axis, shade, widen
from analysis.figures import fig5
from analysis.quantities import width_scaling as ws
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("width_scaling",)
LOOKS = {
    ws.LEARNED: {"color": ARM_COLOURS["SPN"], "marker": "s"},
    ws.FROM_ONE: {"color": shade(ARM_COLOURS["SPN"], 0.45), "marker": "s", "ls": "--"},
    ws.SCALED: {"color": ARM_COLOURS["FPN"], "marker": "o"},
    ws.FIXED: {"color": shade(ARM_COLOURS["FPN"], 0.45), "marker": "o", "ls": "--"},
}
NAMES = {
    ws.LEARNED: "learned, from $\\propto 1/d$",
    ws.FROM_ONE: "learned, from 1",
    ws.SCALED: "fixed, $\\propto 1/d$",
    ws.FIXED: "fixed at 1",
}
# Panels by row: panel and quantity of figure 5, and the title.
ROWS = (
    [("activations", name, name) for name in (*ws.FIXED_BY_MODEL, *ws.GATE)],
    [("activations", name, name) for name in ws.FREE_IN_STREAM],
    [
        *(("multipliers", name, f"$|s|$ of {name}") for name in ws.MULTIPLIERS),
        ("matrices", "MLP", r"$\|W\|$ of MLP"),
    ],
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Those of figure 5 that are drawn here, in its columns."""
    rows = fig5.numbers(tables)
    drawn = pd.MultiIndex.from_tuples([place[:2] for line in ROWS for place in line])
    return rows[pd.MultiIndex.from_frame(rows[["panel", "quantity"]]).isin(drawn)]


def draw(numbers: pd.DataFrame, context: Context):
    """Three rows of four panels."""
    figure, axes = page(3, 4, 5.0, w_pad=0.02, h_pad=0.04, sharex=True)
    groups = dict(tuple(numbers.groupby(["panel", "quantity", "arm"])))
    letters = iter("abcdefghijkl")
    for line, places in zip(axes, ROWS, strict=True):
        for axis, (panel, quantity, title) in zip(line, places, strict=True):
            for arm, look in LOOKS.items():
                if (panel, quantity, arm) in groups:
                    rows = groups[panel, quantity, arm]
                    median(axis, rows, "width", alpha=0.15, ms=2.5, **look)
            fig5.width_axis(axis, numbers)
            log_axis(axis)
            widen(axis, 0.5)
            label(axis, f"{next(letters)}   {title}")
        line[0].set_ylabel("multiplier" if places is ROWS[2] else "norm (RMS)")
    axes[2, 3].set_ylabel("norm (RMS)")
    for axis in axes[2]:
        axis.set_xlabel("width d")
    handles = [key(NAMES[arm], ms=2.5, **look) for arm, look in LOOKS.items()]
    legend_below(figure, [key("scale s:", lw=0), *handles], 5)
    return caption(figure, context, "i to k: fixed arms learn no s; bands: range of seeds")
