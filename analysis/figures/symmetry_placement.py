"""Beside figure 4: loss of placements with fewer multipliers, less that of all (appendix C).

Differences of the loss after the decay, paired by seed. Negative: fewer multipliers are better.
Grey: effects that are too small to matter.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import dots
from analysis.drawing.page import caption, page
from analysis.drawing.style import ARM_COLOURS, ARM_LOOKS, NEUTRAL, NOT_JUDGED
from analysis.figures.symmetry_stress import planned
from analysis.quantities import symmetry
from analysis.quantities.losses import losses_by_arm
from analysis.tables.context import Context, stacked
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("symmetry_placement",)
NAMES = {
    symmetry.SYMMETRY_FREE: "symmetry-free placement, λ = 0",
    symmetry.SYMMETRY_FREE_LIGHT: "symmetry-free placement, λ = {light:g}",
    symmetry.NO_EMBEDDING: "none on the embedding, λ = {light:g}",
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, seed, value (nats per token)."""
    losses = losses_by_arm(tables["symmetry_placement"])
    gaps = losses[list(NAMES)].sub(losses[symmetry.LIGHT], axis=0)
    return stacked(gaps)[["arm", "seed", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """One panel."""
    figure, axis = page(1, 1, 1.6)
    light = planned("symmetry_placement", context)[symmetry.LIGHT]["multipliers"]["weight_decay"]
    gaps = numbers.groupby("arm")["value"]
    named = {name.format(light=light): gaps.get_group(arm) for arm, name in NAMES.items()}
    dots(axis, named, dict.fromkeys(named, ARM_COLOURS["VPN"]))
    for points in axis.get_lines():
        if points.get_marker() == "o":
            points.set_marker(ARM_LOOKS["VPN"]["marker"])
    axis.axvline(0, **NEUTRAL)
    matters = criteria_of("symmetry_placement")["S5.2"]["smallest_effect"]
    axis.axvspan(-matters, matters, **NOT_JUDGED, lw=0, zorder=0)
    for x, side, words in (
        (0, "right", "← fewer are better  "),
        (0, "left", "  fewer are worse →"),
    ):
        axis.text(x, 1.02, words, ha=side, va="bottom", fontsize=6.5, color="#444444",
                  transform=axis.get_xaxis_transform())  # fmt: skip
    axis.set_xlabel(f"loss − loss with all multipliers, λ = {light:g} (nats)")
    note = "λ: weight decay of multipliers; points: seeds; bars: means, 95%"
    note += f"; grey: below the {matters:g} that matters"
    return caption(figure, context, note)
