"""Figure 4 (section 4.1): multipliers along two symmetries, without and with weight decay.

a: product of the scales of Q's and K's multipliers against their ratio, on equal logarithmic units:
lines lead from the start to the end of the constant stage, and points are there. The scale is the
RMS of the rows' multipliers times that of the columns'. A small point is a layer of a seed; of
Brownian motion (ABM), which has no weight decay, a layer of a draw. A large one is the median over
seeds of their medians over layers, with 95% intervals; those of products stand in numbers. Lines
are that median over training. Of the paper's weight decay a line from below ends at the median.
What drifts within a layer is not seen here; ``symmetry_pairs`` draws it. b: norm of the residual
stream behind the last layer. Lines are medians, bands the range of seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.patheffects import withStroke

from analysis.drawing.axes import decay_line, end, median, name_ends
from analysis.drawing.page import caption, headline, label, page
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
from analysis.tables.context import Context, planned
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
    symmetry.LIGHT: "λ = 0.0104,\nΣηλ = 0.6",
    symmetry.NONE: NO_MULTIPLIERS,
}
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
# Of the paper's weight decay, whose median lies beside another's, a line from below ends at it.
LITERAL = {"color": COLOURS[symmetry.LITERAL]}
NOISE = {"color": NOISE_COLOUR, "marker": "X", "mec": "white", "mew": 0.2}
NOISE_NAME = "noise alone"
MESSAGE = (
    "A weight decay of 0.0104 on multipliers slows the growth of Q·K products\n"
    "and of the residual stream"
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, seed, layer, step, product, ratio (ln), value.

    The panel ``paths`` has medians over layers, and ``residual`` the last layer.
    """
    table = tables["symmetry"]
    at_end = {"step": table.stage_end}
    ends = symmetry.brownian_ends(table, symmetry.FREE).rename(columns={"draw": "seed"})
    parts = [ends.assign(panel="noise", arm=symmetry.FREE, **at_end)]
    for arm in TRAINED:
        paths = symmetry.paths(table, arm)
        parts.append(paths[paths["step"] == table.stage_end].assign(panel="ends", arm=arm))
        if arm in ENDS:
            of_seeds = paths[paths["step"] <= table.stage_end].groupby(["seed", "step"])
            middle = of_seeds[["product", "ratio"]].median().reset_index()
            parts.append(middle.assign(panel="paths", arm=arm))
    for arm in (symmetry.NONE, *TRAINED):
        norms = np.exp(symmetry.residual(table, arm)).rename("value").reset_index()
        parts.append(norms.assign(panel="residual", arm=arm))
    columns = ["panel", "arm", "seed", "layer", "step", "product", "ratio", "value"]
    return pd.concat(parts)[columns].astype({"step": float}).reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Multipliers above, the stream below."""
    figure, (scales, stream) = page(2, 1, 5.0, h_pad=0.05, height_ratios=[1.2, 1])
    headline(figure, MESSAGE, context)
    panels = dict(tuple(numbers.groupby("panel")))
    noise = panels["noise"]
    decay = noise["step"].max()
    names = dict(NAMES)
    if context.scale != "tiny":  # light weight decay depends on the scale; above it is that of tiny
        light = planned("symmetry", context)[symmetry.LIGHT]["multipliers"]["weight_decay"]
        names[symmetry.LIGHT] = f"light:\nλ = {light:g}"
    _scales(scales, panels["ends"], noise, names)
    _paths(scales, panels["paths"])
    ends = _stream(stream, panels["residual"], decay, names)
    layers, draws = noise["layer"].nunique(), noise["seed"].nunique()
    seeds = panels["residual"]["seed"].nunique()
    # Fewer have no interval of order statistics.
    bars = " with 95% intervals" if seeds > 5 else ""
    note = (
        "λ: weight decay of multipliers; Σηλ: learning rate × λ, summed over all steps",
        f"a: small: {layers} layers of each seed as LR decay begins; large: medians{bars}"
        "\n(paper's λ: the line from below ends at the median)",
        "lines: these medians from the start, where grey lines cross; "
        "drift within a layer: figure of rotated pairs",
        "scale: RMS of the rows' multipliers × RMS of the columns'; "
        f"noise: {BROWNIAN}, n = {draws} draws, λ = 0",
        *([f"b: {BANDS_RANGE}"] if seeds > 1 else []),
    )
    caption(figure, context, "\n".join(note))
    figure.get_layout_engine().execute(figure)  # names keep apart by the axis' height
    name_ends(stream, ends, at=1.03)
    return figure


def _scales(axis, ends: pd.DataFrame, noise: pd.DataFrame, names: dict[str, str]) -> None:
    """Trained multipliers and those of noise, on equal units; the title says what they do."""
    axis.axhline(1, **NEUTRAL)
    axis.axvline(1, **NEUTRAL)
    groups = {names[arm]: (ends[ends["arm"] == arm], look) for arm, look in ENDS.items()}
    groups[NOISE_NAME] = noise, NOISE
    for rows, look in groups.values():
        axis.plot(np.exp(rows["product"]), np.exp(rows["ratio"]), ls="", ms=3, alpha=0.4, **look)
    plain_log_axis(axis, x=True)
    plain_log_axis(axis)
    both = pd.concat([rows for rows, _ in groups.values()])
    axis.set_xlim(np.exp([both["product"].min() - 0.12, both["product"].max() + 0.12]))
    axis.set_ylim(np.exp([both["ratio"].min() - 0.12, both["ratio"].max() + 0.12]))
    sides = dict(zip(groups, (*SIDES.values(), "center"), strict=True))
    found = {
        name: _middle(axis, name, rows, look, sides[name]) for name, (rows, look) in groups.items()
    }
    literal = ends[ends["arm"] == symmetry.LITERAL]
    if len(literal):
        _middle(axis, names[symmetry.LITERAL], literal, LITERAL, "center", below=True)
    axis.set_aspect("equal", adjustable="box")
    axis.set(xlabel="scale of Q × scale of K", ylabel="scale of Q / scale of K")
    free, light = (found[names[arm]] for arm in ENDS)
    far = max(abs(end) for _, ratio in (free, light) for end in _finite(ratio))
    title = (
        f"a   Median products: {_told(free[0])}× at {_short(names[symmetry.FREE])}, "
        f"{_told(light[0])}× at {_short(names[symmetry.LIGHT])}; "
        f"median ratios within {np.exp(far):.1f}×"
    )
    axis.set_title(title, loc="left", pad=14)  # above the numbers


def _paths(axis, paths: pd.DataFrame) -> None:
    """The median over seeds from the start on, of the arms whose end points are drawn."""
    for arm in ENDS:
        rows = paths[paths["arm"] == arm].groupby("step")[["product", "ratio"]].median()
        edge = [withStroke(linewidth=2.6, foreground="white")]
        axis.plot(*np.exp([rows["product"], rows["ratio"]]), lw=1.3, zorder=3.5, path_effects=edge,
                  color=shade(COLOURS[arm], -0.15))  # fmt: skip


def _middle(axis, name: str, rows: pd.DataFrame, look: dict, side: str, below=False):
    """A group's medians with their intervals; that of the product stands in numbers.

    Returns the product, and ln of the ratio.
    """
    of_seeds = rows.groupby("seed")[["product", "ratio"]].median()
    product, ratio = (median_interval(of_seeds[one]) for one in of_seeds)
    x, y = np.exp([product.mean, ratio.mean])
    colour = shade(look["color"], -0.25)
    said = f"{_short(name)}: {_told(x)}"
    toward = y
    if np.isfinite(product.high):
        ends = np.exp([product.low, product.high])
        bar = {"color": shade(look["color"], -0.4), "lw": 2, "zorder": 4}
        if not below:  # it would lie on another's
            axis.plot(ends, [y, y], **bar)
            axis.plot([x, x], np.exp([ratio.low, ratio.high]), **bar)
            toward = np.exp(ratio.high)
        said += f" [{_told(ends[0])}, {_told(ends[1])}]"
    if not below:
        edge = {"mec": shade(look["color"], -0.4), "mew": 1.1}
        axis.plot(x, y, ls="", **look | edge | {"ms": 6, "zorder": 5})
    edges, height = axis.get_ylim(), 0 if below else 1
    axis.plot([x, x], [toward, edges[height]], color=colour, lw=0.5, zorder=1)
    axis.annotate(said, (x, height), (0, 2), xycoords=axis.get_xaxis_transform(),
                  textcoords="offset points", ha=side, va="bottom", fontsize=SMALL,
                  color=colour, bbox={"color": "white", "pad": 0.6})  # fmt: skip
    return x, ratio


def _finite(ratio: Interval) -> list[float]:
    """The ends of an interval, or of few seeds their median."""
    ends = [ratio.low, ratio.high]
    return ends if np.isfinite(ends).all() else [ratio.mean]


def _short(name: str) -> str:
    """``λ = 0.0104`` of its longer name, in one line."""
    return name.split(",")[0].replace("\n", " ")


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
    axis.set(xlabel="step", ylabel="RMS of the residual stream\nafter the last layer")
    at_decay = rows[rows["step"] == decay].groupby("arm")["value"].median()
    free, light = (at_decay[arm] for arm in ENDS)
    label(axis, f"b   As LR decay begins, the stream is at {free:.2f} with "
                f"{_short(names[symmetry.FREE])} and at {light:.2f} with "
                f"{_short(names[symmetry.LIGHT])}")  # fmt: skip
    return ends
