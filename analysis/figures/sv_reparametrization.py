"""Figure of ours: what the gain of magnitude and direction apart (OR, ER) is made of.

Loss after the decay less that of direct vectors on the inputs, paired by seed, so that all rows
have one zero; left of it is better. a: vectors on the inputs, with OR, ER and controls. b: on both
sides. c: on both sides with a norm between.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("sv_reparametrization",)


def _against_direct(name: str, arm: str, design: str) -> Comparison:
    return Comparison(name, "sv_reparametrization", arm, "HG", design)


PANELS = {
    "a": [
        _against_direct("magnitude apart (OR)", "HG_OR", "or"),
        _against_direct("as exponentials (ER)", "HG_ER", "er"),
        _against_direct("apart in the final vector alone", "HG_OR_FINAL", "or"),
        _against_direct("apart in the blocks alone", "HG_OR_BLOCKS", "or"),
        _against_direct("vector times a number", "HG_PRODUCT", "none"),
        _against_direct("one number, no vector", "SCALAR", "none"),
        _against_direct("direct vectors, LR × 3", "HG_FAST", "none"),
    ],
    "b": [
        _against_direct("magnitude apart", "DP_OR", "or"),
        _against_direct("as exponentials", "DP_ER", "er"),
        _against_direct("one magnitude for both sides", "DP_OR_ONE", "or"),
        _against_direct("direct vectors", "DP", "none"),
    ],
    "c": [
        _against_direct("magnitude apart", "DNP_OR", "or"),
        _against_direct("as exponentials", "DNP_ER", "er"),
        _against_direct("apart, inputs' magnitudes fixed", "DNP_OR_STILL", "or"),
        _against_direct("direct vectors", "DNP", "none"),
    ],
}
TITLES = {
    "a": "a   Vectors on the inputs (HG): a plain number gains too",
    "b": "b   Vectors on both sides (DP)",
    "c": "c   Vectors on both sides, norm between (DNP)",
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    return measured(tables, PANELS)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels above each other, with one axis."""
    lines = [len(compared) for compared in PANELS.values()]
    figure, axes = page(3, 1, 3.7, h_pad=0.03, sharex=True, height_ratios=lines)
    for axis, (panel, title) in zip(axes, TITLES.items(), strict=True):
        draw_gaps(axis, numbers[numbers["panel"] == panel], PANELS[panel])
        axis.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        label(axis, title)
    axes[-1].set_xlabel("← better        loss − loss of direct vectors on the inputs (nats)")
    said = (
        r"magnitude apart: $\gamma = \beta\,\mathrm{Norm}(\alpha)$.   "
        r"as exponentials: $\gamma = e^{\beta}\,e^{\alpha - \mathrm{mean}(\alpha)}$.   "
        r"vector times a number: $\gamma = \beta\,\alpha$"
    )
    legend_below(figure, [key(said, lw=0)], 1, handlelength=0, handletextpad=0)
    return caption(figure, context, told_of_points(numbers))
