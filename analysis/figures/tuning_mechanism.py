"""Do multipliers find what tuning finds? Learned scales against tuned forward factors (ours).

Each point is a tensor of a layer: the product of the tensor's multipliers (root mean squares of
rows and of columns) of LRWD, where they begin at 1, at the end of the constant stage; the median
over seeds and their range. Tensors stand by the forward factor that the search of FULL without
multipliers kept for them. At the dashes both are equal. r correlates the logarithms over all
tensors, for each seed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import (
    BLOCK_LOOKS,
    OPTIMIZER_NAMES,
    SMALL,
    block_of,
    plain_log_axis,
    power_of_two,
    shade,
)
from analysis.quantities.stats import with_interval
from analysis.quantities.tuning_ablation import OPTIMIZERS, agreement, scales
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("tuning_ablation",)
BLOCKS = ("attention", "SSM", "MLP", "embedding")
EQUAL = {"color": "#222222", "lw": 1.0, "ls": (0, (3, 1.5))}
MESSAGE = "Learned products are near the tuned factors for the MLP, not for V, out and embedding"
# How far apart the layers of one tensor stand, of the way to the next tensor.
LAYERS_APART = 0.44
# How much further tensors of different factors stand from each other.
GAP = 0.9
# Order of a block's tensors, and what they are called.
ORDER = ("q", "k", "v", "x", "z", "B", "C", "dt", "gate", "up", "down", "out")
NOTHING = "The search kept no forward factor:\nthere is nothing to compare."


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: optimizer, seed, tensor, layer, tuned, learned, r of that seed."""
    found = scales(tables["tuning_ablation"])
    r = agreement(found).stack().rename("r").reset_index()
    rows = found.merge(r, how="left", on=["optimizer", "seed"])
    columns = ["optimizer", "seed", "tensor", "layer", "tuned", "learned", "r"]
    return rows.astype({"layer": "Int64"})[columns].sort_values(columns[:4], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """A panel for each optimizer, with the same y axis."""
    figure, axes = page(1, 2, 3.0, w_pad=0.06, sharey=True)
    figure.suptitle(MESSAGE, x=0.01, ha="left", fontsize=7.5, weight="bold")
    _limits(axes[0], numbers)
    for axis, letter, optimizer in zip(axes, "ab", OPTIMIZERS.values(), strict=True):
        rows = numbers[numbers["optimizer"] == optimizer]
        _points(axis, rows)
        r = rows.drop_duplicates("seed")["r"]
        said = ""
        if r.notna().all():
            said = f": r = {with_interval(r, 2)}".replace("-", "−")
        else:
            axis.text(0.5, 0.03, NOTHING, transform=axis.transAxes, ha="center")
        label(axis, f"{letter}   {OPTIMIZER_NAMES[optimizer]}{said}")
    axes[0].set_ylabel("learned product of multipliers")
    legend_below(figure, [key("learned = tuned forward factor", **EQUAL)], 1)
    note = "points: medians, left to right by layer; bars: range of seeds"
    return caption(figure, context, f"{note}; r: over all tensors, mean and 95%")


def _place(tensor: str) -> tuple[int, int]:
    """Where a tensor stands among those of one factor."""
    part = tensor.partition(".")[2]
    return BLOCKS.index(block_of(tensor)), ORDER.index(part) if part in ORDER else -1


def _points(axis, rows: pd.DataFrame) -> None:
    """Tensors side by side by tuned factor, and the layers of each."""
    tuned = rows.groupby("tensor")["tuned"].median()
    tensors = sorted(tuned.index, key=lambda name: (tuned[name], *_place(name)))
    factors = tuned[tensors].to_numpy()
    column = np.unique(factors, return_inverse=True)[1]
    middles = np.arange(len(tensors)) + GAP * column
    for x, tensor in zip(middles, tensors, strict=True):
        own = rows[rows["tensor"] == tensor].groupby("layer", dropna=False)["learned"]
        found = own.agg(["min", "median", "max"])
        look = BLOCK_LOOKS[block_of(tensor)]
        aside = LAYERS_APART * (np.arange(len(found)) / max(1, len(found) - 1) - 0.5)
        places = x + (aside if len(found) > 1 else 0 * aside)
        axis.vlines(places, found["min"], found["max"], color=look["color"], lw=0.9, zorder=2)
        axis.plot(places, found["median"], ls="", ms=3.4, mec="white", mew=0.3, zorder=3, **look)
    edge = (1 + GAP) / 2
    for factor in sorted(set(factors)):
        places = middles[factors == factor]
        low, high = places[0] - edge, places[-1] + edge
        axis.plot([places[0] - 0.5, places[-1] + 0.5], [factor] * 2, **EQUAL, zorder=1)
        axis.text((low + high) / 2, 1.0, f"tuned\n{power_of_two(factor)}", fontsize=SMALL,
                  transform=axis.get_xaxis_transform(), va="top", ha="center",
                  linespacing=1.1)  # fmt: skip
        if low > -edge:
            axis.axvline(low, color="#bbbbbb", lw=0.6)
    names = [tensor.partition(".")[2] or "emb." for tensor in tensors]
    names = [name.upper() if len(name) == 1 and name in "qkv" else name for name in names]
    axis.set_xticks(middles, names, rotation=90, fontsize=SMALL)
    for said, tensor in zip(axis.get_xticklabels(), tensors, strict=True):
        said.set_color(shade(BLOCK_LOOKS[block_of(tensor)]["color"], -0.3))
    _name_blocks(axis, tensors, middles)
    axis.grid(axis="x", visible=False)
    axis.set_xlim(-edge, middles[-1] + edge)


def _name_blocks(axis, tensors: list[str], middles: np.ndarray) -> None:
    """The name of each block below its tensors; one without parts is named by its tick."""
    blocks = np.array([block_of(tensor) for tensor in tensors])
    for block in sorted({block_of(tensor) for tensor in tensors if "." in tensor}):
        axis.annotate(block, (middles[blocks == block].mean(), 0), (0, -29), ha="center", va="top",
                      xycoords=axis.get_xaxis_transform(), textcoords="offset points",
                      color=shade(BLOCK_LOOKS[block]["color"], -0.3))  # fmt: skip


def _limits(axis, numbers: pd.DataFrame) -> None:
    """A logarithmic y axis that has 1 inside."""
    values = [*numbers["learned"], *numbers["tuned"], 1.0]
    bottom, top = min(values) / 1.3, max(values) * 1.7
    axis.set(yscale="log", ylim=(bottom, top))
    if top > 4 * bottom:
        plain_log_axis(axis)
    else:
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(bottom, top)
        ticks = ticks[(ticks >= bottom) & (ticks <= top)]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
