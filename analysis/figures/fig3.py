"""Figure 3 (section 3.1): scales over width that vector multipliers learn.

Densities of the norms of effective rows (top) and columns (bottom) of the matrices that feed
attention, the SSM and the MLP's gate. Norms are root mean squares over their layer's mean, slices
of merged matrices apart, pooled over layers, at the end of the constant stage. Grey: VECTOR with
its row (or column) multipliers replaced by their Brownian motion (ABM); dotted: pure noise of
these shapes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from scipy.stats import gaussian_kde, norm

from analysis.drawing.axes import median
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_COLOURS, NOISE_COLOUR
from analysis.quantities.scale_diversity import AXES, GROUPS, distributions, mixture_spread
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
LOOKS = {
    "NONE": {"color": ARM_COLOURS["FPN"], "zorder": 3},
    "VECTOR": {"color": ARM_COLOURS["VPN"], "zorder": 4},
    "ABM": {"color": NOISE_COLOUR, "ls": "--", "zorder": 3},
    "noise": {"color": "black", "ls": ":", "lw": 0.9, "zorder": 2},
}
NAMES = {
    "NONE": "without multipliers",
    "VECTOR": "row and column multipliers",
    "ABM": "the same, replaced by ABM",
    "noise": "pure noise",
}
POINTS = 161
# The share of rows that each end of a panel may leave out.
TAIL = 0.003


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: axis, group, variant, seed, quantity, position, value.

    ``density`` at ``position`` (norm / mean of its layer), smoothed by Gaussians (Scott's width);
    ``spread``, the standard deviation; ``dead``, rows or columns below a thousandth of the mean,
    which are in none of the others. The variant ``noise`` is pure noise, the same for all seeds.
    """
    parts = []

    def add(density: np.ndarray, grid: np.ndarray, scalars: dict[str, float], **own) -> None:
        points = {"quantity": "density", "position": grid.round(5), "value": density.round(5)}
        parts.append(pd.DataFrame(own | points))
        scalars = {"quantity": list(scalars), "value": list(scalars.values())}
        parts.append(pd.DataFrame(own | scalars))

    for axis in AXES:
        for group, rows in distributions(tables["scale_diversity"], axis).groupby("group"):
            noise, grid = rows["noise"].iloc[0], _grid(rows)
            where = {"axis": axis, "group": group}
            for row in rows.itertuples():
                scalars = {"spread": row.spread, "dead": row.dead}
                own = where | {"variant": row.variant, "seed": row.seed}
                add(gaussian_kde(row.relative)(grid), grid, scalars, **own)
            density = sum(share * norm.pdf(grid, 1.0, width) for width, share in noise.items())
            add(density, grid, {"spread": mixture_spread(noise)}, variant="noise", **where)
    columns = ["axis", "group", "variant", "seed", "quantity", "position", "value"]
    return pd.concat(parts, ignore_index=True)[columns].astype({"seed": "Int64"})


def _grid(rows: pd.DataFrame) -> np.ndarray:
    """Positions that hold nearly all norms of every variant and seed."""
    ends = np.array([np.quantile(values, [TAIL, 1 - TAIL]) for values in rows["relative"]])
    width = 3 * mixture_spread(rows["noise"].iloc[0])
    low, high = min(1 - width, ends.min()), max(1 + width, ends.max())
    margin = 0.06 * (high - low)
    return np.linspace(max(0.0, low - margin), high + margin, POINTS)


def draw(numbers: pd.DataFrame, context: Context):
    """Rows above, columns below, one panel per group of matrices."""
    figure, axes = page(2, len(GROUPS), 4.2, below=0.1, w_pad=0.06, h_pad=0.05)
    letters = iter("abcdef")
    for line, kind in zip(axes, AXES, strict=True):
        for axis, group in zip(line, GROUPS, strict=True):
            _panel(axis, numbers[(numbers["axis"] == kind) & (numbers["group"] == group)])
            title = f"{next(letters)}   {group}: {kind}"
            label(axis, title, xlabel="norm / mean of its layer")
        line[0].set_ylabel("density")
    handles = [key(NAMES[name], **look) for name, look in LOOKS.items()]
    if numbers["seed"].nunique() > 1:
        handles.append(Patch(color="black", alpha=0.2, lw=0, label="range of seeds"))
    legend_below(figure, handles, 5, columnspacing=1.2)
    # Vectors are published of some seeds only.
    seeds = sorted(map(int, numbers["seed"].dropna().unique()))
    context = dataclasses.replace(context, seeds=seeds)
    return caption(figure, context, "numbers: standard deviations")


def _panel(axis, panel: pd.DataFrame) -> None:
    for height, (variant, look) in enumerate(LOOKS.items()):
        rows = panel[panel["variant"] == variant]
        density = rows[rows["quantity"] == "density"]
        median(axis, density, "position", **look)
        spread = rows.loc[rows["quantity"] == "spread", "value"].median()
        axis.text(0.99, 0.99 - 0.095 * height, f"{variant}  {spread:.3f}", color=look["color"],
                  transform=axis.transAxes, ha="right", va="top", fontsize=7)  # fmt: skip
    ends, top = density["position"].agg(["min", "max"]), axis.get_ylim()[1]
    axis.set(xlim=ends, ylim=(0, 1.05 * top), yticks=[])
