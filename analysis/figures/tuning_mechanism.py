"""Do multipliers find what tuning finds? Learned scales against tuned forward factors (ours).

Each point is a tensor of a layer, with the median over seeds. Across: the forward factor that the
search of FULL without multipliers kept for the tensor's group; points of one factor stand side by
side. Up: the product of the tensor's multipliers (root mean squares of rows and of columns) of
LRWD, where they begin at 1, at the end of the constant stage. At the dashes both are equal. r
correlates the logarithms over tensors.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import (
    BLOCK_LOOKS,
    OPTIMIZER_NAMES,
    block_of,
    plain_log_axis,
    power_of_two,
)
from analysis.quantities.stats import with_interval
from analysis.quantities.tuning_ablation import OPTIMIZERS, agreement, scales
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("tuning_ablation",)
BLOCKS = ("attention", "SSM", "MLP", "embedding")
EQUAL = {"color": "#222222", "lw": 1.0, "ls": (0, (3, 1.5))}
# How far the points of one factor stand apart, of the way to its double.
WIDE = 0.7
NOTHING = "The search kept no forward factor:\nthere is nothing to compare."


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: optimizer, seed, tensor, layer, tuned, learned, r of that seed."""
    found = scales(tables["tuning_ablation"])
    r = agreement(found).stack().rename("r").reset_index()
    rows = found.merge(r, how="left", on=["optimizer", "seed"])
    columns = ["optimizer", "seed", "tensor", "layer", "tuned", "learned", "r"]
    return rows.astype({"layer": "Int64"})[columns].sort_values(columns[:4], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """A panel for each optimizer, with the same axes."""
    figure, axes = page(1, 2, 2.9, w_pad=0.06, sharex=True, sharey=True)
    _limits(axes[0], numbers)
    for axis, letter, optimizer in zip(axes, "ab", OPTIMIZERS.values(), strict=True):
        rows = numbers[numbers["optimizer"] == optimizer]
        _points(axis, rows)
        r = rows.drop_duplicates("seed")["r"]
        title = f"{letter}   {OPTIMIZER_NAMES[optimizer]}"
        if r.notna().all():
            title += f": r = {with_interval(r, 2)}"
        else:
            axis.text(0.03, 0.97, NOTHING, transform=axis.transAxes, va="top")
        label(axis, title, xlabel="tuned forward factor")
    axes[0].set_ylabel("learned product of multipliers")
    handles = [key(block, ls="", **BLOCK_LOOKS[block]) for block in BLOCKS]
    handles.append(key("learned = tuned", **EQUAL))
    legend_below(figure, handles, 5)
    return caption(figure, context, "r: over tensors, 95% over seeds")


def _points(axis, rows: pd.DataFrame) -> None:
    """One point for each tensor and layer; those of one factor stand side by side."""
    tensors = rows.groupby(["tensor", "layer"], dropna=False)[["tuned", "learned"]].median()
    tensors["block"] = tensors.index.get_level_values("tensor").map(block_of)
    order = tensors["block"].map(BLOCKS.index)
    for tuned, group in tensors.iloc[np.argsort(order, kind="stable")].groupby("tuned"):
        ends = tuned * 2.0 ** np.array([-WIDE / 2, WIDE / 2])
        axis.plot(ends, [tuned] * 2, **EQUAL, zorder=1)
        places = np.geomspace(*ends, len(group)) if len(group) > 1 else [tuned]
        for place, point in zip(places, group.itertuples(), strict=True):
            axis.plot(place, point.learned, ms=3.8, mec="white", mew=0.3, zorder=3,
                      **BLOCK_LOOKS[point.block])  # fmt: skip


def _limits(axis, numbers: pd.DataFrame) -> None:
    """Logarithmic axes that have 1 inside, across named at powers of two."""
    medians = numbers.groupby(["optimizer", "tensor", "layer"], dropna=False)["learned"].median()
    for along, values, margin in (
        ("x", numbers["tuned"], 1.6),
        ("y", [*medians, *numbers["tuned"]], 1.25),
    ):
        ends = min(*values, 1.0) / margin, max(*values, 1.0) * margin
        axis.set(**{f"{along}scale": "log", f"{along}lim": ends})
    low, high = np.log2(axis.get_xlim())
    named = 2.0 ** np.arange(np.ceil(low), np.floor(high) + 1)
    axis.set_xticks(named, [power_of_two(value) for value in named])
    bottom, top = axis.get_ylim()
    if top > 4 * bottom:
        plain_log_axis(axis)
    else:
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(bottom, top)
        ticks = ticks[(ticks >= bottom) & (ticks <= top)]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
