"""Figure 3 (section 3.1): scales over width that vector multipliers learn.

Densities of ln of the norms of effective rows (top) and columns (bottom) of the matrices that feed
attention, the SSM and the MLP's gate. Norms are root mean squares over their layer's mean, slices
of merged matrices apart, pooled over layers, at the end of the constant stage. Grey: the arm with
vector multipliers, where Brownian motion (ABM) replaces its row (or column) multipliers; dotted:
pure noise of these shapes. The numbers are standard deviations (std) of norm / mean.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from scipy.stats import gaussian_kde, norm

from analysis.drawing.axes import median
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_COLOURS, NOISE_COLOUR, plain_log_axis
from analysis.quantities.scale_diversity import AXES, GROUPS, distributions, mixture_spread
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
LOOKS = {
    "NONE": {"color": ARM_COLOURS["FPN"], "zorder": 3},
    "VECTOR": {"color": ARM_COLOURS["VPN"], "zorder": 4},
    "ABM": {"color": NOISE_COLOUR, "ls": "--", "zorder": 5},
    "noise": {"color": "black", "ls": ":", "lw": 0.9, "zorder": 2},
}
NAMES = {
    "NONE": "without multipliers",
    "VECTOR": "vector multipliers",
    "ABM": "Brownian motion instead",
    "noise": "pure noise",
}
POINTS = 161
# Norms below this share of their layer's mean are too few to give a density.
LEAST = 0.03
# The share of rows that each end of a panel may leave out.
TAIL = 0.003


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: axis, group, variant, seed, quantity, position, value.

    ``density`` of ln (norm / mean of its layer) at ``position``, that ratio, smoothed by Gaussians
    (Scott's width); ``spread``, the standard deviation of the ratio; ``dead``, rows or columns
    below a thousandth of the mean, which are in none of the others. The variant ``noise`` is pure
    noise, the same for all seeds.
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
                add(gaussian_kde(np.log(row.relative))(np.log(grid)), grid, scalars, **own)
            density = sum(share * norm.pdf(grid, 1.0, width) for width, share in noise.items())
            add(grid * density, grid, {"spread": mixture_spread(noise)}, variant="noise", **where)
    columns = ["axis", "group", "variant", "seed", "quantity", "position", "value"]
    return pd.concat(parts, ignore_index=True)[columns].astype({"seed": "Int64"})


def _grid(rows: pd.DataFrame) -> np.ndarray:
    """Positions that hold nearly all norms of every variant and seed, evenly spaced in ln."""
    ends = np.array([np.quantile(values, [TAIL, 1 - TAIL]) for values in rows["relative"]])
    width = 3 * mixture_spread(rows["noise"].iloc[0])
    low = max(LEAST, min(1 - width, 0.9 * ends.min()))
    return np.geomspace(low, max(1 + width, 1.1 * ends.max()), POINTS)


def draw(numbers: pd.DataFrame, context: Context):
    """Rows above, columns below, one panel per group of matrices."""
    figure, axes = page(2, len(GROUPS), 3.5, w_pad=0.04, h_pad=0.04)
    letters = iter("abcdef")
    for line, kind in zip(axes, AXES, strict=True):
        for axis, group in zip(line, GROUPS, strict=True):
            _panel(axis, numbers[(numbers["axis"] == kind) & (numbers["group"] == group)])
            label(axis, f"{next(letters)}   {kind} of {group}")
        line[0].set_ylabel("density of ln norm")
    for axis in axes[-1]:
        axis.set_xlabel("norm / mean of its layer")
    handles = [key(NAMES[name], **look) for name, look in LOOKS.items()]
    if numbers["seed"].nunique() > 1:
        handles.append(Patch(color="black", alpha=0.2, lw=0, label="range of seeds"))
    legend_below(figure, handles, 5, columnspacing=1.0)
    # Vectors are published of some seeds only.
    seeds = sorted(map(int, numbers["seed"].dropna().unique()))
    context = dataclasses.replace(context, seeds=seeds)
    return caption(figure, context, "std: of norm / mean, in each line's colour")


def _panel(axis, panel: pd.DataFrame) -> None:
    texts = {"transform": axis.transAxes, "va": "top", "fontsize": 6.3}
    axis.text(0.02, 0.98, "std", **texts)
    for line, (variant, look) in enumerate(LOOKS.items(), 1):
        rows = panel[panel["variant"] == variant]
        density = rows[rows["quantity"] == "density"]
        median(axis, density, "position", **look)
        spread = rows.loc[rows["quantity"] == "spread", "value"].median()
        axis.text(0.02, 0.98 - 0.11 * line, f"{spread:.2f}", color=look["color"], **texts)
    ends, top = density["position"].agg(["min", "max"]), axis.get_ylim()[1]
    axis.set(xlim=ends, ylim=(0, 1.05 * top))
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    plain_log_axis(axis, x=True)
