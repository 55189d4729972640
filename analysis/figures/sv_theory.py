"""Where the theorems on scale vectors stop: other starts, Adam, growth under noise, SGD (ours).

a: time to 1% of the first loss from starts of several sizes; where most draws of a design do not
reach it, the strip above says how many do. b: how much lower than without scales the loss is under
Adam, each design at its best LR, grey for teachers with even columns. c: E γ² with and without
weight decay on γ, at a target of 1. d: what weight decay on γ does to the loss of SGD. Faint points
are draws, and bands in c their range.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.axes import dots, mean, spread_out
from analysis.drawing.designs import LOOKS
from analysis.drawing.page import caption, finding, headline, key, label, legend_below, sheet
from analysis.drawing.style import NEUTRAL, NOT_JUDGED, SMALL, shade
from analysis.quantities import sv_theory
from analysis.tables.context import Context
from analysis.tables.results import Tables
from lrm.cli import counted

EXPERIMENTS = ("sv_theory",)
DRAWN = ("none", "standard", "ap", "dp", "or", "er")
ON_INPUTS = ("standard", "dp", "or", "er")
# Headlines of the two rows.
GAIN = "Scales γ help from small starts; under Adam little with even columns or on the outputs"
DECAY_ON_SCALES = (
    "Weight decay on γ keeps γ small; it lowers the loss in some settings, raises it in others"
)
WORDS = (
    "Scales γ: standard: on the inputs.   AP: on the outputs.   DP: on both sides.   "
    "none: no scales.\n"
    "OR: length and direction apart.   ER: as exponentials.   W⋆: the teacher.\n"
    "c, d: γ·w learns the number 1. Weight decay is 0.1 in c, 0.02 in d; w always has it.\n"
    "q: strength of the noise in c. In d its standard deviation is 0.5 in each step.\n"
    "E: mean over the simulated paths of a draw. "
    "Grey in a: draws that do not get there end beyond the axis."
)
# What is not a design's: teachers with even columns, and colours of c and d.
_EVEN = "#999999"
FREE, DECAYED = "#222222", "#117733"
IN_BOTH, IN_TARGET = "#607D8B", "#B8860B"
_NOISES = (0.1, 0.02)
_LINES = 4  # of text in the strip of a, for each start

# What the published draws show in a, and the plain titles of others.
SOONER = (
    "Scales get to 1% of the first loss sooner from\n"
    "     small starts, but not from one as large as $W_{*}$"
)
PLAIN = {
    "a": "Time to 1% of the first loss",
    "b": "Adam, by design",
    "c": "Sizes of scales, with weight decay and without",
    "d": "SGD, with weight decay − without",
}


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
    """Four panels: above where the gain of scales ends, below what weight decay on them does."""
    figure = sheet(6.05, w_pad=0.06, h_pad=0.03)
    parts = figure.subfigures(2, 1)
    (a, b), (c, d) = (part.subplots(1, 2) for part in parts)
    for part, message in zip(parts, (GAIN, DECAY_ON_SCALES), strict=True):
        headline(part, message, context)
    panels = dict(tuple(numbers.groupby("panel")))
    _starts(a, panels["a"])
    shown = {"b": _adam(b, panels), "c": _growth(c, panels["c"]), "d": _sgd(d, panels["d"])}
    for panel, axis in zip("abcd", (a, b, c, d), strict=True):
        title = finding(context, shown.get(panel, SOONER), PLAIN[panel])
        label(axis, f"{panel}   {title}")
    legend_below(figure, [key(WORDS, lw=0)], 1, handlelength=0, handletextpad=0)
    marks = [key("b: even columns of W⋆ (of one norm)", color=_EVEN, marker="s", lw=0),
             key("b: uneven ones (log-normal norms; in the design's colour)",
                 color="#444444", marker="s", lw=0)]  # fmt: skip
    legend_below(figure, marks, 2, handletextpad=0.1)
    note = "markers, lines and percentages in titles: means\n"
    note += "faint points: each draw (in a within the markers); "
    note += "bars in b: 95% intervals; bands in c: range\n"
    note += "d: intervals lie within the markers"
    return caption(figure, context, note, n=f"n = {counted(numbers['seed'].nunique(), 'draw')}")


def _growth(axis, rows: pd.DataFrame) -> str:
    """Returns what the published draws show."""
    lifts = {("undecayed", 0.1): 3, ("undecayed", 0.02): -3, ("decayed", 0.1): 4,
             ("decayed", 0.02): -4}  # fmt: skip
    for (tensor, noise), lift in lifts.items():
        own = rows[rows["of"] == f"{tensor}, q = {noise:g}"]
        colour = FREE if tensor == "undecayed" else DECAYED
        strong = noise == max(_NOISES)
        look = {"ls": "-", "lw": 1.4} if strong else {"ls": (0, (2.2, 1)), "lw": 1.6}
        span = own.groupby("x")["value"].agg(["min", "max"])
        axis.fill_between(span.index, span["min"], span["max"], color=colour, alpha=0.18, lw=0)
        means = mean(axis, own, "x", color=colour if strong else shade(colour, 0.4), **look)
        axis.annotate(f"q = {noise:g}", (means.index[-1], means.iloc[-1]), (3, lift),
                      textcoords="offset points", va="center", fontsize=SMALL,
                      color=colour)  # fmt: skip
    last = rows["x"].max()
    axis.set(xscale="log", yscale="log", xlim=(last / 400, 4.5 * last), ylim=(0.35, 60))
    for height, name, colour in ((17, "without", FREE), (0.5, "with", DECAYED)):
        axis.text(last / 340, height, f"{name} weight decay on γ", color=colour, fontsize=7)
    axis.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    ticks = [*(tick for tick in (1, 10, 100) if tick < last), last]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set(xlabel="time t", ylabel=r"$\mathrm{E}\,\gamma^2$")
    return (
        f"With weight decay E γ² stays near 1;\n     without, it grows until the end (t = {last:g})"
    )


def _starts(axis, rows: pd.DataFrame) -> None:
    """Where most draws of a design do not reach the goal, the strip says how many do."""
    horizon = rows["value"].max()
    late = rows["value"].ge(horizon).groupby([rows["of"], rows["x"]]).transform("mean") > 0.5
    sizes = sorted(rows["x"].unique())
    beyond, names = sorted(rows.loc[late, "x"].unique(), reverse=True), {}
    line = 0.14 * horizon
    top = horizon + (0.8 + _LINES * len(beyond)) * line
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
    for number, size in enumerate(beyond):
        own, y = rows[rows["x"] == size], top - (0.9 + _LINES * number) * line
        _reached(axis, size, own, horizon, y, line)
    axis.set(xscale="log", ylim=(0, top), xlim=(sizes[0] / 3, 1.5 * sizes[-1]))
    axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axis.set_yticks([0, 1, 2, horizon], ["0", "1", "2", f"{horizon:g}"])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_ylabel("time to 1% of the first loss")
    axis.set_xlabel(r"size of the start, $\|W(0)\| / \|W_{*}\|$")


def _reached(axis, size: float, rows: pd.DataFrame, horizon: float, y: float, line: float) -> None:
    """From y downwards: of each design how many draws from this start reach the goal."""
    across = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": SMALL}
    said = f"draws of {rows['seed'].nunique()} that get there by t = {horizon:g}\nfrom a start of"
    axis.text(0.03, y - 0.5 * line, f"{said} size {size:g}:", linespacing=1.1, **across)
    for number, design in enumerate(DRAWN):
        colour, name, marker = LOOKS[design]
        x, height = 0.06 + 0.31 * (number % 3), y - (2 + number // 3) * line
        axis.plot(x, height, marker, color=colour, ms=3.4, transform=axis.get_yaxis_transform())
        reached = (rows.loc[rows["of"] == design, "value"] < horizon).sum()
        axis.text(x + 0.035, height, f"{name} {reached}", color=colour, **across)


def _adam(axis, panels: dict[str, pd.DataFrame]) -> str:
    """Returns what the published draws show."""
    means = {}
    for teacher, raised in (("gaussian", 0.31), ("uneven", -0.15)):
        rows = panels[f"b {teacher}"]
        values = rows.assign(value=-100 * np.expm1(-rows["value"])).groupby("of", sort=False)
        means |= {(teacher, design): mean for design, mean in values["value"].mean().items()}
        named = {LOOKS[design][1]: own for design, own in values["value"]}
        colours = {LOOKS[design][1]: LOOKS[design][0] if teacher == "uneven" else _EVEN
                   for design in values.groups}  # fmt: skip
        markers = {LOOKS[design][1]: LOOKS[design][2] for design in values.groups}
        dots(axis, named, colours, raised, markers=markers, below=0.18)
    axis.set_ylim(-0.6, len(values) - 0.4)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="y", visible=False)
    for border in np.arange(len(values) - 1) + 0.5:
        axis.axhline(border, color="#dddddd", lw=0.6)
    axis.axvline(0, **NEUTRAL)
    uneven = [means.pop(("uneven", design)) for design in ON_INPUTS]
    axis.set_xlabel("loss lower than without scales by (%)")
    return (
        "Adam, uneven columns: input scales\n"
        f"     gain {min(uneven):.0f}–{max(uneven):.0f}%; "
        f"all else: means below {np.ceil(max(means.values())):.0f}%"
    )


def _sgd(axis, rows: pd.DataFrame) -> str:
    """Returns what the published draws show."""
    looks = {
        "parameters": (IN_BOTH, "noise in w and γ", "o", "-", (12, 0)),
        "target": (IN_TARGET, "noise in the target", "s", "--", (3, -18)),
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
    axis.set(xlabel="LR η", ylabel="change of the loss\nby weight decay on γ (%)")
    return (
        f"SGD gains with noise in the target;\n     with noise in w and γ only at η = {rates[-1]:g}"
    )
