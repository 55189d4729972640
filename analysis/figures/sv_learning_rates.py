"""Figure of ours: loss after the decay against the LR, for each design of scale vectors.

Lines are medians over seeds, bands their range. A panel has the designs of one kind beside the
standard vectors. Muon, WSD, experts and the widths are those of sv_unified.
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
    # With experts the loss is lower.
    "e   Unified, experts": {
        "STANDARD": "standard",
        "UNIFIED": "unified",
        "MOE_STANDARD": "standard",
        "MOE_UNIFIED": "unified",
    },
    "f   Muon": {
        "MUON_STANDARD": "standard",
        "MUON_UNIFIED": "unified",
        "MUON_GEMMA": "gemma",
    },
    # The latter at paper, with the rates of all others.
    "g   WSD": {
        "WSD_STANDARD": "standard",
        "WSD_UNIFIED": "unified",
        "STANDARD_WSD": "standard",
        "UNIFIED_WSD": "unified",
    },
    # The narrower one lies higher.
    "h   Widths": {
        "STANDARD_HALF": "standard",
        "UNIFIED_HALF": "unified",
        "STANDARD_DOUBLE": "standard",
        "UNIFIED_DOUBLE": "unified",
    },
}
# In the tests the designs of the first row alone are trained.
_A_ROW = 4


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, lr, seed, value (nats per token)."""
    losses = final_losses(tables["sv_learning_rates"])
    return losses[["arm", "lr", "seed", "value"]].reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Rows of four panels, each with one y axis; a row of which nothing was trained is left out."""
    there = set(numbers["arm"])
    shown = {title: arms for title, arms in PANELS.items() if there & arms.keys() - {"STANDARD"}}
    rows_of_page = -(-len(shown) // _A_ROW)
    figure, axes = page(
        rows_of_page, _A_ROW, 0.4 + 1.9 * rows_of_page, w_pad=0.03, sharey="row", squeeze=False
    )
    rates = sorted(numbers["lr"].unique())
    for axis in axes.flatten()[len(shown) :]:
        axis.set_axis_off()
    for axis, (title, arms) in zip(axes.flatten(), shown.items(), strict=False):
        for arm in [arm for arm in arms if arm in there]:
            design = arms[arm]
            colour, _, marker = LOOKS[design]
            rows = numbers[numbers["arm"] == arm]
            median(axis, rows, "lr", color=colour, marker=marker, ms=3, alpha=0.12)
        axis.set_xscale("log")
        axis.set_xticks(rates[::2], [f"{1000 * rate:.3g}" for rate in rates[::2]])
        axis.xaxis.set_minor_locator(NullLocator())
        label(axis, title, xlabel="LR · 1000")
    for first in axes[:, 0]:
        first.set_ylabel("loss after the decay\n(nats)")
    designs = dict.fromkeys(design for arms in shown.values() for design in arms.values())
    handles = [
        key(name, color=colour, marker=marker, ms=3)
        for colour, name, marker in (LOOKS[design] for design in designs)
    ]
    legend_below(figure, handles, 5)
    return caption(figure, context, "d: the same designs, magnitude and direction apart")
