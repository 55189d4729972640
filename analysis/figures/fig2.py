"""Figure 2 (section 3.1): scales over depth that scalar multipliers learn.

(a) norms of the blocks' outputs with multipliers over those without, layer by layer; whiskers hold
the middle half of the seeds, and a number with an arrow says how many seeds lie below the axis. The
others show multipliers over the median of a Brownian motion of the same multiplier: (b) at the end
of each block, (c) inside blocks, (d) the product of Q's and K's, for only that matters. Norms are
root mean squares, read at the end of the constant stage. Grey is the middle half of the draws of
the Brownian motion, between dotted lines lie 95% of them, and dots and dashes mark where
multipliers start. Dashed in b: the same initial values with another order of the data.
Multipliers of Q and K begin
alike and have equal gradients, so that they take equal steps: their product is the square of one
walk. V and up are not drawn, because they repeat attention's out and the MLP's down for the same
reason; they and the others are in the csv, where multipliers stand as they are.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from analysis.drawing.axes import end, median, name_ends
from analysis.drawing.page import caption, headline, key, label, legend_below, sheet
from analysis.drawing.style import (
    BLOCK_LOOKS,
    BROWNIAN,
    NEUTRAL,
    NOISE_COLOUR,
    SMALL,
    plain_log_axis,
    shade,
)
from analysis.quantities import scale_diversity as scales
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
ARMS = ("SCALAR", "SCALAR_ORDER")
# The middle half of the draws, and the limits of 95% of them.
NOISE = {"color": shade(NOISE_COLOUR, 0.75), "lw": 0}
LIMITS = {"color": shade(NOISE_COLOUR, 0.2), "lw": 0.8, "ls": (0, (1, 1.5))}
START = {"color": "#222222", "lw": 0.8, "ls": (0, (6, 2, 1, 2)), "zorder": 1.5}
AGAIN = {"ls": (0, (3, 1.5)), "lw": 0.9, "marker": ""}
PRODUCT = "Q·K"
# The multipliers that are drawn in c and d, and their looks: those of their block.
INNER = {
    "gate": BLOCK_LOOKS["MLP"],
    "dt": BLOCK_LOOKS["SSM"] | {"markerfacecolor": "white"},
    "x": {"color": shade(BLOCK_LOOKS["SSM"]["color"], -0.45), "marker": "v", "ls": "-."},
    PRODUCT: BLOCK_LOOKS["attention"],
}
NAMES = {"gate": "MLP gate", "dt": "SSM dt", "x": "SSM x"}
# Half of the seeds lie in a coloured band.
HALF = (0.25, 0.75)
# Between the second and the fourth lies half of the draws of a Brownian motion, between the outer
# two 95%.
QUANTILES = (0.025, 0.25, 0.5, 0.75, 0.975)
# How far the blocks of a layer stand apart in a, in layers.
APART = 0.2
# The least ratio of a, which holds all whiskers; a layer that writes nothing lies below it.
LEAST = 0.016
MESSAGE = "Blocks write less with multipliers; multipliers of late MLPs and most Q·K exceed noise"
TITLES = {
    "a": "a   Outputs of blocks are smaller with multipliers than without",
    "b": "b   Outputs: MLP's leave noise",
    "c": "c   Inside: the gate's do",
    "d": "d   Q·K: most do",
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, quantity, arm, layer, seed, value.

    Panel a holds ratios of norms, the others |s|; ``ABM 0.25`` is a quantile of |s| over draws of
    the Brownian motion, in d of |s|².
    """
    table = tables["scale_diversity"]
    ends = {block: (tensor,) for block, tensor in scales.BLOCKS.items()}
    parts = []
    for arm in ARMS:
        for block, logs in scales.log_ratios(table, arm).items():
            parts.append(stacked(np.exp(logs), panel="a", quantity=block, arm=arm))
        for panel, multipliers in (("b", ends), ("c", scales.INTERNAL)):
            for name, tensors in multipliers.items():
                values = np.exp(scales.log_multipliers(table, tensors, arm))
                place = "d" if name == PRODUCT else panel
                parts.append(stacked(values, panel=place, quantity=name, arm=arm))
    draws = scales.scalar_draws(table)
    names = [_quantile(share) for share in QUANTILES]
    for panel, walked in (("b", draws), ("c", draws), ("d", draws**2)):
        limits = np.quantile(walked, QUANTILES)
        noise = {"panel": panel, "arm": "SCALAR", "quantity": names, "value": limits}
        parts.append(pd.DataFrame(noise))
    columns = ["panel", "quantity", "arm", "layer", "seed", "value"]
    rows = pd.concat(parts).astype({"layer": "Int64", "seed": "Int64"})
    return rows[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Outputs above, multipliers below; lines are named at the right."""
    figure = sheet(4.7, w_pad=0.04, h_pad=0.05)
    above, below = figure.subfigures(2, 1, height_ratios=[1, 1.3])
    headline(above, MESSAGE)
    multipliers = below.subplots(1, 3, width_ratios=[4, 4, 3.8])
    axes = {"a": above.subplots(), **dict(zip("bcd", multipliers, strict=True))}
    groups = dict(tuple(numbers.astype({"layer": float}).groupby(["panel", "arm", "quantity"])))
    middle = numbers[numbers["quantity"] == "ABM 0.5"].set_index("panel")["value"]

    def relative(panel: str, arm: str, name: str) -> pd.DataFrame:
        rows = groups[panel, arm, name]
        return rows.assign(value=rows["value"] / middle[panel])

    ends: dict[str, dict] = {panel: {} for panel in axes}
    for place, block in enumerate(scales.BLOCKS):
        look, rows = BLOCK_LOOKS[block], groups["a", "SCALAR", block]
        _whiskers(axes["a"], rows, APART * (place - (len(scales.BLOCKS) - 1) / 2), look)
        ends["a"][block] = end(rows, "layer"), look["color"]
        again = look | AGAIN | {"color": shade(look["color"], -0.25)}
        median(axes["b"], relative("b", "SCALAR_ORDER", block), "layer", band=None, **again)
    looks = {("b", block): BLOCK_LOOKS[block] for block in scales.BLOCKS}
    looks |= {("d" if name == PRODUCT else "c", name): look for name, look in INNER.items()}
    for (panel, name), look in looks.items():
        rows = relative(panel, "SCALAR", name)
        median(axes[panel], rows, "layer", band=HALF, alpha=0.25, **look)
        ends[panel][NAMES.get(name, name)] = end(rows, "layer"), look["color"]
    layers = sorted(numbers["layer"].dropna().unique())
    for panel, axis in axes.items():
        axis.set_yscale("log")
        label(axis, TITLES[panel], xlabel="layer", xticks=layers[:: -(-len(layers) // 9)])
        axis.axhline(1.0, **NEUTRAL)
    axes["a"].set_ylabel("RMS of the output,\nwith / without")
    axes["a"].set_ylim(top=max(1.15, axes["a"].get_ylim()[1]))
    plain_log_axis(axes["a"])
    _layers_apart(axes["a"], layers)
    _name_lost(axes["a"], {block: groups["a", "SCALAR", block] for block in scales.BLOCKS})
    for panel in "bcd":
        _noise(axes[panel], numbers[numbers["panel"] == panel], middle[panel])
    # A product has a wider noise, and an axis of its own.
    _share([axes["b"], axes["c"]])
    _share([axes["d"]])
    axes["b"].set_ylabel(r"$|s|$ / noise's median")
    axes["d"].set_ylabel(r"$|s_Q s_K|$ / noise's median")
    axes["c"].tick_params(labelleft=False)
    again = numbers.loc[numbers["arm"] == "SCALAR_ORDER", "seed"].nunique()
    handles = [
        Patch(**NOISE, label="middle half of noise"),
        key("95% of noise", **LIMITS),
        key("median of noise", **NEUTRAL),
        key("start, |s| = 1", **START),
        key(f"b: same start, other order of the data (n = {again})", **AGAIN),
    ]
    legend_below(figure, handles, 3)
    # The other order of the data may have fewer seeds.
    seeds = numbers.loc[numbers["arm"] == "SCALAR", "seed"].dropna()
    context = dataclasses.replace(context, seeds=sorted(map(int, seeds.unique())))
    note = f"noise: {BROWNIAN} of the same multiplier"
    if len(context.seeds) > 1:
        note += "\nlines: medians; bands, whiskers: middle half of seeds; a, ↓: seeds below axis"
    caption(figure, context, note)
    figure.get_layout_engine().execute(figure)  # names keep apart by the axis' height
    for panel, axis in axes.items():
        named = {said: (y, shade(c, -0.25)) for said, (y, c) in ends[panel].items()}
        name_ends(axis, named, at=1.04)
    return figure


def _whiskers(axis, rows: pd.DataFrame, shift: float, look: dict) -> None:
    """Medians over seeds beside their layers, joined, and the middle half of the seeds."""
    values = rows.groupby("layer")["value"]
    middle, low, high = values.median(), *(values.quantile(share) for share in HALF)
    axis.plot(middle.index + shift, middle, **look | {"lw": 0.6, "ms": 3.8, "zorder": 3})
    if rows["seed"].nunique() > 1:
        axis.vlines(middle.index + shift, low, high, color=look["color"], lw=1.4, alpha=0.7)


def _layers_apart(axis, layers) -> None:
    """Lines between the layers, not through them, since three blocks stand at each."""
    axis.grid(axis="x", visible=False)
    axis.set_xlim(layers[0] - 0.5, layers[-1] + 0.5)
    for layer in layers[:-1]:
        axis.axvline(layer + 0.5, color="#e6e6e6", lw=0.5, zorder=0)


def _name_lost(axis, blocks: dict[str, pd.DataFrame]) -> None:
    """How many seeds of a layer lie below ``LEAST``, at the lower end of the axis."""
    if min(rows.groupby("layer")["value"].median().min() for rows in blocks.values()) > LEAST:
        axis.set_ylim(bottom=LEAST)
    bottom = axis.get_ylim()[0]
    for place, (block, rows) in enumerate(blocks.items()):
        lost = rows[rows["value"] < bottom].groupby("layer").size()
        shift = APART * (place - (len(blocks) - 1) / 2)
        colour = shade(BLOCK_LOOKS[block]["color"], -0.3)
        for layer, count in lost.items():
            axis.annotate(f"{count}↓", (layer + shift, 0), (0, 1), ha="center", va="bottom",
                          xycoords=axis.get_xaxis_transform(), textcoords="offset points",
                          fontsize=SMALL, color=colour)  # fmt: skip


def _share(axes) -> None:
    """One range for all of ``axes``, with some room at both ends."""
    limits = np.array([axis.get_ylim() for axis in axes])
    for axis in axes:
        axis.set_ylim(limits.min() / 1.1, limits.max() * 1.1)
        plain_log_axis(axis)


def _noise(axis, rows: pd.DataFrame, middle: float) -> None:
    """What a Brownian motion gives, and where it starts, over its median."""
    drawn = rows[rows["quantity"].str.startswith("ABM")].set_index("quantity")["value"]
    low, *half, high = (drawn[_quantile(share)] / middle for share in QUANTILES)
    axis.axhspan(half[0], half[-1], **NOISE, zorder=0.1)
    for limit in (low, high):
        axis.axhline(limit, **LIMITS)
    axis.axhline(1 / middle, **START)


def _quantile(share: float) -> str:
    return f"ABM {share:g}"
