"""Which direction is the steepest for which layer, and how tight the head's worst case is (ours).

a: what each of five directions gains per step, over the most that any can, by layer; a point is one
kind of gradient. b: where the largest loss of a head lies between its bounds D and D + log V.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL
from analysis.quantities import steepest_theory as found
from analysis.quantities.steepest_theory import DIRECTIONS, GRADIENTS, HEADS, LAYERS
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("steepest_theory",)
# Colour, marker and name.
LOOKS = {
    "raw": ("#888888", "o", "gradient"),
    "sign": ("#D1783C", "^", "sign"),
    "row": ("#2E7DB5", "s", "rows / norms"),
    "column": ("#8E6BBF", "D", "columns / norms"),
    "msign": ("#222222", "v", "msign"),
}
# Names of heads, in points from their places; a shifted head lies where the initial one does.
_NAMED = {
    "initial": ("initial", 0, -9), "medium": ("4 × initial", 32, 3),
    "large": ("16 × initial", -8, 9), "trained": ("trained", 6, -9),
}  # fmt: skip


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, of (layer or head), direction, gradient, seed, x (D of a head), value."""
    table = tables["steepest_theory"]
    stats = {f"slope_{name}": name for name in DIRECTIONS}
    keys = {f"{layer}.{kind}": (layer, kind) for layer in LAYERS for kind in GRADIENTS}
    slopes = table.pick(arm="DIRECTIONS", stat=tuple(stats), tensor=tuple(keys))
    a = pd.DataFrame(
        {
            "panel": "a",
            "of": [keys[key][0] for key in slopes["tensor"]],
            "direction": slopes["stat"].map(stats).to_numpy(),
            "gradient": [keys[key][1] for key in slopes["tensor"]],
            "seed": slopes["seed"].to_numpy(),
            "x": np.nan,
            "value": slopes["value"].to_numpy(),
        }
    )
    b = [
        pd.DataFrame({"panel": "b", "of": head, "direction": None, "gradient": None,
                      "seed": sorted(table.pick(arm="HEAD", stat="lower")["seed"].unique()),
                      "x": found.of_head(table, head, "lower"),
                      "value": found.place(table, head)})
        for head in HEADS
    ]  # fmt: skip
    return pd.concat([a, *b], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, axes = page(1, 2, 2.9, w_pad=0.06, width_ratios=[1.7, 1.0])
    panels = dict(tuple(numbers.groupby("panel")))
    _slopes(axes[0], panels["a"])
    _bracket(axes[1], panels["b"])
    marks = [key(name, color=colour, marker=marker, lw=0, ms=4)
             for colour, marker, name in LOOKS.values()]  # fmt: skip
    legend_below(figure, marks, 5)
    return caption(figure, context, "a: means over seeds")


def _slopes(axis, rows: pd.DataFrame) -> None:
    means = rows.groupby(["of", "direction", "gradient"])["value"].mean()
    for place, layer in enumerate(LAYERS):
        for number, (direction, (colour, marker, _)) in enumerate(LOOKS.items()):
            values = means[layer, direction].to_numpy()
            x = place + 0.15 * (number - 2)
            axis.plot(np.full(len(values), x), values, marker, color=colour, ms=3, alpha=0.75, lw=0)
    axis.axhline(1, **NEUTRAL, ls=":")
    axis.set_xticks(range(len(LAYERS)), LAYERS)
    axis.set(ylim=(0, 1.06), xlim=(-0.5, len(LAYERS) - 0.5))
    label(axis, "a   Each layer has a steepest direction of its own",
          ylabel="gain per step / the most possible")  # fmt: skip


def _bracket(axis, rows: pd.DataFrame) -> None:
    for head, (name, right, up) in _NAMED.items():
        own = rows[rows["of"] == head]
        axis.plot(own["x"], own["value"], "o", color=LOOKS["row"][0], ms=3, alpha=0.6, lw=0)
        axis.annotate(name, (own["x"].mean(), own["value"].mean()), (right, up),
                      textcoords="offset points", ha="center", va="center",
                      fontsize=6.5)  # fmt: skip
    axis.axhline(0, **NEUTRAL, ls=":")
    axis.axhline(1, **NEUTRAL, ls=":")
    axis.set(xscale="log", ylim=(-0.15, 1.1))
    axis.set_xlim(rows["x"].min() / 1.8, rows["x"].max() * 1.8)
    axis.set_xticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    axis.set_yticks([0, 1], ["D", "D + log V"])
    axis.xaxis.set_minor_locator(NullLocator())
    label(axis, "b   log V counts at small D", xlabel="D of the head",
          ylabel="largest loss")  # fmt: skip
