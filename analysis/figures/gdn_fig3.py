"""Figure 3 of the third paper: which learning rate (LR) is best at each width, under AdamW.

A panel for each recipe: the loss after the decay, less the lowest of its width, against the LR;
means over seeds, and a larger mark at the lowest. The last panel: the best LR against the width,
the minimum of a parabola, seed by seed, with the mean and its 95% interval, and the exponent of the
width in it. A run that diverged has no point.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, plain_log_axis, ramp
from analysis.quantities.stats import interval, with_interval
from analysis.quantities.transfer import best_lr, drift, losses
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("gdn_transfer",)
# Colour, marker and name of each recipe, as in the other figures of this paper.
LOOKS = {
    "SP": ("#888888", "o", "SP"),
    "MUP": ("#2E7DB5", "s", "muP"),
}
# Beyond so much above the lowest a loss is not drawn.
_TOP = 0.3
_MARKERS = "osD^vP"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """As ``of_recipes``."""
    return of_recipes(tables[EXPERIMENTS[0]], LOOKS)


def draw(numbers: pd.DataFrame, context: Context):
    """Two recipes and their best LRs."""
    return panels(numbers, context, LOOKS)


def of_recipes(table: Tables, looks: Mapping[str, tuple]) -> pd.DataFrame:
    """Columns: quantity (loss, best, exponent), recipe, width, lr, seed, value."""
    parts = []
    for recipe in looks:
        stacked = losses(table, recipe).stack([0, 1], future_stack=True).rename("value")
        parts.append(stacked.reset_index().assign(quantity="loss", recipe=recipe))
        best = best_lr(table, recipe).rename_axis(columns="width").stack(future_stack=True)
        best = best.rename("value").reset_index()
        parts.append(best.assign(quantity="best", recipe=recipe, lr=np.nan))
        exponent = drift(table, recipe).rename("value").reset_index()
        parts.append(exponent.assign(quantity="exponent", recipe=recipe, width=0, lr=np.nan))
    columns = ["quantity", "recipe", "width", "lr", "seed", "value"]
    return pd.concat(parts)[columns].replace(np.inf, np.nan).reset_index(drop=True)


def panels(numbers: pd.DataFrame, context: Context, looks: Mapping[str, tuple]):
    """A panel for each recipe, and one of the best LRs."""
    count = len(looks) + 1
    figure, axes = page(1, count, 2.6, w_pad=0.04, width_ratios=[1.0] * len(looks) + [1.15])
    losses_of = numbers[numbers["quantity"] == "loss"]
    widths = sorted(losses_of["width"].unique())
    colours = dict(zip(widths, ramp(len(widths)), strict=True))
    rates = sorted(losses_of["lr"].unique())
    for axis, letter, (recipe, (*_, name)) in zip(axes, "abcd", looks.items(), strict=False):
        _basin(axis, losses_of[losses_of["recipe"] == recipe], colours)
        axis.set(xlim=(rates[0] / 1.15, 1.15 * rates[-1]), ylim=(-0.012, _TOP))
        plain_log_axis(axis, x=True)
        label(axis, f"{letter}   {name}", xlabel="learning rate")
        axis.label_outer()
    axes[0].set_ylabel("loss − lowest of its width (nats)")
    _best(axes[-1], numbers, looks, widths)
    label(axes[-1], f"{'abcde'[len(looks)]}   Best rate by width", xlabel="width $d$",
          ylabel="best learning rate")  # fmt: skip
    marked = zip(colours.items(), _MARKERS, strict=False)
    handles = [
        key(f"$d$ = {width:g}", color=colour, marker=marker, ms=3)
        for (width, colour), marker in marked
    ]
    handles += [key(name, color=colour, marker=marker, ms=3.6, lw=1)
                for colour, marker, name in looks.values()]  # fmt: skip
    legend_below(figure, handles, len(handles) if len(handles) < 7 else 4)
    return caption(figure, context, "best rates: of a parabola; numbers: exponents of d, 95%")


def _basin(axis, rows: pd.DataFrame, colours: Mapping[float, str]) -> None:
    """Curves of all widths over the LR; those that fall out of the panel leave it."""
    for (width, colour), marker in zip(colours.items(), _MARKERS, strict=False):
        of_width = rows[rows["width"] == width]
        means = of_width.groupby("lr")["value"].apply(lambda v: v.mean(skipna=False)).dropna()
        above = means - means.min()
        axis.plot(above.index, above, color=colour, marker=marker, ms=2.4, lw=1.1, zorder=3)
        lowest = above.idxmin()
        axis.plot(lowest, 0, marker, color=colour, ms=5.5, mec="white", mew=0.6, zorder=4)


def _best(axis, numbers: pd.DataFrame, looks: Mapping[str, tuple], widths: list[float]) -> None:
    """Means with intervals, and points of seeds beside them."""
    found = numbers[numbers["quantity"] == "best"].dropna(subset="value")
    shift = 1.06
    for place, (recipe, (colour, marker, name)) in enumerate(looks.items()):
        aside = shift ** (place - (len(looks) - 1) / 2)
        own = found[found["recipe"] == recipe]
        logs = np.log(own["value"]).groupby(own["width"])
        means = {width: interval(values) for width, values in logs}
        places = [aside * width for width in means]
        axis.plot(places, [np.exp(m.mean) for m in means.values()], color=colour, marker=marker,
                  ms=3.6, lw=1.2, zorder=4)  # fmt: skip
        for at, mean in zip(places, means.values(), strict=True):
            if mean.n > 1:
                axis.plot([at, at], np.exp([mean.low, mean.high]), color=colour, lw=1, zorder=3)
        axis.plot(aside * own["width"] * 1.03, own["value"], marker, color=colour, ms=2, lw=0,
                  alpha=0.45, mew=0)  # fmt: skip
        exponents = numbers[(numbers["quantity"] == "exponent") & (numbers["recipe"] == recipe)]
        if exponents["value"].notna().all():
            text = with_interval(exponents["value"], 2).replace("-", "−")
            axis.text(0.97, 0.97 - 0.085 * place, f"{name}: {text}", color=colour, ha="right",
                      va="top", fontsize=6.5, transform=axis.transAxes)  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_xticks(widths, [f"{width:g}" for width in widths])
    axis.xaxis.set_minor_locator(NullLocator())
    rates = numbers.loc[numbers["quantity"] == "loss", "lr"]
    # Where every lowest loss is at an edge there is no best rate to show.
    values = found["value"] if len(found) else rates
    axis.set_ylim(values.min() / 1.6, values.max() * 2.4)
    plain_log_axis(axis)
    middle = found[found["width"] == widths[0]]["value"]
    if len(middle):
        axis.axhline(float(np.exp(np.log(middle).mean())), **NEUTRAL, ls=":")
