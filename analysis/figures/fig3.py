"""Figure 3 (section 3.1): scales over width that vector multipliers learn.

Densities of ln of the norms of effective rows (top) and columns (bottom) of the matrices that feed
attention, the SSM and the MLP's gate. Norms are root mean squares over their layer's mean, slices
of merged matrices apart, pooled over layers, at the end of the constant stage. Grey: the arm with
vector multipliers, where Brownian motion (ABM) replaces its row (or column) multipliers; the pale
bar is one standard deviation (std) to both sides, were the entries i.i.d. (``noise`` in the csv).
The numbers are standard deviations of norm / mean, means over seeds, as in the claims.
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
from analysis.drawing.style import (
    ARM_COLOURS,
    BANDS_RANGE,
    BROWNIAN,
    NO_MULTIPLIERS,
    NOISE_COLOUR,
    SMALL,
    plain_log_axis,
    shade,
)
from analysis.quantities.scale_diversity import AXES, GROUPS, distributions, mixture_spread
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
LOOKS = {
    "NONE": {"color": ARM_COLOURS["FPN"], "zorder": 3},
    "VECTOR": {"color": ARM_COLOURS["VPN"], "zorder": 4},
    "ABM": {"color": NOISE_COLOUR, "ls": "--", "zorder": 5},
}
BAR = {"color": shade(NOISE_COLOUR, 0.72), "lw": 0, "zorder": 1}
# In the legend, and in a panel.
NAMES = {
    "NONE": (NO_MULTIPLIERS, "none"),
    "VECTOR": ("vector multipliers", "vectors"),
    "ABM": (f"{BROWNIAN} as multipliers", "Brownian"),
    "noise": ("i.i.d. entries, ±1 std", "i.i.d."),
}
# The range of all panels, which holds nearly all norms.
RANGE = (0.003, 8.0)
POINTS = 161
# Norms below this share of their layer's mean are too few to give a density.
LEAST = 0.003
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
    figure, axes = page(2, len(GROUPS), 3.7, w_pad=0.03, h_pad=0.04, sharex=True)
    letters = iter("abcdef")
    for line, kind in zip(axes, AXES, strict=True):
        for axis, group in zip(line, GROUPS, strict=True):
            _panel(axis, numbers[(numbers["axis"] == kind) & (numbers["group"] == group)])
            label(axis, f"{next(letters)}   {kind} of {group}")
        line[0].set_ylabel("density of ln norm")
    for axis in axes[-1]:
        axis.set_xlabel("norm / mean of its layer")
    handles = [key(NAMES[name][0], **look) for name, look in LOOKS.items()]
    handles.append(Patch(**BAR, label=NAMES["noise"][0]))
    legend_below(figure, handles, 4)
    # Vectors are published of some seeds only.
    seeds = sorted(map(int, numbers["seed"].dropna().unique()))
    context = dataclasses.replace(context, seeds=seeds)
    note = f"vectors are published of {len(seeds)} seeds; std: of norm / mean, seeds' mean"
    return caption(figure, context, f"{note}; {BANDS_RANGE}")


def _panel(axis, panel: pd.DataFrame) -> None:
    spreads = panel[panel["quantity"] == "spread"].groupby("variant")["value"].mean()
    for line, (variant, (_, name)) in enumerate(NAMES.items(), 1):
        colour = shade(LOOKS[variant]["color"], -0.15) if variant in LOOKS else "#777777"
        texts = {"transform": axis.transAxes, "va": "top", "fontsize": SMALL, "color": colour}
        axis.text(0.02, 0.98 - 0.105 * line, name, **texts)
        axis.text(0.455, 0.98 - 0.105 * line, f"{spreads[variant]:.2f}", ha="right", **texts)
    axis.text(0.455, 0.98, "std", transform=axis.transAxes, va="top", ha="right", fontsize=SMALL)
    density = panel[panel["quantity"] == "density"]
    for variant, look in LOOKS.items():
        median(axis, density[density["variant"] == variant], "position", **look)
    axis.axvspan(1 - spreads["noise"], 1 + spreads["noise"], **BAR)
    axis.set(xlim=RANGE, ylim=(0, axis.get_ylim()[1]))
    axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    plain_log_axis(axis, x=True)
