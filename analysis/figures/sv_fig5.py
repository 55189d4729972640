"""Figure 5 of the second paper: branches, placement and reparametrization.

Loss after the decay less that of a direct vector on the inputs of each matrix (HG), paired by seed,
so that all rows have one zero; left of it is better. a: vectors that branches share. b: other
placements. c: magnitude and direction apart (OR, ER), on both sides and with a norm between.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points
from analysis.drawing.page import caption, label, page
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {
    "sv_heterogeneity": ("HG *", "STANDARD *"),
    "sv_placement": (),
    "sv_reparametrization": ("HG *", "D*P_?R *"),
}
PANELS = {
    "a": [Comparison("shared by branches", "sv_heterogeneity", "STANDARD", "HG", "none")],
    "b": [
        Comparison("outputs only (AP)", "sv_placement", "AP", "HG", "none"),
        Comparison("both sides (DP)", "sv_placement", "DP", "HG", "none"),
        Comparison("both sides, norm between (DNP)", "sv_placement", "DNP", "HG", "none"),
        Comparison("inputs only, matrices times 2", "sv_placement", "HG_FACTOR", "HG", "none"),
    ],
    "c": [
        Comparison("both sides (OR)", "sv_reparametrization", "DP_OR", "HG", "or"),
        Comparison("both sides, exponentials (ER)", "sv_reparametrization", "DP_ER", "HG", "er"),
        Comparison("norm between", "sv_reparametrization", "DNP_OR", "HG", "or"),
        Comparison("norm between, exponentials", "sv_reparametrization", "DNP_ER", "HG", "er"),
    ],
}
TITLES = {
    "a": "a   Vectors that branches share: worse than one for each matrix",
    "b": "b   Other placements",
    "c": "c   Magnitude and direction of vectors apart, or as exponentials",
}
# Of the distance of two lines: a bar stands above its points, so that none is hidden.
_BELOW = 0.3


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    return measured(tables, PANELS)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels above each other, with one axis."""
    lines = [len(compared) for compared in PANELS.values()]
    figure, axes = page(3, 1, 3.0, h_pad=0.03, sharex=True, height_ratios=[1.6, *lines[1:]])
    for axis, (panel, title) in zip(axes, TITLES.items(), strict=True):
        rows = numbers[numbers["panel"] == panel]
        draw_gaps(axis, rows, PANELS[panel], below=_BELOW if panel == "a" else 0.0)
        axis.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
        label(axis, title)
    axes[-1].set_xlabel(
        "← better        loss − loss of a vector on the inputs of each matrix (nats)"
    )
    return caption(figure, context, told_of_points(numbers))
