"""Where the theorems on scale vectors stop: other starts, Adam, growth under noise, SGD (ours).

a: time to 1% of the loss from starts of several sizes; designs of which most draws do not reach it
stand hollow in the strip above. b: how much lower than without scales the loss is under Adam, each
design at its best LR, grey for teachers with even columns. c: E γ² with and without weight decay on
γ, at a target of 1. d: what weight decay on γ does to the loss of SGD. Faint points and thin lines
are draws.
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
MESSAGE = "Where the theorems on scale vectors hold, and where they stop"
WORDS = (
    "Scales γ: standard: on the inputs.   AP: on the outputs.   DP: on both sides.\n"
    "OR: length and direction apart.   ER: as exponentials.   none: no scales.   "
    "q: strength of the noise"
)
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
    figure, axes = page(2, 2, 5.0, w_pad=0.06, h_pad=0.05)
    figure.suptitle(MESSAGE, x=0.01, ha="left", fontsize=7.5, weight="bold")
    panels = dict(tuple(numbers.groupby("panel")))
    _starts(axes[0, 0], panels["a"])
    _adam(axes[0, 1], panels)
    _growth(axes[1, 0], panels["c"])
    _sgd(axes[1, 1], panels["d"])
    legend_below(figure, [key(WORDS, lw=0)], 1, handlelength=0, handletextpad=0)
    return caption(figure, context, "faint: each draw; markers and lines: means; bars in b: 95%")


def _growth(axis, rows: pd.DataFrame) -> None:
    for noise, style in zip(_NOISES, ("-", "--"), strict=True):
        for tensor, colour in (("undecayed", FREE), ("decayed", DECAYED)):
            own = rows[rows["of"] == f"{tensor}, q = {noise:g}"]
            for _, draw in own.groupby("seed"):
                axis.plot(draw["x"], draw["value"], color=colour, lw=0.4, alpha=0.25)
            means = mean(axis, own, "x", color=colour, ls=style)
            if tensor == "undecayed":
                axis.annotate(f"q = {noise:g}", (means.index[-1], means.iloc[-1]), (3, 0),
                              textcoords="offset points", va="center", fontsize=SMALL,
                              color=colour)  # fmt: skip
    last = rows["x"].max()
    plain_log_axis(axis, x=True)
    axis.set(yscale="log", xlim=(last / 400, 4.5 * last))
    axis.text(last / 12, 17, "without decay on γ", color=FREE, fontsize=7, ha="right")
    axis.text(last / 12, 0.66, "with decay on γ", color=DECAYED, fontsize=7, ha="right", va="top")
    axis.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_ylim(0.35, 60)
    label(axis, "c   Theorem 8.1: only decay bounds γ", xlabel="time t",
          ylabel=r"$\mathrm{E}\,\gamma^2$")  # fmt: skip


def _starts(axis, rows: pd.DataFrame) -> None:
    """A design of which most draws do not reach the goal stands in the strip, hollow."""
    horizon = rows["value"].max()
    late = rows["value"].ge(horizon).groupby([rows["of"], rows["x"]]).transform("mean") > 0.5
    sizes = sorted(rows["x"].unique())
    top, names = 1.45 * horizon, {}
    for design in DRAWN:
        colour, name, marker = LOOKS[design]
        own = rows[(rows["of"] == design) & ~late]
        if own.empty:
            continue
        axis.plot(own["x"], own["value"], marker, color=colour, ms=2, alpha=0.3, mew=0)
        means = mean(axis, own, "x", color=colour, marker=marker, ms=3)
        names[name] = colour, means.iloc[0]
    starts = np.array([y for _, y in names.values()])
    heights = spread_out(starts, np.full(len(starts), 0.075 * top))
    for (name, (colour, _)), y in zip(names.items(), heights, strict=True):
        axis.annotate(name, (sizes[0], y), (-5, 0), ha="right", va="center", fontsize=SMALL,
                      textcoords="offset points", color=colour)  # fmt: skip
    axis.axhspan(horizon, top, **NOT_JUDGED, lw=0, zorder=0)
    for size, own in rows[late].groupby("x"):
        _unreached(axis, size, own, horizon, top)
    axis.text(sizes[0] / 2.8, horizon + 0.3 * (top - horizon), f"not reached by t = {horizon:g}:",
              va="center", fontsize=SMALL)  # fmt: skip
    axis.set(xscale="log", ylim=(0, top), xlim=(sizes[0] / 3, 2.2 * sizes[-1]))
    axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axis.set_yticks([0, 1, 2, horizon], ["0", "1", "2", f"{horizon:g}"])
    axis.xaxis.set_minor_locator(NullLocator())
    label(axis, "a   A large start ends theorem 2.2's gain", ylabel="time to 1% of the loss",
          xlabel=r"$\|W(0)\| / \|W_{*}\|$")  # fmt: skip


def _unreached(axis, size: float, rows: pd.DataFrame, horizon: float, top: float) -> None:
    """Hollow markers side by side around a start's size, and which draws reach it nevertheless."""
    designs = rows.groupby("of", sort=False)["value"]
    for number, (design, values) in enumerate(designs):
        colour, name, marker = LOOKS[design]
        x = size * 1.25 ** (number - (len(designs) - 1) / 2)
        y = horizon + 0.3 * (top - horizon)
        axis.plot(x, y, marker, color=colour, ms=4, mfc="none", mew=0.8)
        if reached := (values < horizon).sum():
            axis.annotate(f"{name}: {reached} of {len(values)} do", (x, y), (0, 9), ha="center",
                          textcoords="offset points", va="center", fontsize=SMALL,
                          color=colour)  # fmt: skip


