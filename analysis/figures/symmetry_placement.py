"""Beside figure 4: loss of placements with fewer multipliers, less that of all (appendix C).

Differences of the loss after the decay, paired by seed. Negative: fewer multipliers are better.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import dots
from analysis.drawing.page import caption, label, page
from analysis.drawing.style import ARM_COLOURS, NEUTRAL
from analysis.quantities import symmetry
from analysis.quantities.losses import losses_by_arm
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("symmetry_placement",)
NAMES = {
    symmetry.SYMMETRY_FREE: "symmetry-free, no weight decay",
    symmetry.SYMMETRY_FREE_LIGHT: "symmetry-free, light weight decay",
    symmetry.NO_EMBEDDING: "none on the embedding, light weight decay",
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, seed, value (nats per token)."""
    losses = losses_by_arm(tables["symmetry_placement"])
    gaps = losses[list(NAMES)].sub(losses[symmetry.LIGHT], axis=0)
    return stacked(gaps)[["arm", "seed", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """One panel."""
    figure, axis = page(1, 1, 1.5)
    gaps = numbers.groupby("arm")["value"]
    named = {name: gaps.get_group(arm) for arm, name in NAMES.items()}
    dots(axis, named, dict.fromkeys(named, ARM_COLOURS["VPN"]))
    axis.axvline(0, **NEUTRAL)
    label(
        axis,
        "Loss of placements with fewer multipliers",
        xlabel="loss − loss with all multipliers, light weight decay (nats)",
    )
    return caption(figure, context, "points: seeds; bars: means, 95%")
