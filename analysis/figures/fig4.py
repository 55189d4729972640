"""Figure 4 (section 4.1): multipliers along two symmetries, without and with weight decay.

a: product of the scales of Q's and K's multipliers against their ratio, on equal logarithmic units,
as the constant stage ends. A small point is a layer of a seed; of Brownian motion (ABM), which has
no weight decay, a layer of a draw. A large one is the median, whose product stands beside it. The
csv has the way to these points. b: norm of the residual stream behind the last layer. Lines are
medians, bands the range of seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import decay_line, end, median, name_ends
from analysis.drawing.page import caption, key, label, sheet
from analysis.drawing.style import (
    ARM_COLOURS,
    ARM_LOOKS,
    BANDS_RANGE,
    BROWNIAN,
    NEUTRAL,
    NO_MULTIPLIERS,
    NOISE_COLOUR,
    SMALL,
    plain_log_axis,
    shade,
)
from analysis.quantities import symmetry
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("symmetry",)
# Vector multipliers: the more weight decay, the lighter.
COLOURS = {
    symmetry.FREE: shade(ARM_COLOURS["VPN"], -0.6),
    symmetry.LITERAL: shade(ARM_COLOURS["VPN"], -0.15),
    symmetry.LIGHT: shade(ARM_COLOURS["VPN"], 0.35),
    symmetry.NONE: ARM_COLOURS["FPN"],
}
NAMES = {
    symmetry.FREE: "λ = 0",
    symmetry.LITERAL: "λ = 0.002 (paper's)",
    symmetry.LIGHT: "λ = 0.0104 (paper's Σηλ)",
    symmetry.NONE: NO_MULTIPLIERS,
}
# The weight decay that gives the paper's Σηλ depends on the scale; above it is that of tiny.
ELSEWHERE = {symmetry.LIGHT: "λ for the paper's Σηλ"}
_POINT = {"marker": ARM_LOOKS["VPN"]["marker"], "mec": "white", "mew": 0.2}
ENDS = {
    arm: _POINT | {"color": COLOURS[arm]}
    for arm in (symmetry.FREE, symmetry.LITERAL, symmetry.LIGHT)
}
NOISE = {"color": NOISE_COLOUR, "marker": "X", "mec": "white", "mew": 0.2}
NOISE_NAME = f"{BROWNIAN}, λ = 0"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, seed, layer, step, product, ratio (ln), value."""
    table = tables["symmetry"]
    at_end = {"step": table.stage_end}
    ends = symmetry.brownian_ends(table, symmetry.FREE).rename(columns={"draw": "seed"})
    parts = [ends.assign(panel="noise", arm=symmetry.FREE, **at_end)]
    for arm in ENDS:
        parts.append(symmetry.paths(table, arm).assign(panel="paths", arm=arm))
    for arm in (symmetry.NONE, symmetry.FREE, symmetry.LITERAL, symmetry.LIGHT):
        norms = np.exp(symmetry.residual(table, arm)).rename("value").reset_index()
        parts.append(norms.assign(panel="residual", arm=arm))
    columns = ["panel", "arm", "seed", "layer", "step", "product", "ratio", "value"]
    return pd.concat(parts)[columns].astype({"step": float}).reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Multipliers above, the stream below."""
    figure = sheet(4.5)
    above, below = figure.subfigures(2, 1, height_ratios=[1.35, 1.1])
    panels = dict(tuple(numbers.groupby("panel")))
    paths, noise = panels["paths"], panels["noise"]
    decay = noise["step"].max()
    names = NAMES | ({} if context.scale == "tiny" else ELSEWHERE)
    _scales(above.subplots(), paths[paths["step"] == decay], noise, names)
    _stream(below.subplots(), panels["residual"], decay, names)
    layers = paths["layer"].nunique()
    note = f"λ: of multipliers; a: {layers} layers of each seed, large points: medians"
    return caption(figure, context, f"{note}; b: {BANDS_RANGE}")


def _scales(axis, ends: pd.DataFrame, noise: pd.DataFrame, names) -> None:
    """Trained multipliers and those of noise, on equal units."""
    axis.axhline(1, **NEUTRAL)
    axis.axvline(1, **NEUTRAL)
    groups = {names[arm]: (ends[ends["arm"] == arm], look) for arm, look in ENDS.items()}
    groups[NOISE_NAME] = noise, NOISE
    for rows, look in groups.values():
        axis.plot(np.exp(rows["product"]), np.exp(rows["ratio"]), ls="", ms=3.2, alpha=0.75, **look)
    plain_log_axis(axis, x=True)
    plain_log_axis(axis)
    both = pd.concat([rows for rows, _ in groups.values()])
    for values, limits in ((both["product"], axis.set_xlim), (both["ratio"], axis.set_ylim)):
        limits(np.exp([values.min() - 0.12, values.max() + 0.12]))
    for rows, look in groups.values():
        middle = np.exp(rows[["product", "ratio"]].median())
        axis.plot(*middle, ls="", ms=8, **look | {"mew": 0.9}, zorder=4)
        axis.annotate(f"{middle['product']:.2g}", (middle["product"], axis.get_ylim()[0]), (0, 2),
                      textcoords="offset points", ha="center", va="bottom", fontsize=SMALL,
                      color=shade(look["color"], -0.25))  # fmt: skip
    axis.set_aspect("equal", adjustable="box")
    handles = [key(name, ls="", ms=4, **look) for name, (_, look) in groups.items()]
    axis.legend(handles=handles, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 0.98),
                handletextpad=0.1, columnspacing=0.8)  # fmt: skip
    title = "a   Multipliers of Q and K: noise alone would move products further"
    axis.set_title(title, loc="left", pad=15)
    axis.set(xlabel="scale of Q × scale of K", ylabel="scale of Q / scale of K")


def _stream(axis, rows: pd.DataFrame, decay: float, names) -> None:
    ends = {}
    for arm, of_arm in rows.groupby("arm"):
        median(axis, of_arm, "step", color=COLOURS[arm])
        ends[names[arm]] = end(of_arm, "step"), shade(COLOURS[arm], -0.25)
    plain_log_axis(axis)
    decay_line(axis, decay)
    axis.margins(x=0.02)
    axis.annotate("decay of the\nlearning rate", (decay, 1), (-3, -1), va="top", ha="right",
                  xycoords=("data", "axes fraction"), textcoords="offset points",
                  fontsize=SMALL, color="#555555", linespacing=1.05)  # fmt: skip
    title = "b   Weight decay on multipliers slows the growth of the residual stream"
    label(axis, title, xlabel="step", ylabel="RMS norm, last layer")
    name_ends(axis, ends, at=1.03)
