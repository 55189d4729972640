"""Which direction is the steepest for which layer, and how tight the head's worst case is (ours).

a: what each of five directions gains per step, over what the layer's own direction gains, by layer;
a point is one kind of gradient. The last column measures a step on the head by D itself, where
another direction, which ascent found, gains more. b: where the largest loss of a head lies between
its bounds D and D + log V.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, SMALL
from analysis.quantities import steepest_theory as of_theory
from analysis.quantities.steepest_theory import DIRECTIONS, GRADIENTS, HEADS, LAYERS
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("steepest_theory",)
# Colour, marker and name.
LOOKS = {
    "raw": ("#888888", "o", "gradient"),
    "sign": ("#B8860B", "^", "sign"),
    "row": ("#AA3377", "s", "rows / norms"),
    "column": ("#8E6BBF", "D", "columns / norms"),
    "msign": ("#222222", "v", "msign"),
    "found": ("#CC3311", "*", "found by ascent"),
}
# A gradient whose rows sum to zero, for which D is a norm of a step.
_OF_A_LOSS = "head.softmax"
BY_DIFFERENCE = "head, by D"
_COLUMNS = {**{layer: layer for layer in LAYERS}, BY_DIFFERENCE: "head,\nby D"}
# Names of heads beside their points: the side at which they stand, and points up.
_NAMED = {
    "initial": ("initial,\nand shifted", 1, 0), "medium": ("4 × initial", 1, 0),
    "large": ("16 × initial", -1, 9), "trained": ("trained", 0, 9),
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
                      "x": of_theory.of_head(table, head, "lower"),
                      "value": of_theory.place(table, head)})
        for head in HEADS
    ]  # fmt: skip
    return pd.concat([a, *_by_difference(table), *b], ignore_index=True)


def _by_difference(table: Tables) -> list[pd.DataFrame]:
    """Slopes of a head's directions over that of rows / norms, with D as the norm of a step."""
    stats = {f"difference_{name}": name for name in ("raw", "sign", "column", "msign")}
    rows = table.pick(arm="DIRECTIONS", stat=tuple(stats), tensor=_OF_A_LOSS)
    by_stat = rows.sort_values("seed").groupby("stat")["value"]
    found = {stats[stat]: values.to_numpy() for stat, values in by_stat}
    gains = np.array(of_theory.gain_in_differences(table))
    found |= {"row": np.ones(len(gains)), "found": 1 + gains}
    seeds = sorted(rows["seed"].unique())
    return [pd.DataFrame({"panel": "a", "of": BY_DIFFERENCE, "direction": name,
                          "gradient": "softmax", "seed": seeds, "x": np.nan, "value": values})
            for name, values in found.items()]  # fmt: skip


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, axes = page(1, 2, 2.9, w_pad=0.06, width_ratios=[1.75, 1.0])
    panels = dict(tuple(numbers.groupby("panel")))
    _slopes(axes[0], panels["a"])
    _bracket(axes[1], panels["b"])
    marks = [key(name, color=colour, marker=marker, lw=0, ms=6 if marker == "*" else 4)
             for colour, marker, name in LOOKS.values()]  # fmt: skip
    legend_below(figure, marks, 6, handletextpad=0.1)
    note = "a: means over seeds, a point is a kind of gradient; several at 1 are one direction"
    return caption(figure, context, note)


def _slopes(axis, rows: pd.DataFrame) -> None:
    means = rows.groupby(["of", "direction", "gradient"])["value"].mean()
    for place, of in enumerate(_COLUMNS):
        there = [name for name in LOOKS if (of, name) in means.index.droplevel("gradient")]
        for number, direction in enumerate(there):
            colour, marker, _ = LOOKS[direction]
            values = means[of, direction].to_numpy()
            x = np.full(len(values), place + 0.15 * (number - (len(there) - 1) / 2))
            size = 6 if marker == "*" else 3
            axis.plot(x, values, marker, color=colour, ms=size, alpha=0.8, mew=0)
    more = means[BY_DIFFERENCE, "found"].iloc[0]
    axis.text(len(_COLUMNS) - 0.8, more, f"{100 * (more - 1):+.0f}%", ha="right", va="center",
              fontsize=SMALL, color=LOOKS["found"][0])  # fmt: skip
    axis.axhline(1, **NEUTRAL, ls=":")
    axis.axvline(len(LAYERS) - 0.5, **NEUTRAL)
    axis.grid(axis="x", visible=False)
    axis.set_xticks(range(len(_COLUMNS)), _COLUMNS.values())
    axis.tick_params(axis="x", length=0)
    axis.set(ylim=(0, 1.18), xlim=(-0.5, len(_COLUMNS) - 0.5))
    label(axis, "a   Each criterion has its own steepest direction",
          ylabel="gain per step / own direction's")  # fmt: skip


def _bracket(axis, rows: pd.DataFrame) -> None:
    for head, (name, side, up) in _NAMED.items():
        own = rows[rows["of"] == head]
        axis.plot(own["x"], own["value"], "o", color="#444444", ms=3, alpha=0.5, mew=0)
        edge = own["x"].max() if side > 0 else own["x"].min() if side < 0 else own["x"].mean()
        axis.annotate(name, (edge, own["value"].mean()), (5 * side, up),
                      ha={1: "left", 0: "center", -1: "right"}[side], va="center",
                      textcoords="offset points", fontsize=SMALL)  # fmt: skip
    axis.axhline(0, **NEUTRAL, ls=":")
    axis.axhline(1, **NEUTRAL, ls=":")
    axis.set(xscale="log", ylim=(-0.08, 1.08))
    axis.set_xlim(rows["x"].min() / 1.5, rows["x"].max() * 1.7)
    axis.set_xticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    axis.set_yticks([0, 0.5, 1])
    axis.xaxis.set_minor_locator(NullLocator())
    label(axis, "b   log V counts at small D", xlabel="D of the head",
          ylabel="(largest loss − D) / log V")  # fmt: skip
