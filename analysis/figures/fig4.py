"""Figure 4 (section 4.1): multipliers along two symmetries, without and with light weight decay.

a: product of the scales of Q's and K's multipliers against their ratio, on equal logarithmic units:
over training, a line a layer of the first seed, and where layers of all seeds are as the constant
stage ends. b: the same for multipliers that noise alone moves (ABM), without weight decay; a point
is a draw of a layer. c: norm of the residual stream behind the last layer. Ours is d: ln of
products and ratios of row multipliers of Q and K by rotated pair, in one order of the data against
those in another.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import end, median, name_ends
from analysis.drawing.page import caption, key, label, sheet
from analysis.drawing.style import ARM_COLOURS, NEUTRAL, NOISE_COLOUR, plain_log_axis, shade
from analysis.quantities import symmetry
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("symmetry",)
# Vector multipliers: the more weight decay, the lighter.
COLOURS = {
    symmetry.FREE: shade(ARM_COLOURS["VPN"], -0.45),
    symmetry.LITERAL: ARM_COLOURS["VPN"],
    symmetry.LIGHT: shade(ARM_COLOURS["VPN"], 0.45),
    symmetry.NONE: ARM_COLOURS["FPN"],
}
NAMES = {
    symmetry.FREE: "no weight decay",
    symmetry.LITERAL: "weight decay 2e-3",
    symmetry.LIGHT: "light weight decay",
    symmetry.NONE: "no multipliers",
}
PATHS = {symmetry.FREE: "o", symmetry.LIGHT: "s"}
# Of the pairs, those that lie inside the others below them.
PAIRS = {
    "product": {
        "color": "#222222",
        "marker": "o",
        "markerfacecolor": "none",
        "mew": 0.4,
        "zorder": 3,
    },
    "ratio": {"color": "#CC79A7", "marker": "s", "mew": 0, "zorder": 2},
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, seed, layer, step, pair, product, ratio (ln), value."""
    table = tables["symmetry"]
    at_end = {"step": table.stage_end}
    ends = symmetry.brownian_ends(table, symmetry.FREE).rename(columns={"draw": "seed"})
    parts = [ends.assign(panel="noise", arm=symmetry.FREE, **at_end)]
    for arm in PATHS:
        parts.append(symmetry.paths(table, arm).assign(panel="paths", arm=arm))
    for arm in (symmetry.NONE, symmetry.FREE, symmetry.LITERAL, symmetry.LIGHT):
        norms = np.exp(symmetry.residual(table, arm)).rename("value").reset_index()
        parts.append(norms.assign(panel="residual", arm=arm))
    for arm in (symmetry.FREE, symmetry.FREE_ORDER):
        pairs = symmetry.pairs(table, arm).reset_index()
        parts.append(pairs.assign(panel="pairs", arm=arm, **at_end))
    columns = ["panel", "arm", "seed", "layer", "step", "pair", "product", "ratio", "value"]
    return pd.concat(parts)[columns].astype({"step": float}).reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels of equal units above, two below."""
    figure = sheet(4.3)
    above, below = figure.subfigures(2, 1, height_ratios=[1.08, 1.25])
    panels = dict(tuple(numbers.groupby("panel")))
    paths, noise = panels["paths"], panels["noise"]
    _scales(above, paths[paths["step"] <= noise["step"].max()], noise)
    c, d = below.subplots(1, 2, width_ratios=[1.25, 1])
    _stream(c, panels["residual"])
    _pairs(d, panels["pairs"])
    # Rows and columns are published of fewer seeds than norms are.
    n = panels["pairs"]["seed"].nunique()
    return caption(figure, context, "" if n == len(context.seeds) else f"d: n = {n}")


def _scales(figure, rows: pd.DataFrame, noise: pd.DataFrame) -> None:
    """Trained multipliers, and apart from them those of noise, on the same units."""
    first, ends = rows["seed"] == rows["seed"].min(), rows["step"] == rows["step"].max()
    shown = rows[first | ends]
    spans = [
        (part["product"].min() - 0.15, part["product"].max() + 0.15) for part in (shown, noise)
    ]
    axes = figure.subplots(1, 2, sharey=True, width_ratios=[high - low for low, high in spans])
    both = pd.concat([shown, noise])["ratio"]
    for axis, span in zip(axes, spans, strict=True):
        axis.set_xlim(np.exp(span))
        axis.set_ylim(np.exp(both.min() - 0.1), np.exp(both.max() + 0.1))
        axis.set_aspect("equal")
        axis.axhline(1, **NEUTRAL)
        plain_log_axis(axis, x=True)
        plain_log_axis(axis)
        axis.tick_params(labelleft=True)
    trained, alone = axes
    trained.axvline(1, **NEUTRAL)
    for arm, marker in PATHS.items():
        own = rows["arm"] == arm
        for _, path in rows[own & first].groupby("layer"):
            path = np.exp(path.sort_values("step")[["product", "ratio"]])
            trained.plot(*path.to_numpy().T, color=COLOURS[arm], lw=0.7, zorder=2)
        x, y = np.exp(rows.loc[own & ends, ["product", "ratio"]]).to_numpy().T
        points = {"color": COLOURS[arm], "mec": "white", "mew": 0.3, "ms": 3.2, "zorder": 3}
        trained.plot(x, y, marker, ls="", **points)
    alone.scatter(
        np.exp(noise["product"]), np.exp(noise["ratio"]), s=5, color=NOISE_COLOUR, alpha=0.6, lw=0
    )
    handles = [key(NAMES[arm], COLOURS[arm], marker=mark, lw=0.7) for arm, mark in PATHS.items()]
    trained.legend(handles=handles, loc="lower right", borderaxespad=0.1)
    trained.text(0.02, 0.03, "line: a layer of one seed\npoint: where a layer ends", fontsize=6.3,
                 transform=trained.transAxes)  # fmt: skip
    across = "scale of Q × scale of K"
    label(trained, "a   Trained multipliers", xlabel=across, ylabel="scale of Q / scale of K")
    label(alone, "b   Noise alone", xlabel=across)


def _stream(axis, rows: pd.DataFrame) -> None:
    ends = {}
    for arm, of_arm in rows.groupby("arm"):
        median(axis, of_arm, "step", color=COLOURS[arm])
        ends[NAMES[arm]] = end(of_arm, "step"), shade(COLOURS[arm], -0.2)
    plain_log_axis(axis)
    label(axis, "c   Residual stream, last layer", xlabel="step", ylabel="norm (RMS)")
    name_ends(axis, ends)


def _pairs(axis, rows: pd.DataFrame) -> None:
    keys = ["seed", "layer", "pair"]
    one, other = (
        rows[rows["arm"] == arm].set_index(keys) for arm in (symmetry.FREE, symmetry.FREE_ORDER)
    )
    axis.axline((0, 0), slope=1, **NEUTRAL)
    for name, look in PAIRS.items():
        x, y = one[name], other[name].reindex(one.index)
        said = f"{name}, r = {np.corrcoef(x, y)[0, 1]:.2f}"
        axis.plot(x, y, ls="", ms=2.2, alpha=0.8, label=said, **look)
    axis.set_aspect("equal", adjustable="datalim")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 0.98), ncols=2, handletextpad=0.0,
                columnspacing=0.6, fontsize=6.3)  # fmt: skip
    axis.set_title("d   Q and K by rotated pair", loc="left", pad=14)
    axis.set(xlabel="ln, one order of the data", ylabel="ln, another order of the data")
