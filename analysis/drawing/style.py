"""Colours, sizes and axes shared by all figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

STYLE_FILE = Path(__file__).with_name("lrm.mplstyle")
# Okabe-Ito: told apart by colour-blind readers; in grey markers or dashes tell them apart.
ARM_COLOURS = {"FPN": "#D55E00", "SPN": "#0072B2", "VPN": "#009E73"}
ARM_LOOKS = {
    arm: {"color": colour, "marker": marker}
    for (arm, colour), marker in zip(ARM_COLOURS.items(), "os^", strict=True)
}
# The same words for the same arms, in every figure.
NO_MULTIPLIERS = "no multipliers"
BROWNIAN = "Brownian motion"
NOISE_COLOUR = "#555555"
# Parts of the model, in every figure that has them side by side.
BLOCK_LOOKS = {
    "attention": {"color": "#CC79A7", "marker": "o"},
    "SSM": {"color": "#56B4E9", "marker": "s"},
    "MLP": {"color": "#E69F00", "marker": "^"},
    "embedding": {"color": "#222222", "marker": "D"},
    "projector": {"color": "#8C510A", "marker": "v"},
}
# The optimizers of the tables by the names that they have in figures. Markers belong to arms, so
# that optimizers differ in dashes and in what fills a marker.
OPTIMIZER_NAMES = {"Adam": "AdamW", "Muon": "Muon"}
OPTIMIZER_LOOKS = {"Adam": {"ls": "-"}, "Muon": {"ls": "--", "markerfacecolor": "white"}}
NOT_JUDGED = {"color": "#efefef"}
# A line at what nothing changes, such as a difference of 0.
NEUTRAL = {"color": "#999999", "lw": 0.7, "zorder": 1}
# The step at which the decay of the learning rate begins.
DECAY = {"color": "#777777", "lw": 0.8, "ls": ":"}
SMALL = 6.5  # points, the least that a figure has: names beside lines, numbers in panels
# What a caption ends with: lines are medians over seeds, and bands one of these.
BANDS_RANGE = "lines: medians; bands: range of seeds"
MEDIANS = "medians and range of seeds"
BANDS_HALF = "lines: medians; bands: middle half of seeds"
# What S is; a caption says of which matrices.
S_MEANS = "S = √(η/λ) over its base value, at fixed ηλ (η: learning rate, λ: weight decay)"
# Of a legend with dashed lines that have markers: else the key shows no dash.
DASHED_KEYS = {"handlelength": 2.9}
# Colours of widths, as shares of the ramp: those of published runs lie far apart, wider ones close.
_WIDTHS = {16: 0.08, 32: 0.17, 256: 0.88, 4096: 1.0}
TEXT_WIDTH = 5.5  # inches, the text of a page of NeurIPS


def shade(colour: str, share: float) -> str:
    """``colour`` mixed with white (share > 0) or with black (share < 0), up to 1 or −1."""
    target = 1.0 if share > 0 else 0.0
    return to_hex([part + abs(share) * (target - part) for part in to_rgb(colour)])


def ramp(count: int) -> list[str]:
    """So many colours from light to dark: for what has an order, such as layers, and is no arm."""
    return [to_hex(colour) for colour in colormaps["viridis_r"](np.linspace(0.15, 1.0, count))]


def colour_of_width(width: float) -> str:
    """A width's colour, the wider the darker: the same in every figure, whatever else it draws."""
    share = np.interp(np.log2(width), np.log2(list(_WIDTHS)), list(_WIDTHS.values()))
    return to_hex(colormaps["viridis_r"](share))


def power_of_two(value: float) -> str:
    """1/16, 1/4, 1, 4, …, for tick labels."""
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"


def block_of(tensor: str) -> str:
    """The name in ``BLOCK_LOOKS`` of a tensor's block, such as SSM of ``ssm.dt``."""
    block = tensor.partition(".")[0]
    return block.upper() if block in ("ssm", "mlp") else block


class PlainLogLocator(LogLocator):
    """Ticks of a logarithmic axis: round numbers, six at most, whatever the axis spans."""

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        low, high = sorted((vmin, vmax))
        if high < 1.6 * low:
            return MaxNLocator(5).tick_values(low, high)
        powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
        for multiples in ((1, 1.5, 2, 3, 4, 5, 7), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            ticks = np.outer(powers, multiples).ravel()
            ticks = ticks[(ticks >= low) & (ticks <= high)]
            if len(ticks) <= 6:
                return ticks
        return ticks[:: -(-len(ticks) // 6)]


def plain_log_axis(axis, x: bool = False) -> None:
    """A logarithmic y (or x) axis with numbers such as 20, not 2 · 10¹, at its ticks."""
    (axis.set_xscale if x else axis.set_yscale)("log")
    along = axis.xaxis if x else axis.yaxis
    along.set_major_locator(PlainLogLocator())
    along.set_major_formatter("{x:g}")
    along.set_minor_formatter(NullFormatter())


def log_axis(axis) -> None:
    """A logarithmic y axis, with plain numbers at the ticks where they are short."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if low >= 1e-4 and high < 1e5:
        plain_log_axis(axis)
    else:
        axis.yaxis.set_minor_formatter(NullFormatter())


def widen(axis, decades: float) -> None:
    """A logarithmic y axis of at least so many decades, so that what hardly moves looks so."""
    low, high = np.log10(axis.get_ylim())
    more = max(0.0, decades - (high - low)) / 2
    axis.set_ylim(10 ** (low - more), 10 ** (high + more))
