"""Signal-to-noise ratios of gradients, and how far each matrix leaves ‖W‖ ∝ S (claim N1).

a: the ratio of each matrix's gradient, and of the scalar, row and column multipliers that it could
have: medians over layers and seeds, lines over their middle half. b: departure of the slope of
ln ‖W‖ against ln S from 1, against the matrix's ratio: means over layers, with their 95% intervals
over seeds, and the rank correlation over matrices.
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
    block_of,
    plain_log_axis,
    shade,
)
from analysis.quantities.gradient_noise import together
from analysis.quantities.stats import interval, with_interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("gradient_noise",)
# Height beside the others of the same matrix, look and name, by column.
LOOKS = {
    "W": (0.27, {"color": "#222222", "marker": "D"}, "matrix $W$ itself"),
    "s": (0.09, {"color": ARM_COLOURS["SPN"], "marker": "s"}, "scalar $s$"),
    "r": (-0.09, {"color": ARM_COLOURS["VPN"], "marker": "^"}, "rows $r$"),
    "c": (-0.27, {"color": "#882255", "marker": "v"}, "columns $c$"),
}
DEPARTURE = r"1 − slope of $\ln\|W\|$ in $\ln S$"
BLOCKS = ("attention", "SSM", "MLP")
# Where a matrix is named beside its point in b: offset in points, and the text's sides.
_SIDES = {
    "attention.k": (5, 5, "left"), "attention.q": (5, 5, "left"),
    "attention.v": (-5, 6, "right"), "attention.out": (-5, 7, "right"),
    "mlp.up": (-4, 6, "center"), "mlp.gate": (0, -8, "center"), "mlp.down": (12, -7, "left"),
    "ssm.dt": (5, 5, "left"), "ssm.B": (5, 5, "left"), "ssm.x": (-5, 5, "right"),
    "ssm.C": (-15, 0, "right"), "ssm.out": (1, -8, "center"), "ssm.z": (-3, -8, "right"),
}  # fmt: skip


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: seed, tensor, layer, W, s, r, c (signal over noise), slope."""
    table = tables["gradient_noise"]
    return together(table).sort_values(["tensor", "layer", "seed"], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels, one legend below."""
    figure, (left, right) = page(1, 2, 3.1, w_pad=0.05, width_ratios=[1.25, 1])
    order = numbers.groupby("tensor")["W"].median().sort_values().index
    for name, (offset, look, _) in LOOKS.items():
        shares = numbers.groupby("tensor")[name].quantile([0.25, 0.5, 0.75]).unstack().loc[order]
        heights = np.arange(len(order)) + offset
        shares = shares.clip(lower=1e-3)
        left.hlines(heights, shares[0.25], shares[0.75], color=look["color"], lw=0.9, alpha=0.7)
        left.plot(shares[0.5], heights, ls="", ms=3, mew=0, **look)
    left.set_yticks(range(len(order)), [_said(tensor) for tensor in order])
    left.set_ylim(-0.6, len(order) - 0.4)
    left.grid(axis="y", visible=False)
    for border in np.arange(len(order) - 1) + 0.5:
        left.axhline(border, color="#dddddd", lw=0.5)
    plain_log_axis(left, x=True)
    label(left, "a   Signal-to-noise ratios", xlabel="signal / noise of the gradient")
    _departures(right, numbers)
    handles = [key("a:", lw=0), *(key(name, ls="", **look) for _, look, name in LOOKS.values())]
    handles += [key("b:", lw=0), *(key(name, ls="", **BLOCK_LOOKS[name]) for name in BLOCKS)]
    legend_below(figure, handles, len(handles), handletextpad=0.0, columnspacing=0.5)
    note = "a: medians, bars: middle half; scalars of Q = K, V = out, up = down by symmetry; b: 95%"
    return caption(figure, context, note)


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
    axis.text(0.98, 0.02, "rank correlation of the ratio\nwith |1 − slope|: " + said, ha="right",
              fontsize=6.5, transform=axis.transAxes)  # fmt: skip
    plain_log_axis(axis, x=True)
    means = seeds["W"].groupby("tensor").mean().clip(lower=1e-5)
    axis.set_xlim(0.55 * means.min(), 1.8 * means.max())
    low, high = axis.get_ylim()
    axis.set_ylim(low - 0.2 * (high - low), high + 0.03 * (high - low))
    ratio = "signal / noise of the matrix"
    label(axis, "b   Departure from equilibrium", xlabel=ratio, ylabel=DEPARTURE)


def _said(tensor: str) -> str:
    """``ssm.dt`` as SSM dt, ``attention.q`` as attention Q."""
    part = tensor.partition(".")[2]
    return f"{block_of(tensor)} {part.upper() if part in 'qkv' else part}"
