"""Beside figure 5: the same norms and multipliers from another start, and with a fixed scale.

Top: activations that the model fixes, and the gate's. Middle: outputs to the residual stream.
Bottom: multipliers, learned and fixed factor together. Filled and solid is what begins at ∝ 1/d,
open and dashed what begins at 1; blue is learned, and red stays there. At the base width both
starts are the same, and so are both fixed scales. Lines are medians, bands the range of seeds.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import median
from analysis.drawing.page import caption, key, label, sheet
from analysis.drawing.style import ARM_COLOURS, NEUTRAL, plain_log_axis, widen
from analysis.figures import fig5
from analysis.quantities import width_scaling as ws
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("width_scaling",)
LOOKS = {
    ws.LEARNED: {"color": ARM_COLOURS["SPN"], "marker": "s"},
    ws.FROM_ONE: {"color": ARM_COLOURS["SPN"], "marker": "s", "ls": "--", "mfc": "white"},
    ws.SCALED: {"color": ARM_COLOURS["FPN"], "marker": "o"},
    ws.FIXED: {"color": ARM_COLOURS["FPN"], "marker": "o", "ls": "--", "mfc": "white"},
}
NAMES = {
    ws.LEARNED: "learned, from $\\propto 1/d$",
    ws.FROM_ONE: "learned, from 1",
    ws.SCALED: "fixed, $\\propto 1/d$",
    ws.FIXED: "fixed at 1",
}
# Panels by row: the row's message, and by panel the quantity of figure 5 and the title.
ROWS = {
    "What the model fixes: multipliers that begin at 1 learn most of the way": [
        ("activations", name, name) for name in (*ws.FIXED_BY_MODEL, *ws.GATE)
    ],
    "What is free: attention and SSM outputs grow if scales begin at 1, learned or not": [
        ("activations", name, name) for name in ws.FREE_IN_STREAM
    ],
    "Learned multipliers fall with the width from both starts": [
        ("multipliers", name, f"$|s|$ of {name}") for name in ws.MULTIPLIERS if name != "projector"
    ],
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Those of figure 5 that are drawn here, in its columns."""
    rows = fig5.numbers(tables)
    drawn = pd.MultiIndex.from_tuples([place[:2] for line in ROWS.values() for place in line])
    return rows[pd.MultiIndex.from_frame(rows[["panel", "quantity"]]).isin(drawn)]


def draw(numbers: pd.DataFrame, context: Context):
    """Three rows of up to four panels under their messages, the legend where the last row ends."""
    figure = sheet(5.5)
    groups = dict(tuple(numbers.groupby(["panel", "quantity", "arm"])))
    base = _base_width(numbers)
    letters = iter("abcdefghijkl")
    parts = figure.subfigures(len(ROWS), 1)
    for part, (message, places) in zip(parts, ROWS.items(), strict=True):
        part.suptitle(message, x=0.01, ha="left", fontsize=7.5, weight="bold")
        axes = part.subplots(1, 4)
        for axis, (panel, quantity, title) in zip(axes, places, strict=False):
            for arm, look in LOOKS.items():
                if (panel, quantity, arm) in groups:
                    rows = groups[panel, quantity, arm]
                    median(axis, rows, "width", alpha=0.13, ms=2.8, mew=0.8, **look)
            fig5.width_axis(axis, numbers)
            axis.axvline(base, **NEUTRAL, ls=":")
            plain_log_axis(axis)
            widen(axis, 0.5)
            label(axis, f"{next(letters)}   {title}")
        axes[0].set_ylabel("multiplier" if places[0][0] == "multipliers" else "RMS norm")
        for empty in axes[len(places) :]:
            empty.set_axis_off()
    middle = parts[1].axes
    low, high = zip(*(axis.get_ylim() for axis in middle), strict=True)
    for axis in middle:
        axis.set_ylim(min(low), max(high))
        axis.tick_params(labelleft=axis is middle[0])
    for axis in parts[-1].axes:
        axis.set_xlabel("width d")
    handles = [key("scale s:", lw=0)]
    handles += [key(NAMES[arm], ms=2.8, mew=0.8, **look) for arm, look in LOOKS.items()]
    handles.append(key(f"d = {base:g}: dashed = solid by construction", **NEUTRAL, ls=":"))
    # Of the room that the last row leaves.
    legend = parts[-1].axes[-2].legend(handles=handles, loc="center left", bbox_to_anchor=(0, 0.5))
    legend.set_in_layout(False)
    return caption(figure, context, "lines: medians; bands: range")


def _base_width(numbers: pd.DataFrame) -> float:
    """The width at which both starts of learned scalars are one and the same run."""
    arms = numbers.pivot_table("value", ["panel", "quantity", "seed", "width"], "arm")
    same = (arms[ws.LEARNED] == arms[ws.FROM_ONE]).groupby("width").mean()
    return same.idxmax()
