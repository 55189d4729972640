"""Transfer of learning rates (LRs) over the width, by six recipes (ours).

a to f: the loss after the decay, less the lowest of its width, against a factor u on all LRs, which
were tuned at width 64; means over seeds, and a larger mark at the lowest. g: the best u against the
width, the minimum of a parabola, with seeds, mean and 95% interval; numbers are the exponent of the
width in it.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.page import caption, label, legend_below, page
from analysis.drawing.transfer import basin, best, handles_of, of_recipes
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"steepest_width": "BM4"}
# Colour, marker and name.
LOOKS = {
    "ADAMW": ("#888888", "o", "AdamW, one LR"),
    "ADAMW_MUP": ("#2E7DB5", "D", "AdamW, muP"),
    "ADAMW_SCALARS": ("#117733", "v", "learned scalars"),
    "ADAMW_DECAY": ("#BBAA44", "P", "decay alone"),
    "STEEPEST": ("#AA3377", "s", "steepest descent"),
    "HEAD_FIXED": ("#D1783C", "^", "its head fixed"),
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """As ``of_recipes``, for the factor u."""
    return of_recipes(tables["steepest_width"], LOOKS, "u")


def draw(numbers: pd.DataFrame, context: Context):
    """Six basins, and the best factors."""
    figure, axes = page(2, 4, 4.1, w_pad=0.02, h_pad=0.04)
    *basins, last, empty = axes.flat
    empty.set_axis_off()
    for axis, letter, (recipe, (*_, name)) in zip(basins, "abcdef", LOOKS.items(), strict=True):
        basin(axis, numbers, recipe)
        label(axis, f"{letter}   {name}")
        axis.set_xlabel("factor $u$ on all LRs" if axis in axes[1] else "")
    for row in axes:
        row[0].set_ylabel("loss − lowest of its width")
    best(last, numbers, LOOKS, beside=True)
    label(last, "g   Best factor by width", xlabel="width $d$", ylabel="best $u$")
    handles = handles_of(numbers, LOOKS)
    legend_below(figure, handles, (len(handles) + 1) // 2)
    return caption(figure, context, "losses in nats   g: numbers are exponents of d, 95%")
