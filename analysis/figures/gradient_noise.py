"""Signal-to-noise ratios of gradients, and how far each matrix leaves ‖W‖ ∝ S (claim N1).

Left: the ratio of each matrix, and of the scalar, row and column multipliers that it could have.
Right: departure of the slope of ln ‖W‖ against ln S from 1 against the matrix's ratio.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_COLOURS, plain_ticks
from analysis.quantities.gradient_noise import OF, together
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("gradient_noise",)
# Height beside the others of the same matrix, colour and name, by column.
LOOKS = {
    "W": (0.24, "#222222", r"matrix $W$"),
    "s": (0.08, ARM_COLOURS["SPN"], r"scalar $s$"),
    "r": (-0.08, ARM_COLOURS["VPN"], r"rows $r$"),
    "c": (-0.24, ARM_COLOURS["FPN"], r"columns $c$"),
}
BLOCKS = {"attention": "o", "ssm": "s", "mlp": "^"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: seed, tensor, layer, W, s, r, c (signal over noise), slope."""
    table = tables["gradient_noise"]
    return together(table).sort_values(["tensor", "layer", "seed"], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, (left, right) = page(1, 2, 3.6, below=0.1, w_pad=0.06, width_ratios=[1.25, 1])
    means = numbers.groupby("tensor")[[*OF.values(), "slope"]].mean().sort_values("W")
    heights = numbers["tensor"].map(means.index.get_loc)
    for name, (offset, colour, _) in LOOKS.items():
        ratios = numbers[name].clip(lower=0)
        left.scatter(ratios, heights + offset, s=7, color=colour, alpha=0.5, lw=0)
    left.set_yticks(range(len(means)), means.index)
    left.set_xscale("symlog", linthresh=1e-3)
    left.set_xlim(-2e-4, 1.3 * numbers[list(LOOKS)].max().max())
    label(left, "a   Signal-to-noise ratios", xlabel="signal over noise of one batch's gradient")
    ratios, departures = means["W"].clip(lower=1e-5), 1 - means["slope"]
    for block, marker in BLOCKS.items():
        own = means.index.str.startswith(block)
        right.scatter(ratios[own], departures[own], marker=marker, s=22, color="#222222", zorder=3)
    right.axhline(0, color="#999999", lw=0.8, ls=":")
    right.set(xscale="log", xlabel="the matrix's signal over noise")
    label(right, "b   Departure from the equilibrium", ylabel=r"1 − slope of $\ln\|W\|$ in $\ln S$")
    plain_ticks(right.xaxis, (1.0, 2.0, 5.0))
    _name(right, ratios, departures)
    dots = {"ls": "", "marker": "o", "ms": 3.5}
    handles = [key(name, color=colour, **dots) for _, colour, name in LOOKS.values()]
    for block, marker in BLOCKS.items():
        handles.append(key(f"b: {block}", color="#222222", ls="", marker=marker, ms=4))
    legend_below(figure, handles, 7, 0.035, handletextpad=0.2, columnspacing=1.2)
    return caption(figure, context, "a: each layer and seed; b: means")


def _name(axis, x: pd.Series, y: pd.Series) -> None:
    """The points' names in a column at the right, a thin line to each."""
    low, high = np.log10(x).agg(["min", "max"])
    width = max(high - low, 0.3)
    axis.set_xlim(10 ** (low - 0.12 * width), 10 ** (high + 0.95 * width))
    at = 10 ** (high + 0.3 * width)
    gap = 0.075 * max(y.max() - y.min(), 1e-3)
    heights = y.sort_values()
    spread = heights.to_numpy().copy()
    for _ in range(200):  # neighbours that are too close push each other away
        short = np.clip(gap - np.diff(spread), 0, None) / 2
        spread[:-1] -= short
        spread[1:] += short
    low, high = axis.get_ylim()
    axis.set_ylim(min(low, spread[0] - gap / 2), max(high, spread[-1] + gap / 2))
    line = {"arrowstyle": "-", "color": "#bbbbbb", "lw": 0.5, "shrinkA": 1, "shrinkB": 3}
    for name, height in zip(heights.index, spread, strict=True):
        axis.annotate(name, (x[name], y[name]), (at, height), fontsize=6, va="center",
                      color="#444444", arrowprops=line)  # fmt: skip
