"""Figure of ours: what the gain of magnitude and direction apart (OR) on the inputs is made of.

Gains on direct vectors on the inputs of each matrix (HG), paired by seed; right is better. Drawn
are the seeds that judge SV15d.2, where there are any. The dashed line is half of OR's mean gain.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.designs import LOOKS
from analysis.drawing.gaps import (
    Comparison,
    draw_gaps,
    measured,
    that_judge,
    told_of_points,
    write_gaps,
)
from analysis.drawing.page import caption, headline, key, legend_below, page
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

# Of more seeds than those that have all arms.
EXPERIMENTS = {
    "sv_reparametrization": (
        "HG *", "HG_OR *", "HG_PRODUCT *", "SCALAR *", "HG_OR_FINAL *", "HG_OR_BLOCKS *",
    ),
}  # fmt: skip


def _gain(name: str, arm: str, design: str) -> Comparison:
    return Comparison(name, "sv_reparametrization", "HG", arm, design)


WHOLE = _gain("OR in all vectors", "HG_OR", "or")
LINES = [
    WHOLE,
    _gain("OR in the final vector alone", "HG_OR_FINAL", "or"),
    _gain("OR in the blocks alone", "HG_OR_BLOCKS", "or"),
    _gain("vector times a number", "HG_PRODUCT", "none"),
    _gain("one number, no vector", "SCALAR", "scalar"),
]
MESSAGE = (
    "A number beside the vector gains 0.012 [0.007, 0.018] nats more than OR does.\n"
    "OR in the final vector alone gains, too; in the blocks alone no gain is seen"
)
WORDS = (
    r"OR: $\gamma = \beta\,\mathrm{Norm}(\alpha)$ in place of a vector $\gamma$ on the inputs of a "
    r"matrix.   vector times a number: $\gamma = \beta\,\alpha$."
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: name, seed, value (gain, nats per token)."""
    rows = measured(tables, {"": LINES}).drop(columns="panel")
    judging = that_judge(rows, criteria_of("sv_reparametrization")["SV15d.2"])
    return rows[judging] if judging.any() else rows


def draw(numbers: pd.DataFrame, context: Context):
    """One panel."""
    figure, axis = page(1, 1, 2.5)
    headline(figure, MESSAGE, context)
    draw_gaps(axis, numbers, LINES, below=0.3)
    low, high = min(numbers["value"].min(), 0), max(numbers["value"].max(), 0)
    axis.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axis.set_ylim(-0.6, len(LINES) - 0.5)
    write_gaps(axis, numbers, LINES)
    half = numbers.loc[numbers["name"] == WHOLE.name, "value"].mean() / 2
    look = {"color": LOOKS["or"][0], "lw": 0.9, "ls": "--"}
    axis.axvline(half, zorder=1.5, **look)
    axis.set_xlabel("loss of direct vectors − loss (nats)        better →")
    marks = [key(name, color=LOOKS[design][0], marker=LOOKS[design][2], lw=0)
             for design, name in (("or", "OR"), ("none", "vector times a number"),
                                 ("scalar", "one number"))]  # fmt: skip
    legend_below(figure, [*marks, key("half of OR's gain", **look)], 4)
    legend_below(figure, [key(WORDS, lw=0)], 1, handlelength=0, handletextpad=0)
    axis.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    drawn = replace(context, seeds=sorted(numbers["seed"].unique()))
    return caption(figure, drawn, told_of_points(numbers))
