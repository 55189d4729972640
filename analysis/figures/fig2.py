"""Figure 2 (section 3.1): scales over depth that scalar multipliers learn.

(a) norms of the blocks' outputs with multipliers over those without, layer by layer; (b) the
multipliers at the end of each block; (c) those inside the blocks; (d) the product of Q's and K's,
for only that matters. Norms are root mean squares, read at the end of the constant stage. Dashed in
a and b: the same initial values with another order of the data. Grey: the middle half and the
middle 95% of the draws of a multiplier that does a Brownian motion. Multipliers of Q and K begin
alike and have equal gradients, so that they take equal steps: their product is the square of one
walk. V and up are not drawn, because they repeat attention's out and the MLP's down for the same
reason; they and the others are in the csv.
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
    log_axis,
    shade,
)
from analysis.quantities import scale_diversity as scales
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
ARMS = ("SCALAR", "SCALAR_ORDER")
# The middle half of the draws, and what else is in the middle 95%.
NOISE = {"color": shade(NOISE_COLOUR, 0.7), "lw": 0}
WIDER = {"color": shade(NOISE_COLOUR, 0.88), "lw": 0}
AGAIN = {"ls": (0, (3, 2)), "lw": 0.9, "ms": 2.5, "markerfacecolor": "white"}
PRODUCT = "Q·K"
# The multipliers that are drawn in c and d, and their looks: those of their block. Of the SSM's
# two x is darker.
INNER = {
    "gate": BLOCK_LOOKS["MLP"],
    "dt": BLOCK_LOOKS["SSM"],
    "x": {"color": shade(BLOCK_LOOKS["SSM"]["color"], -0.45), "marker": "D", "ms": 3},
    PRODUCT: BLOCK_LOOKS["attention"],
}
# Half of the seeds lie in a coloured band.
HALF = (0.25, 0.75)
# Between the inner two lies half of the draws of a Brownian motion, between the outer two 95%.
QUANTILES = (0.025, *HALF, 0.975)


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
    names = [f"ABM {share:g}" for share in QUANTILES]
    for panel, walked in (("b", draws), ("c", draws), ("d", draws**2)):
        limits = np.quantile(walked, QUANTILES)
        noise = {"panel": panel, "arm": "SCALAR", "quantity": names, "value": limits}
        parts.append(pd.DataFrame(noise))
    columns = ["panel", "quantity", "arm", "layer", "seed", "value"]
    rows = pd.concat(parts).astype({"layer": "Int64", "seed": "Int64"})
    return rows[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two rows of two panels, their lines named at the right, one legend below."""
    figure, axes = page(2, 2, 4.2, w_pad=0.05, h_pad=0.05)
    axes = dict(zip("abcd", axes.flat, strict=True))
    groups = dict(tuple(numbers.astype({"layer": float}).groupby(["panel", "arm", "quantity"])))
    shared = {"x": "layer", "alpha": 0.25}
    ends: dict[str, dict] = {panel: {} for panel in axes}
    for panel in "ab":
        for block in scales.BLOCKS:
            look = BLOCK_LOOKS[block]
            rows = groups[panel, "SCALAR", block]
            median(axes[panel], rows, band=HALF, **shared, **look)
            again = groups[panel, "SCALAR_ORDER", block]
            median(axes[panel], again, band=None, **shared | look | AGAIN)
            ends[panel][block] = end(rows, "layer"), look["color"]
    for quantity, look in INNER.items():
        panel = "d" if quantity == PRODUCT else "c"
        rows = groups[panel, "SCALAR", quantity]
        median(axes[panel], rows, band=HALF, **shared, **look)
        ends[panel][quantity] = end(rows, "layer"), look["color"]
    titles = {
        "a": ("a   Outputs are smaller with multipliers", "RMS with / without"),
        "b": ("b   Multipliers at the ends of blocks", r"$|s|$"),
        "c": ("c   Multipliers inside blocks", r"$|s|$"),
        "d": ("d   Product of Q's and K's", r"$|s_Q s_K|$"),
    }
    for panel, axis in axes.items():
        _finish(axis, numbers[numbers["panel"] == panel], *titles[panel])
        named = {said: (y, shade(c, -0.25)) for said, (y, c) in ends[panel].items()}
        name_ends(axis, named, at=1.04)
    legend_below(figure, _legend(), 3)
    return caption(figure, context, BANDS_HALF if numbers["seed"].nunique() > 1 else "")


def _finish(axis, rows: pd.DataFrame, title: str, name: str) -> None:
    """The scale, the spans of noise and the line at 1 where it lies inside."""
    log_axis(axis)
    limits = sorted(rows.loc[rows["quantity"].str.startswith("ABM"), "value"])
    low, high = axis.get_ylim()
    if limits:
        low = min(low, limits[0])
        axis.axhspan(limits[0], limits[-1], **WIDER, zorder=0)
        axis.axhspan(*limits[1:-1], **NOISE, zorder=0.1)
    if low < 1 < high:
        axis.axhline(1.0, **NEUTRAL)
    axis.set_ylim(low, high)
    layers = sorted(rows["layer"].dropna().unique())
    label(axis, title, xlabel="layer", ylabel=name, xticks=layers[:: -(-len(layers) // 9)])


def _legend() -> list:
    other = key("same start, other order of the data", **AGAIN)
    half = Patch(**NOISE, label=f"{BROWNIAN}: middle half of draws")
    return [other, half, Patch(**WIDER, label="middle 95%")]
