"""Signal-to-noise ratios of gradients, and how far each matrix leaves ‖W‖ ∝ S (claim N1).

a: the ratio of the gradients of the scalar, rows and columns that each matrix could have, over that
of the matrix's own gradient: median over seeds of the (geometric) median over layers, with its 95%
interval; the first lines are the medians over all matrices, as in the claim, geometric means and
95% intervals over seeds. b: departure of the slope of ln ‖W‖ against ln S from 1, without its sign
(hollow: slopes above 1), against the matrix's ratio: a point is a matrix of one layer, mean and 95%
interval over seeds, block by block. The rank correlation is that of all matrices of a seed, then
the mean over seeds. Drawn are the seeds that judge; the csv has all.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.transforms import Bbox
from scipy.stats import spearmanr

from analysis.drawing.axes import judging_alone
from analysis.drawing.page import caption, finding, headline, key, label, legend_below, sheet
from analysis.drawing.style import (
    ARM_COLOURS,
    BLOCK_LOOKS,
    NEUTRAL,
    SMALL,
    block_of,
    plain_log_axis,
    shade,
)
from analysis.quantities.gradient_noise import log_gains, together
from analysis.quantities.stats import interval, median_interval, with_interval
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("gradient_noise",)
# Height above the matrices' lines, look and name, by column.
LOOKS = {
    "s": (1.9, {"color": ARM_COLOURS["SPN"], "marker": "s"}, "scalar $s$"),
    "r": (1.1, {"color": ARM_COLOURS["VPN"], "marker": "^"}, "rows $r$"),
    "c": (0.3, {"color": shade(ARM_COLOURS["VPN"], 0.5), "marker": "v"}, "columns $c$"),
}
# How far above their matrix's line they stand in the lines below.
LIFTS = {"s": 0.27, "r": 0.0, "c": -0.27}
# Lines of a end at these ratios, with an arrowhead where they go on.
LEAST = 0.5
ALL = "median over\nall matrices"
MESSAGE = (
    "At the median, multipliers' gradients have more signal per noise than their matrix's (a);\n"
    "over all matrices, those with more of it do not depart further from slope 1 (b)"
)
BLOCKS = ("attention", "SSM", "MLP")
# The lowest top of an axis of b.
SMALLEST = 0.05
TICKS = (0.003, 0.01, 0.03, 0.1, 0.3, 1)
# Where the name of a point may stand: points to its right and above it, and its side.
ASIDE = [(3, 5, "left"), (-3, 5, "right"), (3, -5, "left"), (-3, -5, "right"),
         (5, 0, "left"), (-5, 0, "right"), (0, 7, "center"), (0, -7, "center"),
         (5, 8, "left"), (-5, 8, "right"), (5, -8, "left"), (-5, -8, "right"),
         (0, 15, "center"), (10, 15, "left"), (-10, 15, "right"), (0, 23, "center"),
         (16, 12, "left"), (-16, 12, "right"), (16, -10, "left"), (-16, -10, "right"),
         (22, 4, "left"), (-22, 4, "right"), (22, -1, "left"), (-22, -1, "right"),
         (22, 9, "left"), (-22, 9, "right"),
         (10, 23, "left"), (-10, 23, "right")]  # fmt: skip
# Of these, by their number, places so far away that a line joins name and point.
FAR = range(8, len(ASIDE))
# Where that line ends, as a share of the way to the name.
REACH = np.array([0.9, 0.75])

# Titles of a and b: what the published runs show, and the plain ones of others.
GAINS = (
    "The ratio is higher for multipliers than\n     for their matrix, in the median",
    "Ratio of multipliers over that\n     of their matrix",
)
DEPARTURES = (
    "In this model departures from slope 1\n     do not rise with a matrix's ratio",
    "Departures from slope 1\n     against a matrix's ratio",
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: seed, tensor, layer, W, s, r, c (signal over noise), slope."""
    table = tables["gradient_noise"]
    return together(table).sort_values(["tensor", "layer", "seed"], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Ratios at the left, departures block by block at the right, one legend below."""
    numbers = judging_alone(numbers, criteria_of("gradient_noise")["N1.2"])
    context = dataclasses.replace(context, seeds=sorted(map(int, numbers["seed"].unique())))
    figure = sheet(4.5, w_pad=0.05, h_pad=0.02)
    headline(figure, MESSAGE, context)
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.05])
    _gains(left.subplots(), numbers, finding(context, *GAINS))
    points = _departures(right, numbers, finding(context, *DEPARTURES))
    handles = [key("a:", lw=0), *(key(name, ls="", **look) for _, look, name in LOOKS.values())]
    handles += [key("b:", lw=0), key("slope < 1", "#555555", marker="o", ls="")]
    handles += [key("slope > 1", "#555555", marker="o", ls="", markerfacecolor="white")]
    legend_below(figure, handles, len(handles), handletextpad=0.0, columnspacing=0.6)
    note = (
        r"slope: of $\ln\|W\|$ in $\ln S$, 1 by noise alone; "
        r"$S=\sqrt{\eta/\lambda}$ over its base value"
    )
    if numbers["seed"].nunique() > 1:
        note += (
            "\na: medians over seeds, on top geometric means of each seed's median; "
            "lines: 95% intervals; arrow: it goes on\n"
            "b: a point is a matrix of one layer, means over seeds with 95% intervals"
        )
    caption(figure, context, note)
    # Names need the room that legend and caption leave.
    figure.get_layout_engine().execute(figure)
    for axis, own in points.items():
        _name(axis, own)
    return figure


def _gains(axis, numbers: pd.DataFrame, title: str) -> None:
    """Ratios over the matrix's: of all matrices on top, then of each, the largest scalar's first.

    A signal that is estimated as 0 or less has no place here; it counts as small in the medians.
    """
    logs = pd.DataFrame({name: _logs(numbers, name) for name in LOOKS})
    of_seeds = logs.groupby([numbers["tensor"], numbers["seed"]]).median()
    each = np.exp(of_seeds.groupby("tensor").median().sort_values("s"))
    for name, (offset, look, kind) in LOOKS.items():
        heights = np.arange(len(each)) + LIFTS[name]
        for tensor, at in zip(each.index, heights, strict=True):
            one = median_interval(of_seeds[name].loc[tensor].dropna())
            if np.isfinite(one.high):
                low, high = np.exp([one.low, one.high])
                axis.plot([max(low, LEAST), high], [at] * 2, color=look["color"], lw=0.8, alpha=0.7)
                if low < LEAST:
                    axis.plot(LEAST, at, "<", color=look["color"], ms=2.5, mew=0, clip_on=False)
        axis.plot(each[name], heights, ls="", ms=3, mew=0, **look)
        found = interval(log_gains(numbers, name))
        height = len(each) + offset
        ends = np.exp([found.low, found.high]) if found.n > 1 else [np.exp(found.mean)] * 2
        axis.plot(ends, [height] * 2, color=look["color"], lw=1.2)
        axis.plot(np.exp(found.mean), height, ls="", ms=4, mew=0, **look)
        value = f"{np.exp(found.mean):.2f}"
        said = f"{value} [{ends[0]:.2f}, {ends[1]:.2f}]"
        said = f"{kind.split()[0]} {said if found.n > 1 else value}"
        axis.annotate(said, (ends[1], height), (4, 0), textcoords="offset points", va="center",
                      color=shade(look["color"], -0.4), fontsize=SMALL)  # fmt: skip
    names = [*map(_said, each.index), ALL]
    axis.set_yticks([*range(len(each)), len(each) + LOOKS["r"][0]], names)
    axis.set_ylim(-0.6, len(each) + 2.5)
    axis.grid(axis="y", visible=False)
    for border in np.arange(len(each)) + 0.5:
        axis.axhline(border, color="#eeeeee", lw=0.5, zorder=0)
    axis.axhline(len(each) - 0.4, color="#bbbbbb", lw=0.6)
    axis.axvline(1.0, **NEUTRAL | {"lw": 1.2})
    plain_log_axis(axis, x=True)
    label(axis, f"a   {title}", xlabel="signal / noise, over that of the matrix's gradient")


def _logs(numbers: pd.DataFrame, name: str) -> pd.Series:
    """ln of a multiplier's ratio over its matrix's, −∞ where it alone has no signal.

    Where neither has one it is 0, as the claim counts it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(numbers[[name, "W"]].clip(lower=0.0))
        return (logs[name] - logs["W"]).fillna(0.0)


def _departures(part, numbers: pd.DataFrame, title: str) -> dict:
    """Departure from slope 1 against the matrix's ratio, means and 95% over seeds, by block.

    Returns what ``_name`` wants, by axis.
    """
    axes = part.subplots(len(BLOCKS), 1, sharex=True, sharey=True)
    rows = numbers.assign(departure=1 - numbers["slope"])
    blocks, points = rows["tensor"].map(block_of), {}
    for axis, block in zip(axes, BLOCKS, strict=True):
        points[axis] = _block(axis, rows[blocks == block], BLOCK_LOOKS[block]["color"])
        axis.text(0.02, 0.98, block, transform=axis.transAxes, va="top")
    axes[0].set_ylim(0, max(SMALLEST, 1.5 * max(own["y"].max() for own in points.values())))
    ticks = [0, *[tick for tick in TICKS if tick < axes[0].get_ylim()[1]][-3:]]
    axes[0].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    matrices = rows.assign(departure=rows["departure"].abs()).groupby("seed")[["W", "departure"]]
    ranks = matrices.apply(lambda own: spearmanr(own["W"], own["departure"]).statistic)
    said = with_interval(ranks, 2).replace("-", "−")
    axes[0].text(0.02, 0.06, f"rank correlation over all matrices,\nby seed: {said}",
                 transform=axes[0].transAxes, fontsize=SMALL, zorder=2,
                 bbox={"color": "white", "pad": 0.5})  # fmt: skip
    label(axes[0], f"b   {title}")
    plain_log_axis(axes[-1], x=True)
    ratios = rows.groupby(["tensor", "layer"])["W"].mean()
    axes[-1].set_xlim(0.75 * max(ratios.min(), 1e-5), 1.35 * ratios.max())
    axes[-1].set_xlabel("signal / noise of the matrix's gradient")
    part.supylabel("|1 − slope|, on a square-root axis", fontsize=rcParams["axes.labelsize"])
    return points


def _block(axis, rows: pd.DataFrame, colour: str) -> pd.DataFrame:
    """A point for each matrix of a block; returns their names, places and colours."""
    points = []
    for (tensor, layer), own in rows.groupby(["tensor", "layer"]):
        sign = np.sign(own["departure"].mean())
        x, y = interval(own["W"]), interval(sign * own["departure"])
        if x.n > 1:
            line = {"color": colour, "lw": 0.7, "alpha": 0.5}
            axis.hlines(y.mean, x.low, x.high, **line)
            axis.vlines(x.mean, max(y.low, 0), y.high, **line)
        fill = {"markerfacecolor": "white"} if sign < 0 else {}
        axis.plot(x.mean, y.mean, ls="", ms=3.6, zorder=3, marker="o", color=colour, **fill)
        ends = (x.low, x.high, max(y.low, 0), y.high) if x.n > 1 else (x.mean,) * 2 + (y.mean,) * 2
        name = f"{_short(tensor)}$_{int(layer)}$"
        points.append((name, x.mean, y.mean, shade(colour, -0.35), *ends))
    columns = ["name", "x", "y", "colour", "left", "right", "low", "high"]
    points = pd.DataFrame(points, columns=columns)
    # A square root spreads the many that hardly depart.
    axis.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    return points


def _name(axis, points: pd.DataFrame) -> None:
    """The name of each point beside it, where it covers the fewest points, names and bars."""
    spots = axis.transData.transform(points[["x", "y"]].to_numpy(dtype=float))
    unit = axis.figure.dpi / 72  # pixels a point
    marks = [Bbox.from_extents(*(spot - 2.2 * unit), *(spot + 2.2 * unit)) for spot in spots]
    named: list[Bbox] = []  # names, and the lines that lead to them
    bars = [
        Bbox(axis.transData.transform(ends))
        for p in points.itertuples()
        for ends in ([(p.left, p.y), (p.right, p.y)], [(p.x, p.low), (p.x, p.high)])
    ]
    inside = axis.get_window_extent()
    # Those with near neighbours have the first choice.
    near = [np.sort(np.hypot(*(spots - spot).T))[1:4].mean() for spot in spots]
    for point in points.assign(near=near).sort_values("near").itertuples():
        options, spot = [], spots[point.Index]
        others = [mark for mark in marks if mark is not marks[point.Index]]
        for rank, (right, up, side) in enumerate(ASIDE):
            text = axis.annotate(point.name, (point.x, point.y), (right, up), ha=side, va="center",
                                 textcoords="offset points", fontsize=SMALL,
                                 color=point.colour)  # fmt: skip
            box = text.get_window_extent()
            line = _leader(spot, unit * np.array([right, up])) if rank in FAR else []
            # Names that touch read as one: worse than to hide half a mark.
            hidden = 2 * _met([box], marks) + 8 * _met([box.padded(1.5 * unit)], named)
            hidden += 4 * _met(line, others) + 8 * _met(line, named)
            crossed = _met([box], bars)
            out = box.y0 < inside.y0 or box.x0 < inside.x0 or box.x1 > inside.x1
            centre = (box.p0 + box.p1) / 2
            own = np.hypot(*(centre - spot))
            # A name that is nearer to another point would be taken for its, but for its line.
            wrong = (np.hypot(*(spots - centre).T) < own - 0.5 * unit).sum()
            hidden += (0.5 if line else 4) * wrong
            # Bars are thin, and count less than points and names.
            options.append((hidden + 8 * out + 0.3 * crossed, rank, text, box, line))
        best = min(options, key=lambda one: one[:2])
        named += [best[3], *best[4]]
        if best[1] in FAR:
            right, up = REACH * ASIDE[best[1]][:2]
            line = {"arrowstyle": "-", "color": point.colour, "lw": 0.5, "shrinkA": 0, "shrinkB": 1}
            axis.annotate("", (point.x, point.y), (right, up), arrowprops=line,
                          textcoords="offset points")  # fmt: skip
        for _, _, text, *_ in options:
            if text is not best[2]:
                text.remove()


def _met(boxes: list[Bbox], others: list[Bbox]) -> int:
    """How many of the others one of the boxes meets."""
    return sum(any(Bbox.intersection(box, one) for box in boxes) for one in others)


def _leader(spot: np.ndarray, way: np.ndarray) -> list[Bbox]:
    """Where the line from a point to its name runs, in small boxes."""
    ends = spot + np.linspace(0, 1, 9)[:, None] * REACH * way
    return [Bbox([np.minimum(*both), np.maximum(*both)]) for both in pairwise(ends)]


def _short(tensor: str) -> str:
    """``ssm.dt`` as dt, ``attention.q`` as Q."""
    part = tensor.partition(".")[2]
    return part.upper() if part in "qkv" else part


def _said(tensor: str) -> str:
    """``ssm.dt`` as SSM dt, ``attention.q`` as attention Q."""
    return f"{block_of(tensor)} {_short(tensor)}"
