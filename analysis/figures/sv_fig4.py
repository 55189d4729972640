"""Figure 4 of the second paper: norms of query, key and value matrices over training.

Each norm over what noise makes of it, means over layers: the norm of a Brownian motion under the
same schedule. Crosses: the same initial values in another order of the data.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.ticker import NullFormatter, NullLocator

from analysis.drawing.axes import end, median, name_ends
from analysis.drawing.gaps import that_judge
from analysis.drawing.page import caption, headline, key, legend_below, page
from analysis.drawing.style import BANDS_RANGE, BLOCK_LOOKS, BROWNIAN, NEUTRAL, shade
from analysis.quantities.designs import BRANCHES, excess_growth, growth_at_start
from analysis.tables.context import Context, planned, stacked
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("sv_heterogeneity",)
NAMES = dict(zip(BRANCHES, ("query", "key", "value"), strict=True))
# Attention's colour, in three shades, and lines.
_SHADES = (-0.6, 0.0, -0.3)
_DASHES = dict(zip(BRANCHES, ("-", "-", (0, (4, 1.2))), strict=True))
COLOURS = {
    tensor: shade(BLOCK_LOOKS["attention"]["color"], share)
    for tensor, share in zip(BRANCHES, _SHADES, strict=True)
}
OWN, REORDERED = "STANDARD", "STANDARD_REORDERED"
MESSAGE = "Query and key matrices outgrow noise in the end; value matrices stay below it"
_CROSS = {"color": "#222222", "marker": "x", "ms": 3, "mew": 0.8, "lw": 0}
_TICKS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 2.0)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, seed, step, tensor, value (norm over that of Brownian motion)."""
    table = tables["sv_heterogeneity"]
    rows = []
    for arm in (OWN, REORDERED):
        growth = pd.concat([growth_at_start(table, arm), excess_growth(table, arm)])
        rows.append(stacked(np.exp(growth).rename_axis(columns="tensor"), arm=arm))
    return pd.concat(rows, ignore_index=True)[["arm", "seed", "step", "tensor", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """One panel."""
    judging = that_judge(numbers, criteria_of("sv_heterogeneity")["SV8"])
    rows = numbers[judging] if judging.any() else numbers
    figure, axis = page(1, 1, 2.65)
    headline(figure, MESSAGE, context)
    ends = {}
    for tensor, colour in COLOURS.items():
        own, other = (
            rows[(rows["tensor"] == tensor) & (rows["arm"] == arm)] for arm in (OWN, REORDERED)
        )
        median(axis, own, "step", color=colour, lw=1.6, ls=_DASHES[tensor])
        median(axis, other, "step", band=None, zorder=4, markevery=2, **_CROSS)
        last = own.loc[own["step"] == own["step"].max(), "value"]
        said = f"{NAMES[tensor]} {last.median():.2f}\n{last.min():.2f}–{last.max():.2f}"
        ends[said] = end(own, "step"), colour
    axis.axhline(1, **NEUTRAL)
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlim(left=0)
    axis.set(xlabel="step", ylabel="‖W‖ / ‖W‖ under noise alone")
    name_ends(axis, ends, at=1.02, line=1.8)
    said = "the same in another order of the data (median; every second measurement)"
    legend_below(figure, [key(said, **_CROSS)], 1)
    seeds = sorted(map(int, rows["seed"].unique()))
    note = f"noise: {BROWNIAN} under the same schedule\n"
    note += f"ratios: geometric mean over layers; {BANDS_RANGE}; "
    lr = planned("sv_heterogeneity", context)[OWN]["optimizer"]["lr"]
    note += f"numbers: median and range at the end\nshared scale vectors, at LR {lr:g}"
    return caption(figure, dataclasses.replace(context, seeds=seeds), note)
