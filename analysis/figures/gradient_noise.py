"""Signal-to-noise ratios of gradients, and how far each matrix leaves ‖W‖ ∝ S (claim N1).

a: the ratio of the gradients of the scalar, rows and columns that each matrix could have, over that
of the matrix's own gradient: median over seeds of the (geometric) median over layers, with its 95%
interval; the first line is the median over all matrices, as in the claim, mean and 95% interval
over seeds. b: departure of the slope of ln ‖W‖ against ln S from 1, without its sign (open symbols:
slopes above 1), against the matrix's ratio: means over layers, with their 95% intervals over seeds,
and the rank correlation over matrices. Drawn are the seeds that judge; the csv has all.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from analysis.drawing.axes import judging_alone, spread_out
from analysis.drawing.page import caption, key, label, legend_below, page
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
LIFTS = {"s": 0.25, "r": 0.0, "c": -0.25}
# Lines of a begin at this ratio where seeds have hardly any signal.
LEAST = 0.5
ALL = "median over\nall matrices"
DEPARTURE = r"|1 − slope of $\ln\|W\|$ in $\ln S$|"
BLOCKS = ("attention", "SSM", "MLP")
# Slopes above 1.
OVERSHOOT = {"markerfacecolor": "white"}
# The block whose names in b stand at the left, and where names stand: shares of the axis' width.
LEFT, SIDES = "SSM", (0.21, 0.8)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: seed, tensor, layer, W, s, r, c (signal over noise), slope."""
    table = tables["gradient_noise"]
    return together(table).sort_values(["tensor", "layer", "seed"], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels, one legend below."""
    numbers = judging_alone(numbers, criteria_of("gradient_noise")["N1.2"])
    context = dataclasses.replace(context, seeds=sorted(map(int, numbers["seed"].unique())))
    figure, (left, right) = page(1, 2, 3.7, w_pad=0.05, width_ratios=[1.15, 1])
    _gains(left, numbers)
    names = _departures(right, numbers)
    handles = [key("a:", lw=0), *(key(name, ls="", **look) for _, look, name in LOOKS.values())]
    handles += [key("b:", lw=0), *(key(name, ls="", **BLOCK_LOOKS[name]) for name in BLOCKS)]
    handles.append(key("hollow: slope > 1", "#555555", marker="o", ls="", **OVERSHOOT))
    legend_below(figure, handles, len(handles), handletextpad=0.0, columnspacing=0.4)
    several = numbers["seed"].nunique() > 1
    note = r"$S=\sqrt{\eta/\lambda}$ over that of the base setting"
    if several:
        note += f"; a: medians, b: means; lines: 95% (a: from {LEAST:g} on)"
    caption(figure, context, note)
    # Names need the height that legend and caption leave.
    figure.get_layout_engine().execute(figure)
    _name(right, names)
    return figure


def _gains(axis, numbers: pd.DataFrame) -> None:
    """Ratios over the matrix's: of all matrices on top, then of each, the largest scalar's first.

    A signal that is estimated as 0 or less has no place here; it counts as small in the medians.
    """
    logs = pd.DataFrame({name: _logs(numbers, name) for name in LOOKS})
    of_seeds = logs.groupby([numbers["tensor"], numbers["seed"]]).median()
    each = np.exp(of_seeds.groupby("tensor").median().sort_values("s"))
    for name, (offset, look, _) in LOOKS.items():
        heights = np.arange(len(each)) + LIFTS[name]
        for tensor, at in zip(each.index, heights, strict=True):
            one = median_interval(of_seeds[name].loc[tensor].dropna())
            if np.isfinite(one.high):
                ends = np.maximum(np.exp([one.low, one.high]), LEAST)
                axis.plot(ends, [at] * 2, color=look["color"], lw=0.8, alpha=0.7)
        axis.plot(each[name], heights, ls="", ms=3.2, mew=0, **look)
        found = interval(log_gains(numbers, name))
        height = len(each) + offset
        ends = np.exp([found.low, found.high]) if found.n > 1 else [np.exp(found.mean)] * 2
        axis.plot(ends, [height] * 2, color=look["color"], lw=1.2)
        axis.plot(np.exp(found.mean), height, ls="", ms=4, mew=0, **look)
        axis.annotate(f"{np.exp(found.mean):.1f}", (ends[1], height), (4, 0), va="center",
                      textcoords="offset points", color=shade(look["color"], -0.4),
                      fontsize=SMALL)  # fmt: skip
    names = [*map(_said, each.index), ALL]
    axis.set_yticks([*range(len(each)), len(each) + LOOKS["r"][0]], names)
    axis.set_ylim(-0.6, len(each) + 2.5)
    axis.grid(axis="y", visible=False)
    axis.axhline(len(each) - 0.4, color="#bbbbbb", lw=0.6)
    axis.axvline(1.0, **NEUTRAL | {"lw": 1.2})
    plain_log_axis(axis, x=True)
    title = "a   Multipliers' gradients have the higher\n     signal / noise (median over matrices)"
    label(axis, title, xlabel="signal / noise, over that of the matrix's gradient")


def _logs(numbers: pd.DataFrame, name: str) -> pd.Series:
    """ln of a multiplier's ratio over its matrix's, −∞ where it has no signal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(numbers[[name, "W"]].clip(lower=0.0))
    return logs[name] - logs["W"]


def _departures(axis, numbers: pd.DataFrame) -> pd.DataFrame:
    """Departure from slope 1 against the matrix's ratio, means over layers, 95% over seeds.

    Returns what ``_name`` wants: x, y, colour and the side of the name by tensor.
    """
    rows = numbers.assign(departure=1 - numbers["slope"])
    seeds = rows.groupby(["tensor", "seed"])[["W", "departure"]].mean()
    named, leftmost = {}, seeds["W"].groupby("tensor").mean().idxmin()
    for tensor, own in seeds.groupby("tensor"):
        sign = np.sign(own["departure"].mean())
        look = BLOCK_LOOKS[block_of(tensor)] | (OVERSHOOT if sign < 0 else {})
        x, y = interval(own["W"]), interval(sign * own["departure"])
        if x.n > 1:
            axis.hlines(y.mean, x.low, x.high, color=look["color"], lw=0.8)
            axis.vlines(x.mean, y.low, y.high, color=look["color"], lw=0.8)
        axis.plot(x.mean, y.mean, ls="", ms=3.6, **look)
        left = block_of(tensor) == LEFT or tensor == leftmost
        named[tensor] = x.mean, y.mean, shade(look["color"], -0.35), left
    axis.axhline(0, **NEUTRAL)
    matrices = rows.assign(departure=rows["departure"].abs()).groupby("seed")[["W", "departure"]]
    ranks = matrices.apply(lambda own: spearmanr(own["W"], own["departure"]).statistic)
    said = with_interval(ranks, 2).replace("-", "−")
    asked = criteria_of("gradient_noise")["N1.2"]["thresholds"]["correlation"]
    said = f"rank correlation over matrices:\n{said}; asked: at least {asked:g}"
    axis.text(0.98, 0.99, said, ha="right", va="top", fontsize=SMALL, transform=axis.transAxes)
    plain_log_axis(axis, x=True)
    points = pd.DataFrame(named, index=["x", "y", "colour", "left"]).T
    axis.set_xlim(0.35 * max(points["x"].min(), 1e-5), 2.6 * points["x"].max())
    axis.set_ylim(-0.2 * points["y"].max(), 1.3 * points["y"].max())
    title = "b   A matrix's signal / noise does not\n     predict its departure from slope 1"
    label(axis, title, xlabel="signal / noise of the matrix", ylabel=DEPARTURE)
    return points


def _name(axis, points: pd.DataFrame) -> None:
    """The name of each point at its side of the axis, joined to the point."""
    tall = axis.get_window_extent().height * 72 / axis.figure.dpi  # points
    low, high = axis.get_ylim()
    for left, own in points.groupby("left"):
        heights = ((own["y"] - low) / (high - low)).to_numpy(dtype=float)
        heights = spread_out(heights, np.full(len(own), 1.6 * SMALL / tall))
        at, side = (SIDES[0], "right") if left else (SIDES[1], "left")
        for (tensor, point), height in zip(own.iterrows(), heights, strict=True):
            join = {"arrowstyle": "-", "color": "#999999", "lw": 0.5, "shrinkB": 2.5}
            axis.annotate(_short(tensor), (point["x"], point["y"]), color=point["colour"],
                          xytext=(at, height), textcoords="axes fraction", ha=side, va="center",
                          fontsize=SMALL, bbox={"color": "white", "pad": 0.5},
                          arrowprops=join | {"shrinkA": 1, "relpos": (float(left), 0.5)},
                          )  # fmt: skip


def _short(tensor: str) -> str:
    """``ssm.dt`` as dt, ``attention.q`` as Q; two blocks have an ``out``."""
    block, _, part = tensor.partition(".")
    if part == "out":
        return "SSM out" if block == "ssm" else "attn out"
    return part.upper() if part in "qkv" else part


def _said(tensor: str) -> str:
    """``ssm.dt`` as SSM dt, ``attention.q`` as attention Q."""
    return f"{block_of(tensor)} {_short(tensor).split()[-1]}"
