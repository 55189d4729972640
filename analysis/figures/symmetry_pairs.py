"""Figure of ours (section 4.1): Q's and K's multipliers by rotated pair, in two orders of the data.

A point is a rotated pair of channels of a key head: ln of its row multipliers' product (left) or
ratio (right) in one order of the data against another order, from the same initial values and
without weight decay. What is learned lies on the diagonal; what drifts at random is round. r is the
correlation over all points. Read as the constant stage ends.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from analysis.drawing.page import caption, label, page
from analysis.drawing.style import ARM_LOOKS, NEUTRAL, SMALL, shade
from analysis.quantities import symmetry
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
TITLES = {"product": "Product Q × K", "ratio": "Ratio Q / K"}


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
    """Two panels of equal units, with one range."""
    figure, axes = page(1, 2, 3.2, w_pad=0.06, sharex=True, sharey=True)
    keys = ["seed", "layer", "pair"]
    one, other = (
        numbers[numbers["arm"] == arm].set_index(keys)
        for arm in (symmetry.FREE, symmetry.FREE_ORDER)
    )
    shared = one.index.intersection(other.index)
    for axis, letter, (name, title) in zip(axes, "ab", TITLES.items(), strict=True):
        x, y = one.loc[shared, name], other.loc[shared, name]
        axis.axline((0, 0), slope=1, **NEUTRAL)
        axis.plot(x, y, **LOOK)
        axis.set_aspect("equal", adjustable="box")
        r = np.corrcoef(x, y)[0, 1]
        axis.text(0.03, 0.97, f"r = {r:.2f}", transform=axis.transAxes, va="top", fontsize=SMALL)
        label(axis, f"{letter}   {title}", xlabel="ln, one order of the data")
    axes[0].set_ylabel("ln, another order of the data")
    # Rows are published of fewer seeds than norms are.
    context = dataclasses.replace(context, seeds=sorted(map(int, numbers["seed"].unique())))
    return caption(figure, context, "λ = 0; a point: a rotated pair of a key head")
