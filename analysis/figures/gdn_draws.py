"""What the draw of the heads' numbers does to the loss of a Gated Delta Network (ours; GD15).

a: the loss of each run less the mean of its seed, by draw, in the order of the means; points are
seeds, bars means with 95% intervals. b: the same by seed, less the mean of the draw.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.page import caption, label, page
from analysis.drawing.style import NEUTRAL
from analysis.quantities.gdn_draws import losses
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("gdn_draws",)
_COLOUR = "#2E7DB5"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: seed, draw, value (nats per token)."""
    return losses(tables[EXPERIMENTS[0]]).stack().rename("value").reset_index()


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels with one axis of losses."""
    figure, axes = page(1, 2, 2.3, w_pad=0.04, sharey=True)
    table = numbers.pivot(index="seed", columns="draw", values="value")
    of_draws = table.sub(table.mean(axis=1), axis=0)
    of_seeds = table.sub(table.mean(axis=0), axis=1).T
    spread = {"draw": of_draws.mean().std(), "seed": of_seeds.mean().std()}
    for axis, letter, by, values in zip(axes, "ab", spread, (of_draws, of_seeds), strict=True):
        ordered = values[values.mean().sort_values().index]
        for place, (_, own) in enumerate(ordered.items()):
            axis.plot([place] * len(own), own, "o", color=_COLOUR, ms=2.4, alpha=0.5, mew=0)
            mean = interval(own)
            axis.plot([place - 0.3, place + 0.3], [mean.mean] * 2, color="black", lw=1.4)
            if mean.n > 1:
                axis.plot([place, place], [mean.low, mean.high], color="black", lw=1)
        axis.axhline(0, **NEUTRAL)
        axis.set_xticks([])
        label(axis, f"{letter}   By {by}: standard deviation {spread[by]:.3f}",
              xlabel=f"{by}s, in the order of their means")  # fmt: skip
    axes[0].set_ylabel("loss − mean of the other (nats)")
    note = "each draw of the heads' numbers with each seed, which draws the rest and the data"
    return caption(figure, context, note)
