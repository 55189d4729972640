"""Figure of ours: what weight decay does to scale vectors and the curvature, and which may decay.

a, b: size of the vectors of one side over training, long runs with Muon. c: largest eigenvalue of
the loss's Hessian in the same runs. d: decay on some of the vectors behind norms of DNP, against
decay on input vectors alone; left of 0 is better.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import end, judging_alone, median, name_ends
from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, NOT_JUDGED, plain_log_axis
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
# Widths of lines: lines coincide by twos, and the wider one is seen below the other.
_WIDTHS = {"NONE": 2.8, "INPUT": 1.7, "OUTPUT": 0.9, "ALL": 1.1}
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
    "Weight decay shrinks the vectors of blocks, and lets the final one grow less (a, b); the\n"
    "curvature grows in training, as the learning rate falls, with decay and without (c)"
)
# What is drawn in a and b: the side of the vectors, and what is said of them at the lines' ends.
DRAWN = {"a": {"final": "final", "block": "of blocks"}, "b": {"output": ""}}
# Panel by panel the decay that acts on its vectors, and the one that does not.
_ACTS = {"a": ("INPUT", "NONE"), "b": ("OUTPUT", "NONE")}
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
    figure, axes = page(2, 2, 3.9, w_pad=0.03, h_pad=0.04)
    headline(figure, MESSAGE, context)
    axes = axes.flatten()
    panels, named = dict(tuple(numbers.groupby("panel"))), {}
    for axis, (panel, sides) in zip(axes, DRAWN.items(), strict=False):
        ends = {}
        for side, said in sides.items():
            rows = panels[panel][panels[panel]["side"] == side]
            for decay, (colour, _, line) in LOOKS.items():
                median(axis, rows[rows["name"] == decay], "step", color=colour, ls=line,
                       lw=_WIDTHS[decay])  # fmt: skip
            for decay, how in zip(_ACTS[panel], ("decay", "no decay"), strict=True):
                ends[", ".join(filter(None, (said, how)))] = (
                    end(rows[rows["name"] == decay], "step"),
                    "#222222",
                )
        named[panel] = axis, ends
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
    rows, matters = panels["d"], criteria_of("sv_decay")["SV7b.2"]["smallest_effect"]
    draw_gaps(axes[3], rows, SPLIT["d"], below=0.25)
    low, high = rows["value"].min(), rows["value"].max()
    axes[3].set_xlim(min(low, -matters) - 0.1 * (high - low), high + 0.1 * (high - low))
    axes[3].set_ylim(-0.7, 1.5)
    write_gaps(axes[3], rows, SPLIT["d"], head=False)
    axes[3].axvspan(-matters, matters, **NOT_JUDGED, lw=0, zorder=0)
    label(
        axes[3],
        "d   DNP: decay on outputs too",
        xlabel="← better   loss − inputs alone (nats)",
    )
    handles = [key(name, color=colour, ls=line) for colour, name, line in LOOKS.values()]
    legend_below(figure, handles, 4)
    note = f"a to c: medians and range; {told_of_points(numbers)}\n"
    note += "DNP: vectors on both sides of a matrix, a norm between; a, b: lines coincide by twos; "
    note += f"d, grey: ± {matters:g}"
    counts = numbers.groupby(numbers["panel"].eq("d"))["seed"].nunique()
    caption(figure, context, note, f"n = {counts[False]} seeds, in d {counts[True]}")
    # Names need the height that the caption leaves.
    figure.get_layout_engine().execute(figure)
    for axis, ends in named.values():
        name_ends(axis, ends, at=1.04)
    return figure
