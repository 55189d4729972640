"""Do multipliers find what tuning finds? Learned scales against tuned forward factors (ours).

Each point is a tensor of a layer, with the median over seeds. Across: the forward factor that the
search of FULL without multipliers kept for the tensor's group. Up: the product of the tensor's
multipliers (root mean squares of rows and of columns) of LRWD, where they begin at 1, at the end of
the constant stage. On the dashed line both are equal. r correlates the logarithms over tensors.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import plain_log_axis, power_of_two
from analysis.quantities.stats import with_interval
from analysis.quantities.tuning_ablation import OPTIMIZERS, agreement, scales
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("tuning_ablation",)
# Okabe-Ito; as in figure 2, and the embedding.
LOOKS = {
    "attention": ("#CC79A7", "o"),
    "ssm": ("#56B4E9", "s"),
    "mlp": ("#E69F00", "^"),
    "embedding": ("#222222", "D"),
}
TITLES = {"Adam": "AdamW", "Muon": "Muon"}
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
    figure, axes = page(1, 2, 3.3, below=0.13, w_pad=0.06, sharex=True, sharey=True)
    _limits(axes[0], numbers)
    for axis, letter, optimizer in zip(axes, "ab", OPTIMIZERS.values(), strict=True):
        rows = numbers[numbers["optimizer"] == optimizer]
        _points(axis, rows)
        r = rows.drop_duplicates("seed")["r"]
        said = f"r = {with_interval(r, 2)}" if r.notna().all() else NOTHING
        axis.text(0.03, 0.97, said, transform=axis.transAxes, va="top", fontsize=7,
                  bbox={"color": "white", "alpha": 0.8, "pad": 1.5})  # fmt: skip
        if r.notna().all():
            axis.axline((1.0, 1.0), (2.0, 2.0), color="#999999", lw=0.8, ls="--", zorder=1)
        label(axis, f"{letter}   {TITLES[optimizer]}", xlabel="tuned forward factor")
    axes[0].set_ylabel("learned product of multipliers")
    handles = [
        key(block, color=colour, marker=marker, ls="") for block, (colour, marker) in LOOKS.items()
    ]
    if numbers["r"].notna().any():
        handles.append(key("learned = tuned", color="#999999", lw=0.8, ls="--"))
    legend_below(figure, handles, 5, 0.045)
    return caption(figure, context, "r: over tensors and layers, its 95% interval over seeds")


def _points(axis, rows: pd.DataFrame) -> None:
    """One point for each tensor and layer; those of one factor stand side by side."""
    tensors = rows.groupby(["tensor", "layer"], dropna=False)[["tuned", "learned"]].median()
    low, high = np.log(axis.get_xlim())
    for _, group in tensors.groupby("tuned"):
        places = np.linspace(-1, 1, len(group)) * 0.025 * (high - low) * (len(group) > 1)
        blocks = [tensor.partition(".")[0] for tensor, _ in group.index]
        for place, block, point in zip(places, blocks, group.itertuples(), strict=True):
            colour, marker = LOOKS[block]
            axis.plot(point.tuned * np.exp(place), point.learned, marker, color=colour, ms=3.8,
                      mec="white", mew=0.3, zorder=3)  # fmt: skip


def _limits(axis, numbers: pd.DataFrame) -> None:
    """Logarithmic axes that have 1 inside, across named at powers of two."""
    medians = numbers.groupby(["optimizer", "tensor", "layer"], dropna=False)["learned"].median()
    for along, values, margin in (("x", numbers["tuned"], 1.6), ("y", medians, 1.25)):
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
