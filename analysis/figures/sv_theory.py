"""Where the theorems on scale vectors stop: growth under noise, other starts, Adam, SGD (ours).

a: E γ² with and without weight decay on γ, a = 1. b: time to 1% of the loss from starts of several
sizes. c: gain over no scales under Adam, each design at its best LR. d: what weight decay on γ
does to the loss of SGD.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.axes import dots
from analysis.drawing.page import caption, label, page
from analysis.drawing.style import ARM_COLOURS, NEUTRAL
from analysis.quantities import sv_theory
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("sv_theory",)
BLUE, ORANGE, GREEN = ARM_COLOURS["SPN"], ARM_COLOURS["FPN"], ARM_COLOURS["VPN"]
# Okabe and Ito's colours, as in the suite's style, and the name of each design.
LOOKS = {
    "none": ("#222222", "none"), "standard": (BLUE, "standard"), "ap": ("#56B4E9", "AP"),
    "dp": (GREEN, "DP"), "or": (ORANGE, "OR"), "er": ("#CC79A7", "ER"),
}  # fmt: skip
_NOISES = (0.1, 0.02)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, of, x (time, start or LR), seed, value."""
    table = tables["sv_theory"]
    rows = []
    for noise in _NOISES:
        for tensor in ("undecayed", "decayed"):
            found = sv_theory.course(table, 1.0, noise, "scale_square", tensor)
            of = f"{tensor}, q = {noise:g}"
            rows.append(_long(found, "a").assign(of=of))
    times = sv_theory.started(table, "time_to_done")
    for design in LOOKS:
        own = times.xs(design, axis=1, level="tensor").T
        rows.append(_long(own, "b").assign(of=design))
    for teacher in ("gaussian", "uneven"):
        for design in sv_theory.DESIGNS:
            gains = sv_theory.gain_under_adam(table, teacher, design, "none")
            rows.append(pd.DataFrame({"panel": f"c {teacher}", "of": design, "x": np.nan,
                                      "seed": times.index, "value": gains}))  # fmt: skip
    sgd = table.pick(arm="SGD", stat="loss")
    losses = sgd.pivot(index=["enters", "lr", "seed"], columns="tensor", values="value")
    ratio = (losses["decayed"] / losses["undecayed"] - 1).rename("value").reset_index()
    rows.append(ratio.rename(columns={"enters": "of", "lr": "x"}).assign(panel="d"))
    return pd.concat(rows, ignore_index=True)[["panel", "of", "x", "seed", "value"]]


def _long(frame: pd.DataFrame, panel: str) -> pd.DataFrame:
    """A frame x × seeds as rows."""
    frame = frame.rename_axis(index="x", columns="seed")
    return frame.stack().rename("value").reset_index().assign(panel=panel)


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels."""
    figure, axes = page(2, 2, 4.8, w_pad=0.08, h_pad=0.06)
    panels = dict(tuple(numbers.groupby("panel")))
    _growth(axes[0, 0], panels["a"])
    _starts(axes[0, 1], panels["b"])
    _adam(axes[1, 0], panels)
    _sgd(axes[1, 1], panels["d"])
    return caption(figure, context, "means, ± 95%")


def _lines(axis, rows: pd.DataFrame, **look) -> pd.Series:
    """Means over seeds against x with their 95% intervals; returns the means."""
    found = rows.groupby("x")["value"].apply(interval)
    means = found.map(lambda one: one.mean)
    axis.plot(means.index, means, **look)
    low, high = (found.map(lambda one, end=end: getattr(one, end)) for end in ("low", "high"))
    if np.isfinite(low).all():
        axis.fill_between(means.index, low, high, color=look["color"], alpha=0.2, lw=0)
    return means


def _growth(axis, rows: pd.DataFrame) -> None:
    for noise, style in zip(_NOISES, ("-", "--"), strict=True):
        for tensor, colour in (("undecayed", ORANGE), ("decayed", BLUE)):
            own = rows[rows["of"] == f"{tensor}, q = {noise:g}"]
            means = _lines(axis, own, color=colour, ls=style)
            if tensor == "undecayed":
                axis.annotate(f"q = {noise:g}", (means.index[-1], means.iloc[-1]), (3, 0),
                              textcoords="offset points", va="center", fontsize=6.5,
                              color=colour)  # fmt: skip
    last = rows["x"].max()
    axis.set(xscale="log", yscale="log", xlim=(last / 400, 3 * last))
    axis.text(last / 12, 17, "without decay on γ", color=ORANGE, fontsize=7, ha="right")
    axis.text(last / 20, 0.72, "with decay", color=BLUE, fontsize=7, ha="right", va="top")
    axis.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_ylim(0.5, 60)
    label(axis, "a   Only decay bounds γ", xlabel="time t", ylabel=r"$\mathrm{E}\,\gamma^2$")


def _starts(axis, rows: pd.DataFrame) -> None:
    for design, (colour, name) in LOOKS.items():
        means = _lines(axis, rows[rows["of"] == design], color=colour, marker="o", ms=3)
        axis.annotate(name, (means.index[0], means.iloc[0]), (-5, 0), ha="right", va="center",
                      textcoords="offset points", fontsize=7, color=colour)  # fmt: skip
    horizon = rows["value"].max()
    sizes = sorted(rows["x"].unique())
    axis.set(xscale="log", ylim=(0, 1.08 * horizon), xlim=(sizes[0] / 2.2, sizes[-1] * 1.15))
    axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axis.set_yticks([0, 1, 2, horizon], ["0", "1", "2", f"{horizon:g} or\nmore"])
    axis.xaxis.set_minor_locator(NullLocator())
    label(axis, "b   A larger start ends the gain", ylabel="time to 1% of the loss",
          xlabel=r"$\|W(0)\| / \|W_\star\|$")  # fmt: skip


def _adam(axis, panels: dict[str, pd.DataFrame]) -> None:
    looks = (("gaussian", "even columns", "#555555", 0.15),
             ("uneven", "uneven columns", ORANGE, -0.15))  # fmt: skip
    for teacher, text, colour, raised in looks:
        rows = panels[f"c {teacher}"]
        named = {LOOKS[design][1]: 100 * np.expm1(own["value"]) for design, own in
                 rows.groupby("of", sort=False)}  # fmt: skip
        dots(axis, named, dict.fromkeys(named, colour), raised)
        axis.text(0.97, 0.72 if raised > 0 else 0.65, text, color=colour, fontsize=7, ha="right",
                  transform=axis.transAxes)  # fmt: skip
    axis.axvline(0, **NEUTRAL)
    label(axis, "c   Adam gains most on uneven columns", xlabel="excess loss without scales (%)")


def _sgd(axis, rows: pd.DataFrame) -> None:
    looks = {"parameters": (BLUE, "noise in w and γ"), "target": (GREEN, "noise in the target")}
    for enters, (colour, name) in looks.items():
        own = rows[rows["of"] == enters].assign(value=lambda found: 100 * found["value"])
        means = _lines(axis, own, color=colour, marker="o", ms=3)
        axis.annotate(name, (means.index[0], means.iloc[0]), (12, 0), fontsize=7, color=colour,
                      textcoords="offset points")  # fmt: skip
    axis.axhline(0, **NEUTRAL)
    rates = sorted(rows["x"].unique())
    axis.set(xscale="log", ylim=(None, 36))
    axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axis.xaxis.set_minor_locator(NullLocator())
    label(axis, "d   What decay on γ does to SGD's loss", xlabel="LR η",
          ylabel="change of the loss (%)")  # fmt: skip
