"""Figure 5 of the second paper: branches, placement and reparametrization.

Loss after the decay less that of a direct vector on the inputs of each matrix (HG), paired by seed,
so that all rows have one zero; left of it is better. a: vectors that branches share. b: other
placements. c: magnitude and direction apart (OR, ER), on both sides and with a norm between. Grey:
two standard deviations over the seeds of a, as a measure of chance for single seeds.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, label, legend_below, page
from analysis.drawing.style import NOT_JUDGED
from analysis.tables.context import Context
from analysis.tables.results import FIRST_JUDGING_SEED, Tables

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
    "a": "a   Vectors shared by branches are worse than own ones",
    "b": "b   Other placements",
    "c": "c   Magnitude and direction apart: OR, ER",
}
# Nats: what lies beyond is told at the edge.
_LIMITS = (-0.058, 0.062)
# Of the distance of two lines: a bar stands above its points, so that none is hidden.
_BELOW = 0.42


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    return measured(tables, PANELS)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels above each other, with one axis."""
    lines = [len(compared) for compared in PANELS.values()]
    figure, axes = page(3, 1, 3.4, h_pad=0.03, sharex=True, height_ratios=[2.0, *lines[1:]])
    chance = _chance(numbers)
    for axis, (panel, title) in zip(axes, TITLES.items(), strict=True):
        rows = numbers[numbers["panel"] == panel]
        draw_gaps(axis, rows, PANELS[panel], below=_BELOW if panel == "a" else 0.0)
        axis.set_xlim(_LIMITS)
        write_gaps(axis, rows, PANELS[panel])
        single = rows["seed"].nunique() == 1
        if single and chance:
            axis.axvspan(-chance, chance, **NOT_JUDGED, lw=0, zorder=0)
        axis.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        label(axis, f"{title} (one seed)" if single else title)
    axes[0].set_ylim(-0.75, 0.35)
    axes[-1].set_xlabel(
        "← better        loss − loss of a vector on the inputs of each matrix (nats)"
    )
    if chance:
        said = f"± 2 standard deviations over the seeds that judge in a ({chance:.3f})"
        legend_below(figure, [Patch(**NOT_JUDGED, label=said)], 1)
    return caption(figure, context, f"one LR for all   {told_of_points(numbers)}")


def _chance(numbers: pd.DataFrame) -> float:
    """What chance may do to one seed: two standard deviations of a's; 0 of fewer than two seeds."""
    judging = (numbers["panel"] == "a") & (numbers["seed"] >= FIRST_JUDGING_SEED)
    values = numbers.loc[judging, "value"]
    return 2 * values.std(ddof=1) if len(values) > 1 else 0.0
