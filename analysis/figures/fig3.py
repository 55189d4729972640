"""Figure 3 (section 3.1): scales over width that vector multipliers learn.

a to f: densities of ln of the norms of effective rows (top) and columns of the matrices that feed
attention, the SSM and the MLP's gate, each over its peak. Norms are root mean squares over their
layer's mean, slices of merged matrices apart, pooled over layers, at the end of the constant stage.
Grey: the arm with vector multipliers, where Brownian motion (ABM) replaces its row (or column)
multipliers; the pale bar is one standard deviation (std) to both sides, were the entries i.i.d.
(``noise`` in the csv). g: standard deviations of norm / mean, as in the claims, a point a seed. At
the right their ratios, geometric means over seeds with 95% intervals. Drawn are the seeds that
judge W2.2; the csv has all whose vectors are published.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from scipy.stats import gaussian_kde, norm

from analysis.drawing.axes import judging_alone, median
from analysis.drawing.page import caption, headline, key, label, legend_below, sheet
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
from analysis.quantities.stats import Interval, interval
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
LOOKS = {
    "NONE": {"color": ARM_COLOURS["FPN"], "ls": (0, (1, 0.8)), "zorder": 3},
    "VECTOR": {"color": ARM_COLOURS["VPN"], "zorder": 4},
    "ABM": {"color": NOISE_COLOUR, "ls": "--", "zorder": 5},
}
MESSAGE = "Vectors broaden the norms of rows and columns; so does noise in the vectors' place"
BAR = {"color": "#d9cfe8", "lw": 0, "zorder": 1}
# In the legend.
NAMES = {
    "NONE": NO_MULTIPLIERS,
    "VECTOR": "vector multipliers",
    "ABM": f"{BROWNIAN} as multipliers",
    "noise": "a to f: i.i.d. entries, ±1 std",
}
# Pure noise in g, where it is one value and no width.
TICK = {"color": "#222222", "marker": "|", "ms": 7, "mew": 1.2, "ls": ""}
# The columns beside g: head, place, which spread is over which, and digits.
RATIOS = {
    "vectors / none": (0.22, "VECTOR", "NONE", 1),
    "noise alone / vectors": (0.74, "ABM", "VECTOR", 2),
}
# A second peak that is at least so high, over the first, has its place written.
SECOND = 0.5
MARKERS = {"NONE": "o", "VECTOR": "^", "ABM": "x"}
# How far the variants stand apart in g, in lines.
APART = 0.2
# The range of all densities, which holds nearly all norms.
RANGE = (0.003, 16.0)
POINTS = 81
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
    figure = sheet(5.2, w_pad=0.05, h_pad=0.04)
    headline(figure, MESSAGE, context)
    # Vectors are published of some seeds only; pure noise has none.
    seeded = numbers["seed"].notna()
    own = judging_alone(numbers[seeded], criteria_of("scale_diversity")["W2.2"])
    seeds = sorted(map(int, own["seed"].unique()))
    above, below = figure.subfigures(2, 1, height_ratios=[1.7, 1])
    axes = above.subplots(len(AXES), len(GROUPS), sharex=True)
    letters = iter("abcdefg")
    cells = dict(tuple(pd.concat([own, numbers[~seeded]]).groupby(["axis", "group"])))
    for line, kind in zip(axes, AXES, strict=True):
        for axis, group in zip(line, GROUPS, strict=True):
            _densities(axis, cells[kind, group])
            label(axis, f"{next(letters)}   {kind} of {group}", yticks=[])
        line[0].set_ylabel("density / peak")
    for axis in axes[-1]:
        axis.set_xlabel("norm / mean of its layer")
    axis, beside = below.subplots(1, 2, sharey=True, width_ratios=[1, 0.75])
    low, high = _spreads(axis, beside, cells)
    title = f"Noise alone spreads norms {low:.2f} to {high:.2f} times as far as vectors"
    axis.set_title(f"{next(letters)}   {title}", loc="left", pad=14)  # above the heads beside it
    handles = [key(NAMES[name], **look, marker=MARKERS[name], ms=3) for name, look in LOOKS.items()]
    handles += [Patch(**BAR, label=NAMES["noise"]), key("g: i.i.d. entries, std", **TICK)]
    legend_below(figure, handles, 3)
    context = dataclasses.replace(context, seeds=seeds)
    note = f"a to f, {BANDS_RANGE}; g: a point is a seed; [ ]: 95% intervals of means"
    note = note if len(seeds) > 1 else ""
    note += "\ni.i.d. entries: norms of a random matrix of the same shape, without training"
    return caption(figure, context, note)


def _densities(axis, panel: pd.DataFrame) -> None:
    """The curves of a group of matrices, each over the peak of its median."""
    density = panel[panel["quantity"] == "density"]
    for variant, look in LOOKS.items():
        rows = density[density["variant"] == variant]
        middle = rows.groupby("position")["value"].median()
        peak = middle.max()
        median(axis, rows.assign(value=rows["value"] / peak), "position", **look)
        if variant == "VECTOR":
            _name_second(axis, middle / peak, shade(look["color"], -0.25))
    noise = panel[(panel["quantity"] == "spread") & (panel["variant"] == "noise")]["value"].iloc[0]
    axis.axvspan(1 - noise, 1 + noise, **BAR)
    axis.set(xlim=RANGE, ylim=(0, 1.12))
    plain_log_axis(axis, x=True)


def _name_second(axis, density: pd.Series, colour: str) -> None:
    """Where a second peak lies, if there is one."""
    values = density.to_numpy()
    inner = values[1:-1]
    tops = 1 + np.flatnonzero((inner > values[:-2]) & (inner >= values[2:]) & (inner < 1))
    tops = tops[values[tops] > SECOND]
    if len(tops):
        top = tops[values[tops].argmax()]
        said = f"second\npeak at\n{density.index[top]:.1g}"
        axis.annotate(said, (density.index[top], values[top]), (2.5, -27), ha="center", va="top",
                      textcoords="offset points", fontsize=SMALL, color=colour,
                      linespacing=1.05)  # fmt: skip


def _spreads(axis, beside, cells: dict[tuple[str, str], pd.DataFrame]) -> tuple[float, float]:
    """A line for each panel above: the standard deviations, and their ratios on ``beside``.

    Returns the least and the largest mean of noise over vectors.
    """
    names = [(kind, group) for kind in AXES for group in GROUPS]
    found: dict[str, list[float]] = {said: [] for said in RATIOS}
    for said, (x, *_) in RATIOS.items():
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
        axis.plot(noise, line, **TICK)
        for head, (x, over, under, digits) in RATIOS.items():
            ratio = interval(np.log(table[over] / table[under]).dropna())
            found[head].append(float(np.exp(ratio.mean)))
            _beside(beside, x, line, _said(ratio, digits))
    beside.set_axis_off()
    axis.set_yticks(range(len(names)), [f"{kind} of {group}" for kind, group in reversed(names)])
    axis.set_ylim(-0.5, len(names) - 0.5)
    axis.grid(axis="y", visible=False)
    for border in np.arange(len(names) - 1) + 0.5:
        axis.axhline(border, color="#e6e6e6", lw=0.5)
    plain_log_axis(axis, x=True)
    axis.set_xlabel("standard deviation of norm / mean")
    *_, of_noise = found.values()
    return min(of_noise), max(of_noise)


def _beside(axis, x: float, y: float, text: str) -> None:
    axis.text(x, y, text, transform=axis.get_yaxis_transform(), ha="center", va="center",
              fontsize=SMALL)  # fmt: skip


def _said(ratio: Interval, digits: int) -> str:
    """A geometric mean over seeds, from its logarithm, and its 95% interval."""
    mean, *ends = (f"{np.exp(end):.{digits}f}" for end in (ratio.mean, ratio.low, ratio.high))
    return f"{mean}× [{', '.join(ends)}]" if ratio.n > 1 else f"{mean}×"
