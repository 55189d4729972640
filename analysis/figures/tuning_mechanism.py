"""Do multipliers find what tuning finds? Learned scales against tuned forward factors (ours).

A row is a tensor, and in it each layer has a point: the product of the tensor's multipliers (root
mean squares of rows and of columns) of LRWD, where they begin at 1, at the end of the constant
stage; the median over seeds and their range. A thin line joins it to the tick, the forward factor
of FULL without multipliers, which is hollow where the search kept the default, 1. The search tries
one factor for each block. The dotted line is what pure noise makes of such a product. The csv has
r too, which correlates the logarithms over all tensors of a seed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import (
    BLOCK_LOOKS,
    NEUTRAL,
    OPTIMIZER_NAMES,
    SMALL,
    block_of,
    plain_log_axis,
    shade,
)
from analysis.quantities.tuning_ablation import OPTIMIZERS, agreement, noise_product, scales
from analysis.tables.context import Context
from analysis.tables.find import NothingFound
from analysis.tables.results import Tables

EXPERIMENTS = ("tuning_ablation",)
BLOCKS = ("MLP", "attention", "SSM", "embedding")
# A narrow box, full where the search kept a factor.
BOX = [(-0.25, -1), (0.25, -1), (0.25, 1), (-0.25, 1), (-0.25, -1)]
TUNED = {"color": "#222222", "marker": BOX, "ms": 5, "mew": 0.7, "ls": ""}
DEFAULT = {"markerfacecolor": "none"}
MESSAGES = {
    "tiny": "Learned products come near a tuned factor for the MLP alone,\n"
    "where noise alone mostly comes nearer",
    "mini": "No forward factor was kept, with Muon none tried: nothing to compare products with",
}
RANGE = {"lw": 2.2, "alpha": 0.45}
# How far apart the layers of one tensor stand, of the way to the next tensor.
LAYERS_APART = 0.36
# Order of a block's tensors, and what they are called.
ORDER = ("q", "k", "v", "x", "z", "B", "C", "dt", "gate", "up", "down", "out")
NOTHING = ": no factor found"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: optimizer, seed, tensor, layer, tuned, learned, r of that seed; noise."""
    there = set(tables["tuning_ablation"].trained["arm"])
    read = [f"{name}_{of}" for name in OPTIMIZERS for of in ("NONE", "FULL", "LRM_LRWD")]
    if lacking := [arm for arm in read if arm not in there]:
        raise NothingFound(f"no runs of {', '.join(lacking)}; make tune finds what they train")
    found = scales(tables["tuning_ablation"])
    noise = {name: noise_product(tables["tuning_ablation"], name) for name in OPTIMIZERS.values()}
    r = agreement(found).stack().rename("r").reset_index()
    rows = found.merge(r, how="left", on=["optimizer", "seed"])
    columns = ["optimizer", "seed", "tensor", "layer", "tuned", "learned", "r"]
    rows = rows.astype({"layer": "Int64"})[columns].sort_values(columns[:4], ignore_index=True)
    return rows.assign(noise=rows["optimizer"].map(noise))


def draw(numbers: pd.DataFrame, context: Context):
    """A panel for each optimizer, with the same rows."""
    figure, axes = page(1, 2, 4.0, w_pad=0.06, sharex=True, sharey=True)
    for scale, message in MESSAGES.items():
        headline(figure, message, context, scale)
    for axis, letter, optimizer in zip(axes, "ab", OPTIMIZERS.values(), strict=True):
        rows = numbers[numbers["optimizer"] == optimizer]
        _rows(axis, rows)
        axis.axvline(rows["noise"].iloc[0], **NEUTRAL, ls=":")
        nothing = NOTHING if (rows["tuned"] == 1).all() else ""
        label(axis, f"{letter}   {OPTIMIZER_NAMES[optimizer]}{nothing}",
              xlabel="factor (RMS product, or forward factor)")  # fmt: skip
    values = numbers[["learned", "tuned"]].to_numpy().ravel()
    axes[0].set_xlim(min([*values, 1.0]) / 1.3, max([*values, 1.0]) * 1.3)
    plain_log_axis(axes[0], x=True)
    layers = numbers["layer"].nunique()
    of_layers = f"; from above: layers 0 to {layers - 1}" if layers > 1 else ""
    handles = [
        key(f"learned: median of seeds{of_layers}", color="#777777", marker="o", ms=3.4, ls=""),
        key("range of seeds", color="#777777", **RANGE),
        key("from learned to tuned", color="#777777", lw=0.7),
        key("learned from pure noise", **{**NEUTRAL, "ls": ":"}),
        key("tuned forward factor", **TUNED),
        key("search kept the default, 1", **TUNED | DEFAULT),
    ]
    legend_below(figure, handles, 2)
    note = "learned: RMS of row multipliers × RMS of column multipliers, begun at 1"
    note += "; the search tries one factor for each block\n"
    note += "learned: by vectors in the tier LRWD; tuned: by the search of FULL without multipliers"
    return caption(figure, context, note)


def _place(tensor: str) -> tuple[int, int]:
    """Where a tensor stands."""
    part = tensor.partition(".")[2]
    return BLOCKS.index(block_of(tensor)), ORDER.index(part) if part in ORDER else -1


def _rows(axis, rows: pd.DataFrame) -> None:
    """Tensors from top to bottom, and in each the layers."""
    tuned = rows.groupby("tensor")["tuned"].median()
    tensors = sorted(tuned.index, key=_place)
    blocks = [block_of(tensor) for tensor in tensors]
    for place, (tensor, block) in enumerate(zip(tensors, blocks, strict=True)):
        own = rows[rows["tensor"] == tensor].groupby("layer", dropna=False)["learned"]
        found = own.agg(["min", "median", "max"])
        look, spread = BLOCK_LOOKS[block], LAYERS_APART * (len(found) > 1)
        heights = -place - np.linspace(-spread / 2, spread / 2, len(found))
        if tuned[tensor] != 1:  # else the search has nothing to agree with
            ends = found["median"], tuned[tensor]
            axis.hlines(heights, *ends, color=look["color"], lw=0.7, zorder=2)
        axis.hlines(heights, found["min"], found["max"], color=look["color"], zorder=3, **RANGE)
        axis.plot(found["median"], heights, ls="", ms=3.6, mec="white", mew=0.3, zorder=4, **look)
        kept = {} if tuned[tensor] != 1 else DEFAULT
        axis.plot(tuned[tensor], -place, **TUNED | kept, zorder=5)
        if place and block != blocks[place - 1]:
            axis.axhline(0.5 - place, color="#bbbbbb", lw=0.6)
    axis.set_yticks([-place for place in range(len(tensors))], [_name(one) for one in tensors])
    # The second panel has no labels.
    for said, block in zip(axis.get_yticklabels(), blocks, strict=False):
        said.set(fontsize=SMALL, color=shade(BLOCK_LOOKS[block]["color"], -0.3))
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="y", visible=False)
    axis.set_ylim(0.5 - len(tensors), 0.5)


def _name(tensor: str) -> str:
    """MLP gate, attention Q, SSM dt, and so on."""
    part = tensor.partition(".")[2]
    return f"{block_of(tensor)} {part.upper() if part in ('q', 'k', 'v') else part}".strip()
