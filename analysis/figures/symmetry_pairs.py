"""Figure of ours (section 4.1): Q's and K's multipliers by rotated pair, in two orders of the data.

a, b: a point is a rotated pair of channels of a key head: ln of its row multipliers' product or
ratio in one order of the data against another order, from the same initial values and without
weight decay. What is learned lies on the diagonal; what drifts at random is round. The axes of b
are longer for the same change. c: correlation over the pairs of a seed. Read as the constant stage
ends.
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
    "ms": 2.2,
    "mew": 0,
    "alpha": 0.5,
}
TITLES = {"product": "Products repeat weakly", "ratio": "Ratios hardly repeat"}
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
    figure, axes = page(1, 3, 2.35, w_pad=0.05, width_ratios=[1, 1, 0.8])
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
        label(axis, f"{letter}   {title}", xlabel=f"ln({SAID[name]}), one order of the data")
    axes[0].set_ylabel("the same, another order")
    _correlations(axes[2], one.loc[shared], other.loc[shared])
    # Rows are published of fewer seeds than norms are.
    seeds = sorted(map(int, numbers["seed"].unique()))
    note = "λ = 0; a, b: a point is a rotated pair of a key head; c: mean and 95%"
    if fewer := len(context.seeds) - len(seeds):
        note += f"; of {fewer} more seed{'s' * (fewer > 1)} no rows are published"
    return caption(figure, dataclasses.replace(context, seeds=seeds), note)


def _correlations(axis, one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Seed by seed, with the mean and its 95% interval, which stand beside it in numbers too."""
    found = {
        said: np.array([
            np.corrcoef(own[name], other.loc[own.index, name])[0, 1]
            for _, own in one.groupby("seed")
        ])
        for name, said in SAID.items()
    }  # fmt: skip
    dots(axis, found, dict.fromkeys(found, ARM_LOOKS["VPN"]["color"]))
    for place, values in enumerate(reversed(found.values())):
        said = with_interval(values, 2).replace("-0.00", "0.00").replace("-", "−")
        axis.text(0.35, place + 0.14, said, ha="center", va="bottom", fontsize=SMALL)
    axis.axvline(0, **NEUTRAL)
    axis.set_xlim(min(-0.3, *map(min, found.values())) - 0.05, 1)
    axis.grid(axis="y", visible=False)
    label(axis, "c   By seed", xlabel="correlation of the two orders")
