"""Figure 3 (section 3.1): scales over width that vector multipliers learn.

Densities of the norms of effective rows (top) and columns (bottom) of the matrices that feed
attention, the SSM and the MLP's gate. Norms are root mean squares over their layer's mean, slices
of merged matrices apart, pooled over layers, at the end of the constant stage. Grey: VECTOR with
its row (or column) multipliers replaced by their Brownian motion (ABM); dotted: pure noise of
these shapes.
"""

from __future__ import annotations

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy.stats import gaussian_kde, norm

from analysis.drawing.style import ARM_COLOURS, NOISE_COLOUR, TEXT_WIDTH, caption
from analysis.quantities.scale_diversity import AXES, GROUPS, distributions, mixture_spread
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
COLOURS = {
    "NONE": ARM_COLOURS["FPN"],
    "VECTOR": ARM_COLOURS["VPN"],
    "ABM": NOISE_COLOUR,
    "noise": "black",
}
LINES = {
    "NONE": {"ls": "-", "zorder": 3},
    "VECTOR": {"ls": "-", "zorder": 4},
    "ABM": {"ls": "--", "zorder": 3},
    "noise": {"ls": ":", "lw": 0.9, "zorder": 2},
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
    table = tables["scale_diversity"]
    found = []
    for axis in AXES:
        every = distributions(table, axis)
        for group, rows in every.groupby("group"):
            grid = _grid(rows)
            where = {"axis": axis, "group": group}
            for row in rows.to_dict("records"):
                own = {**where, "variant": row["variant"], "seed": row["seed"]}
                found += _records(own, grid, gaussian_kde(row["relative"])(grid), row["spread"])
                found.append({**own, "quantity": "dead", "value": row["dead"]})
            noise = rows["noise"].iloc[0]
            own = {**where, "variant": "noise", "seed": None}
            found += _records(own, grid, _mixture(noise, grid), mixture_spread(noise))
    columns = ["axis", "group", "variant", "seed", "quantity", "position", "value"]
    return pd.DataFrame(found, columns=columns).astype({"seed": "Int64"})


def _records(own: dict, grid: np.ndarray, density: np.ndarray, spread: float) -> list[dict]:
    rows = [
        {**own, "quantity": "density", "position": x, "value": y}
        for x, y in zip(grid.round(5), density.round(5), strict=True)
    ]
    return [*rows, {**own, "quantity": "spread", "value": spread}]


def _mixture(mixture: dict[float, float], grid: np.ndarray) -> np.ndarray:
    return sum(share * norm.pdf(grid, 1.0, width) for width, share in mixture.items())


def _grid(rows: pd.DataFrame) -> np.ndarray:
    """Positions that hold nearly all norms of every variant and seed."""
    ends = np.array([np.quantile(values, [TAIL, 1 - TAIL]) for values in rows["relative"]])
    width = 3 * mixture_spread(rows["noise"].iloc[0])
    low, high = min(1 - width, ends.min()), max(1 + width, ends.max())
    margin = 0.06 * (high - low)
    return np.linspace(max(0.0, low - margin), high + margin, POINTS)


def draw(numbers: pd.DataFrame, context: Context):
    """Rows above, columns below, one panel per group of matrices."""
    figure, axes = plt.subplots(2, len(GROUPS), figsize=(TEXT_WIDTH, 4.2))
    figure.get_layout_engine().set(rect=(0, 0.1, 1, 0.9), w_pad=0.06, h_pad=0.05)
    letters = iter("abcdef")
    for line, kind in zip(axes, AXES, strict=True):
        for axis, group in zip(line, GROUPS, strict=True):
            panel = numbers[(numbers["axis"] == kind) & (numbers["group"] == group)]
            _panel(axis, panel)
            axis.set_title(f"{next(letters)}   {group}: {kind}", loc="left")
            axis.set_xlabel("norm / mean of its layer")
        line[0].set_ylabel("density")
    handles = [
        Line2D([], [], color=COLOURS[name], label=label, **LINES[name])
        for name, label in NAMES.items()
    ]
    if numbers["seed"].nunique() > 1:
        handles.append(Patch(color="black", alpha=0.2, lw=0, label="range of seeds"))
    figure.legend(handles=handles, loc="lower center", ncols=5, columnspacing=1.2,
                  bbox_to_anchor=(0.5, 0.03))  # fmt: skip
    # Vectors are published of some seeds only.
    seeds = sorted(map(int, numbers["seed"].dropna().unique()))
    caption(figure, dataclasses.replace(context, seeds=seeds), "numbers: standard deviations")
    return figure


def _panel(axis, panel: pd.DataFrame) -> None:
    for height, (variant, colour) in enumerate(COLOURS.items()):
        rows = panel[panel["variant"] == variant]
        grouped = rows[rows["quantity"] == "density"].groupby("position")["value"]
        middle = grouped.median()
        axis.plot(middle.index, middle, color=colour, **LINES[variant])
        if rows["seed"].nunique() > 1:
            axis.fill_between(middle.index, grouped.min(), grouped.max(), color=colour, alpha=0.2,
                              lw=0)  # fmt: skip
        spread = rows.loc[rows["quantity"] == "spread", "value"].median()
        axis.text(0.99, 0.99 - 0.095 * height, f"{variant}  {spread:.3f}", color=colour,
                  transform=axis.transAxes, ha="right", va="top", fontsize=7)  # fmt: skip
    top = axis.get_ylim()[1]
    axis.set(xlim=(middle.index[0], middle.index[-1]), ylim=(0, 1.05 * top), yticks=[])
