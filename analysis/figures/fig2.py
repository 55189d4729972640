"""Figure 2 (section 3.1): scales over depth that scalar multipliers learn.

(a) norms of the blocks' outputs with multipliers over those without, layer by layer; (b) the
multipliers at the end of each block; (c) those inside the blocks, of Q and K their product, for
only that matters. Norms are root mean squares, read at the end of the constant stage. Dashed in a
and b: the same initial values with another order of the data. Grey in b and c: the middle half of
the draws of a single multiplier that does a Brownian motion. V and up are not drawn, because they
repeat attention's out and the gate; they and the others are in the csv.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from analysis.drawing.axes import end, median, name_ends
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import (
    BANDS_HALF,
    BLOCK_LOOKS,
    BROWNIAN,
    NEUTRAL,
    NOISE_COLOUR,
    SMALL,
    log_axis,
    shade,
)
from analysis.quantities import scale_diversity as scales
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
ARMS = ("SCALAR", "SCALAR_ORDER")
NOISE = {"color": shade(NOISE_COLOUR, 0.84), "lw": 0}
AGAIN = {"ls": (0, (3, 2)), "lw": 0.9, "ms": 2.5, "markerfacecolor": "white"}
# The internal multipliers that are drawn, and the block whose colour they have.
INNER = {"gate": "MLP", "Q·K": "attention", "x": "SSM", "dt": "SSM"}
# x has dt's colour.
OPEN = {"markerfacecolor": "white", "ls": ":"}
# Half of the draws of a Brownian motion lie between these, as do half of the seeds in a band.
QUANTILES = (0.25, 0.75)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, quantity, arm, layer, seed, value.

    Panel a holds ratios of norms, b and c |s|; ``ABM 0.25`` and ``ABM 0.75`` are quantiles of |s|
    over draws of the Brownian motion.
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
                parts.append(stacked(values, panel=panel, quantity=name, arm=arm))
    limits = np.quantile(scales.scalar_draws(table), QUANTILES)
    names = [f"ABM {share:g}" for share in QUANTILES]
    for panel in "bc":
        noise = {"panel": panel, "arm": "SCALAR", "quantity": names, "value": limits}
        parts.append(pd.DataFrame(noise))
    columns = ["panel", "quantity", "arm", "layer", "seed", "value"]
    rows = pd.concat(parts).astype({"layer": "Int64", "seed": "Int64"})
    return rows[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels side by side, their lines named at the right, one legend below."""
    figure, axes = page(1, 3, 2.45, w_pad=0.03)
    groups = dict(tuple(numbers.astype({"layer": float}).groupby(["panel", "arm", "quantity"])))
    shared = {"x": "layer", "alpha": 0.18}
    ends: dict[str, dict] = {panel: {} for panel in "abc"}
    for panel in "ab":
        for block in scales.BLOCKS:
            look = BLOCK_LOOKS[block]
            rows = groups[panel, "SCALAR", block]
            median(axes["ab".index(panel)], rows, band=QUANTILES, **shared, **look)
            again = groups[panel, "SCALAR_ORDER", block]
            median(axes["ab".index(panel)], again, band=None, **shared | look | AGAIN)
            ends[panel][block] = end(rows, "layer"), look["color"]
    for quantity, block in INNER.items():
        look = BLOCK_LOOKS[block] | (OPEN if quantity == "x" else {})
        rows = groups["c", "SCALAR", quantity]
        median(axes[2], rows, band=QUANTILES, **shared, **look)
        ends["c"][quantity] = end(rows, "layer"), look["color"]
    titles = {
        "a": ("a   Outputs of blocks", "RMS with / without multipliers"),
        "b": ("b   Output multipliers", r"$|s|$"),
        "c": ("c   Internal multipliers", r"$|s|$"),
    }
    for axis, (panel, (title, name)) in zip(axes, titles.items(), strict=True):
        _finish(axis, numbers[numbers["panel"] == panel], title, name)
        # The lines of b have the looks of a's.
        if panel != "b":
            named = {said: (y, shade(c, -0.25)) for said, (y, c) in ends[panel].items()}
            name_ends(axis, named, at=1.04)
    seeds = numbers["seed"].nunique()
    legend_below(figure, _legend(), 2)
    note = "Q·K: product of their multipliers"
    return caption(figure, context, f"{note}; {BANDS_HALF}" if seeds > 1 else note)


def _finish(axis, rows: pd.DataFrame, title: str, name: str) -> None:
    """The scale, the span of noise and the line at 1 where it lies inside."""
    log_axis(axis)
    limits = rows.loc[rows["quantity"].str.startswith("ABM"), "value"]
    low, high = axis.get_ylim()
    if len(limits):
        axis.axhspan(limits.min(), limits.max(), **NOISE, zorder=0)
        inside = limits.min() <= low  # else lines may lie there
        axis.annotate(BROWNIAN, (1, max(limits.min(), low)), (-2, 1.5 if inside else -1.5),
                      ha="right", va="bottom" if inside else "top",
                      xycoords=("axes fraction", "data"), textcoords="offset points",
                      fontsize=SMALL, color=NOISE_COLOUR)  # fmt: skip
    if low < 1 < high:
        axis.axhline(1.0, **NEUTRAL)
    axis.set_ylim(low, high)
    layers = sorted(rows["layer"].dropna().unique())
    label(axis, title, xlabel="layer", ylabel=name, xticks=layers[:: -(-len(layers) // 9)])


def _legend() -> list:
    other = key("same start, other order of the data", **AGAIN)
    return [other, Patch(**NOISE, label=f"{BROWNIAN}, middle half of draws")]
