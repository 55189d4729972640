"""Figure 5 of the second paper: branches, placement and reparametrization.

Loss after the decay, differences paired by seed; left of 0 is better. a: a vector for each branch
against a shared one. b: other placements against vectors on the inputs (HG). c: magnitude and
direction apart (OR, ER) on both sides (DP) and with a norm between (DNP), against HG.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.gaps import Comparison, draw_gaps, measured
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {
    "sv_heterogeneity": ("HG *", "STANDARD *"),
    "sv_placement": (),
    "sv_reparametrization": ("HG *", "D*P_?R *"),
}
PANELS = {
    "a": [Comparison("HG", "sv_heterogeneity", "HG", "STANDARD", "hg")],
    "b": [
        Comparison("AP", "sv_placement", "AP", "HG", "ap"),
        Comparison("DP", "sv_placement", "DP", "HG", "dp"),
        Comparison("DNP", "sv_placement", "DNP", "HG", "dnp"),
        Comparison("fixed factor", "sv_placement", "HG_FACTOR", "HG", "hg"),
    ],
    "c": [
        Comparison("DP + OR", "sv_reparametrization", "DP_OR", "HG", "or"),
        Comparison("DP + ER", "sv_reparametrization", "DP_ER", "HG", "er"),
        Comparison("DNP + OR", "sv_reparametrization", "DNP_OR", "HG", "or"),
        Comparison("DNP + ER", "sv_reparametrization", "DNP_ER", "HG", "er"),
    ],
}
TITLES = {
    "a": ("a   A vector for each branch", "loss − shared vectors'\n(nats)"),
    "b": ("b   Placement", "loss − HG's\n(nats)"),
    "c": ("c   Reparametrization", "loss − HG's\n(nats)"),
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    return measured(tables, PANELS)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels side by side."""
    figure, axes = page(1, 3, 2.2, w_pad=0.03)
    for axis, (panel, (title, words)) in zip(axes, TITLES.items(), strict=True):
        draw_gaps(axis, numbers[numbers["panel"] == panel], PANELS[panel])
        label(axis, title, xlabel=words)
    said = (
        "left of 0 is better.   HG: vectors on the inputs of each matrix.   AP: on its outputs.   "
        "DP: both.\nDNP: both, with a norm between.   OR, ER: magnitude and direction apart"
    )
    legend_below(figure, [key(said, lw=0)], 1, handlelength=0, handletextpad=0)
    return caption(figure, context, "points: seeds; bars: means, 95%")
