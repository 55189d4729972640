"""Multipliers frozen from the start: the loss of each arm less that without multipliers, paired."""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import dots
from analysis.drawing.page import caption, label, page
from analysis.drawing.style import ARM_COLOURS, NEUTRAL, NOISE_COLOUR, shade
from analysis.quantities.losses import final_losses
from analysis.quantities.norms import at_step
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("frozen_multipliers",)
NAMES = {
    "VECTOR": "learned while training",
    "LEARNED": "frozen at the learned values",
    "NOISE": "frozen at random values",
}
COLOURS = {
    "VECTOR": ARM_COLOURS["VPN"],
    "LEARNED": shade(ARM_COLOURS["VPN"], -0.45),
    "NOISE": NOISE_COLOUR,
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: stage (constant or decay), arm, seed, loss, gap to NONE, in nats per token."""
    table = tables["frozen_multipliers"]
    losses = at_step(table.pick(stat="validation_loss"), table.stage_end)
    parts = []
    for stage, rows in (("constant", losses), ("decay", final_losses(table))):
        wide = rows.pivot(index="seed", columns="arm", values="value")
        for arm in NAMES:
            part = pd.DataFrame({"loss": wide[arm], "gap": wide[arm] - wide["NONE"]})
            parts.append(part.reset_index().assign(stage=stage, arm=arm))
    return pd.concat(parts, ignore_index=True)[["stage", "arm", "seed", "loss", "gap"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels: as the constant stage ends, and after the decay."""
    figure, axes = page(1, 2, 1.5, w_pad=0.05, sharex=True, sharey=True)
    titles = {"constant": "a   Before the decay", "decay": "b   After the decay"}
    colours = {NAMES[arm]: colour for arm, colour in COLOURS.items()}
    for axis, (stage, title) in zip(axes, titles.items(), strict=True):
        gaps = numbers[numbers["stage"] == stage].groupby("arm")["gap"]
        dots(axis, {NAMES[arm]: gaps.get_group(arm) for arm in NAMES}, colours)
        axis.axvline(0, **NEUTRAL)
        axis.locator_params(axis="x", nbins=5)
        label(axis, title, xlabel="loss − loss without multipliers (nats)")
    return caption(figure, context, "points: seeds; bars: means, 95%")
