"""Multipliers frozen from the start: the loss of each arm less that without multipliers, paired.

The last line is the loss frozen at the learned values less that learned while training, by seed.
The learned values are those with which the first arm ended, so that they have seen the data; the
random ones are draws of Brownian motion, which have the spread of noise alone and an RMS of 1.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import dots
from analysis.drawing.page import caption, headline, label, page
from analysis.drawing.style import (
    ARM_COLOURS,
    ARM_LOOKS,
    BROWNIAN,
    NEUTRAL,
    NO_MULTIPLIERS,
    NOISE_COLOUR,
    SMALL,
    shade,
)
from analysis.quantities.losses import final_losses
from analysis.quantities.norms import at_step
from analysis.quantities.stats import interval, with_interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("frozen_multipliers",)
NAMES = {
    "VECTOR": "learned while training",
    "LEARNED": "frozen at learned values",
    "NOISE": "frozen at random values",
}
PAIRED = "frozen at learned − learned"
MESSAGE = "Frozen at the learned values beats learning them, after LR decay (n = {n}, exploratory)"
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
    """Two panels above each other: as the constant stage ends, and after the LR decay."""
    figure, axes = page(2, 1, 3.7, h_pad=0.03, sharex=True)
    seeds = numbers["seed"].nunique()
    headline(figure, MESSAGE.format(n=seeds), context)
    titles = {"constant": "a   Before LR decay", "decay": "b   After LR decay"}
    colours = {NAMES[arm]: colour for arm, colour in COLOURS.items()} | {PAIRED: "#222222"}
    markers = dict.fromkeys(colours, ARM_LOOKS["VPN"]["marker"])
    for axis, (stage, title) in zip(axes, titles.items(), strict=True):
        gaps = numbers[numbers["stage"] == stage].pivot(index="seed", columns="arm", values="gap")
        named = {NAMES[arm]: gaps[arm] for arm in NAMES}
        named[PAIRED] = gaps["LEARNED"] - gaps["VECTOR"]
        dots(axis, named, colours, markers=markers, below=0.27, apart=0.14)
        for place, values in enumerate(reversed(named.values())):
            said = with_interval(values, 3).replace("-", "−")
            axis.text(1.02, place, said, transform=axis.get_yaxis_transform(), va="center",
                      fontsize=SMALL)  # fmt: skip
        axis.set_ylim(-0.6, len(named) - 0.5)
        axis.axhline(0.5, color="#bbbbbb", lw=0.6)
        axis.axvline(0, **NEUTRAL)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0)
        axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        found = interval(named[PAIRED])
        if not found.low * found.high > 0:
            title += " (last: open)"
        label(axis, title)
        beside = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": SMALL}
        axis.annotate("mean [95% interval]" if seeds > 1 else "change", (1.02, 1), (0, 3), **beside)
        # What the line at 0 is: in the rows above another loss than in the last.
        axis.annotate(NO_MULTIPLIERS, (0, 1), (0, 3), ha="center",
                      **beside | {"xycoords": ("data", "axes fraction")})  # fmt: skip
        axis.annotate("learned", (0, 0), (6, 0), va="center", **beside | {"xycoords": "data"})
    axes[1].set_xlabel("← better      change of the validation loss (nats)")
    points = "points: seeds; bars and numbers: means with 95% intervals; "
    note = (
        f"{points if seeds > 1 else ''}one base LR, not swept\n"
        "row and column multipliers; "
        f"rows 1 to 3: loss − loss without any; random values: {BROWNIAN} at an RMS of 1\n"
        "learned values: those with which row 1 ended, so that row 2 has seen the data"
    )
    return caption(figure, context, note)
