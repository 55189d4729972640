"""Figure of ours: what the gain of magnitude and direction apart (OR, ER) is made of.

Loss after the decay, differences paired by seed; left of 0 is better. a: OR and ER against vectors
that are learned directly, with vectors on the inputs, on both sides, and on both sides with a norm
between (DNP). b: controls against OR on the inputs.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.gaps import Comparison, draw_gaps, measured
from analysis.drawing.page import caption, key, label, legend_below, sheet
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("sv_reparametrization",)
_NAMES = {"HG": "inputs", "DP": "both sides", "DNP": "DNP"}


def _against(name: str, arm: str, against: str, design: str) -> Comparison:
    return Comparison(name, "sv_reparametrization", arm, against, design)


PANELS = {
    "a": [
        _against(f"{how}, {name}", f"{design}_{how}", design, how.lower())
        for design, name in _NAMES.items()
        for how in ("OR", "ER")
    ],
    "b": [
        _against("direct vectors", "HG", "HG_OR", "hg"),
        _against("direct, LR × 3", "HG_FAST", "HG_OR", "hg"),
        _against("vector × number", "HG_PRODUCT", "HG_OR", "standard"),
        _against("number alone", "SCALAR", "HG_OR", "none"),
        _against("OR, final alone", "HG_OR_FINAL", "HG_OR", "or"),
        _against("OR, blocks alone", "HG_OR_BLOCKS", "HG_OR", "or"),
    ],
    "c": [
        _against("one β for two (DP)", "DP_OR_ONE", "DP_OR", "dp"),
        _against("β of inputs fixed (DNP)", "DNP_OR_STILL", "DNP_OR", "dnp"),
    ],
}
TITLES = {
    "a": ("a   OR and ER against direct", "loss − loss of direct vectors (nats)"),
    "b": ("b   Controls against OR", "loss − loss of OR (nats)"),
    "c": ("c   Fewer magnitudes", "loss − loss with all magnitudes (nats)"),
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    return measured(tables, PANELS)


def draw(numbers: pd.DataFrame, context: Context):
    """a on the left, b and c on the right."""
    figure = sheet(3.0, w_pad=0.05, h_pad=0.04)
    axes = figure.subplot_mosaic([["a", "b"], ["a", "c"]], height_ratios=[6, 2.6])
    for panel, (title, words) in TITLES.items():
        axis = axes[panel]
        draw_gaps(axis, numbers[numbers["panel"] == panel], PANELS[panel])
        label(axis, title, xlabel=words)
    said = "left of 0 is better.   OR, ER: magnitude β and direction of a vector apart"
    legend_below(figure, [key(said, lw=0)], 1, handlelength=0, handletextpad=0)
    return caption(figure, context, "points: seeds; bars: means, 95%")
