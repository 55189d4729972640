"""Where the theorems on scale vectors stop: growth under noise, other starts, Adam, SGD (ours).

a: E γ² with and without weight decay on γ, a = 1. b: time to 1% of the loss from starts of several
sizes; a point at the top has not reached it. c: gain over no scales under Adam, each design at its
best LR. d: what weight decay on γ does to the loss of SGD.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.axes import dots, mean, spread_out
from analysis.drawing.designs import LOOKS
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, plain_log_axis, shade
from analysis.quantities import sv_theory
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("sv_theory",)
DRAWN = ("none", "standard", "ap", "dp", "or", "er")
# What the letters stand for, once.
SPELT = (
    "standard: γ scales the inputs.   AP: γ on the outputs.   DP: on both.\n"
    "OR: length and direction of γ apart.   ER: the same, of its logarithm.   "
    "q: strength of the noise"
)
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
            rows.append(_long(found, "a").assign(of=of))
    times = sv_theory.started(table, "time_to_done")
    for design in DRAWN:
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
    figure, axes = page(2, 2, 4.9, w_pad=0.08, h_pad=0.06)
    panels = dict(tuple(numbers.groupby("panel")))
    _growth(axes[0, 0], panels["a"])
    _starts(axes[0, 1], panels["b"])
    _adam(axes[1, 0], panels)
    _sgd(axes[1, 1], panels["d"])
    legend_below(figure, [key(SPELT, lw=0)], 1, handlelength=0, handletextpad=0)
    return caption(figure, context, "means over draws; bars: 95%, in a and d narrower than lines")


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
    label(axis, "a   Only decay bounds γ", xlabel="time t", ylabel=r"$\mathrm{E}\,\gamma^2$")


def _starts(axis, rows: pd.DataFrame) -> None:
    """Where a design reaches the goal in no seed, or hardly any, its point stands above."""
    horizon = rows["value"].max()
    rows = rows.assign(late=rows["value"] >= horizon)
    late = rows.groupby(["of", "x"])["late"].transform("mean") > 0.5
    sizes = sorted(rows["x"].unique())
    top, right = 1.06 * horizon, 1.9 * sizes[-1]
    censored = [name for name in DRAWN if (late & (rows["of"] == name)).any()]
    names = {}
    for design in DRAWN:
        colour, name, marker = LOOKS[design]
        own = rows[rows["of"] == design]
        means = mean(axis, own[~late[own.index]], "x", color=colour, marker=marker, ms=3)
        names[name] = colour, means.iloc[0]
        for x in own.loc[late[own.index], "x"].unique():
            # A dashed way to the top, at which the points of all such designs stand side by side.
            aside = 1.16 ** (censored.index(design) - (len(censored) - 1) / 2)
            way = {"color": colour, "ls": "--", "lw": 0.8}
            axis.plot([means.index[-1], x * aside], [means.iloc[-1], top], **way)
            axis.plot(x * aside, top, marker=marker, color=colour, ms=4, clip_on=False)
    starts = np.array([y for _, y in names.values()])
    heights = spread_out(starts, np.full(len(starts), 0.08 * top))
    for (name, (colour, _)), y in zip(names.items(), heights, strict=True):
        axis.annotate(name, (sizes[0], y), (-5, 0), ha="right", va="center", fontsize=7,
                      textcoords="offset points", color=colour)  # fmt: skip
    axis.axhline(horizon, **NEUTRAL, ls=":")
    said = [f"not reached by t = {horizon:g}"]
    for design in censored:
        own = rows.loc[late & (rows["of"] == design), "late"]
        if not own.all():
            said.append(f"({LOOKS[design][1]}: {(~own).sum()} of {len(own)} draws do)")
    axis.text(sizes[0] / 2.5, 1.13 * horizon, "\n".join(said), va="center", fontsize=6.5)
    axis.set(xscale="log", ylim=(0, 1.25 * horizon), xlim=(sizes[0] / 3, right))
    axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axis.set_yticks([0, 1, 2, horizon], ["0", "1", "2", f"{horizon:g}"])
    axis.xaxis.set_minor_locator(NullLocator())
    label(axis, "b   A larger start ends the gain", ylabel="time to 1% of the loss",
          xlabel=r"$\|W(0)\| / \|W_{*}\|$")  # fmt: skip


def _adam(axis, panels: dict[str, pd.DataFrame]) -> None:
    for teacher, paler, raised in (("gaussian", 0.5, 0.15), ("uneven", 0.0, -0.15)):
        values = panels[f"c {teacher}"].groupby("of", sort=False)["value"]
        looks = {LOOKS[design][1]: LOOKS[design][0] for design in values.groups}
        named = {LOOKS[design][1]: 100 * np.expm1(own) for design, own in values}
        dots(axis, named, {name: shade(colour, paler) for name, colour in looks.items()}, raised)
    axis.text(0.98, 0.7, "upper, pale: even columns\nlower: uneven columns", fontsize=6.5,
              ha="right", va="center", transform=axis.transAxes, zorder=5)  # fmt: skip
    axis.axvline(0, **NEUTRAL)
    label(axis, "c   Adam: scales help uneven columns",
          xlabel="by what the loss is larger without scales (%)")  # fmt: skip


def _sgd(axis, rows: pd.DataFrame) -> None:
    looks = {"parameters": (shade(DECAYED, -0.5), "noise in w and γ", "o", "-"),
             "target": (shade(DECAYED, 0.1), "noise in the target", "s", "--")}  # fmt: skip
    for enters, (colour, name, marker, style) in looks.items():
        own = rows[rows["of"] == enters].assign(value=lambda found: 100 * found["value"])
        means = mean(axis, own, "x", color=colour, marker=marker, ls=style, ms=3)
        axis.annotate(name, (means.index[0], means.iloc[0]), (12, 0), fontsize=7, color=colour,
                      textcoords="offset points")  # fmt: skip
    axis.axhline(0, **NEUTRAL)
    rates = sorted(rows["x"].unique())
    axis.set(xscale="log", ylim=(None, 36))
    axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axis.xaxis.set_minor_locator(NullLocator())
    label(axis, "d   SGD: decay on γ can help or harm", xlabel="LR η",
          ylabel="change of the loss by decay (%)")  # fmt: skip
