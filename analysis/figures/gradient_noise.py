"""Signal-to-noise ratios of gradients, and how far each matrix leaves ‖W‖ ∝ S (claim N1).

a: the ratio of the gradients of the scalar, rows and columns that each matrix could have, over that
of the matrix's own gradient: median over seeds of the (geometric) median over layers, of scalars
with its 95% interval; the first line is the median over all matrices, as in the claim, mean and 95%
interval over seeds. b: departure of the slope of ln ‖W‖ against ln S from 1, without its sign
(hollow: slopes above 1), against the matrix's ratio: a point is a matrix of one layer, mean and 95%
interval over seeds, and a line joins the layers of a matrix. The rank correlation is that of all
matrices of a seed, then the mean over seeds. Drawn are the seeds that judge; the csv has all.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox
from scipy.stats import spearmanr

from analysis.drawing.axes import judging_alone
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
# Lines of a end at these ratios, with an arrowhead where they go on.
LEAST = 0.5
ALL = "median over\nall matrices"
DEPARTURE = r"|1 − slope of $\ln\|W\|$ in $\ln S$|   (square-root axis)"
HALO = [withStroke(linewidth=1.6, foreground="white")]
BLOCKS = ("attention", "SSM", "MLP")
# Slopes above 1.
OVERSHOOT = {"markerfacecolor": "white"}
# Where the name of a point may stand: points to its right and above it, and its side.
ASIDE = [(3, 5, "left"), (-3, 5, "right"), (3, -5, "left"), (-3, -5, "right"),
         (5, 0, "left"), (-5, 0, "right"), (0, 8, "center"), (0, -8, "center"), (7, 10, "left"),
         (7, -10, "left"), (-7, 10, "right"), (-7, -10, "right")]  # fmt: skip


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: seed, tensor, layer, W, s, r, c (signal over noise), slope."""
    table = tables["gradient_noise"]
    return together(table).sort_values(["tensor", "layer", "seed"], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels, one legend below."""
    numbers = judging_alone(numbers, criteria_of("gradient_noise")["N1.2"])
    context = dataclasses.replace(context, seeds=sorted(map(int, numbers["seed"].unique())))
    figure, (left, right) = page(1, 2, 3.9, w_pad=0.05, width_ratios=[1, 1.15])
    _gains(left, numbers)
    points = _departures(right, numbers)
    handles = [key("a:", lw=0), *(key(name, ls="", **look) for _, look, name in LOOKS.values())]
    handles += [key("b:", lw=0), *(key(name, ls="", **BLOCK_LOOKS[name]) for name in BLOCKS)]
    handles.append(key("hollow: slope > 1", "#555555", marker="o", ls="", **OVERSHOOT))
    legend_below(figure, handles, len(handles), handletextpad=0.0, columnspacing=0.4)
    note = r"$S=\sqrt{\eta/\lambda}$ over that of the base setting"
    if numbers["seed"].nunique() > 1:
        note += (
            "   coloured lines: 95%, in a only of scalars and of the top rows\n"
            "a: medians over seeds   b: means over seeds; grey joins the layers of a matrix; "
            "slope 1: noise alone"
        )
    caption(figure, context, note)
    # Names need the room that legend and caption leave.
    figure.get_layout_engine().execute(figure)
    _name(right, points)
    return figure


def _gains(axis, numbers: pd.DataFrame) -> None:
    """Ratios over the matrix's: of all matrices on top, then of each, the largest scalar's first.

    Of single matrices only the scalars have intervals: those of rows and columns are short. A
    signal that is estimated as 0 or less has no place here; it counts as small in the medians.
    """
    logs = pd.DataFrame({name: _logs(numbers, name) for name in LOOKS})
    of_seeds = logs.groupby([numbers["tensor"], numbers["seed"]]).median()
    each = np.exp(of_seeds.groupby("tensor").median().sort_values("s"))
    for name, (offset, look, _) in LOOKS.items():
        heights = np.arange(len(each)) + LIFTS[name]
        for tensor, at in zip(each.index, heights, strict=True):
            one = median_interval(of_seeds[name].loc[tensor].dropna())
            if name == "s" and np.isfinite(one.high):
                low, high = np.exp([one.low, one.high])
                axis.plot([max(low, LEAST), high], [at] * 2, color=look["color"], lw=0.8, alpha=0.7)
                if low < LEAST:
                    axis.plot(LEAST, at, "<", color=look["color"], ms=2.5, mew=0, clip_on=False)
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
    """Departure from slope 1 against the matrix's ratio, means and 95% over seeds.

    Returns what ``_name`` wants: tensor, x, y and colour of each point.
    """
    rows = numbers.assign(departure=1 - numbers["slope"])
    points = []
    for (tensor, _), own in rows.groupby(["tensor", "layer"]):
        sign = np.sign(own["departure"].mean())
        look = BLOCK_LOOKS[block_of(tensor)] | (OVERSHOOT if sign < 0 else {})
        x, y = interval(own["W"]), interval(sign * own["departure"])
        if x.n > 1:
            line = {"color": look["color"], "lw": 0.6, "alpha": 0.45}
            axis.hlines(y.mean, x.low, x.high, **line)
            axis.vlines(x.mean, max(y.low, 0), y.high, **line)
        axis.plot(x.mean, y.mean, ls="", ms=3.6, zorder=3, **look)
        points.append((tensor, x.mean, y.mean, shade(look["color"], -0.35)))
    points = pd.DataFrame(points, columns=["tensor", "x", "y", "colour"])
    for _, own in points.groupby("tensor"):
        axis.plot(own["x"], own["y"], color="#cccccc", lw=0.6, zorder=1)
    matrices = rows.assign(departure=rows["departure"].abs()).groupby("seed")[["W", "departure"]]
    ranks = matrices.apply(lambda own: spearmanr(own["W"], own["departure"]).statistic)
    said = with_interval(ranks, 2).replace("-", "−")
    asked = criteria_of("gradient_noise")["N1.2"]["thresholds"]["correlation"]
    said = f"rank correlation over the {len(points)} matrices,\nby seed: {said}"
    said += f"\nasked: at least {asked:g}"
    axis.text(0.98, 0.99, said, ha="right", va="top", fontsize=SMALL, transform=axis.transAxes)
    plain_log_axis(axis, x=True)
    axis.set_xlim(0.8 * max(points["x"].min(), 1e-5), 1.5 * points["x"].max())
    # A square root spreads the many that hardly depart.
    axis.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    axis.set_ylim(0, 1.55 * points["y"].max())
    ticks = [tick for tick in (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 1) if tick < axis.get_ylim()[1]]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    title = "b   A matrix's departure from slope 1 does\n     not rise with its signal / noise"
    label(axis, title, xlabel="signal / noise of the matrix", ylabel=DEPARTURE)
    return points


def _name(axis, points: pd.DataFrame) -> None:
    """The name of each matrix beside that of its points where there is most room."""
    spots = axis.transData.transform(points[["x", "y"]].to_numpy(dtype=float))
    unit = axis.figure.dpi / 72  # pixels a point
    taken = [Bbox.from_extents(*(spot - 2.6 * unit), *(spot + 2.6 * unit)) for spot in spots]
    crowd = [np.sort(np.hypot(*(spots - spot).T))[1:5].mean() for spot in spots]
    where = points.assign(spot=range(len(points)), crowd=crowd)
    inside = axis.get_window_extent()
    for tensor, own in sorted(where.groupby("tensor"), key=lambda one: one[1]["crowd"].max()):
        options = []
        for _, point in own.iterrows():
            for rank, (right, up, side) in enumerate(ASIDE):
                text = axis.annotate(_short(tensor), (point["x"], point["y"]), (right, up),
                                     textcoords="offset points", ha=side, va="center",
                                     fontsize=SMALL, color=point["colour"],
                                     path_effects=HALO)  # fmt: skip
                box = text.get_window_extent()
                hidden = sum(Bbox.intersection(box, other) is not None for other in taken)
                out = not (inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0)
                options.append((10 * hidden + 50 * out + rank / 4, len(options), text, box))
        _, best, _, box = min(options, key=lambda one: one[:2])
        taken.append(box)
        for _, number, text, _ in options:
            if number != best:
                text.remove()


def _short(tensor: str) -> str:
    """``ssm.dt`` as dt, ``attention.q`` as Q; two blocks have an ``out``."""
    block, _, part = tensor.partition(".")
    if part == "out":
        return "SSM out" if block == "ssm" else "attn out"
    return part.upper() if part in "qkv" else part


def _said(tensor: str) -> str:
    """``ssm.dt`` as SSM dt, ``attention.q`` as attention Q."""
    return f"{block_of(tensor)} {_short(tensor).split()[-1]}"
