"""Figure of ours: what the gain of magnitude and direction apart (OR, ER) is made of.

Gains in the loss after the decay, paired by seed; right of 0 is better. a: vectors on the
inputs of each matrix (HG), against direct ones: OR, ER, OR in a part of the vectors, and controls.
b: OR and ER on both sides, without and with a norm between, against direct vectors at the same
place. c: fewer magnitudes than OR has, against OR at the same place.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.designs import LOOKS
from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import SMALL
from analysis.tables.context import Context
from analysis.tables.results import FIRST_JUDGING_SEED, Tables

EXPERIMENTS = ("sv_reparametrization",)


def _against(other: str, name: str, arm: str, design: str) -> Comparison:
    return Comparison(name, "sv_reparametrization", arm, other, design)


PANELS = {
    "a": [
        _against("HG", "magnitude apart (OR)", "HG_OR", "or"),
        _against("HG", "as exponentials (ER)", "HG_ER", "er"),
        _against("HG", "OR in the final vector alone", "HG_OR_FINAL", "or"),
        _against("HG", "OR in the blocks alone", "HG_OR_BLOCKS", "or"),
        _against("HG", "vector times a number", "HG_PRODUCT", "none"),
        _against("HG", "one number, no vector", "SCALAR", "scalar"),
        _against("HG", "direct vectors, LR × 3", "HG_FAST", "none"),
    ],
    "b": [
        _against("DP", "both sides (DP): OR", "DP_OR", "or"),
        _against("DP", "both sides (DP): ER", "DP_ER", "er"),
        _against("DNP", "norm between (DNP): OR", "DNP_OR", "or"),
        _against("DNP", "norm between (DNP): ER", "DNP_ER", "er"),
    ],
    "c": [
        _against("DP_OR", "DP: one magnitude for two", "DP_OR_ONE", "or"),
        _against("DNP_OR", "DNP: input magnitudes fixed", "DNP_OR_STILL", "or"),
    ],
}
# Lines of a in groups, from above: their number, and what each group is.
GROUPS = ((2, "in all vectors"), (2, "in a part"), (3, "controls"))
MESSAGE = (
    "Magnitude and direction apart gain on the inputs, and most with a norm behind the\n"
    "matrix; no effect of fewer magnitudes is seen"
)
TITLES = {
    "a": "a   On the inputs (HG): OR, ER and plain numbers",
    "b": "b   On both sides: OR and ER",
    "c": "c   OR with fewer magnitudes",
}
# What has the loss at zero, and its colour.
ZEROS = {
    "a": ("direct vectors (HG)", "#222222"),
    "b": ("direct vectors, at the same place", "#222222"),
    "c": ("OR with all magnitudes", LOOKS["or"][0]),
}
WORDS = (
    "HG: vectors γ on the inputs of each matrix.   DP: on inputs and outputs.\n"
    "DNP: DP with an RMSNorm after the matrix, before the output vector.\n"
    r"OR: $\gamma = \beta\,\mathrm{Norm}(\alpha)$.   "
    r"ER: $\gamma = e^{\beta}\,e^{\alpha - \mathrm{mean}(\alpha)}$.   "
    r"vector times a number: $\gamma = \beta\,\alpha$.   magnitude: the number $\beta$."
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token; drawn is what is gained, −value)."""
    return measured(tables, PANELS)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels above each other, with the same limits and a zero of their own."""
    sizes = [len(compared) + 0.8 for compared in PANELS.values()]
    figure, axes = page(3, 1, 5.2, h_pad=0.05, sharex=True, height_ratios=sizes)
    headline(figure, MESSAGE, context)
    gains = numbers.assign(value=-numbers["value"])
    low, high = min(gains["value"].min(), 0), max(gains["value"].max(), 0)
    # Names of groups stand on the left of all points.
    axes[0].set_xlim(low - 0.3 * (high - low), high + 0.03 * (high - low))
    for axis, (panel, lines) in zip(axes, PANELS.items(), strict=True):
        rows = gains[gains["panel"] == panel]
        draw_gaps(axis, rows, lines, below=0.3)
        write_gaps(axis, rows, lines, head=panel == "a")
        _zero(axis, *ZEROS[panel])
        axis.set_ylim(-0.6, len(lines) + 0.2)
        axis.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        label(axis, TITLES[panel])
    axes[-1].set_xlabel("loss of the zero − loss (nats)        better →")
    _name_groups(axes[0])
    marks = [key(name, color=LOOKS[design][0], marker=LOOKS[design][2], lw=0)
             for design, name in (("or", "OR"), ("er", "ER"), ("scalar", "one number"),
                                 ("none", "control"))]  # fmt: skip
    legend_below(figure, [key(WORDS, lw=0)], 1, handlelength=0, handletextpad=0)
    legend_below(figure, marks, len(marks), handletextpad=0.3)
    judging = numbers.loc[numbers["seed"] >= FIRST_JUDGING_SEED, "seed"].nunique()
    n = f"n = {judging} seeds that judge" if judging else ""
    return caption(figure, context, told_of_points(numbers), n)


def _zero(axis, name: str, colour: str) -> None:
    """The line at 0 in its own colour, with what has this loss above it."""
    axis.axvline(0, color=colour, lw=0.9, zorder=1.5)
    axis.annotate(f"0: {name}", (0, 1), (3, -1), xycoords=("data", "axes fraction"), ha="left",
                  va="top", textcoords="offset points", fontsize=SMALL, color=colour)  # fmt: skip


def _name_groups(axis) -> None:
    """What each group of lines is, to the left of them, and a line between two groups."""
    low = -0.5
    for size, name in reversed(GROUPS):
        axis.text(0.01, low + size / 2, name, transform=axis.get_yaxis_transform(),
                  va="center", fontsize=SMALL, color="#444444", style="italic")  # fmt: skip
        low += size
        if name != GROUPS[0][1]:
            axis.axhline(low, color="#dddddd", lw=0.6)
