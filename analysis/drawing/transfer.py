"""Losses against a learning rate, or a factor on all of them, and the best of each width.

Rows have the columns quantity (loss, best, exponent), recipe, width, rate, seed, value; ``looks``
maps a recipe to its colour, marker and name.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.page import key
from analysis.drawing.style import plain_log_axis, ramp
from analysis.quantities.stats import interval, with_interval
from analysis.quantities.transfer import best_rate, drift, losses
from analysis.tables.results import Tables

# Beyond so much above the lowest a loss is not drawn.
_TOP = 0.3
_MARKERS = "osD^vP"
Looks = Mapping[str, tuple[str, str, str]]


def of_recipes(table: Tables, looks: Looks, rate: str = "lr") -> pd.DataFrame:
    """Losses, best rates and the exponents of the width in them."""
    parts = []
    for recipe in looks:
        stacked = losses(table, recipe, rate).rename_axis(columns=["width", "rate"])
        stacked = stacked.stack([0, 1], future_stack=True).rename("value")
        parts.append(stacked.reset_index().assign(quantity="loss", recipe=recipe))
        best = best_rate(table, recipe, rate).rename_axis(columns="width").stack(future_stack=True)
        best = best.rename("value").reset_index()
        parts.append(best.assign(quantity="best", recipe=recipe, rate=np.nan))
        exponent = drift(table, recipe, rate).rename("value").reset_index()
        parts.append(exponent.assign(quantity="exponent", recipe=recipe, width=0, rate=np.nan))
    columns = ["quantity", "recipe", "width", "rate", "seed", "value"]
    return pd.concat(parts)[columns].replace(np.inf, np.nan).reset_index(drop=True)


def colours_of(numbers: pd.DataFrame) -> dict[float, str]:
    """A colour for each width, from the smallest."""
    widths = sorted(numbers.loc[numbers["quantity"] == "loss", "width"].unique())
    return dict(zip(widths, ramp(len(widths)), strict=True))


def basin(axis, numbers: pd.DataFrame, recipe: str) -> None:
    """Mean losses of all widths less the lowest mean of each, and a larger mark at that."""
    losses_of = numbers[numbers["quantity"] == "loss"]
    rates = sorted(losses_of["rate"].unique())
    rows = losses_of[losses_of["recipe"] == recipe]
    for (width, colour), marker in zip(colours_of(numbers).items(), _MARKERS, strict=False):
        of_width = rows[rows["width"] == width]
        means = of_width.groupby("rate")["value"].apply(lambda v: v.mean(skipna=False)).dropna()
        if means.empty:  # a recipe need not be trained at every width
            continue
        above = means - means.min()
        axis.plot(above.index, above, color=colour, marker=marker, ms=2.4, lw=1.1, zorder=3)
        lowest = above.idxmin()
        axis.plot(lowest, 0, marker, color=colour, ms=5.5, mec="white", mew=0.6, zorder=4)
    axis.set(xlim=(rates[0] / 1.15, 1.15 * rates[-1]), ylim=(-0.012, _TOP))
    plain_log_axis(axis, x=True)


def best(axis, numbers: pd.DataFrame, looks: Looks, beside: bool = False) -> None:
    """Best rates by width: means with intervals, points of seeds beside them, and exponents.

    Exponents have the colours of their recipes. They stand in the axes, or right ``beside`` them.
    """
    widths = list(colours_of(numbers))
    found = numbers[numbers["quantity"] == "best"].dropna(subset="value")
    shift = 1.06
    for place, (recipe, (colour, marker, _)) in enumerate(looks.items()):
        aside = shift ** (place - (len(looks) - 1) / 2)
        own = found[found["recipe"] == recipe]
        logs = np.log(own["value"]).groupby(own["width"])
        means = {width: interval(values) for width, values in logs}
        # A gap where a width that was trained has no best rate.
        trained = numbers[(numbers["quantity"] == "loss") & (numbers["recipe"] == recipe)]
        trained = np.sort(trained.dropna(subset="value")["width"].unique())
        heights = [np.exp(means[w].mean) if w in means else np.nan for w in trained]
        axis.plot(aside * trained, heights, color=colour, marker=marker, ms=3.6, lw=1.2,
                  zorder=4)  # fmt: skip
        for width, mean in means.items():
            at = aside * width
            if mean.n > 1:
                axis.plot([at, at], np.exp([mean.low, mean.high]), color=colour, lw=1, zorder=3)
        axis.plot(aside * own["width"] * 1.03, own["value"], marker, color=colour, ms=2, lw=0,
                  alpha=0.45, mew=0)  # fmt: skip
        exponents = numbers[(numbers["quantity"] == "exponent") & (numbers["recipe"] == recipe)]
        if exponents["value"].notna().all():
            text = with_interval(exponents["value"], 2).replace("-", "−")
            said = axis.text(1.05 if beside else 0.97, 0.97 - 0.085 * place, text, color=colour,
                             ha="left" if beside else "right", va="top", fontsize=6.5,
                             transform=axis.transAxes)  # fmt: skip
            said.set_in_layout(not beside)
    axis.set_xscale("log", base=2)
    axis.set_xticks(widths, [f"{width:g}" for width in widths])
    axis.xaxis.set_minor_locator(NullLocator())
    rates = numbers.loc[numbers["quantity"] == "loss", "rate"]
    # Where every lowest loss is at an edge there is no best rate to show.
    values = found["value"] if len(found) else rates
    axis.set_ylim(values.min() / 1.6, values.max() * (1.6 if beside else 2.4))
    plain_log_axis(axis)


def handles_of(numbers: pd.DataFrame, looks: Looks) -> list:
    """For a legend: the widths, then the recipes."""
    marked = zip(colours_of(numbers).items(), _MARKERS, strict=False)
    found = [
        key(f"$d$ = {width:g}", color=colour, marker=marker, ms=3)
        for (width, colour), marker in marked
    ]
    return found + [key(name, color=colour, marker=marker, ms=3.6, lw=1)
                    for colour, marker, name in looks.values()]  # fmt: skip
