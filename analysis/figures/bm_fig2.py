"""Transfer of learning rates (LRs) over the width, by six recipes (ours).

a to f: the loss after the decay, less the lowest of its width, against a factor u on all LRs, which
were tuned at width 64; means over seeds, and a ring at the lowest. g: the best u against the
width, the minimum of a parabola, with seeds, mean and 95% interval; numbers in the legend are
the exponent of the width in it.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.page import caption, headline, label, page
from analysis.drawing.style import power_of_two
from analysis.drawing.transfer import (
    MUP,
    ONE_LR,
    SAID,
    SCALARS,
    STEEPEST,
    TOP,
    basin,
    best,
    legends,
    of_recipes,
)
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"steepest_width": "BM4"}
# Colour, marker and name.
LOOKS = {
    "ADAMW": (*ONE_LR, "AdamW, one LR"),
    "ADAMW_MUP": (*MUP, "AdamW, muP"),
    "ADAMW_SCALARS": (*SCALARS, "learned scalars"),
    "ADAMW_DECAY": ("#999933", "P", "decay alone"),
    "STEEPEST": (*STEEPEST, "steepest descent"),
    "HEAD_FIXED": ("#D1783C", "^", "its head fixed"),
}
MESSAGE = (
    "The best factor hardly moves with the width by steepest descent and by muP;\n"
    "at one LR it falls steeply, with weight decay and learned scalars or without"
)
# Of the factors that were tried, those that have a number.
_NAMED = (1 / 8, 1 / 2, 2)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """As ``of_recipes``, for the factor u."""
    return of_recipes(tables["steepest_width"], LOOKS, "u")


def draw(numbers: pd.DataFrame, context: Context):
    """Six basins, and the best factors."""
    figure, axes = page(2, 4, 4.1, w_pad=0.02, h_pad=0.04)
    headline(figure, MESSAGE, context)
    *basins, last, empty = axes.flat
    empty.remove()
    last.set_subplotspec(axes[1, 2].get_gridspec()[1, 2:])
    for axis, letter, (recipe, (*_, name)) in zip(basins, "abcdef", LOOKS.items(), strict=True):
        basin(axis, numbers, recipe)
        label(axis, f"{letter}   {name}")
        axis.set_xlabel("factor $u$ on all LRs" if letter in "cdef" else "")
        low, high = axis.get_xlim()
        named = [u for u in _NAMED if low <= u <= high]
        axis.set_xticks(named, map(power_of_two, named))
        axis.tick_params(labelleft=axis in axes[:, 0])
    for row in axes:
        row[0].set_ylabel("loss − lowest of its\nwidth (nats)")
    best(last, numbers, LOOKS)
    label(last, "g   Best factor by width", xlabel="width $d$", ylabel="best $u$")
    legends(figure, numbers, LOOKS, "a–f", "g")
    return caption(
        figure,
        context,
        f"{SAID}; cut at {TOP:g} nats\n"
        "g: exponents of d, 95%; hollow: some seeds end at the last factor tried; no mark: "
        "their mean does",
    )
