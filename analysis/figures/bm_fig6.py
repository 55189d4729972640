"""The scale of attention's logits over the size of heads (ours; BM5).

a, b: the loss after the decay, less the lowest of its size, against the scale of logits; means over
seeds, and a ring at the lowest. Triangles mark where the best scale of the smallest heads
would lie for the largest: carried by the size of heads, or by its root. c: the exponent of the size
of heads in the best scale, the minimum of a parabola. d: what the scale costs with the largest
heads when it is carried by the root, less what it costs when carried by the size.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import dots
from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, NOT_JUDGED, SMALL, plain_log_axis, ramp
from analysis.drawing.transfer import MUP, SAID, STEEPEST, valley
from analysis.quantities import steepest_heads as found
from analysis.quantities import transfer
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("steepest_heads",)
# Colour, marker and name.
LOOKS = {
    "STEEPEST": (*STEEPEST, "steepest descent"),
    "ADAMW_MUP": (*MUP, "AdamW, muP"),
}
# Beyond so much above the lowest a loss is not drawn.
_TOP = 0.15
MESSAGE = (
    "With steepest descent the best scale's exponent lies between −1 and −½,\n"
    "and both, carried to larger heads, cost alike within 0.01 nats"
)
_CARRIED = {found.BY_SIZE: ("^", "by the size"), found.BY_ROOT: ("v", "by its root")}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: quantity (loss, exponent, cost), recipe, size, scale, seed, value."""
    table, parts = tables[EXPERIMENTS[0]], []
    for recipe in LOOKS:
        stacked = transfer.losses(found.by_size(table), recipe, found.RATE)
        stacked = stacked.rename_axis(columns=["size", "factor"])
        rows = stacked.stack([0, 1], future_stack=True).rename("value").reset_index()
        rows["scale"] = rows["factor"] * rows["size"] ** found.BY_ROOT
        parts.append(rows.assign(quantity="loss", recipe=recipe))
        cost = found.carried(table, recipe, found.BY_ROOT)
        cost = cost - found.carried(table, recipe, found.BY_SIZE)
        for quantity, values in (("exponent", found.exponent(table, recipe)), ("cost", cost)):
            rows = values.rename_axis("seed").rename("value").reset_index()
            parts.append(rows.assign(quantity=quantity, recipe=recipe, size=np.nan, scale=np.nan))
    columns = ["quantity", "recipe", "size", "scale", "seed", "value"]
    together = pd.concat(parts, ignore_index=True)[columns].replace(np.inf, np.nan)
    # A run that diverged has no loss, so that its scale has no mean.
    kept = together["value"].notna() | (together["quantity"] == "loss")
    return together[kept].reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two basins, the exponents, and what a carried scale costs."""
    figure, grid = page(2, 2, 4.5, w_pad=0.04, h_pad=0.04, height_ratios=[1.5, 1])
    headline(figure, MESSAGE, context)
    axes = grid.flat
    losses = numbers[numbers["quantity"] == "loss"]
    sizes = sorted(losses["size"].unique())
    colours = dict(zip(sizes, ramp(len(sizes)), strict=True))
    for axis, letter, (recipe, (*_, name)) in zip(axes, "ab", LOOKS.items(), strict=False):
        _basin(axis, losses[losses["recipe"] == recipe], colours)
        label(axis, f"{letter}   {name}", xlabel="scale of logits")
    axes[0].set_ylabel("loss − lowest of its size (nats)")
    found_, markers = ({look[2]: look[n] for look in LOOKS.values()} for n in (0, 1))
    for axis, quantity, title, what in (
        (axes[2], "exponent", "c   Best scale", "exponent of the size of heads"),
        (
            axes[3],
            "cost",
            "d   Carried to the largest heads",
            "loss by the root − by the size (nats)",
        ),
    ):
        rows = numbers[numbers["quantity"] == quantity]
        named = {look[2]: rows.loc[rows["recipe"] == r, "value"] for r, look in LOOKS.items()}
        dots(axis, named, found_, markers=markers, below=0.28)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0, labelsize=SMALL)
        axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        label(axis, title, xlabel=what)
    for power, (_, name) in _CARRIED.items():
        axes[2].axvline(power, **NEUTRAL)
        axes[2].annotate(name, (power, 1), xycoords=("data", "axes fraction"), xytext=(2, -1),
                         textcoords="offset points", va="top", fontsize=SMALL)  # fmt: skip
    matters = criteria_of("steepest_heads")["BM5"]["smallest_effect"]
    axes[3].axvspan(-matters, matters, **NOT_JUDGED, lw=0, zorder=0)
    axes[3].axvline(0, **NEUTRAL)
    axes[3].set_yticklabels([])
    axes[1].set_yticklabels([])
    handles = [key(f"heads of {size:g}", color=colours[size], marker=".", ms=3.2)
               for size in sizes]  # fmt: skip
    handles += [key(f"best of the smallest, carried {name}", color=colours[sizes[-1]],
                    marker=marker, lw=0, ms=5) for marker, name in _CARRIED.values()]  # fmt: skip
    legend_below(figure, handles, 2)
    note = f"{SAID}; cut at {_TOP:g} nats\nc, d: points are seeds, bars means, 95%; "
    note += f"d, grey: ± {matters:g}"
    return caption(figure, context, note)


def _basin(axis, rows: pd.DataFrame, colours: dict[float, str]) -> None:
    """Mean losses of each size less the lowest of them, and where a carried scale would lie."""
    best = {}
    for size, colour in colours.items():
        table = rows[rows["size"] == size].pivot(index="seed", columns="scale", values="value")
        best[size] = valley(axis, table, colour)
    smallest, *_, largest = colours
    for power, (marker, _) in _CARRIED.items():
        if best[smallest] is None:
            break
        place = best[smallest] * (largest / smallest) ** power
        axis.plot(place, -0.013, marker, color=colours[largest], ms=5, mew=0, clip_on=False)
    axis.set(ylim=(-0.02, _TOP))
    plain_log_axis(axis, x=True)
