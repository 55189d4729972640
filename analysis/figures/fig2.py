"""Figure 2 (section 3.1): scales over depth that scalar multipliers learn.

(a) norms of the blocks' outputs with multipliers over those without, layer by layer; (b) the
multipliers at the end of each block; (c) those inside the blocks, Q's times K's and B's times C's
(of the former only the product matters). Norms are root mean squares, read at the end of the
constant stage. Dashed in a and b: the same initial values with another order of the data. Grey in
b and c: where a single multiplier would be if it did a Brownian motion (ABM).
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter

from analysis.drawing.style import NOISE_COLOUR, TEXT_WIDTH, caption, plain_log_axis
from analysis.quantities.scale_diversity import (
    BLOCKS,
    INTERNAL,
    log_multipliers,
    log_ratios,
    scalar_draws,
)
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
ARMS = ("SCALAR", "SCALAR_ORDER")
# Okabe-Ito again; those of the arms stay with the arms.
COLOURS = {"attention": "#CC79A7", "SSM": "#56B4E9", "MLP": "#E69F00"}
MARKERS = {"attention": "o", "SSM": "s", "MLP": "^"}
# Of the internal ones, those that are drawn: block and line. The others stand in the csv.
LOOKS = {
    "gate": ("MLP", "-"),
    "up": ("MLP", ":"),
    "Q·K": ("attention", "-"),
    "V": ("attention", ":"),
    "dt": ("SSM", "-"),
    "x": ("SSM", ":"),
}
# Half of the draws of a Brownian motion lie between these, as do half of the seeds in a band.
QUANTILES = (0.25, 0.75)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, quantity, arm, layer, seed, value.

    Panel a holds ratios of norms, b and c |s|; ``ABM 0.25`` and ``ABM 0.75`` are quantiles of |s|
    over draws of the Brownian motion.
    """
    table = tables["scale_diversity"]
    found = []

    def add(panel: str, quantity: str, arm: str, logs: pd.DataFrame) -> None:
        long = np.exp(logs).rename_axis("seed").reset_index().melt("seed", var_name="layer")
        found.append(long.assign(panel=panel, quantity=quantity, arm=arm))

    for arm in ARMS:
        for block, logs in log_ratios(table, arm).items():
            add("a", block, arm, logs)
        for block, tensor in BLOCKS.items():
            add("b", block, arm, log_multipliers(table, (tensor,), arm))
        for name, tensors in INTERNAL.items():
            add("c", name, arm, log_multipliers(table, tensors, arm))
    draws = scalar_draws(table)
    found.append(
        pd.DataFrame(
            [
                {"panel": panel, "quantity": f"ABM {q:g}", "value": np.quantile(draws, q)}
                for panel in "bc"
                for q in QUANTILES
            ]
        ).assign(arm="SCALAR")
    )
    columns = ["panel", "quantity", "arm", "layer", "seed", "value"]
    found = pd.concat(found).astype({"layer": "Int64", "seed": "Int64"})
    return found[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels side by side, each with its legend below."""
    figure, axes = plt.subplots(1, 3, figsize=(TEXT_WIDTH, 3.25))
    figure.get_layout_engine().set(rect=(0, 0.04, 1, 0.96), w_pad=0.05)
    panels = dict(zip("abc", axes, strict=True))
    by_panel = dict(tuple(numbers.groupby("panel")))
    for name in "ab":
        for block in BLOCKS:
            rows = by_panel[name][by_panel[name]["quantity"] == block]
            look = {"color": COLOURS[block], "marker": MARKERS[block]}
            _series(panels[name], rows[rows["arm"] == "SCALAR"], **look)
            again = {**look, "ls": (0, (3, 2)), "lw": 0.9, "ms": 2.5, "markerfacecolor": "white"}
            _series(panels[name], rows[rows["arm"] == "SCALAR_ORDER"], band=False, **again)
    for quantity, (_, line) in LOOKS.items():
        rows = by_panel["c"][by_panel["c"]["quantity"] == quantity]
        _series(panels["c"], rows[rows["arm"] == "SCALAR"], **_inner(quantity), band=line == "-")
    titles = {
        "a": ("a   Block outputs, ratio", "RMS with / without multipliers"),
        "b": ("b   End multipliers", r"$|s|$"),
        "c": ("c   Internal multipliers", r"$|s|$ (or product of two)"),
    }
    for name, (title, label) in titles.items():
        axis = panels[name]
        _brownian(axis, by_panel[name])
        axis.axhline(1.0, color="#999999", lw=0.7, zorder=1)
        _log_axis(axis, by_panel[name]["value"])
        layers = sorted(by_panel[name]["layer"].dropna().unique())
        axis.set_xticks(layers[:: -(-len(layers) // 9)])
        axis.set(xlabel="layer", ylabel=label)
        axis.set_title(title, loc="left")
    _legends(panels, numbers["seed"].nunique())
    caption(figure, context)
    return figure


def _series(axis, rows: pd.DataFrame, band: bool = True, **look) -> None:
    """The median over seeds, and the band that holds half of them."""
    grouped = rows.groupby("layer")["value"]
    middle = grouped.median()
    layers = middle.index.to_numpy(dtype=float)
    axis.plot(layers, middle, zorder=3, **look)
    if band and rows["seed"].nunique() > 1:
        low, high = (grouped.quantile(q) for q in QUANTILES)
        axis.fill_between(layers, low, high, color=look["color"], alpha=0.22, lw=0)


def _inner(quantity: str) -> dict:
    block, line = LOOKS[quantity]
    look = {"color": COLOURS[block], "marker": MARKERS[block], "ls": line}
    return look if line == "-" else look | {"lw": 1.0, "ms": 2.5, "markerfacecolor": "white"}


def _brownian(axis, rows: pd.DataFrame) -> None:
    limits = rows.loc[rows["quantity"].str.startswith("ABM"), "value"]
    if len(limits):
        axis.axhspan(limits.min(), limits.max(), color=NOISE_COLOUR, alpha=0.13, lw=0, zorder=0)


def _log_axis(axis, values: pd.Series) -> None:
    """Logarithmic, with plain numbers at the ticks unless they span decades."""
    low, high = values.min(), values.max()
    axis.set_yscale("log")
    if high > 100 * low:
        axis.yaxis.set_minor_formatter(NullFormatter())
    elif high > 2 * low:
        plain_log_axis(axis)
    else:
        low, high = axis.get_ylim()
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ylim(low, high)
        axis.minorticks_off()


def _legends(panels: dict, seeds: int) -> None:
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "handlelength": 2.2,
             "columnspacing": 1.0, "borderaxespad": 0.0}  # fmt: skip
    blocks = [
        Line2D([], [], color=COLOURS[block], marker=MARKERS[block], label=block) for block in BLOCKS
    ]
    other = Line2D([], [], color="black", ls=(0, (3, 2)), lw=0.9, label="other data order")
    panels["a"].legend(handles=[*blocks, other], ncols=2, **below)
    notes = [
        Patch(color=NOISE_COLOUR, alpha=0.13, lw=0, label=r"ABM of one $|s|$: half of the draws")
    ]
    if seeds > 1:
        notes.append(Patch(color="black", alpha=0.22, lw=0, label="half of the seeds"))
    middle = Line2D([], [], color="black", label="median" if seeds > 1 else "one seed")
    panels["b"].legend(handles=[middle, *notes[::-1]], ncols=1, **below)
    inner = [Line2D([], [], label=name, **_inner(name)) for name in LOOKS]
    panels["c"].legend(handles=inner, ncols=3, **below)
