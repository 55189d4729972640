"""Figure 3 (section 3.1): scales over width that vector multipliers learn.

a to f: densities of ln of the norms of effective rows (top) and columns of the matrices that feed
attention, the SSM and the MLP's gate, each over its peak. Norms are root mean squares over their
layer's mean, slices of merged matrices apart, pooled over layers, at the end of the constant stage.
Grey: the arm with vector multipliers, where Brownian motion (ABM) replaces its row (or column)
multipliers; the pale bar is one standard deviation (std) to both sides, were the entries i.i.d.
(``noise`` in the csv). g: standard deviations of norm / mean, as in the claims, a point a seed. At
the right their ratios, geometric means over seeds with 95% intervals.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from scipy.stats import gaussian_kde, norm

from analysis.drawing.axes import median
from analysis.drawing.page import caption, key, label, legend_below, sheet
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
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
LOOKS = {
    "NONE": {"color": ARM_COLOURS["FPN"], "zorder": 3},
    "VECTOR": {"color": ARM_COLOURS["VPN"], "zorder": 4},
    "ABM": {"color": NOISE_COLOUR, "ls": "--", "zorder": 5},
}
BAR = {"color": shade(NOISE_COLOUR, 0.72), "lw": 0, "zorder": 1}
# In the legend.
NAMES = {
    "NONE": NO_MULTIPLIERS,
    "VECTOR": "vector multipliers",
    "ABM": f"{BROWNIAN} as multipliers",
    "noise": "i.i.d. entries, ±1 std",
}
MARKERS = {"NONE": "o", "VECTOR": "^", "ABM": "x"}
# How far the variants stand apart in g, in lines.
APART = 0.2
# The range of all densities, which holds nearly all norms.
RANGE = (0.003, 16.0)
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
    # Beyond the last norms a density needs room to fall to 0.
    return np.geomspace(low, max(1 + width, 3 * ends.max()), POINTS)


def draw(numbers: pd.DataFrame, context: Context):
    """Rows above, columns in the middle, one panel per group of matrices; their spreads below."""
    figure = sheet(4.9, w_pad=0.03, h_pad=0.04)
    above, below = figure.subfigures(2, 1, height_ratios=[1.7, 1])
    axes = above.subplots(len(AXES), len(GROUPS), sharex=True)
    letters = iter("abcdefg")
    cells = dict(tuple(numbers.groupby(["axis", "group"])))
    for line, kind in zip(axes, AXES, strict=True):
        for axis, group in zip(line, GROUPS, strict=True):
            _densities(axis, cells[kind, group])
            label(axis, f"{next(letters)}   {kind} of {group}", yticks=[])
        line[0].set_ylabel("density / peak")
    for axis in axes[-1]:
        axis.set_xlabel("norm / mean of its layer")
    axis, beside = below.subplots(1, 2, sharey=True, width_ratios=[1, 0.6])
    _spreads(axis, beside, cells)
    label(axis, f"{next(letters)}   Much of the spread is noise")
    handles = [key(NAMES[name], **look, marker=MARKERS[name], ms=3) for name, look in LOOKS.items()]
    handles.append(Patch(**BAR, label=NAMES["noise"]))
    legend_below(figure, handles, 4)
    # Vectors are published of some seeds only.
    seeds = sorted(map(int, numbers["seed"].dropna().unique()))
    context = dataclasses.replace(context, seeds=seeds)
    note = "seeds with published vectors"
    if len(seeds) > 1:
        note += f"; a to f, {BANDS_RANGE}; g: a point a seed; [95%]"
    return caption(figure, context, note)


def _densities(axis, panel: pd.DataFrame) -> None:
    """The curves of a group of matrices, each over the peak of its median."""
    density = panel[panel["quantity"] == "density"]
    for variant, look in LOOKS.items():
        rows = density[density["variant"] == variant]
        peak = rows.groupby("position")["value"].median().max()
        median(axis, rows.assign(value=rows["value"] / peak), "position", **look)
    noise = panel[(panel["quantity"] == "spread") & (panel["variant"] == "noise")]["value"].iloc[0]
    axis.axvspan(1 - noise, 1 + noise, **BAR)
    axis.set(xlim=RANGE, ylim=(0, 1.12))
    plain_log_axis(axis, x=True)


def _spreads(axis, beside, cells: dict[tuple[str, str], pd.DataFrame]) -> None:
    """A line for each panel above: the standard deviations, and their ratios on ``beside``."""
    names = [(kind, group) for kind in AXES for group in GROUPS]
    columns = {"vectors / none": (0.22, "VECTOR", "NONE"), "noise's share": (0.76, "ABM", "VECTOR")}
    for said, (x, *_) in columns.items():
        _beside(beside, x, len(names) - 0.1, said)
    for line, name in enumerate(reversed(names)):
        panel = cells[name]
        spreads = panel[panel["quantity"] == "spread"]
        table = spreads.dropna(subset="seed").pivot(index="seed", columns="variant", values="value")
        for place, variant in enumerate(LOOKS):
            height, colour = line + APART * (1 - place), LOOKS[variant]["color"]
            points = {"ls": "", "ms": 3.2, "color": colour, "alpha": 0.6}
            mark = {"marker": MARKERS[variant], "mew": 0.9 if MARKERS[variant] == "x" else 0}
            axis.plot(table[variant], [height] * len(table), **points | mark)
            ends = [table[variant].min(), table[variant].max()]
            axis.plot(ends, [height] * 2, color=colour, lw=0.7)
        noise = spreads.loc[spreads["variant"] == "noise", "value"].iloc[0]
        axis.plot([noise] * 2, [line - 0.35, line + 0.35], color=BAR["color"], lw=2.5)
        _beside(
            beside, columns["vectors / none"][0], line, _ratio(table, "VECTOR", "NONE", "{:.1f}×")
        )
        share = _ratio(table, "ABM", "VECTOR", "{:.0%}")
        _beside(beside, columns["noise's share"][0], line, share)
    beside.set_axis_off()
    axis.set_yticks(range(len(names)), [f"{kind} of {group}" for kind, group in reversed(names)])
    axis.set_ylim(-0.5, len(names) - 0.5)
    axis.grid(axis="y", visible=False)
    for border in np.arange(len(names) - 1) + 0.5:
        axis.axhline(border, color="#e6e6e6", lw=0.5)
    plain_log_axis(axis, x=True)
    axis.set_xlabel("standard deviation of norm / mean")


def _beside(axis, x: float, y: float, text: str) -> None:
    axis.text(x, y, text, transform=axis.get_yaxis_transform(), ha="center", va="center",
              fontsize=SMALL)  # fmt: skip


def _ratio(table: pd.DataFrame, over: str, under: str, form: str) -> str:
    """Geometric mean over seeds of the ratio of two spreads, and its 95% interval."""
    found = interval(np.log(table[over] / table[under]).dropna())
    said = form.format(np.exp(found.mean))
    if found.n < 2:
        return said
    low, high = (form.format(np.exp(value)) for value in (found.low, found.high))
    return f"{said} [{low.strip('×%')}, {high.strip('×%')}]"
