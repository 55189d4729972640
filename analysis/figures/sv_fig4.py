"""Figure 4 of the second paper: norms of query, key and value matrices over training.

a: root mean square of the matrices, means over layers, and of their Brownian motion under the same
schedule. b: ln of the ratio, whose differences between branches are no noise; dotted: the same
initial values in another order of the data.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import median
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import BROWNIAN, NEUTRAL, NOISE_COLOUR, plain_log_axis
from analysis.quantities.designs import BRANCHES, excess_growth
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("sv_heterogeneity",)
COLOURS = dict(zip(BRANCHES, ("#0077BB", "#EE7733", "#009988"), strict=True))
NAMES = dict(zip(BRANCHES, ("query", "key", "value"), strict=True))
ARMS = ("STANDARD", "STANDARD_REORDERED")


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, kind, seed, step, tensor, value (norm, or ln of the ratio)."""
    table = tables["sv_heterogeneity"]
    norms = table.pick(arm="STANDARD", stat="weight_norm", tensor=BRANCHES)
    norms = norms[norms["step"] > 0].assign(value=lambda rows: np.log(rows["value"]))
    keys = ["kind", "arm", "seed", "step", "tensor"]
    means = np.exp(norms.groupby(keys, dropna=False)["value"].mean()).reset_index()
    rows = [means.assign(panel="a")]
    for arm in ARMS:
        growth = stacked(excess_growth(table, arm).rename_axis(columns="tensor"), arm=arm)
        rows.append(growth.assign(panel="b", kind="train"))
    found = pd.concat(rows, ignore_index=True)
    return found[["panel", "arm", "kind", "seed", "step", "tensor", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, axes = page(1, 2, 2.4, w_pad=0.06)
    panels = dict(tuple(numbers.groupby("panel")))
    norms = panels["a"]
    noise = norms[norms["kind"] == "brownian"]
    # All three have the same noise.
    axes[0].plot(*_means(noise), color=NOISE_COLOUR, ls="--", lw=1.2)
    for tensor, colour in COLOURS.items():
        own = norms[(norms["kind"] == "train") & (norms["tensor"] == tensor)]
        median(axes[0], own, "step", color=colour)
        for arm, look in zip(ARMS, ({}, {"lw": 0.8, "alpha": 0.08, "ls": ":"}), strict=True):
            rows = panels["b"]
            rows = rows[(rows["tensor"] == tensor) & (rows["arm"] == arm)]
            median(axes[1], rows, "step", color=colour, **look)
    axes[1].axhline(0, **NEUTRAL)
    plain_log_axis(axes[0])
    label(axes[0], "a   Norms", xlabel="step", ylabel="root mean square of W")
    label(axes[1], "b   Beyond noise", xlabel="step", ylabel="ln (‖W‖ / noise's)")
    handles = [key(NAMES[tensor], color=colour) for tensor, colour in COLOURS.items()]
    handles.append(key(BROWNIAN, color=NOISE_COLOUR, ls="--"))
    handles.append(key("another order of the data", color="#555555", ls=":", lw=0.8))
    legend_below(figure, handles, 5)
    return caption(figure, context, "lines: medians; bands: range of seeds")


def _means(rows: pd.DataFrame):
    means = rows.groupby("step")["value"].mean()
    return means.index, means
