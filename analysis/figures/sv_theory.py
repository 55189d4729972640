"""Where the theorems on scale vectors stop: growth under noise, other starts, Adam, SGD (ours).

a: time to 1% of the loss from starts of several sizes; designs that do not reach it stand in the
strip above. b: gain over no scales under Adam, each design at its best LR, grey for teachers with
even columns. c: E γ² with and without weight decay on γ, at a target of 1. d: what weight decay on
γ does to the loss of SGD.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.axes import dots, mean, spread_out
from analysis.drawing.designs import LOOKS
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, NOT_JUDGED, SMALL, plain_log_axis, shade
from analysis.quantities import sv_theory
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("sv_theory",)
DRAWN = ("none", "standard", "ap", "dp", "or", "er")
# The rows of b, which say what the letters of a stand for.
WORDS = {
    "standard": "inputs (standard)", "ap": "outputs (AP)", "dp": "both sides (DP)",
    "or": "length apart (OR)", "er": "exponentials (ER)",
}  # fmt: skip
# What is not a design's: teachers with even columns.
_EVEN = "#999999"
FREE, DECAYED = "#222222", "#8E6BBF"
_NOISES = (0.1, 0.02)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, of, x (time, start or LR), seed, value."""
    table = tables["sv_theory"]
    rows = []
    for noise in _NOISES:
        for tensor in ("undecayed", "decayed"):
            found = sv_theory.course(table, 1.0, noise, "scale_square", tensor)
            of = f"{tensor}, q = {noise:g}"
            rows.append(_long(found, "c").assign(of=of))
    times = sv_theory.started(table, "time_to_done")
    for design in DRAWN:
        own = times.xs(design, axis=1, level="tensor").T
        rows.append(_long(own, "a").assign(of=design))
    for teacher in ("gaussian", "uneven"):
        for design in sv_theory.DESIGNS:
            gains = sv_theory.gain_under_adam(table, teacher, design, "none")
            rows.append(pd.DataFrame({"panel": f"b {teacher}", "of": design, "x": np.nan,
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
    """Four panels: above where the gain of scales ends, below what decay on them does."""
    figure, axes = page(2, 2, 4.7, w_pad=0.08, h_pad=0.06)
    panels = dict(tuple(numbers.groupby("panel")))
    _starts(axes[0, 0], panels["a"])
    _adam(axes[0, 1], panels)
    _growth(axes[1, 0], panels["c"])
    _sgd(axes[1, 1], panels["d"])
    said = "γ: a vector of scales; b names where designs have it.   q: strength of the noise"
    legend_below(figure, [key(said, lw=0)], 1, handlelength=0, handletextpad=0)
    return caption(figure, context, "means over draws; bars: 95%, in c and d narrower than lines")


def _growth(axis, rows: pd.DataFrame) -> None:
    for noise, style in zip(_NOISES, ("-", "--"), strict=True):
        for tensor, colour in (("undecayed", FREE), ("decayed", DECAYED)):
            own = rows[rows["of"] == f"{tensor}, q = {noise:g}"]
            means = mean(axis, own, "x", color=colour, ls=style)
            if tensor == "undecayed":
                axis.annotate(f"q = {noise:g}", (means.index[-1], means.iloc[-1]), (3, 0),
                              textcoords="offset points", va="center", fontsize=6.5,
                              color=colour, annotation_clip=False)  # fmt: skip
    last = rows["x"].max()
    plain_log_axis(axis, x=True)
    axis.set(yscale="log", xlim=(last / 400, last))
    axis.text(last / 12, 17, "without decay on γ", color=FREE, fontsize=7, ha="right")
    axis.text(last / 20, 0.72, "with decay", color=DECAYED, fontsize=7, ha="right", va="top")
    axis.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_ylim(0.5, 60)
    label(axis, "c   Only decay bounds γ", xlabel="time t", ylabel=r"$\mathrm{E}\,\gamma^2$")


def _starts(axis, rows: pd.DataFrame) -> None:
    """Where a design reaches the goal in no seed, or hardly any, its name stands in the strip."""
    horizon = rows["value"].max()
    rows = rows.assign(late=rows["value"] >= horizon)
    late = rows.groupby(["of", "x"])["late"].transform("mean") > 0.5
    sizes = sorted(rows["x"].unique())
    top, names = 1.4 * horizon, {}
    for design in DRAWN:
        colour, name, marker = LOOKS[design]
        own = rows[(rows["of"] == design) & ~late]
        if own.empty:
            continue
        means = mean(axis, own, "x", color=colour, marker=marker, ms=3)
        names[name] = colour, means.iloc[0]
    starts = np.array([y for _, y in names.values()])
    heights = spread_out(starts, np.full(len(starts), 0.075 * top))
    for (name, (colour, _)), y in zip(names.items(), heights, strict=True):
        axis.annotate(name, (sizes[0], y), (-5, 0), ha="right", va="center", fontsize=SMALL,
                      textcoords="offset points", color=colour)  # fmt: skip
    axis.axhspan(horizon, top, **NOT_JUDGED, lw=0, zorder=0)
    said = [f"not reached by t = {horizon:g} from {size:g}:\n{_names(own)}"
            for size, own in rows[late].groupby("x")]  # fmt: skip
    axis.text(sizes[0] / 2.6, (horizon + top) / 2, "\n".join(said), va="center", fontsize=SMALL)
    axis.set(xscale="log", ylim=(0, top), xlim=(sizes[0] / 3, 1.7 * sizes[-1]))
    axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axis.set_yticks([0, 1, 2, horizon], ["0", "1", "2", f"{horizon:g}"])
    axis.xaxis.set_minor_locator(NullLocator())
    label(axis, "a   A larger start ends the gain", ylabel="time to 1% of the loss",
          xlabel=r"$\|W(0)\| / \|W_{*}\|$")  # fmt: skip


def _names(rows: pd.DataFrame) -> str:
    """The designs of these rows, and how many draws reach the goal nevertheless."""
    said = []
    for design, own in rows.groupby("of", sort=False)["late"]:
        some = "" if own.all() else f" ({(~own).sum()} of {len(own)} do)"
        said.append(f"{LOOKS[design][1]}{some}")
    return ", ".join(said)


def _adam(axis, panels: dict[str, pd.DataFrame]) -> None:
    for teacher, raised in (("gaussian", 0.17), ("uneven", -0.17)):
        values = panels[f"b {teacher}"].groupby("of", sort=False)["value"]
        named = {WORDS[design]: 100 * np.expm1(own) for design, own in values}
        colours = {WORDS[design]: LOOKS[design][0] if teacher == "uneven" else _EVEN
                   for design in values.groups}  # fmt: skip
        markers = {WORDS[design]: LOOKS[design][2] for design in values.groups}
        dots(axis, named, colours, raised, markers=markers)
    rows = len(WORDS)
    gains = 100 * np.expm1(panels["b uneven"]["value"])
    look = {"textcoords": "offset points", "fontsize": SMALL}
    axis.annotate("even", (0, rows - 0.35), (3, 0), color="#666666", **look)
    axis.annotate("uneven columns", (gains.median(), rows - 0.35), (0, 0), ha="center", **look)
    axis.set_ylim(-0.6, rows + 0.05)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="y", visible=False)
    axis.axvline(0, **NEUTRAL)
    label(axis, "b   Adam: uneven columns gain",
          xlabel="loss without scales is larger by (%)")  # fmt: skip


def _sgd(axis, rows: pd.DataFrame) -> None:
    looks = {
        "parameters": (shade(DECAYED, -0.5), "noise in w and γ", "o", "-", (12, 0)),
        "target": (shade(DECAYED, 0.1), "noise in the target", "s", "--", (3, -16)),
    }
    for enters, (colour, name, marker, style, aside) in looks.items():
        own = rows[rows["of"] == enters].assign(value=lambda found: 100 * found["value"])
        means = mean(axis, own, "x", color=colour, marker=marker, ls=style, ms=3)
        axis.annotate(name, (means.index[0], means.iloc[0]), aside, fontsize=7, color=colour,
                      textcoords="offset points")  # fmt: skip
    axis.axhline(0, **NEUTRAL)
    rates = sorted(rows["x"].unique())
    axis.set(xscale="log", ylim=(None, 36))
    axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axis.xaxis.set_minor_locator(NullLocator())
    label(axis, "d   SGD: decay helps or harms", xlabel="LR η",
          ylabel="change of the loss by decay (%)")  # fmt: skip
