"""Figure 3 of the third paper: which learning rate (LR) is best at each width, under AdamW.

A panel for each recipe: the loss after the decay, less the lowest of its width, against the LR;
means over seeds, and a larger mark at the lowest. The last panel: the best LR against the width,
the minimum of a parabola, seed by seed, with the mean and its 95% interval, and the exponent of the
width in it. A run that diverged has no point.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.page import caption, label, legend_below, page
from analysis.drawing.transfer import Looks, basin, best, handles_of, of_recipes
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("gdn_transfer",)
# Colour, marker and name of each recipe, as in the other figures of this paper.
LOOKS = {
    "SP": ("#888888", "o", "SP"),
    "MUP": ("#AA3377", "s", "muP"),
    "SP_SCALARS": ("#117733", "v", "SP, learned scalars"),
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """As ``of_recipes``."""
    return of_recipes(tables[EXPERIMENTS[0]], LOOKS)


def draw(numbers: pd.DataFrame, context: Context):
    """Three recipes and their best LRs."""
    return panels(numbers, context, LOOKS)


def panels(numbers: pd.DataFrame, context: Context, looks: Looks):
    """A panel for each recipe, and one of the best LRs."""
    count = len(looks) + 1
    rates = sorted(numbers.loc[numbers["quantity"] == "loss", "rate"].unique())
    few = [rates[0], rates[(len(rates) - 1) // 2], rates[-1]]
    figure, axes = page(1, count, 2.6, w_pad=0.04, width_ratios=[1.0] * len(looks) + [1.15])
    for axis, letter, (recipe, (*_, name)) in zip(axes, "abcd", looks.items(), strict=False):
        basin(axis, numbers, recipe)
        axis.set_xticks(few, [f"{rate:.2g}" for rate in few])
        label(axis, f"{letter}   {name}", xlabel="learning rate")
        axis.label_outer()
    axes[0].set_ylabel("loss − lowest of its width (nats)")
    best(axes[-1], numbers, looks)
    label(axes[-1], f"{'abcde'[len(looks)]}   Best rate", xlabel="width $d$",
          ylabel="best learning rate")  # fmt: skip
    handles = handles_of(numbers, looks)
    legend_below(figure, handles, len(handles) if len(handles) < 7 else 4)
    return caption(figure, context, "best rates: of a parabola; numbers: exponents of d, 95%")
