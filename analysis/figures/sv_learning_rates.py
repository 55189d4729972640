"""Figure of ours: loss after the decay against the LR, for each design of scale vectors.

Lines are medians over seeds, bands their range. A panel has the designs of one kind beside the
standard vectors.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.axes import median
from analysis.drawing.designs import LOOKS
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.quantities.losses import final_losses
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("sv_learning_rates",)
# By panel: the arms, with the design of their look and what else they have.
PANELS = {
    "a   Fewer vectors": {"NONE": "none", "FINAL": "final", "STANDARD": "standard"},
    "b   More vectors": {"STANDARD": "standard", "HG": "hg", "AP": "ap", "DP": "dp"},
    "c   Norms behind": {"STANDARD": "standard", "DNP": "dnp", "GEMMA": "gemma"},
    "d   OR": {"STANDARD": "standard", "HG_OR": "hg", "DP_OR": "dp", "DNP_OR": "dnp"},
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, lr, seed, value (nats per token)."""
    losses = final_losses(tables["sv_learning_rates"])
    return losses[["arm", "lr", "seed", "value"]].reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels with one y axis."""
    figure, axes = page(1, 4, 2.3, w_pad=0.03, sharey=True)
    rates = sorted(numbers["lr"].unique())
    for axis, (title, arms) in zip(axes, PANELS.items(), strict=True):
        for arm, design in arms.items():
            colour, _, marker = LOOKS[design]
            rows = numbers[numbers["arm"] == arm]
            median(axis, rows, "lr", color=colour, marker=marker, ms=3, alpha=0.12)
        axis.set_xscale("log")
        axis.set_xticks(rates[::2], [f"{1000 * rate:.3g}" for rate in rates[::2]])
        axis.xaxis.set_minor_locator(NullLocator())
        label(axis, title, xlabel="LR · 1000")
    axes[0].set_ylabel("loss after the decay\n(nats)")
    shown = dict.fromkeys(design for arms in PANELS.values() for design in arms.values())
    handles = [
        key(name, color=colour, marker=marker, ms=3)
        for colour, name, marker in (LOOKS[design] for design in shown)
    ]
    legend_below(figure, handles, 4)
    return caption(figure, context, "d: the same designs, magnitude and direction apart")
