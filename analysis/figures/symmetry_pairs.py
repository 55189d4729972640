"""Figure of ours (section 4.1): Q's and K's multipliers by rotated pair, in two orders of the data.

a, b: a point is a rotated pair of channels of a key head: ln of its row multipliers' product or
ratio in one order of the data against another order, from the same initial values and without
weight decay. What is learned lies on the diagonal; what drifts at random is round. The axes of b
are longer for the same change. c: correlation over the pairs of a seed. Read as the constant stage
ends. Points of a and b are of all seeds, and pairs of one run are not independent: c has the seeds,
and the difference of their two correlations.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from analysis.drawing.axes import dots
from analysis.drawing.page import caption, label, page
from analysis.drawing.style import ARM_LOOKS, NEUTRAL, SMALL, shade
from analysis.quantities import symmetry
from analysis.quantities.stats import with_interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"symmetry": ("FREE *", "FREE_ORDER *")}
LOOK = {
    "color": shade(ARM_LOOKS["VPN"]["color"], -0.25),
    "marker": ARM_LOOKS["VPN"]["marker"],
    "ls": "",
    "ms": 1.9,
    "mew": 0,
    "alpha": 0.4,
}
TITLES = {"product": "Products repeat weakly", "ratio": "Ratios: no repeat shown"}
SAID = {"product": "Q × K", "ratio": "Q / K"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, seed, layer, pair, product, ratio (both ln)."""
    table = tables["symmetry"]
    parts = [
        symmetry.pairs(table, arm).reset_index().assign(arm=arm)
        for arm in (symmetry.FREE, symmetry.FREE_ORDER)
    ]
    columns = ["arm", "seed", "layer", "pair", "product", "ratio"]
    return pd.concat(parts, ignore_index=True)[columns]


def draw(numbers: pd.DataFrame, context: Context):
    """Two square panels, each with one range on both axes, and the correlations beside them."""
    figure, axes = page(1, 3, 2.4, w_pad=0.05)
    keys = ["seed", "layer", "pair"]
    one, other = (
        numbers[numbers["arm"] == arm].set_index(keys)
        for arm in (symmetry.FREE, symmetry.FREE_ORDER)
    )
    shared = one.index.intersection(other.index)
    for axis, letter, (name, title) in zip(axes[:2], "ab", TITLES.items(), strict=True):
        x, y = one.loc[shared, name], other.loc[shared, name]
        axis.axline((0, 0), slope=1, **NEUTRAL)
        axis.plot(x, y, **LOOK)
        reach = 1.05 * max(x.abs().max(), y.abs().max())
        axis.set(xlim=(-reach, reach), ylim=(-reach, reach))
        axis.set_aspect("equal", adjustable="box")
        axis.locator_params(nbins=7, steps=[1, 2, 5, 10])
        axis.set_anchor("N")
        label(axis, f"{letter}   {title}", xlabel=f"ln({SAID[name]}), one order of data")
        axis.text(0.03, 0.97, "line: repeats exactly", transform=axis.transAxes, va="top",
                  fontsize=SMALL, color="#777777")  # fmt: skip
    axes[0].set_ylabel("the same in another order")
    _correlations(axes[2], one.loc[shared], other.loc[shared])
    # Rows are published of fewer seeds than norms are.
    seeds = sorted(map(int, numbers["seed"].unique()))
    note = "Q, K: their multipliers without weight decay; "
    note += "a, b: a point is a rotated pair of a key head\nc: mean and 95%"
    if fewer := len(context.seeds) - len(seeds):
        note += f"; of {fewer} more seed{'s' * (fewer > 1)} no rows are published"
    return caption(figure, dataclasses.replace(context, seeds=seeds), note)


def _correlations(axis, one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Seed by seed, with the mean and its 95% interval, which stand above it in numbers too."""
    found = {
        said: np.array([
            np.corrcoef(own[name], other.loc[own.index, name])[0, 1]
            for _, own in one.groupby("seed")
        ])
        for name, said in SAID.items()
    }  # fmt: skip
    found["difference"] = np.subtract(*found.values())
    dots(axis, found, dict.fromkeys(found, ARM_LOOKS["VPN"]["color"]), below=0.22)
    for place, (name, values) in enumerate(reversed(found.items())):
        said = with_interval(values, digits=2).replace("-0.00", "0.00").replace("-", "−")
        axis.annotate(f"{name}: {said}", (0.03, place), (0, 6), textcoords="offset points",
                      xycoords=("axes fraction", "data"), fontsize=SMALL,
                      bbox={"color": "white", "pad": 0.5})  # fmt: skip
    axis.axvline(0, **NEUTRAL)
    axis.set_xlim(min(-0.3, *map(min, found.values())) - 0.05, 1.05)
    axis.set_yticks([])
    axis.set_anchor("N")
    axis.set_box_aspect(1)
    axis.set_ylim(-0.45, len(found) - 0.4)
    label(axis, "c   Correlation, each seed", xlabel="correlation of the orders")
