"""Figure 3 of the third paper: which learning rate (LR) is best at each width, under AdamW.

A panel for each recipe: the loss after the decay, less the lowest of its width, against the LR;
means over seeds, and a ring at the lowest. The last panel: the best LR against the width,
the minimum of a parabola, seed by seed, with the mean and its 95% interval, and the exponent of the
width in it. A run that diverged has no point.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.page import caption, headline, label, page
from analysis.drawing.transfer import (
    MUP,
    ONE_LR,
    SAID,
    SCALARS,
    TOP,
    Looks,
    basin,
    best,
    legends,
    of_recipes,
)
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("gdn_transfer",)
# Colour, marker and name of each recipe, as in the other figures of this paper.
LOOKS = {
    "SP": (*ONE_LR, "SP"),
    "MUP": (*MUP, "muP"),
    "SP_SCALARS": (*SCALARS, "SP, learned scalars"),
}
MESSAGE = (
    "With muP the best learning rate hardly moves with the width. In a standard\n"
    "parametrization (SP) it ends lower, by no steady fall; with learned scalars it jumps"
)
# Of the rates that were tried, those that have a number.
_NAMED = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1, 0.2, 0.4, 0.8)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """As ``of_recipes``."""
    return of_recipes(tables[EXPERIMENTS[0]], LOOKS)


def draw(numbers: pd.DataFrame, context: Context):
    """Three recipes and their best LRs."""
    return panels(numbers, context, LOOKS, MESSAGE, "no mark: no best rate inside those tried")


def panels(numbers: pd.DataFrame, context: Context, looks: Looks, message: str, said: str):
    """A panel for each recipe, and one of the best LRs, of which the caption has ``said``."""
    count = len(looks) + 1
    rates = sorted(numbers.loc[numbers["quantity"] == "loss", "rate"].unique())
    named = [rate for rate in rates if rate in _NAMED] or [rates[0], rates[-1]]
    named = named[::2] if len(named) > 4 else named
    figure, axes = page(1, count, 3.0, w_pad=0.04, width_ratios=[1.0] * len(looks) + [1.25])
    headline(figure, message, context)
    for axis, letter, (recipe, (*_, name)) in zip(axes, "abcd", looks.items(), strict=False):
        basin(axis, numbers, recipe)
        axis.set_xticks(named, [f"{rate:g}" for rate in named])
        label(axis, f"{letter}   {name}", xlabel="learning rate")
        axis.label_outer()
    axes[0].set_ylabel("loss − lowest of its\nwidth (nats)")
    best(axes[-1], numbers, looks)
    last = "abcde"[len(looks)]
    label(axes[-1], f"{last}   Best rate", xlabel="width $d$", ylabel="best learning rate")
    legends(figure, numbers, looks, f"a–{'abcde'[len(looks) - 1]}", last)
    note = (
        f"{SAID}; cut at {TOP:g} nats\n{last}: of a parabola; numbers: exponents of d, 95%; {said}"
    )
    return caption(figure, context, note)
