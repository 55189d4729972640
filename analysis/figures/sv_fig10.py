"""Figure 10 of the second paper: as many parameters in the MLP do less than the unified design.

Loss after the decay less that of the standard vectors, paired by seed; left of 0 is better. A wider
MLP has as many parameters more as the unified design.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, headline, page
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"sv_necessity": ("STANDARD *", "WIDE *", "UNIFIED *")}
PANELS = {
    "a": [
        Comparison("wider MLP", "sv_necessity", "WIDE", "STANDARD", "standard"),
        Comparison("unified design", "sv_necessity", "UNIFIED", "STANDARD", "unified"),
    ]
}


MESSAGE = "The unified design gains 0.068 nats, a wider MLP at most 0.02"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    return measured(tables, PANELS)


def draw(numbers: pd.DataFrame, context: Context):
    """One panel."""
    figure, axis = page(1, 1, 1.9)
    headline(figure, MESSAGE, context)
    draw_gaps(axis, numbers, PANELS["a"], below=0.3)
    low, high = numbers["value"].min(), numbers["value"].max()
    axis.set_xlim(low - 0.08 * (high - low), high + 0.08 * (high - low))
    axis.set_ylim(-0.7, 1.4)
    write_gaps(axis, numbers, PANELS["a"])
    axis.set_xlabel("loss − loss with standard vectors (nats); left of 0 is better")
    return caption(figure, context, told_of_points(numbers))
