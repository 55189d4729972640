"""Figure of ours: what the gain of magnitude and direction apart (OR, ER) is made of.

Differences of the loss after the decay, paired by seed; left of 0 is better. a: vectors on the
inputs of each matrix, against direct ones: OR, ER and controls. b: fewer magnitudes than OR has,
against OR at the same place.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.designs import LOOKS
from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.tables.context import Context
from analysis.tables.results import Tables

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
        _against("HG", "one number, no vector", "SCALAR", "none"),
        _against("HG", "direct vectors, LR × 3", "HG_FAST", "none"),
    ],
    "b": [
        _against("DP_OR", "both sides (DP): one magnitude for two", "DP_OR_ONE", "or"),
        _against("DNP_OR", "norm between (DNP): inputs' fixed", "DNP_OR_STILL", "or"),
    ],
}
TITLES = {
    "a": "a   On the inputs (HG): OR, ER and plain numbers",
    "b": "b   OR with fewer magnitudes, in theory the same",
}
ZEROS = {"a": "direct vectors on the inputs", "b": "OR with all magnitudes"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    return measured(tables, PANELS)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels above each other, with the same limits and a zero of their own."""
    sizes = [len(compared) for compared in PANELS.values()]
    figure, axes = page(2, 1, 3.7, h_pad=0.04, sharex=True, height_ratios=sizes)
    single = numbers["seed"].nunique() == 1
    low, high = min(numbers["value"].min(), 0), max(numbers["value"].max(), 0)
    room = (0.15 if single else 0.4) * (high - low)
    axes[0].set_xlim(low - room, high + room)
    for axis, (panel, title) in zip(axes, TITLES.items(), strict=True):
        rows = numbers[numbers["panel"] == panel]
        means = rows.groupby("name")["value"].mean()
        lines = sorted(PANELS[panel], key=lambda each, means=means: means.get(each.name, 0.0))
        draw_gaps(axis, rows, lines)
        write_gaps(axis, rows, lines)
        axis.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        axis.tick_params(labelbottom=True)
        label(axis, f"{title} (one seed)" if single else title,
              xlabel=f"← better        loss − loss of {ZEROS[panel]} (nats)")  # fmt: skip
    said = (
        r"OR: $\gamma = \beta\,\mathrm{Norm}(\alpha)$.   "
        r"ER: $\gamma = e^{\beta}\,e^{\alpha - \mathrm{mean}(\alpha)}$.   "
        r"vector times a number: $\gamma = \beta\,\alpha$.   "
        r"magnitude: $\beta$"
    )
    legend_below(figure, [key(said, lw=0)], 1, handlelength=0, handletextpad=0)
    fill = {"mfc": "none"} if single else {}
    marks = [key(name, color=LOOKS[design][0], marker=LOOKS[design][2], lw=0, **fill)
             for design, name in (("or", "OR"), ("er", "ER"), ("none", "neither"))]  # fmt: skip
    legend_below(figure, marks, 3, handletextpad=0.1)
    note = "one seed has no interval   " if single else ""
    return caption(figure, context, note + told_of_points(numbers))
