"""Figure 4 (section 4.1): multipliers along two symmetries, without and with weight decay.

a: product of the scales of Q's and K's multipliers against their ratio, on equal logarithmic units,
as the constant stage ends. A small point is a layer of a seed; of Brownian motion (ABM), which has
no weight decay, a layer of a draw. A large one is the median over seeds of their medians over
layers, with the 95% interval of its product; these stand above it in numbers. Dashes are the way of
this median from the start, (1, 1). The paper's weight decay, which ends near none, is in the csv.
b: norm of the residual stream behind the last layer. Lines are medians, bands the range of seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import decay_line, end, median, name_ends
from analysis.drawing.page import caption, headline, sheet
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
from analysis.quantities.stats import Interval, median_interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("symmetry",)
# Vector multipliers: the more weight decay, the lighter. In panel a it is hollow too.
COLOURS = {
    symmetry.FREE: shade(ARM_COLOURS["VPN"], -0.6),
    symmetry.LITERAL: shade(ARM_COLOURS["VPN"], -0.15),
    symmetry.LIGHT: shade(ARM_COLOURS["VPN"], 0.35),
    symmetry.NONE: ARM_COLOURS["FPN"],
}
NAMES = {
    symmetry.FREE: "λ = 0",
    symmetry.LITERAL: "λ = 0.002,\nthe paper's",
    symmetry.LIGHT: "λ = 0.0104,\nthe paper's Σηλ",
    symmetry.NONE: NO_MULTIPLIERS,
}
# The weight decay that gives the paper's Σηλ depends on the scale; above it is that of tiny.
ELSEWHERE = {symmetry.LIGHT: "λ for the\npaper's Σηλ"}
TRAINED = (symmetry.FREE, symmetry.LITERAL, symmetry.LIGHT)
_POINT = {"marker": ARM_LOOKS["VPN"]["marker"], "mec": "white", "mew": 0.2}
# Those of panel a, and to which side of its median the name of each stands.
ENDS = {
    symmetry.FREE: _POINT | {"color": COLOURS[symmetry.FREE]},
    symmetry.LIGHT: {
        "color": COLOURS[symmetry.LIGHT],
        "marker": _POINT["marker"],
        "mfc": "white",
        "mec": shade(COLOURS[symmetry.LIGHT], -0.15),
        "mew": 0.6,
    },
}
SIDES = {symmetry.FREE: "left", symmetry.LIGHT: "right"}
WAY = {"lw": 0.8, "ls": (0, (3, 1)), "zorder": 2}
NOISE = {"color": NOISE_COLOUR, "marker": "X", "mec": "white", "mew": 0.2}
NOISE_NAME = "noise alone"
MESSAGE = "b   Weight decay on multipliers slows the growth of the residual stream"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, seed, layer, step, product, ratio (ln), value."""
    table = tables["symmetry"]
    at_end = {"step": table.stage_end}
    ends = symmetry.brownian_ends(table, symmetry.FREE).rename(columns={"draw": "seed"})
    parts = [ends.assign(panel="noise", arm=symmetry.FREE, **at_end)]
    for arm in TRAINED:
        parts.append(symmetry.paths(table, arm).assign(panel="paths", arm=arm))
    for arm in (symmetry.NONE, symmetry.FREE, symmetry.LITERAL, symmetry.LIGHT):
        norms = np.exp(symmetry.residual(table, arm)).rename("value").reset_index()
        parts.append(norms.assign(panel="residual", arm=arm))
    columns = ["panel", "arm", "seed", "layer", "step", "product", "ratio", "value"]
    return pd.concat(parts)[columns].astype({"step": float}).reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Multipliers above, the stream below, each under its message."""
    figure = sheet(4.5, h_pad=0.05)
    above, below = figure.subfigures(2, 1, height_ratios=[1.3, 1.2])
    panels = dict(tuple(numbers.groupby("panel")))
    paths, noise = panels["paths"], panels["noise"]
    decay = noise["step"].max()
    names = NAMES | ({} if context.scale == "tiny" else ELSEWHERE)
    headline(above, _scales(above.subplots(), paths[paths["step"] <= decay], noise, names))
    headline(below, MESSAGE)
    stream = below.subplots()
    ends = _stream(stream, panels["residual"], decay, names)
    layers, draws = paths["layer"].nunique(), noise["seed"].nunique()
    of_literal = paths[(paths["arm"] == symmetry.LITERAL) & (paths["step"] == decay)]
    left_out = np.exp(of_literal.groupby("seed")["product"].median().median())
    note = (
        f"λ: weight decay of multipliers; a: {layers} layers of each seed; large: medians, 95%; "
        "dashes: way of the medians",
        f"noise: {BROWNIAN}, n = {draws} draws, not run with λ > 0; "
        f"a leaves out λ = 0.002, which ends at {_told(left_out)}",
        f"the paper's Σηλ: the same total weight decay; b: {BANDS_RANGE}",
    )
    caption(figure, context, "\n".join(note))
    figure.get_layout_engine().execute(figure)  # names keep apart by the axis' height
    name_ends(stream, ends, at=1.03)
    return figure


def _scales(axis, paths: pd.DataFrame, noise: pd.DataFrame, names) -> str:
    """Trained multipliers and those of noise, on equal units. Returns what they say."""
    axis.axhline(1, **NEUTRAL)
    axis.axvline(1, **NEUTRAL)
    ends = paths[paths["step"] == paths["step"].max()]
    groups = {names[arm]: (ends[ends["arm"] == arm], look) for arm, look in ENDS.items()}
    groups[NOISE_NAME] = noise, NOISE
    for rows, look in groups.values():
        axis.plot(np.exp(rows["product"]), np.exp(rows["ratio"]), ls="", ms=3.2, alpha=0.6, **look)
    for arm, look in ENDS.items():
        of_seeds = paths[paths["arm"] == arm].groupby(["step", "seed"])[["product", "ratio"]]
        way = np.exp(of_seeds.median().groupby("step").median())
        axis.plot(way["product"], way["ratio"], color=look["color"], **WAY)
    plain_log_axis(axis, x=True)
    plain_log_axis(axis)
    both = pd.concat([rows for rows, _ in groups.values()])
    axis.set_xlim(np.exp([both["product"].min() - 0.12, both["product"].max() + 0.12]))
    axis.set_ylim(np.exp([both["ratio"].min() - 0.12, both["ratio"].max() + 0.12]))
    sides = dict(zip(groups, (*SIDES.values(), "center"), strict=True))
    found = {
        name: _middle(axis, name, rows, look, sides[name]) for name, (rows, look) in groups.items()
    }
    axis.set_aspect("equal", adjustable="box")
    axis.set(xlabel="scale of Q × scale of K", ylabel="scale of Q / scale of K")
    trained, of_noise = (_told(found[name]) for name in (names[symmetry.FREE], NOISE_NAME))
    return (
        f"a   Q·K products move {trained}× in training, {of_noise}× by noise; "
        "medians of ratios stay near 1"
    )


def _middle(axis, name: str, rows: pd.DataFrame, look: dict, side: str) -> float:
    """A group's median with the interval of its product, named above. Returns the product."""
    of_seeds = rows.groupby("seed")[["product", "ratio"]].median()
    product, ratio = median_interval(of_seeds["product"]), np.exp(of_seeds["ratio"].median())
    product = Interval(*np.exp([product.mean, product.low, product.high]), product.n)
    colour = shade(look["color"], -0.25)
    said = f"{name.split(',' + chr(10))[0]}: {_told(product.mean)}"
    if np.isfinite(product.high):
        axis.plot([product.low, product.high], [ratio] * 2, color=look["color"], lw=2.2, zorder=4)
        said += f" [{_told(product.low)}, {_told(product.high)}]"
    axis.plot(product.mean, ratio, ls="", ms=8, **look | {"mew": 0.9}, zorder=5)
    axis.plot([product.mean] * 2, [ratio, axis.get_ylim()[1]], color=colour, lw=0.6, zorder=1)
    axis.annotate(said, (product.mean, 1), (0, 2), xycoords=axis.get_xaxis_transform(),
                  textcoords="offset points", ha=side, va="bottom", fontsize=SMALL,
                  color=colour)  # fmt: skip
    return product.mean


def _told(product: float) -> str:
    return f"{product:.{1 if product < 10 else 0}f}"


def _stream(axis, rows: pd.DataFrame, decay: float, names) -> dict[str, tuple[float, str]]:
    """The norm over training; returns what ``name_ends`` wants."""
    ends = {}
    for arm, of_arm in rows.groupby("arm"):
        median(axis, of_arm, "step", color=COLOURS[arm])
        ends[names[arm]] = end(of_arm, "step"), shade(COLOURS[arm], -0.25)
    plain_log_axis(axis)
    decay_line(axis, decay)
    axis.margins(x=0.02)
    axis.annotate("LR decay\nbegins", (decay, 1), (-3, -1), va="top", ha="right",
                  xycoords=("data", "axes fraction"), textcoords="offset points",
                  fontsize=SMALL, color="#555555", linespacing=1.05)  # fmt: skip
    axis.set(xlabel="step", ylabel="RMS norm, last layer")
    return ends
