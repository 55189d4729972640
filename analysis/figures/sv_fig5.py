"""Figure 5 of the second paper: branches, placement and reparametrization.

Loss after the decay less that of a direct vector on the inputs of each matrix (HG), paired by seed,
so that all rows have one zero; left of it is better. a: vectors that branches share. b: other
placements. c: magnitude and direction apart (OR, ER), on both sides and with a norm between. Grey:
two standard deviations over the seeds of a, as a measure of chance for single seeds.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.gaps import (
    Comparison,
    draw_gaps,
    draw_spread,
    measured,
    spread_of_one,
    told_of_points,
    write_gaps,
)
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
        Comparison("both sides (DP)", "sv_placement", "DP", "HG", "none"),
        Comparison("outputs only (AP)", "sv_placement", "AP", "HG", "none"),
        Comparison("both sides, norm between (DNP)", "sv_placement", "DNP", "HG", "none"),
        Comparison("inputs only, matrices × 2 (ours)", "sv_placement", "HG_FACTOR", "HG", "none"),
    ],
    "c": [
        Comparison("DNP with ER", "sv_reparametrization", "DNP_ER", "HG", "er"),
        Comparison("DP with ER", "sv_reparametrization", "DP_ER", "HG", "er"),
        Comparison("DNP with OR", "sv_reparametrization", "DNP_OR", "HG", "or"),
        Comparison("DP with OR", "sv_reparametrization", "DP_OR", "HG", "or"),
    ],
}
TITLES = {
    "a": "a   A vector that branches share is worse than one for each matrix, at one LR",
    "b": "b   Other placements",
    "c": "c   Magnitude and direction of vectors apart (OR), or as exponentials (ER)",
}
# Nats: what lies beyond is told at the edge.
_LIMITS = (-0.058, 0.048)
# Of the distance of two lines: a bar stands above its points, so that none is hidden.
_BELOW = 0.42


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    return measured(tables, PANELS)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels above each other, with one axis."""
    lines = [len(compared) for compared in PANELS.values()]
    figure, axes = page(3, 1, 3.3, h_pad=0.03, sharex=True, height_ratios=[2.0, *lines[1:]])
    spread = spread_of_one(numbers[numbers["panel"] == "a"])
    for axis, (panel, title) in zip(axes, TITLES.items(), strict=True):
        rows = numbers[numbers["panel"] == panel]
        draw_gaps(axis, rows, PANELS[panel], below=_BELOW if panel == "a" else 0.0)
        axis.set_xlim(_LIMITS)
        write_gaps(axis, rows, PANELS[panel])
        single = rows["seed"].nunique() == 1
        if single:
            draw_spread(axis, spread)
        axis.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        label(axis, f"{title}: one seed" if single else title)
    axes[0].set_ylim(-0.75, 0.35)
    axes[-1].set_xlabel(
        "← better        loss − loss of a vector on the inputs of each matrix (nats)"
    )
    note = told_of_points(numbers)
    if spread > 0:
        note += f"; grey: ± 2 standard deviations of a seed in a ({spread:.3f})"
    return caption(figure, context, note)
