"""Figure 2 (section 3.1): scales over depth that scalar multipliers learn.

(a) norms of the blocks' outputs with multipliers over those without, layer by layer; whiskers hold
the middle half of the seeds, and a number with an arrow says how many seeds lie below the axis. The
others show multipliers over the median of a Brownian motion of the same multiplier: (b) at the end
of each block, (c) inside blocks, (d) the product of Q's and K's, for only that matters. Norms are
root mean squares, read at the end of the constant stage. Grey is the middle half of the draws of
the Brownian motion, between dotted lines lie 95% of them, and dots and dashes mark where
multipliers start. Dashed in b: the same initial values with another order of the data.
Titles name the layers whose median lies above those 95%; that of d also those where the 95%
interval of the median does. Numbers on top of d count the seeds above. Multipliers of Q and K begin
alike and have equal gradients, so that they take equal steps: their product is the square of one
walk. V and up are not drawn, because they repeat attention's out and the MLP's down for the same
reason; they are in the csv with all others, where multipliers stand as they are.
"""

from __future__ import annotations

import dataclasses
import textwrap

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from analysis.drawing.axes import end, median, name_ends
from analysis.drawing.page import caption, finding, headline, key, label, legend_below, page
from analysis.drawing.style import (
    BLOCK_LOOKS,
    BROWNIAN,
    NEUTRAL,
    NOISE_COLOUR,
    SMALL,
    plain_log_axis,
    shade,
)
from analysis.quantities import scale_diversity as scales
from analysis.quantities.stats import median_interval
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
ARMS = ("SCALAR", "SCALAR_ORDER")
# The middle half of the draws, and the limits of 95% of them.
NOISE = {"color": shade(NOISE_COLOUR, 0.75), "lw": 0}
LIMITS = {"color": shade(NOISE_COLOUR, 0.2), "lw": 0.8, "ls": (0, (1, 1.5))}
START = {"color": "#222222", "lw": 0.8, "ls": (0, (6, 2, 1, 2)), "zorder": 1.5}
AGAIN = {"ls": (0, (3, 1.5)), "lw": 0.9, "marker": ""}
PRODUCT = "Q·K"
# Every multiplier by itself but Q's and K's: B's and C's gradients are not equal.
INSIDE = {name: tensors for name, tensors in scales.INTERNAL.items() if name != "B·C"}
INSIDE |= {"B": ("ssm.B",), "C": ("ssm.C",)}
_SSM = BLOCK_LOOKS["SSM"]["color"]
_BC = {"color": shade(_SSM, -0.65), "marker": "D", "ms": 2.8}
# What is drawn beside outputs, by panel; colours are of the blocks.
LOOKS = {
    "b": {block: BLOCK_LOOKS[block] for block in scales.BLOCKS},
    "c": {
        "gate": BLOCK_LOOKS["MLP"],
        "C": _BC,
        "B": _BC | {"markerfacecolor": "white"},
        "dt": {"color": _SSM, "marker": "s", "markerfacecolor": "white"},
        "x": {"color": shade(_SSM, -0.35), "marker": "v", "ls": "-."},
        "z": {"color": _SSM, "marker": "x", "ls": ":"},
    },
    "d": {PRODUCT: BLOCK_LOOKS["attention"]},
}
NAMES = {name: f"SSM {name}" for name in LOOKS["c"]} | {"gate": "MLP gate"}
# Half of the seeds lie in a coloured band.
HALF = (0.25, 0.75)
# Between the second and the fourth lies half of the draws of a Brownian motion, between the outer
# two 95%.
QUANTILES = (0.025, 0.25, 0.5, 0.75, 0.975)
# How far the blocks of a layer stand apart in a, in layers.
APART = 0.24
# Characters in a line of a title.
WIDEST = 35
# The least ratio of a, which holds all whiskers; a layer that writes nothing lies below it.
LEAST = 0.016
MESSAGE = "Blocks write less with scalar multipliers; few single multipliers exceed noise"
# What the published runs show in a, and the plain title of others.
SMALLER = (
    "Outputs of blocks are smaller with multipliers than without",
    "Outputs of blocks, with multipliers over without",
)
# How titles begin, and what they call several multipliers.
WHERE = {"b": "At ends of blocks ", "c": "Inside, ", "d": ""}
SEVERAL = {"MLP": "MLPs", "MLP gate": "MLP gates"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, quantity, arm, layer, seed, value.

    Panel a holds ratios of norms, the others |s|; ``ABM 0.25`` is a quantile of |s| over draws of
    the Brownian motion, in d of |s|².
    """
    table = tables["scale_diversity"]
    ends = {block: (tensor,) for block, tensor in scales.BLOCKS.items()}
    parts = []
    for arm in ARMS:
        for block, logs in scales.log_ratios(table, arm).items():
            parts.append(stacked(np.exp(logs), panel="a", quantity=block, arm=arm))
        for panel, multipliers in (("b", ends), ("c", INSIDE)):
            for name, tensors in multipliers.items():
                values = np.exp(scales.log_multipliers(table, tensors, arm))
                place = "d" if name == PRODUCT else panel
                parts.append(stacked(values, panel=place, quantity=name, arm=arm))
    draws = scales.scalar_draws(table)
    names = [_quantile(share) for share in QUANTILES]
    for panel, walked in (("b", draws), ("c", draws), ("d", draws**2)):
        limits = np.quantile(walked, QUANTILES)
        noise = {"panel": panel, "arm": "SCALAR", "quantity": names, "value": limits}
        parts.append(pd.DataFrame(noise))
    columns = ["panel", "quantity", "arm", "layer", "seed", "value"]
    rows = pd.concat(parts).astype({"layer": "Int64", "seed": "Int64"})
    return rows[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Outputs and the multipliers at their ends above, those inside below; names at the right."""
    figure, axes = page(2, 2, 4.8, w_pad=0.04, h_pad=0.04, width_ratios=[1.25, 1])
    headline(figure, MESSAGE, context)
    axes = dict(zip("abcd", axes.flat, strict=True))
    layers = sorted(numbers["layer"].dropna().unique())
    for axis in axes.values():
        axis.set(xlabel="layer", xticks=layers[:: -(-len(layers) // 9)])
        axis.axhline(1.0, **NEUTRAL)
        axis.set_yscale("log")
    panels = dict(tuple(numbers.astype({"layer": float}).groupby("panel")))
    ends = {"a": _outputs(axes["a"], panels["a"], finding(context, *SMALLER))}
    ends |= {panel: _multipliers(axes[panel], panel, panels[panel]) for panel in LOOKS}
    axes["d"].set_ylabel(r"$|s_Q s_K|$ / noise's median")
    seeds = numbers.loc[numbers["arm"] == "SCALAR_ORDER", "seed"].nunique()
    handles = [
        Patch(**NOISE, label="middle half of noise"),
        key("limits of 95% of noise", **LIMITS),
        key("median of noise", **NEUTRAL),
        key("start, |s| = 1", **START),
        key(f"b: same start, other order of the data (n = {seeds})", **AGAIN),
    ]
    legend_below(figure, handles, 3)
    # The other order of the data may have fewer seeds.
    seeds = numbers.loc[numbers["arm"] == "SCALAR", "seed"].dropna()
    context = dataclasses.replace(context, seeds=sorted(map(int, seeds.unique())))
    note = f"noise: {BROWNIAN} of one scalar multiplier; all have its LR, decay and schedule"
    if len(context.seeds) > 1:
        note += (
            "\nlines: medians; bands, whiskers: middle half of seeds; a, ↓: seeds below the axis\n"
            "b to d: a layer exceeds noise if its median lies above the upper limit; "
            "c, thin: never\n"
            "d, on top: seeds above the upper limit; clearly: so is the 95% interval of the median"
        )
    caption(figure, context, note)
    figure.get_layout_engine().execute(figure)  # names keep apart by the axis' height
    for panel, axis in axes.items():
        named = {said: (y, shade(c, -0.25)) for said, (y, c) in ends[panel].items()}
        name_ends(axis, named, at=1.04)
    return figure


def _outputs(axis, rows: pd.DataFrame, title: str) -> dict[str, tuple[float, str]]:
    """Ratios of the blocks' outputs beside each other; returns what ``name_ends`` wants."""
    groups, ends = dict(tuple(rows.groupby(["arm", "quantity"]))), {}
    blocks = {block: groups["SCALAR", block] for block in scales.BLOCKS}
    for place, (block, own) in enumerate(blocks.items()):
        _whiskers(axis, own, APART * (place - (len(blocks) - 1) / 2), BLOCK_LOOKS[block])
        ends[block] = end(own, "layer"), BLOCK_LOOKS[block]["color"]
    label(axis, _title("a", title), ylabel="RMS of the output,\nwith / without")
    axis.set_ylim(top=max(1.15, axis.get_ylim()[1]))
    plain_log_axis(axis)
    _layers_apart(axis, sorted(rows["layer"].unique()))
    _name_lost(axis, blocks)
    return ends


def _multipliers(axis, panel: str, rows: pd.DataFrame) -> dict[str, tuple[float, str]]:
    """|s| over the noise's median; returns what ``name_ends`` wants.

    The title says which layers lie above the noise. Only in b another order of the data is drawn.
    """
    noise = rows.set_index("quantity")["value"]
    noise = [noise[_quantile(share)] for share in QUANTILES]
    middle = noise[len(noise) // 2]
    low, *half, high = np.divide(noise, middle)
    groups = dict(tuple(rows.assign(value=rows["value"] / middle).groupby(["arm", "quantity"])))
    ends, above = {}, []
    for name, look in LOOKS[panel].items():
        own, said = groups["SCALAR", name], NAMES.get(name, name)
        if panel == "b":
            dashed = look | AGAIN | {"color": shade(look["color"], -0.25)}
            median(axis, groups["SCALAR_ORDER", name], "layer", band=None, **dashed)
        medians = own.groupby("layer")["value"].median()
        ends[said] = medians.iloc[-1], look["color"]
        if beyond := [int(layer) for layer in medians.index[medians > high]]:
            above.append(f"{SEVERAL.get(said, said)} in {_layers(beyond)}")
        thin = panel == "c" and not beyond  # many lines and bands would hide each other
        slight = {"lw": 0.7, "ms": 2.2} if thin else {}
        median(axis, own, "layer", band=None if thin else HALF, alpha=0.25, **look | slight)
    values = [0.85 * half[0], 1.1 * high, *axis.dataLim.intervaly]
    axis.set_ylim(0.9 * min(values), 1.15 * max(values))
    plain_log_axis(axis)
    axis.axhspan(half[0], half[-1], **NOISE, zorder=0.1)
    axis.axhline(high, **LIMITS)
    axis.axhline(1 / middle, **START)
    if low > axis.get_ylim()[0]:
        axis.axhline(low, **LIMITS)
    else:
        axis.annotate(f"lower limit: {low:.2f} ↓", (0, 0), (3, 2), xycoords="axes fraction",
                      textcoords="offset points", fontsize=SMALL, color="#555555")  # fmt: skip
    found = f"{' and '.join(above)} exceed noise" if above else "no median exceeds noise"
    if panel == "d" and above:
        found = _product(axis, own, high)
    label(axis, _title(panel, WHERE[panel] + found), ylabel=r"$|s|$ / noise's median")
    return ends


def _product(axis, rows: pd.DataFrame, high: float) -> str:
    """Writes how many seeds of a layer lie above the noise; returns what the title says."""
    by_layer, colour = (
        rows.groupby("layer")["value"],
        shade(BLOCK_LOOKS["attention"]["color"], -0.3),
    )
    axis.set_ylim(top=1.25 * axis.get_ylim()[1])
    for layer, count in by_layer.agg(lambda values: (values > high).sum()).items():
        axis.annotate(f"{count:.0f}", (layer, 1), (0, -1), ha="center", va="top",
                      xycoords=axis.get_xaxis_transform(), textcoords="offset points",
                      fontsize=SMALL, color=colour)  # fmt: skip
    found = by_layer.agg(["median", lambda values: median_interval(values).low])
    beyond, clear = ([int(n) for n in found.index[found[column] > high]] for column in found)
    said = f"{PRODUCT} medians pass noise's limit in {_layers(beyond)}"
    return f"{said}, clearly in {' and '.join(map(str, clear))}" if clear else said


def _title(panel: str, text: str) -> str:
    """Two lines under each other, to the right of the panel's letter."""
    return f"{panel}   " + "\n     ".join(textwrap.wrap(text, WIDEST))


def _layers(layers: list[int]) -> str:
    """layer 0, layers 6 and 7, layers 2 to 7."""
    first, last = layers[0], layers[-1]
    if len(layers) > 2 and last - first + 1 == len(layers):
        return f"layers {first} to {last}"
    return f"layer{'s' * (len(layers) > 1)} {' and '.join(map(str, layers))}"


def _whiskers(axis, rows: pd.DataFrame, shift: float, look: dict) -> None:
    """Medians over seeds beside their layers, joined, and the middle half of the seeds."""
    values = rows.groupby("layer")["value"]
    middle, low, high = values.median(), *(values.quantile(share) for share in HALF)
    axis.plot(middle.index + shift, middle, **look | {"lw": 0.6, "ms": 3.8, "zorder": 3})
    if rows["seed"].nunique() > 1:
        axis.vlines(middle.index + shift, low, high, color=look["color"], lw=1.4, alpha=0.7)


def _layers_apart(axis, layers) -> None:
    """Lines between the layers, not through them, since three blocks stand at each."""
    axis.grid(axis="x", visible=False)
    axis.set_xlim(layers[0] - 0.5, layers[-1] + 0.5)
    for layer in layers[:-1]:
        axis.axvline(layer + 0.5, color="#e6e6e6", lw=0.5, zorder=0)


def _name_lost(axis, blocks: dict[str, pd.DataFrame]) -> None:
    """How many seeds of a layer lie below ``LEAST``, at the lower end of the axis.

    Blocks have heights of their own, since their numbers would touch.
    """
    if min(rows.groupby("layer")["value"].median().min() for rows in blocks.values()) > LEAST:
        axis.set_ylim(bottom=LEAST)
    bottom, height = axis.get_ylim()[0], 1
    for place, (block, rows) in enumerate(blocks.items()):
        lost = rows[rows["value"] < bottom].groupby("layer").size()
        shift = APART * (place - (len(blocks) - 1) / 2)
        colour = shade(BLOCK_LOOKS[block]["color"], -0.3)
        for layer, count in lost.items():
            axis.annotate(f"{count}↓", (layer + shift, 0), (0, height), ha="center", va="bottom",
                          xycoords=axis.get_xaxis_transform(), textcoords="offset points",
                          fontsize=SMALL, color=colour)  # fmt: skip
        height += 9 * (len(lost) > 0)


def _quantile(share: float) -> str:
    return f"ABM {share:g}"
