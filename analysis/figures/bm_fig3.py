"""Optimizers by layer, all tuned alike (Beyond MuP 3; the article trains nothing).

Differences of the loss after the decay, paired by seed; right of 0 the first of a row is worse. a:
whole recipes. b: one tensor of Muon beside AdamW moved in another way. Bars, and the numbers beside
them, are means with 95% intervals.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, headline, label, page
from analysis.drawing.style import NOT_JUDGED
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("steepest_optimizers",)


def _compared(name: str, arm: str, against: str) -> Comparison:
    return Comparison(name, EXPERIMENTS[0], arm, against, "none")


PANELS = {
    "a": [
        _compared("AdamW − Muon beside AdamW", "ADAMW", "MUON_ADAMW"),
        _compared("Muon beside AdamW − steepest descent", "MUON_ADAMW", "STEEPEST"),
        _compared("Muon on every matrix − steepest descent", "MUON_EVERYWHERE", "STEEPEST"),
        _compared("only rows seen − steepest descent", "STEEPEST_SEEN", "STEEPEST"),
    ],
    "b": [
        _compared("embedding: rows, normalised", "MUON_EMBEDDING", "MUON_ADAMW"),
        _compared("LM head: rows, normalised", "MUON_HEAD", "MUON_ADAMW"),
        _compared("gains of norms: sign", "MUON_GAINS", "MUON_ADAMW"),
        _compared("gains of norms: frozen at 1", "MUON_FROZEN", "MUON_ADAMW"),
    ],
}
TITLES = {
    "a": "a   Whole recipes",
    "b": "b   Muon beside AdamW: one tensor moved otherwise − as is",
}
_BELOW = 0.36
MESSAGE = "Steepest descent of every layer loses to Muon, on every matrix or beside AdamW"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    return measured(tables, PANELS)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels above each other, on one axis."""
    figure, axes = page(2, 1, 3.3, h_pad=0.04, sharex=True)
    headline(figure, MESSAGE, context)
    low, high = numbers["value"].min(), numbers["value"].max()
    axes[0].set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    matters = criteria_of(EXPERIMENTS[0])["BM3"]["smallest_effect"]
    for axis, (panel, title) in zip(axes, TITLES.items(), strict=True):
        rows = numbers[numbers["panel"] == panel]
        draw_gaps(axis, rows, PANELS[panel], below=_BELOW)
        axis.axvspan(-matters, matters, **NOT_JUDGED, lw=0, zorder=0)
        axis.set_ylim(-0.7, len(PANELS[panel]) - 0.6)
        write_gaps(axis, rows, PANELS[panel], head=panel == "a")
        axis.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
        label(axis, title)
    axes[-1].set_xlabel("loss of the first − loss of the second (nats)        first is worse →")
    note = f"grey: below the {matters:g} that matters   {told_of_points(numbers)}"
    return caption(figure, context, note)
