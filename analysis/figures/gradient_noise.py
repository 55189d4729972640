"""Signal-to-noise ratios of gradients, and how far each matrix leaves ‖W‖ ∝ S (claim N1).

a: the ratio of each matrix's gradient, and of the scalar, row and column multipliers that it could
have: medians over layers and seeds, lines over their middle half. b: departure of the slope of
ln ‖W‖ against ln S from 1, against the matrix's ratio, means over layers and seeds. Named are those
that depart by more than a tenth.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import (
    ARM_COLOURS,
    BLOCK_LOOKS,
    NEUTRAL,
    NOISE_COLOUR,
    block_of,
    plain_log_axis,
)
from analysis.quantities.gradient_noise import OF, together
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("gradient_noise",)
# Height beside the others of the same matrix, look and name, by column.
LOOKS = {
    "W": (0.27, {"color": NOISE_COLOUR, "marker": "D"}, "matrix $W$ itself"),
    "s": (0.09, {"color": ARM_COLOURS["SPN"], "marker": "s"}, "scalar $s$"),
    "r": (-0.09, {"color": ARM_COLOURS["VPN"], "marker": "^"}, "rows $r$"),
    "c": (-0.27, {"color": "#882255", "marker": "v"}, "columns $c$"),
}
DEPARTURE = r"1 − slope of $\ln\|W\|$ in $\ln S$"
BLOCKS = ("attention", "SSM", "MLP")
# Matrices that depart from slope 1 by more are named.
NAMED = 0.1


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: seed, tensor, layer, W, s, r, c (signal over noise), slope."""
    table = tables["gradient_noise"]
    return together(table).sort_values(["tensor", "layer", "seed"], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels, one legend below."""
    figure, (left, right) = page(1, 2, 3.1, w_pad=0.05, width_ratios=[1.25, 1])
    means = numbers.groupby("tensor")[[*OF.values(), "slope"]].mean()
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
    ratios, departures = means["W"].clip(lower=1e-5), 1 - means["slope"]
    for block in BLOCKS:
        own = means.index.map(block_of) == block
        right.plot(ratios[own], departures[own], ls="", ms=4, **BLOCK_LOOKS[block])
    right.axhline(0, **NEUTRAL)
    low, high = np.log10(ratios).agg(["min", "max"])
    margin = 0.3 * max(high - low, 0.1)
    right.set(xlim=(10 ** (low - margin / 2), 10 ** (high + 2 * margin)))
    for tensor in means.index[departures.abs() > NAMED]:
        right.annotate(_said(tensor), (ratios[tensor], departures[tensor]), xytext=(4, 0),
                       textcoords="offset points", va="center", fontsize=6.3)  # fmt: skip
    plain_log_axis(right, x=True)
    ratio = "signal / noise of the matrix"
    label(right, "b   Departure from equilibrium", xlabel=ratio, ylabel=DEPARTURE)
    handles = [key("a:", lw=0), *(key(name, ls="", **look) for _, look, name in LOOKS.values())]
    handles += [key("b:", lw=0), *(key(name, ls="", **BLOCK_LOOKS[name]) for name in BLOCKS)]
    legend_below(figure, handles, len(handles), handletextpad=0.0, columnspacing=0.5)
    return caption(figure, context, "a: medians and middle halves")


def _said(tensor: str) -> str:
    """``ssm.dt`` as SSM dt, ``attention.q`` as attention Q."""
    part = tensor.partition(".")[2]
    return f"{block_of(tensor)} {part.upper() if part in 'qkv' else part}"