def _adam(axis, panels: dict[str, pd.DataFrame]) -> None:
    for teacher, raised in (("gaussian", 0.17), ("uneven", -0.17)):
        values = panels[f"b {teacher}"].groupby("of", sort=False)["value"]
        named = {LOOKS[design][1]: -100 * np.expm1(-own) for design, own in values}
        colours = {LOOKS[design][1]: LOOKS[design][0] if teacher == "uneven" else _EVEN
                   for design in values.groups}  # fmt: skip
        markers = {LOOKS[design][1]: LOOKS[design][2] for design in values.groups}
        dots(axis, named, colours, raised, markers=markers)
    marks = [key("even columns", color=_EVEN, marker="s", lw=0),
             key("uneven columns (colours)", color=LOOKS["standard"][0], marker="s",
                 lw=0)]  # fmt: skip
    axis.legend(handles=marks, loc="center right", bbox_to_anchor=(1, len(values) - 2.15),
                bbox_transform=axis.get_yaxis_transform(), handletextpad=0.1,
                borderaxespad=0)  # fmt: skip
    axis.set_ylim(-0.6, len(values) - 0.4)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="y", visible=False)
    axis.axvline(0, **NEUTRAL)
    label(axis, "b   Adam: uneven columns gain, save AP",
          xlabel="loss lower than without scales by (%)")  # fmt: skip


def _sgd(axis, rows: pd.DataFrame) -> None:
    looks = {
        "parameters": (shade(DECAYED, -0.5), "noise in w and γ", "o", "-", (12, 0)),
        "target": (shade(DECAYED, 0.1), "noise in the target", "s", "--", (3, -18)),
    }
    for enters, (colour, name, marker, style, aside) in looks.items():
        own = rows[rows["of"] == enters].assign(value=lambda found: 100 * found["value"])
        axis.plot(own["x"], own["value"], marker, color=colour, ms=2, alpha=0.3, mew=0)
        means = mean(axis, own, "x", color=colour, marker=marker, ls=style, ms=3)
        axis.annotate(name, (means.index[0], means.iloc[0]), aside, fontsize=7, color=colour,
                      textcoords="offset points")  # fmt: skip
    axis.axhline(0, **NEUTRAL)
    rates = sorted(rows["x"].unique())
    axis.set(xscale="log", ylim=(-45, 40))
    axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axis.xaxis.set_minor_locator(NullLocator())
    label(axis, "d   SGD: decay on γ helps or harms", xlabel="LR η",
          ylabel="change of the loss by decay (%)")  # fmt: skip
