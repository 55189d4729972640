"""Figure of ours: what weight decay does to scale vectors and the curvature, and which may decay.

a, b: size of the vectors of one side over training, long runs with Muon. c: largest eigenvalue of
the loss's Hessian in the same runs. d: decay on some of the vectors behind norms of DNP, against
decay on input vectors alone; left of 0 is better.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import judging_alone, median
from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, NOT_JUDGED, SMALL, plain_log_axis
from analysis.quantities.vector_decay import sizes
from analysis.tables.context import Context, stacked
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = {"sv_decay": ("LONG_*",), "sv_decay/split": "SV7b.2"}
# By decay: colour, name and line.
LOOKS = {
    "NONE": ("#222222", "no vector decays", "-"),
    "INPUT": ("#117733", "input vectors decay", "-"),
    "OUTPUT": ("#CC6677", "output vectors decay", "-"),
    "ALL": ("#888888", "all decay", ":"),
}
SPLIT = {
    "d": [
        Comparison("of v and up", "sv_decay/split", "DNP_ABSORBED", "DNP_INPUT", "none"),
        Comparison("of q, k, gate", "sv_decay/split", "DNP_NEEDED", "DNP_INPUT", "none"),
    ]
}
TITLES = {
    "a": "a   Input vectors",
    "b": "b   Output vectors",
    "c": "c   Curvature",
}
MESSAGE = (
    "Weight decay shrinks the vectors of blocks, and lets the final one grow less; the\n"
    "curvature grows in training, as the learning rate falls, with decay and without"
)
# What is drawn in a and b: names beside the lines, the side of the vectors, and width of the lines.
DRAWN = {"a": {"final": ("final", 0.9), "block": ("of blocks", 1.4)}, "b": {"output": ("", 1.4)}}
# Lines of c stand beside each other, so many steps apart, as shares of the training.
_ASIDE = {"NONE": -0.012, "INPUT": -0.004, "OUTPUT": 0.004, "ALL": 0.012}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, side, name (decay or comparison), seed, step, value (size, λ_max, nats)."""
    table, rows = tables["sv_decay"], []
    for decay in LOOKS:
        arm = f"LONG_{decay}"
        for panel, sides in DRAWN.items():
            for side in sides:
                found = stacked(sizes(table, arm, side), name=decay)
                rows.append(found.assign(panel=panel, side=side))
        curved = table.pick(kind="train", arm=arm, stat="curvature")[["seed", "step", "value"]]
        rows.append(curved.assign(panel="c", name=decay))
    split = judging_alone(measured(tables, SPLIT), criteria_of("sv_decay")["SV7b.2"])
    found = pd.concat([*rows, split], ignore_index=True)
    return found[["panel", "side", "name", "seed", "step", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Two rows of two panels."""
    figure, axes = page(2, 2, 3.8, w_pad=0.05, h_pad=0.04)
    headline(figure, MESSAGE, context)
    axes = axes.flatten()
    panels = dict(tuple(numbers.groupby("panel")))
    for axis, (panel, sides) in zip(axes, DRAWN.items(), strict=False):
        for side, (said, width) in sides.items():
            rows = panels[panel][panels[panel]["side"] == side]
            for decay, (colour, _, line) in LOOKS.items():
                median(axis, rows[rows["name"] == decay], "step", color=colour, ls=line, lw=width)
            middle = rows[rows["step"] == rows["step"].max()].groupby("name")["value"].median()
            axis.annotate(said, (1.02, np.exp(np.log(middle).mean())), va="center",
                          xycoords=axis.get_yaxis_transform(), fontsize=SMALL)  # fmt: skip
        axis.axhline(1, **NEUTRAL)
        axis.set_ylabel("size (1 at the start)")
    curved = panels["c"]
    for decay, (colour, _, line) in LOOKS.items():
        rows = curved[curved["name"] == decay]
        rows = rows.assign(step=rows["step"] + _ASIDE[decay] * curved["step"].max())
        median(axes[2], rows, "step", band=None, color=colour, ls=line, marker="o", ms=2, lw=0.8)
        ends = rows.groupby("step")["value"]
        axes[2].vlines(ends.min().index, ends.min(), ends.max(), color=colour, lw=0.7)
    for axis, title in zip(axes, TITLES.values(), strict=False):
        label(axis, title, xlabel="step")
        plain_log_axis(axis)
    axes[2].set_ylabel("largest eigenvalue\nof the Hessian")
    rows = panels["d"]
    draw_gaps(axes[3], rows, SPLIT["d"], below=0.25)
    low, high = rows["value"].min(), rows["value"].max()
    axes[3].set_xlim(low - 0.1 * (high - low), high + 1.3 * (high - low))
    axes[3].set_ylim(-0.7, 1.5)
    write_gaps(axes[3], rows, SPLIT["d"])
    matters = criteria_of("sv_decay")["SV7b.2"]["smallest_effect"]
    axes[3].axvspan(-matters, matters, **NOT_JUDGED, lw=0, zorder=0)
    label(
        axes[3],
        "d   DNP: decay on outputs too",
        xlabel="← better   loss − inputs alone (nats)",
    )
    handles = [key(name, color=colour, ls=line) for colour, name, line in LOOKS.values()]
    legend_below(figure, handles, 4)
    note = f"a to c: medians and range; {told_of_points(numbers)}\n"
    note += "DNP: vectors on both sides of a matrix, a norm between; a, b: equal lines coincide; "
    note += f"d, grey: ± {matters:g}"
    counts = numbers.groupby(numbers["panel"].eq("d"))["seed"].nunique()
    return caption(figure, context, note, f"n = {counts[False]} seeds, in d {counts[True]}")
