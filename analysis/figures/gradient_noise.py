"""Signal-to-noise ratios of gradients, and how far each matrix leaves ‖W‖ ∝ S (claim N1).

a: the ratio of the gradients of the scalar, rows and columns that each matrix could have, over that
of the matrix's own gradient: medians over layers and seeds; the first line is the median over all
matrices, as in the claim, with its 95% interval over seeds. b: departure of the slope of ln ‖W‖
against ln S from 1, against the matrix's ratio: means over layers, with their 95% intervals over
seeds, and the rank correlation over matrices.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

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
from analysis.quantities.stats import interval, with_interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("gradient_noise",)
# Height above the matrices' lines, look and name, by column.
LOOKS = {
    "s": (1.9, {"color": ARM_COLOURS["SPN"], "marker": "s"}, "scalar $s$"),
    "r": (1.1, {"color": ARM_COLOURS["VPN"], "marker": "^"}, "rows $r$"),
    "c": (0.3, {"color": "#882255", "marker": "v"}, "columns $c$"),
}
ALL = "all matrices,\nmedian and 95%"
DEPARTURE = r"1 − slope of $\ln\|W\|$ in $\ln S$"
BLOCKS = ("attention", "SSM", "MLP")
# Where a matrix is named beside its point in b: offset in points, and the text's sides.
_SIDES = {
    "attention.k": (5, 5, "left"), "attention.q": (5, 5, "left"),
    "attention.v": (-5, 6, "right"), "attention.out": (-5, 7, "right"),
    "mlp.up": (1, 10, "center"), "mlp.gate": (0, -8, "center"), "mlp.down": (6, -8, "left"),
    "ssm.dt": (5, 5, "left"), "ssm.B": (3, 9, "left"), "ssm.x": (-4, 9, "right"),
    "ssm.C": (-15, 0, "right"), "ssm.out": (1, -8, "center"), "ssm.z": (-3, -8, "right"),
}  # fmt: skip


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: seed, tensor, layer, W, s, r, c (signal over noise), slope."""
    table = tables["gradient_noise"]
    return together(table).sort_values(["tensor", "layer", "seed"], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels, one legend below."""
    figure, (left, right) = page(1, 2, 3.3, w_pad=0.05, width_ratios=[1.15, 1])
    _gains(left, numbers)
    _departures(right, numbers)
    handles = [key("a:", lw=0), *(key(name, ls="", **look) for _, look, name in LOOKS.values())]
    handles += [key("b:", lw=0), *(key(name, ls="", **BLOCK_LOOKS[name]) for name in BLOCKS)]
    legend_below(figure, handles, len(handles), handletextpad=0.0, columnspacing=0.5)
    return caption(figure, context, "a: medians over layers and seeds; b: means, bars: 95%")


def _gains(axis, numbers: pd.DataFrame) -> None:
    """Ratios over the matrix's: of all matrices on top, then of each, the largest scalar's first.

    A signal that is estimated as 0 or less has no place here; it counts as small in the medians.
    """
    over = {name: np.exp(_logs(numbers, name)) for name in LOOKS}
    each = pd.DataFrame(over).groupby(numbers["tensor"]).median().sort_values("s")
    for name, (offset, look, _) in LOOKS.items():
        axis.plot(each[name], range(len(each)), ls="", ms=3.2, mew=0, **look)
        found = interval(log_gains(numbers, name))
        height = len(each) + offset
        ends = np.exp([found.low, found.high]) if found.n > 1 else [np.exp(found.mean)] * 2
        axis.plot(ends, [height] * 2, color=look["color"], lw=1.2)
        axis.plot(np.exp(found.mean), height, ls="", ms=4, mew=0, **look)
        axis.annotate(f"{np.exp(found.mean):.1f}", (ends[1], height), (4, 0), va="center",
                      textcoords="offset points", color=shade(look["color"], -0.25),
                      fontsize=SMALL)  # fmt: skip
    names = [*map(_said, each.index), ALL]
    axis.set_yticks([*range(len(each)), len(each) + LOOKS["r"][0]], names)
    axis.set_ylim(-0.6, len(each) + 2.5)
    axis.grid(axis="y", visible=False)
    axis.axhline(len(each) - 0.4, color="#bbbbbb", lw=0.6)
    axis.axvline(1.0, **NEUTRAL | {"lw": 1.2})
    plain_log_axis(axis, x=True)
    title = "a   Multipliers have the higher ratio"
    label(axis, title, xlabel="signal / noise, over that of the matrix's gradient")


def _logs(numbers: pd.DataFrame, name: str) -> pd.Series:
    """ln of a multiplier's ratio over its matrix's, −∞ where it has no signal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(numbers[[name, "W"]].clip(lower=0.0))
    return logs[name] - logs["W"]


def _departures(axis, numbers: pd.DataFrame) -> None:
    """Departure from slope 1 against the matrix's ratio, means over layers, 95% over seeds."""
    rows = numbers.assign(departure=1 - numbers["slope"])
    seeds = rows.groupby(["tensor", "seed"])[["W", "departure"]].mean()
    for tensor, own in seeds.groupby("tensor"):
        look = BLOCK_LOOKS[block_of(tensor)]
        x, y = interval(own["W"]), interval(own["departure"])
        axis.hlines(y.mean, x.low, x.high, color=look["color"], lw=0.8, alpha=0.7)
        axis.vlines(x.mean, y.low, y.high, color=look["color"], lw=0.8, alpha=0.7)
        axis.plot(x.mean, y.mean, ls="", ms=3.6, **look)
        right, up, side = _SIDES.get(tensor, (5, 5, "left"))
        said = tensor.partition(".")[2]
        axis.annotate(said.upper() if block_of(tensor) == "attention" and len(said) == 1 else said,
                      (x.mean, y.mean), (right, up), textcoords="offset points", ha=side,
                      va="center", fontsize=6.5, color=shade(look["color"], -0.35))  # fmt: skip
    axis.axhline(0, **NEUTRAL)
    matrices = rows.assign(departure=rows["departure"].abs()).groupby("seed")[["W", "departure"]]
    ranks = matrices.apply(lambda own: spearmanr(own["W"], own["departure"]).statistic)
    said = with_interval(ranks, 2).replace("-", "−")
    axis.text(0.98, 0.02, "rank correlation of\nthe ratio with |1 − slope|:\n" + said, ha="right",
              fontsize=6.5, transform=axis.transAxes)  # fmt: skip
    plain_log_axis(axis, x=True)
    means = seeds["W"].groupby("tensor").mean().clip(lower=1e-5)
    axis.set_xlim(0.55 * means.min(), 1.8 * means.max())
    low, high = axis.get_ylim()
    axis.set_ylim(low - 0.3 * (high - low), high + 0.03 * (high - low))
    ratio = "signal / noise of the matrix"
    label(axis, "b   Not larger where ‖W‖ departs", xlabel=ratio, ylabel=DEPARTURE)


def _said(tensor: str) -> str:
    """``ssm.dt`` as SSM dt, ``attention.q`` as attention Q."""
    part = tensor.partition(".")[2]
    return f"{block_of(tensor)} {part.upper() if part in 'qkv' else part}"
