"""Figure 4 (section 4.1): multipliers along two symmetries, without and with light weight decay.

a: product of the scales of Q's and K's multipliers against their ratio over training, a line a
layer of the first seed, and where layers of all seeds and where multipliers moved by noise alone
(ABM) are as the constant stage ends; b: norm of the residual stream behind the last layer. Ours are
c: ln of products and ratios of row multipliers of Q and K by rotated pair, in one order of the data
against those in another; and d, of symmetry_placement: loss after the decay less that of "all" with
light weight decay, paired by seed, means with 95% intervals.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from analysis.drawing.axes import series
from analysis.drawing.dots import dots
from analysis.drawing.style import NOISE_COLOUR, TEXT_WIDTH, caption, plain_log_axis
from analysis.quantities import symmetry
from analysis.quantities.losses import losses_by_arm
from analysis.quantities.symmetry import (
    FREE,
    FREE_ORDER,
    LIGHT,
    LITERAL,
    NO_EMBEDDING,
    NONE,
    SYMMETRY_FREE,
    SYMMETRY_FREE_LIGHT,
)
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("symmetry", "symmetry_placement")
COLOURS = {NONE: "#777777", FREE: "#0072B2", LITERAL: "#56B4E9", LIGHT: "#E69F00"}
NAMES = {
    NONE: "no multipliers",
    FREE: "no weight decay",
    LITERAL: "weight decay 2e-3",
    LIGHT: "light weight decay",
    SYMMETRY_FREE: "symmetry-free,\nno weight decay",
    SYMMETRY_FREE_LIGHT: "symmetry-free,\nlight",
    NO_EMBEDDING: "none on embedding,\nlight",
}
PATHS, CURVES = (FREE, LIGHT), (NONE, FREE, LITERAL, LIGHT)
COMPARED = (SYMMETRY_FREE, SYMMETRY_FREE_LIGHT, NO_EMBEDDING)
KINDS = {"product": ("#009E73", "o"), "ratio": ("#D55E00", "s")}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, seed, layer, step, pair, product, ratio (ln), value."""
    table = tables["symmetry"]
    end = table.stage_end
    found = [
        symmetry.brownian_ends(table, FREE)
        .rename(columns={"draw": "seed"})
        .assign(panel="noise", arm=FREE, step=end)
    ]
    for arm in PATHS:
        found.append(symmetry.paths(table, arm).assign(panel="paths", arm=arm))
    for arm in CURVES:
        norms = np.exp(symmetry.residual(table, arm)).rename("value").reset_index()
        found.append(norms.assign(panel="residual", arm=arm))
    for arm in (FREE, FREE_ORDER):
        of_pairs = symmetry.pairs(table, arm).reset_index()
        found.append(of_pairs.assign(panel="pairs", arm=arm, step=end))
    losses = losses_by_arm(tables["symmetry_placement"])
    gaps = losses[list(COMPARED)].sub(losses[LIGHT], axis=0).stack().rename("value")
    found.append(gaps.reset_index().assign(panel="loss"))
    columns = ["panel", "arm", "seed", "layer", "step", "pair", "product", "ratio", "value"]
    return pd.concat(found)[columns].reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels."""
    figure, axes = plt.subplots(2, 2, figsize=(TEXT_WIDTH, 5.4))
    figure.get_layout_engine().set(rect=(0, 0.08, 1, 0.92), w_pad=0.05, h_pad=0.06)
    by_panel = dict(tuple(numbers.groupby("panel")))
    paths, noise = by_panel["paths"], by_panel["noise"]
    _paths(axes[0, 0], paths[paths["step"] <= noise["step"].max()], noise)
    for arm in CURVES:
        rows = by_panel["residual"]
        series(axes[0, 1], rows[rows["arm"] == arm], "step", COLOURS[arm])
    plain_log_axis(axes[0, 1])
    axes[0, 1].set(xlabel="step", ylabel="norm of the residual stream")
    axes[0, 1].set_title("b   Residual stream, last layer", loc="left")
    _pairs(axes[1, 0], by_panel["pairs"])
    losses = by_panel["loss"].groupby("arm")["value"]
    named = {NAMES[arm]: losses.get_group(arm) for arm in COMPARED}
    dots(axes[1, 1], named, dict.fromkeys(named, "black"))
    axes[1, 1].set_xlabel("loss − loss with light weight decay (nats)")
    axes[1, 1].set_title("d   Placements: loss after the decay", loc="left")
    handles = [Line2D([], [], color=COLOURS[arm], label=NAMES[arm]) for arm in CURVES]
    handles.append(
        Line2D([], [], color=NOISE_COLOUR, ls="", marker=".", label="ABM, no weight decay")
    )
    figure.legend(handles=handles, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 0.03))
    caption(figure, context, _seeds_of_pairs(by_panel["pairs"], context))
    return figure


def _seeds_of_pairs(rows: pd.DataFrame, context: Context) -> str:
    """Rows and columns are published of fewer seeds than norms are."""
    n = rows["seed"].nunique()
    return "" if n == len(context.seeds) else f"c: n = {n}"


def _paths(axis, rows: pd.DataFrame, noise: pd.DataFrame) -> None:
    axis.scatter(
        np.exp(noise["product"]), np.exp(noise["ratio"]), s=4, color=NOISE_COLOUR, alpha=0.4, lw=0
    )
    for arm in PATHS:
        for (seed, _), path in rows[rows["arm"] == arm].groupby(["seed", "layer"]):
            path = path.sort_values("step")
            x, y = np.exp(path["product"]), np.exp(path["ratio"])
            if seed == rows["seed"].min():
                axis.plot(x, y, color=COLOURS[arm], lw=0.8, alpha=0.8)
            axis.plot(x.iloc[-1], y.iloc[-1], ".", color=COLOURS[arm], ms=5)
    axis.axhline(1, color="#bbbbbb", lw=0.6, zorder=0)
    axis.axvline(1, color="#bbbbbb", lw=0.6, zorder=0)
    plain_log_axis(axis)
    plain_log_axis(axis, x=True)
    axis.set(xlabel="Q · K", ylabel="Q / K")
    axis.set_title("a   Multipliers of Q and K, every layer", loc="left")


def _pairs(axis, rows: pd.DataFrame) -> None:
    keys = ["seed", "layer", "pair"]
    one, other = (rows[rows["arm"] == arm].set_index(keys) for arm in (FREE, FREE_ORDER))
    for name, (colour, marker) in KINDS.items():
        x, y = one[name], other[name].reindex(one.index)
        r = np.corrcoef(x, y)[0, 1]
        axis.plot(x, y, marker, ls="", color=colour, ms=3, alpha=0.6, mew=0,
                  label=f"{name}, r = {r:.2f}")  # fmt: skip
    axis.axline((0, 0), slope=1, color="#bbbbbb", lw=0.6, zorder=0)
    axis.set(xlabel="ln, one order of the data", ylabel="ln, another order")
    axis.legend(loc="upper left", handletextpad=0.2)
    axis.set_title("c   Q and K by rotated pair, no weight decay", loc="left")
