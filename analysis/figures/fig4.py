"""Figure 4 (section 4.1): multipliers along two symmetries, without and with light weight decay.

a: product of the scales of Q's and K's multipliers against their ratio over training, a line a
layer of the first seed, and where layers of all seeds and where multipliers moved by noise alone
(ABM) are as the constant stage ends; b: norm of the residual stream behind the last layer. Ours are
c: ln of products and ratios of row multipliers of Q and K by rotated pair, in one order of the data
against those in another; and d, of symmetry_placement: loss after the decay less that of "all" with
light weight decay, paired by seed, means with 95% intervals.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import dots, each
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import NOISE_COLOUR, plain_log_axis
from analysis.quantities import symmetry
from analysis.quantities.losses import losses_by_arm
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("symmetry", "symmetry_placement")
COLOURS = {
    symmetry.NONE: "#777777",
    symmetry.FREE: "#0072B2",
    symmetry.LITERAL: "#56B4E9",
    symmetry.LIGHT: "#E69F00",
}
NAMES = {
    symmetry.NONE: "no multipliers",
    symmetry.FREE: "no weight decay",
    symmetry.LITERAL: "weight decay 2e-3",
    symmetry.LIGHT: "light weight decay",
}
COMPARED = {
    symmetry.SYMMETRY_FREE: "symmetry-free,\nno weight decay",
    symmetry.SYMMETRY_FREE_LIGHT: "symmetry-free,\nlight",
    symmetry.NO_EMBEDDING: "none on embedding,\nlight",
}
PATHS = (symmetry.FREE, symmetry.LIGHT)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, seed, layer, step, pair, product, ratio (ln), value."""
    table = tables["symmetry"]
    at_end = {"step": table.stage_end}
    ends = symmetry.brownian_ends(table, symmetry.FREE).rename(columns={"draw": "seed"})
    losses = losses_by_arm(tables["symmetry_placement"])
    parts = [ends.assign(panel="noise", arm=symmetry.FREE, **at_end)]
    for arm in PATHS:
        parts.append(symmetry.paths(table, arm).assign(panel="paths", arm=arm))
    for arm in COLOURS:
        norms = np.exp(symmetry.residual(table, arm)).rename("value").reset_index()
        parts.append(norms.assign(panel="residual", arm=arm))
    for arm in (symmetry.FREE, symmetry.FREE_ORDER):
        pairs = symmetry.pairs(table, arm).reset_index()
        parts.append(pairs.assign(panel="pairs", arm=arm, **at_end))
    gaps = losses[list(COMPARED)].sub(losses[symmetry.LIGHT], axis=0)
    parts.append(stacked(gaps, panel="loss"))
    columns = ["panel", "arm", "seed", "layer", "step", "pair", "product", "ratio", "value"]
    return pd.concat(parts)[columns].reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels."""
    figure, ((a, b), (c, d)) = page(2, 2, 5.4, below=0.08, w_pad=0.05, h_pad=0.06)
    panels = dict(tuple(numbers.groupby("panel")))
    paths, noise = panels["paths"], panels["noise"]
    _paths(a, paths[paths["step"] <= noise["step"].max()], noise)
    each(b, panels["residual"], "step", {arm: {"color": COLOURS[arm]} for arm in COLOURS})
    plain_log_axis(b)
    label(b, "b   Residual stream, last layer", xlabel="step", ylabel="norm of the residual stream")
    _pairs(c, panels["pairs"])
    losses = panels["loss"].groupby("arm")["value"]
    named = {name: losses.get_group(arm) for arm, name in COMPARED.items()}
    dots(d, named, dict.fromkeys(named, "black"))
    d.axvline(0, color="#999999", lw=0.8, ls=":", zorder=0)
    d.locator_params(axis="x", nbins=6)
    against = "loss − loss with light weight decay (nats)"
    label(d, "d   Placements: loss after the decay", xlabel=against)
    handles = [key(NAMES[arm], color=colour) for arm, colour in COLOURS.items()]
    handles.append(key("ABM, no weight decay", color=NOISE_COLOUR, ls="", marker="."))
    legend_below(figure, handles, 5)
    # Rows and columns are published of fewer seeds than norms are.
    n = panels["pairs"]["seed"].nunique()
    return caption(figure, context, "" if n == len(context.seeds) else f"c: n = {n}")


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
    label(axis, "a   Multipliers of Q and K, every layer", xlabel="Q · K", ylabel="Q / K")


def _pairs(axis, rows: pd.DataFrame) -> None:
    keys = ["seed", "layer", "pair"]
    one, other = (
        rows[rows["arm"] == arm].set_index(keys) for arm in (symmetry.FREE, symmetry.FREE_ORDER)
    )
    for name, colour, marker in (("product", "#009E73", "o"), ("ratio", "#D55E00", "s")):
        x, y = one[name], other[name].reindex(one.index)
        said = f"{name}, r = {np.corrcoef(x, y)[0, 1]:.2f}"
        axis.plot(x, y, marker, ls="", color=colour, ms=3, alpha=0.6, mew=0, label=said)
    axis.axline((0, 0), slope=1, color="#bbbbbb", lw=0.6, zorder=0)
    axis.legend(loc="upper left", handletextpad=0.2)
    title = "c   Q and K by rotated pair, no weight decay"
    label(axis, title, xlabel="ln, one order of the data", ylabel="ln, another order")
