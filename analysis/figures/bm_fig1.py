"""Which direction is the steepest for which layer, and how tight the head's worst case is (ours).

a: what each of five directions gains per step, over what the layer's own direction gains, by layer.
A pale point is one kind of gradient, and a full one the kind of each seed at which the direction
gains most; rings mark a layer's own direction. The last column measures a step on the head by D
itself, where another direction, which ascent found, gains more. b: where the largest loss of a head
lies between its bounds D and D + log V; points are seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.page import caption, finding, headline, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, SMALL
from analysis.quantities import steepest_theory as of_theory
from analysis.quantities.stats import interval
from analysis.quantities.steepest_theory import DIRECTIONS, GRADIENTS, HEADS, LAYERS
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("steepest_theory",)
MESSAGE = (
    "Each layer's own direction gains most by its own criterion; by D itself it does not on\n"
    "the head (a). A head's largest loss found is clearly above D only for small D (b)"
)
# Colour, marker and name.
LOOKS = {
    "raw": ("#888888", "o", "gradient"),
    "sign": ("#B8860B", "^", "sign"),
    "row": ("#AA3377", "s", "rows, each normalised"),
    "column": ("#8E6BBF", "D", "columns, each normalised"),
    "msign": ("#222222", "v", "msign (singular values set to 1)"),
    "found": ("#B2182B", "*", "another, found by ascent"),
}
# Of markers that would look larger or smaller than a circle.
_SIZES = {"*": 6, "^": 4.3, "v": 4.3, "s": 3.4, "D": 3.2}
_RING = {"marker": "o", "ms": 7.5, "mfc": "none", "mec": "#222222", "mew": 0.8}
# A gradient whose rows sum to zero, for which D is a norm of a step.
_OF_A_LOSS = "head.softmax"
BY_DIFFERENCE = "head, by D"
# Directions that are a layer's own: where there are several, they are one and the same.
OWN = {"linear": ("msign",), "embedding": ("row",), "head": ("row",), "gain": ("sign", "column"),
       "bias": ("raw", "row", "msign"), BY_DIFFERENCE: ("row",)}  # fmt: skip
# Name and place of each column; the last stands apart.
_COLUMNS = {**{layer: (layer, place) for place, layer in enumerate(LAYERS)},
            "gain": ("norm's\ngain", LAYERS.index("gain")),
            BY_DIFFERENCE: ("head,\nby D", len(LAYERS) + 0.26)}  # fmt: skip
# Names of heads beside their points: where in points, and on which side.
_NAMED = {
    "initial": ("initial", (6, 0), "left"), "medium": ("4 × initial", (6, 2), "left"),
    "large": ("16 × initial", (-7, 5), "right"), "trained": ("trained", (0, 24), "center"),
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
    figure, axes = page(1, 2, 3.75, w_pad=0.06, width_ratios=[1.75, 1.0])
    headline(figure, MESSAGE, context)
    panels = dict(tuple(numbers.groupby("panel")))
    _slopes(axes[0], panels["a"], context)
    _bracket(axes[1], panels["b"], context)
    marks = [key(name, color=colour, marker=marker, lw=0, ms=_SIZES.get(marker, 3.6) + 0.4)
             for colour, marker, name in LOOKS.values()]  # fmt: skip
    said = "the layer's own direction\n(several rings of a layer: the same)"
    marks.append(key(said, lw=0, **_RING))
    legend_below(figure, marks, 3, handletextpad=0.1)
    note = (
        "a: pale: one kind of gradient each; full: best kind of each seed, means with 95% intervals"
        "\nhead, by D: one kind of gradient; the star's 95% interval, in brackets (%), "
        "lies within it   b: points: seeds\n"
        "D: width × the largest distance between two rows of the head   V: number of rows\n"
        "criterion: the layer's worst-case norm of an update; "
        "gain: decrease to first order at criterion 1\n"
        "b: the fifth head is not drawn: the initial one, shifted, with the same D and loss"
    )
    return caption(figure, context, note)


def _slopes(axis, rows: pd.DataFrame, context: Context) -> None:
    groups = rows.groupby(["of", "direction"])
    for of, (_, middle) in _COLUMNS.items():
        there = [name for name in LOOKS if (of, name) in groups.groups]
        for number, direction in enumerate(there):
            x = middle + 0.16 * (number - (len(there) - 1) / 2)
            _gain(axis, x, groups.get_group((of, direction)), LOOKS[direction])
            if direction in OWN[of]:
                axis.plot(x, 1, **_RING)
    more = interval(100 * (groups.get_group((BY_DIFFERENCE, "found"))["value"] - 1))
    said = f"+{more.mean:.1f}%" + (f"\n[{more.low:.1f}, {more.high:.1f}]" if more.n > 1 else "")
    last = _COLUMNS[BY_DIFFERENCE][1]
    axis.text(last, 1.165 + more.mean / 300, said, ha="center", va="bottom", fontsize=SMALL,
              color=LOOKS["found"][0])  # fmt: skip
    axis.axhline(1, **NEUTRAL, ls=":")
    axis.axvline(len(LAYERS) - 0.4, **NEUTRAL)
    axis.grid(axis="x", visible=False)
    names, places = zip(*_COLUMNS.values(), strict=True)
    axis.set_xticks(places, names)
    axis.tick_params(axis="x", length=0)
    axis.set_yticks(np.arange(0, 1.1, 0.2))
    axis.set(ylim=(0, 1.42), xlim=(-0.5, last + 0.66))
    shown = (
        "Own directions gain most by their criterion;\n"
        f"     by D, another gains {more.mean:.0f}% more on the head"
    )
    plain = "Gains by the criterion of each layer,\n     and by D on the head"
    title = f"a   {finding(context, shown, plain)}"
    label(axis, title, ylabel="gain of a step / own direction's")


def _gain(axis, x: float, rows: pd.DataFrame, look: tuple[str, str, str]) -> None:
    """Kinds of gradients, pale, and the best kind of each seed."""
    colour, marker, _ = look
    kinds = rows.groupby("gradient")["value"].mean()
    if len(kinds) > 1:
        axis.plot([x] * len(kinds), kinds, marker, color=colour, ms=2.2, alpha=0.6, mew=0)
    best = interval(rows.groupby("seed")["value"].max())
    if best.n > 1:
        axis.plot([x, x], [best.low, best.high], color=colour, lw=1.0)
    axis.plot(x, best.mean, marker, color=colour, ms=_SIZES.get(marker, 3.6), mew=0)


def _bracket(axis, rows: pd.DataFrame, context: Context) -> None:
    for head, (name, aside, side) in _NAMED.items():
        own = rows[rows["of"] == head]
        axis.plot(own["x"], own["value"], "o", color="#444444", ms=3, alpha=0.5, mew=0)
        edge = own["x"].max() if side == "left" else own["x"].mean()
        line = {"arrowstyle": "-", "color": "#777777", "lw": 0.5, "shrinkA": 1, "shrinkB": 3}
        axis.annotate(name, (edge, own["value"].mean()), aside, ha=side, va="center",
                      textcoords="offset points", fontsize=SMALL,
                      arrowprops=None if side == "left" else line)  # fmt: skip
    for height, name in ((0, "D"), (1, "D + log V")):
        axis.axhline(height, **NEUTRAL, ls=":")
        axis.annotate(name, (0.03, height), (0, 2), xycoords=("axes fraction", "data"),
                      textcoords="offset points", fontsize=SMALL, color="#666666",
                      va="bottom")  # fmt: skip
    axis.set(xscale="log", ylim=(-0.08, 1.12))
    axis.set_xlim(rows["x"].min() / 1.5, rows["x"].max() * 1.7)
    axis.set_xticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    axis.set_yticks([0, 0.5, 1])
    axis.xaxis.set_minor_locator(NullLocator())
    shown = "The loss found is clearly\n     above D only for small D"
    title = finding(context, shown, "The loss found,\n     against D")
    label(axis, f"b   {title}", xlabel="D of the head", ylabel="(largest loss found − D) / log V")
