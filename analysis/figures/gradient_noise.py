"""Signal-to-noise ratios of gradients, and how far each matrix leaves ‖W‖ ∝ S (claim N1).

Left: the ratio of each matrix, and of the scalar, row and column multipliers that it could have.
Right: departure of the slope of ln ‖W‖ against ln S from 1 against the matrix's ratio.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.drawing.style import ARM_COLOURS, TEXT_WIDTH, caption
from analysis.quantities.gradient_noise import OF, together
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("gradient_noise",)
COLOURS = dict(zip(OF.values(), ("#222222", ARM_COLOURS["SPN"], ARM_COLOURS["VPN"],
                                 ARM_COLOURS["FPN"]), strict=True))  # fmt: skip
NAMES = {"W": r"matrix $W$", "s": r"scalar $s$", "r": r"rows $r$", "c": r"columns $c$"}
BLOCKS = {"attention": "o", "ssm": "s", "mlp": "^"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: seed, tensor, layer, W, s, r, c (signal over noise), slope."""
    table = tables["gradient_noise"]
    return together(table).sort_values(["tensor", "layer", "seed"], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(TEXT_WIDTH, 3.6), gridspec_kw={"width_ratios": [1.25, 1]}
    )
    figure.get_layout_engine().set(rect=(0, 0.1, 1, 0.9), w_pad=0.06)
    means = numbers.groupby("tensor")[[*OF.values(), "slope"]].mean()
    order = means.sort_values("W").index
    heights = {tensor: height for height, tensor in enumerate(order)}
    for offset, (name, colour) in zip((0.24, 0.08, -0.08, -0.24), COLOURS.items(), strict=True):
        height = numbers["tensor"].map(heights) + offset
        left.scatter(numbers[name].clip(lower=0), height, s=7, color=colour, alpha=0.5, lw=0)
    left.set_yticks(range(len(order)), order)
    left.set_xscale("symlog", linthresh=1e-3)
    left.set_xlim(left=-2e-4)
    left.set_xlabel("signal over noise of one batch's gradient")
    left.set_title("a   Signal-to-noise ratios", loc="left")
    for block, marker in BLOCKS.items():
        rows = means[means.index.str.startswith(block)]
        right.scatter(rows["W"].clip(lower=1e-5), (1 - rows["slope"]), marker=marker, s=22,
                      color="#222222", zorder=3)  # fmt: skip
    right.axhline(0, color="#999999", lw=0.8, ls=":")
    right.set_xscale("log")
    right.set(xlabel="the matrix's signal over noise", ylabel=r"1 − slope of $\ln\|W\|$ in $\ln S$")
    right.set_title("b   Departure from the equilibrium", loc="left")
    right.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    right.xaxis.set_major_formatter("{x:g}")
    right.xaxis.set_minor_formatter(NullFormatter())
    _name(right, means["W"].clip(lower=1e-5), 1 - means["slope"])
    handles = [Line2D([], [], ls="", marker="o", ms=3.5, color=COLOURS[name], label=NAMES[name])
               for name in OF.values()]  # fmt: skip
    handles += [Line2D([], [], ls="", marker=marker, ms=4, color="#222222", label=f"b: {block}")
                for block, marker in BLOCKS.items()]  # fmt: skip
    figure.legend(handles=handles, ncols=7, loc="lower center", bbox_to_anchor=(0.5, 0.035),
                  handletextpad=0.2, columnspacing=1.2)  # fmt: skip
    caption(figure, context, "a: each layer and seed; b: means")
    return figure


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
    for name, height in zip(heights.index, spread, strict=True):
        axis.annotate(name, (x[name], y[name]), (at, height), fontsize=6, va="center",
                      color="#444444", arrowprops={"arrowstyle": "-", "color": "#bbbbbb", "lw": 0.5,
                                                   "shrinkA": 1, "shrinkB": 3})  # fmt: skip
