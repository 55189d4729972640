"""Figure 1 of the second paper: the loss without scale vectors, at one LR and with the LR tuned.

a: loss after the decay against the length of the training, without vectors and with the standard
ones, of the same LR (a) or each its own (b). c: which vectors they are, ours; left of 0 the model
without them is better.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import median
from analysis.drawing.designs import LOOKS
from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, headline, key, label, legend_below, sheet
from analysis.drawing.style import MEDIANS
from analysis.quantities.losses import final_losses
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("sv_necessity",)
# By panel, design and arm: the length of the training over the usual one.
LENGTHS = {
    "a": {"none": {"NONE": 1.0, "NONE_1.4": 1.4}, "standard": {"STANDARD": 1.0}},
    "b": {"none": {"NONE_TUNED": 1.0, "NONE_TUNED_1.2": 1.2}, "standard": {"STANDARD_TUNED": 1.0}},
}
MESSAGE = (
    "Without any vectors the loss is higher; with the final one alone, or with a fixed factor\n"
    "of 4 on the LM head in place of them, it is lower"
)
TITLES = {"a": "a   One LR", "b": "b   Own LRs"}


def _against(name: str, arm: str, against: str, design: str) -> Comparison:
    return Comparison(name, "sv_necessity", arm, against, design)


GAPS = {
    "c": [
        _against("all removed", "NONE", "STANDARD", "none"),
        _against("all but the final one", "FINAL", "STANDARD", "final"),
        _against("all, head × 4 in both", "NONE_FACTOR", "STANDARD_FACTOR", "none"),
        _against("all, head × 4 instead", "NONE_FACTOR", "STANDARD", "none"),
    ]
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name (design or comparison), length, seed, value (nats per token)."""
    losses = final_losses(tables["sv_necessity"])
    rows = []
    for panel, designs in LENGTHS.items():
        for design, arms in designs.items():
            own = losses[losses["arm"].isin(arms)]
            own = own.assign(panel=panel, name=design, length=own["arm"].map(arms))
            rows.append(own[["panel", "name", "length", "seed", "value"]])
    rows.append(measured(tables, GAPS))
    return pd.concat(rows, ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels."""
    figure = sheet(4.0, w_pad=0.05, h_pad=0.04)
    headline(figure, MESSAGE, context)
    axes = list(figure.subplot_mosaic("ab;cc", height_ratios=[1.5, 1]).values())
    axes[1].sharey(axes[0])
    for axis, (panel, designs) in zip(axes, LENGTHS.items(), strict=False):
        rows = numbers[numbers["panel"] == panel]
        for design in designs:
            colour, _, marker = LOOKS[design]
            own = rows[rows["name"] == design]
            median(axis, own, "length", color=colour, marker=marker, ms=4)
            if design == "standard":
                axis.axhline(own["value"].median(), color=colour, lw=0.8, ls=":")
                ends = own["value"].min(), own["value"].max()
                axis.vlines(1.0, *ends, color=colour, lw=1.6, alpha=0.4, zorder=1)
        axis.set_xticks([1.0, 1.2, 1.4], ["1", "1.2", "1.4"])
        axis.set_xlim(0.9, 1.5)
        label(axis, TITLES[panel], xlabel="steps, × usual")
    axes[0].set_ylabel("loss after the decay\n(nats)")
    axes[1].tick_params(labelleft=False)
    rows = numbers[numbers["panel"] == "c"]
    draw_gaps(axes[2], rows, GAPS["c"], below=0.3)
    low, high = rows["value"].min(), rows["value"].max()
    axes[2].set_xlim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    axes[2].set_ylim(-0.7, len(GAPS["c"]) - 0.6)
    write_gaps(axes[2], rows, GAPS["c"])
    label(
        axes[2],
        "c   Vectors removed",
        xlabel="← better   loss without − loss with standard vectors (nats)",
    )
    handles = [
        key(name, color=LOOKS[design][0], marker=LOOKS[design][2], ms=4)
        for design, name in {"none": "no scale vectors", "standard": "standard vectors"}.items()
    ]
    said = "standard vectors at the usual length"
    handles.append(key(said, color=LOOKS["standard"][0], lw=0.8, ls=":"))
    legend_below(figure, handles, 3)
    medians = f"a, b: {MEDIANS}; " if len(context.seeds) > 1 else ""
    note = f"{medians}b: each the LR that two other seeds chose\n"
    return caption(figure, context, note + told_of_points(numbers))
