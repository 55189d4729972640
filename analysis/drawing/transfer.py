"""Losses against a learning rate, or a factor on all of them, and the best of each width.

Rows have the columns quantity (loss, best, exponent), recipe, width, rate, seed, value; ``looks``
maps a recipe to its colour, marker and name.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.page import key, legend_below
from analysis.drawing.style import ARM_LOOKS, colour_of_width, plain_log_axis
from analysis.quantities.stats import interval, with_interval
from analysis.quantities.transfer import best_rate, drift, losses
from analysis.tables.results import Tables

# Beyond so much above the lowest a loss is not drawn.
TOP = 0.3
Looks = Mapping[str, tuple[str, str, str]]
# Colour and marker of the recipes that several figures have. Widths have colours alone.
ONE_LR = ("#888888", "o")
MUP = ("#222222", "D")
SCALARS = (ARM_LOOKS["SPN"]["color"], ARM_LOOKS["SPN"]["marker"])
STEEPEST = ("#AA3377", "v")
# What a caption says of ``valley``.
SAID = "losses: means; bars: 95% of the difference to the lowest, paired by seed"


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
    """The colour of each width, from the smallest."""
    widths = sorted(numbers.loc[numbers["quantity"] == "loss", "width"].unique())
    return {width: colour_of_width(width) for width in widths}


def basin(axis, numbers: pd.DataFrame, recipe: str) -> None:
    """Mean losses of all widths less the lowest mean of each, and a ring at that.

    Bars are 95% intervals of the differences to it, paired by seed.
    """
    losses_of = numbers[numbers["quantity"] == "loss"]
    rates = sorted(losses_of["rate"].unique())
    rows = losses_of[losses_of["recipe"] == recipe]
    # Widths may share a lowest: rings of wider models are smaller and lie inside the others.
    colours = colours_of(numbers)
    sizes = np.linspace(10.5, 5.0, len(colours))
    for (width, colour), size in zip(colours.items(), sizes, strict=True):
        table = rows[rows["width"] == width].pivot(index="seed", columns="rate", values="value")
        valley(axis, table, colour, size)
    axis.set(xlim=(rates[0] / 1.15, 1.15 * rates[-1]), ylim=(-0.012, TOP))
    plain_log_axis(axis, x=True)
    axis.set_xticks(rates, minor=True)


def valley(axis, table: pd.DataFrame, colour: str, size: float = 5.5) -> float | None:
    """Losses (seeds × rates) above the rate with the lowest mean, as ``basin``; returns that rate.

    The ring around it has ``size`` points. A rate at which a run diverged has no point. None where
    no rate has one: not every recipe is trained at every width.
    """
    table = table.dropna(axis=1)
    if table.empty:
        return None
    lowest = table.mean().idxmin()
    above = table.sub(table[lowest], axis=0)
    axis.plot(above.columns, above.mean(), ".-", color=colour, ms=3.2, lw=1.1, zorder=3)
    for rate, values in above.items():
        found = interval(values)
        if found.n > 1:
            axis.plot([rate] * 2, [found.low, found.high], color=colour, lw=0.7, alpha=0.7)
    axis.plot(lowest, 0, "o", color=colour, ms=size, mfc="none", mew=1.1, zorder=4, clip_on=False)
    return float(lowest)


def best(axis, numbers: pd.DataFrame, looks: Looks) -> None:
    """Best rates by width: means with intervals, and points of seeds beside them.

    A hollow mark has a seed whose best rate is the first or the last that was tried. ``legends``
    has the exponents.
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
            if _at_an_edge(numbers, recipe, width):
                axis.plot(
                    at, np.exp(mean.mean), marker, color=colour, mfc="white", ms=3.6, zorder=5
                )
            if mean.n > 1:
                axis.plot([at, at], np.exp([mean.low, mean.high]), color=colour, lw=1, zorder=3)
        axis.plot(aside * own["width"] * 1.03, own["value"], marker, color=colour, ms=2, lw=0,
                  alpha=0.45, mew=0)  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_xticks(widths, [f"{width:g}" for width in widths])
    axis.xaxis.set_minor_locator(NullLocator())
    rates = numbers.loc[numbers["quantity"] == "loss", "rate"]
    # Where every lowest loss is at an edge there is no best rate to show.
    values = found["value"] if len(found) else rates
    axis.set_ylim(values.min() / 1.6, values.max() * 1.6)
    plain_log_axis(axis)


def _exponent(numbers: pd.DataFrame, recipe: str) -> str:
    """The exponent of the width in the best rate of a recipe, as text."""
    found = numbers[(numbers["quantity"] == "exponent") & (numbers["recipe"] == recipe)]
    if not found["value"].notna().all():
        return "none (at an edge)"
    return with_interval(found["value"], 2).replace("-", "−")


def _at_an_edge(numbers: pd.DataFrame, recipe: str, width: float) -> bool:
    """Whether the best rate of a seed is the first or the last that was tried at this width."""
    rows = numbers[(numbers["recipe"] == recipe) & (numbers["width"] == width)].dropna(
        subset="value"
    )
    tried = rows.loc[rows["quantity"] == "loss", "rate"]
    found = rows.loc[rows["quantity"] == "best", "value"]
    return bool(np.isclose(found, tried.min()).any() or np.isclose(found, tried.max()).any())


def legends(figure, numbers: pd.DataFrame, looks: Looks, basins: str, last: str) -> None:
    """Below the panels: the widths, in the panels ``basins``, and the recipes, in ``last``.

    Beside its name each recipe has the exponent of the width in its best rate.
    """
    widths = [key(f"$d$ = {width:g}", color=colour, marker=".", ms=3.2)
              for width, colour in colours_of(numbers).items()]  # fmt: skip
    recipes = [key(f"{name}: {_exponent(numbers, recipe)}", color=colour, marker=marker, ms=3.6,
                   lw=1) for recipe, (colour, marker, name) in looks.items()]  # fmt: skip
    for panels, handles, columns in ((last, recipes, 2), (basins, widths, len(widths))):
        handles[0].set_label(f"{panels}:  {handles[0].get_label()}")
        legend_below(figure, handles, columns, columnspacing=1.2)
