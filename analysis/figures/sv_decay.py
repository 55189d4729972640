"""Figure of ours: what weight decay does to scale vectors and the curvature, and which may decay.

a, b: size of the vectors of one side over training, long runs with Muon. c: largest eigenvalue of
the loss's Hessian in the same runs. d: decay on some of the vectors behind norms of DNP, against
decay on input vectors alone; left of 0 is better.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import median
from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, plain_log_axis
from analysis.quantities.vector_decay import sizes
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = {
    "sv_decay": ("LONG_*", "DNP_INPUT *", "DNP_ABSORBED *", "DNP_NEEDED *"),
}
# By decay: colour, name and line.
LOOKS = {
    "NONE": ("#222222", "no vector decays", "-"),
    "INPUT": ("#117733", "input vectors decay", "-"),
    "OUTPUT": ("#CC6677", "output vectors decay", "-"),
    "ALL": ("#888888", "all decay", ":"),
}
SPLIT = {
    "d": [
        Comparison("v and up too", "sv_decay", "DNP_ABSORBED", "DNP_INPUT", "hg"),
        Comparison("q, k, gate too", "sv_decay", "DNP_NEEDED", "DNP_INPUT", "dnp"),
    ]
}
TITLES = {
    "a": "a   Input vectors grow, less with decay",
    "b": "b   Output vectors shrink by decay",
    "c": "c   The curvature grows with and without",
}
MESSAGE = "With weight decay input vectors grow less; the curvature grows with and without it"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name (decay or comparison), seed, step, value (size, λ_max, or nats)."""
    table, rows = tables["sv_decay"], []
    for decay in LOOKS:
        arm = f"LONG_{decay}"
        for panel, side in {"a": "input", "b": "output"}.items():
            found = stacked(sizes(table, arm, side), name=decay)
            rows.append(found.assign(panel=panel))
        curved = table.pick(kind="train", arm=arm, stat="curvature")[["seed", "step", "value"]]
        rows.append(curved.assign(panel="c", name=decay))
    found = pd.concat([*rows, measured(tables, SPLIT)], ignore_index=True)
    return found[["panel", "name", "seed", "step", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Two rows of two panels."""
    figure, axes = page(2, 2, 3.8, w_pad=0.05, h_pad=0.04)
    headline(figure, MESSAGE, context)
    axes = axes.flatten()
    panels = dict(tuple(numbers.groupby("panel")))
    for axis, (panel, title) in zip(axes, TITLES.items(), strict=False):
        for decay, (colour, _, line) in LOOKS.items():
            rows = panels[panel]
            look = {"marker": "o", "ms": 2.5} if panel == "c" else {}
            median(axis, rows[rows["name"] == decay], "step", color=colour, ls=line, **look)
        label(axis, title, xlabel="step")
        plain_log_axis(axis)
    for axis in axes[:2]:
        axis.axhline(1, **NEUTRAL)
        axis.set_ylabel("size (1 at the start)")
    axes[2].set_ylabel("largest eigenvalue")
    rows = panels["d"]
    draw_gaps(axes[3], rows, SPLIT["d"], below=0.25)
    low, high = rows["value"].min(), rows["value"].max()
    axes[3].set_xlim(low - 0.1 * (high - low), high + 1.3 * (high - low))
    axes[3].set_ylim(-0.7, 1.5)
    write_gaps(axes[3], rows, SPLIT["d"])
    label(axes[3], "d   Behind norms of DNP", xlabel="loss − decay on inputs alone (nats)")
    handles = [key(name, color=colour, ls=line) for colour, name, line in LOOKS.values()]
    legend_below(figure, handles, 4)
    return caption(figure, context, f"a to c: medians and range; {told_of_points(numbers)}")
