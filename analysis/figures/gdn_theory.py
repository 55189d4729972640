"""What is derived for Gated Delta Networks over the width d, against what is measured (ours).

a: exponents of d in sizes and gradients as models begin, by recipe; boxes are what is derived, 0.15
to either side, and dashed where that is derived for short memories only. b: exponent of how far SGD
moves the gates with one LR at all widths, in the recipe before the paper, against the tokens in a
batch: the first step, a token's own part of it, and ten steps. Dots are means over seeds, lines
their 95% intervals.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import NullLocator

from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, SMALL
from analysis.drawing.transfer import MUP
from analysis.quantities import gdn_theory as found
from analysis.quantities.gdn_theory import DERIVED, FEW, GATES, MANY, RECIPES
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("gdn_theory",)
# Colour, marker, name and place of each recipe on a quantity's line.
LOOKS = {
    "SP": ("#888888", "o", "standard (SP)", 0.25),
    "ORIGINAL": ("#B8860B", "^", "earlier muP (for SGD)", 0.0),
    "PAPER": (*MUP, "the paper's recipe", -0.25),
}
# What panels have; the headline says what they show.
TITLES = (
    "Exponents at the start,\n     derived and measured",
    "How far steps move gates,\n     by tokens in a batch",
)
MESSAGE = (
    "For short memories the paper's recipe starts as derived; whether a key's gradient does\n"
    "is open (a). muP for SGD: on many tokens the first step's exponent falls below ½ (b)"
)
_MARGIN = 0.15
_DERIVED = {"facecolor": "#c9dbe8", "lw": 0, "zorder": 0}
_ASSUMED = {"fill": False, "edgecolor": "#999999", "lw": 0.8, "ls": "--", "zorder": 0}
# What is drawn in a: sizes, what reads memories, gradients. The memories' lines have two names.
_LONG = {"S": ("size", "gdn.state.long"), "o": ("size", "gdn.read.long")}
SIZES = {
    "q̃": r"query $\tilde{q}$", "k̃": r"key $\tilde{k}$", "v": r"value $v$",
    "z_α": r"forget gate $z_\alpha$", "z_β": r"write gate $z_\beta$",
    "⟨q, k⟩": r"$\langle q, k \rangle$",
    "S": r"state $S$, short memory", "o": r"read $o$, short memory",
    "S long": r"state $S$, long memory", "o long": r"read $o$, long memory",
}  # fmt: skip
GRADIENTS = {
    "∂h": r"stream, $\partial h$", "∂q̃": r"query, $\partial\tilde{q}$",
    "∂k̃": r"key, $\partial\tilde{k}$", "∂v": r"value, $\partial v$",
    "∂o": r"read, $\partial o$", "∂z_α": r"forget gate, $\partial z_\alpha$",
    "∂z_β": r"write gate, $\partial z_\beta$",
}  # fmt: skip
GROUPS = {"sizes": SIZES, "gradients of the loss": GRADIENTS}
# Colour, marker, name, and where beside the number of tokens a gate's dots stand.
GATE_LOOKS = {"Δz_α": ("#00796B", "s", r"forget gate, $\Delta z_\alpha$", 0.93),
              "Δz_β": ("#8E6BBF", "v", r"write gate, $\Delta z_\beta$", 1.09)}  # fmt: skip
# Names and lines of the parts of a step, and where their dots stand beside the gate's place.
_PARTS = {"change": ("whole first step", "-", 0.92), "own": ("a token's own part", "--", 1.0)}
_AFTER = 1.25  # dots of ten steps stand farther to the right


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, of (quantity), case (recipe, or part of the change), tokens, seed, value."""
    table, rows = tables["gdn_theory"], []

    def add(panel: str, of: str, case: str, values: pd.Series, tokens: float = 0) -> None:
        rows.append(pd.DataFrame({"panel": panel, "of": of, "case": case, "tokens": tokens,
                                  "seed": values.index, "value": values.to_numpy()}))  # fmt: skip

    for recipe in RECIPES:
        for quantity in DERIVED:
            add("a", quantity, recipe, found.of_quantity(table, quantity, recipe))
        for quantity, (stat, tensor) in _LONG.items():
            values = found.exponents(table, stat, tensor, arm=f"SIZES_{recipe}")
            add("a", f"{quantity} long", recipe, values)
    tokens = found.tokens(table)
    for name, tensor in GATES.items():
        for sequences, count in tokens.items():
            for stat in ("change", "own"):
                add("b", name, stat, found.of_step(table, stat, tensor, sequences), count)
        for sequences in (FEW, MANY):
            values = found.of_ten(table, tensor, "CONSTANT", sequences)
            add("b", name, "ten steps", values, tokens[sequences])
    return pd.concat(rows, ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, axes = page(1, 2, 4.9, w_pad=0.06, width_ratios=[1.2, 1.0])
    headline(figure, MESSAGE, context)
    panels = dict(tuple(numbers.groupby("panel")))
    _sizes(axes[0], panels["a"])
    _steps(axes[1], panels["b"])
    for letter, axis, title in zip("ab", axes, TITLES, strict=True):
        label(axis, f"{letter}   {title}")
    of_b = [key("b:", lw=0)]
    of_b += [key(said, color=colour, marker=marker, ms=3.4, lw=0)
             for colour, marker, said, _ in GATE_LOOKS.values()]  # fmt: skip
    of_b += [key(said, color="#555555", lw=1.1, ls=style) for said, style, _ in _PARTS.values()]
    of_b.append(key("ten steps", color="#555555", marker="s", ms=3.4, lw=0, mfc="white"))
    legend_below(figure, of_b, len(of_b), handletextpad=0.4, columnspacing=0.7)
    marks = [key(f"a: {name}", color=colour, marker=marker, lw=0, ms=4)
             for colour, marker, name, _ in LOOKS.values()]  # fmt: skip
    marks += [Patch(**_DERIVED, label=f"derived, accepted ± {_MARGIN:g}"),
              Patch(**_ASSUMED, label="a: derived for short memories only")]  # fmt: skip
    legend_below(figure, marks, 3)
    tokens = panels["b"].loc[panels["b"]["case"] == "ten steps", "tokens"]
    note = (
        "means over seeds with 95% intervals   short memory: half or more is forgotten in a step\n"
        f"b: {LOOKS['ORIGINAL'][2]}, with one LR of the gates at all widths\n"
        f"b: hollow points are of {tokens.min():g} and {tokens.max():g} tokens only, and stand to "
        "the right of them"
    )
    return caption(figure, context, note)


def _mean(axis, values, at: float, across: bool, ms: float = 3.4, **look) -> float:
    """A mean and its interval, on a line or ``across`` it."""
    mean, spot = interval(values), {"color": look["color"], "zorder": 3}
    ends = [mean.low, mean.high] if mean.n > 1 else [mean.mean] * 2
    axis.plot(*(([at] * 2, ends) if across else (ends, [at] * 2)), lw=1.0, **spot)
    axis.plot(*((at, mean.mean) if across else (mean.mean, at)), lw=0, ms=ms, zorder=4, **look)
    return mean.mean


def _sizes(axis, rows: pd.DataFrame) -> None:
    groups = rows.groupby(["of", "case"])["value"]
    place, ticks = 0, {}
    for heading, names in GROUPS.items():
        axis.text(-1.38, place, heading, weight="bold", va="center", fontsize=SMALL)
        for name, said in names.items():
            place -= 1
            ticks[place] = said
            if place % 2:
                axis.axhspan(place - 0.5, place + 0.5, color="#f5f5f5", lw=0, zorder=-1)
            derived = DERIVED[name.removesuffix(" long")][2]
            box = _DERIVED if name in DERIVED else _ASSUMED
            corner = derived - _MARGIN, place - 0.44
            axis.add_patch(Rectangle(corner, 2 * _MARGIN, 0.88, **box))
            for recipe, (colour, marker, _, raised) in LOOKS.items():
                values = groups.get_group((name, recipe)).dropna()
                look = {"color": colour, "marker": marker, "mew": 0}
                _mean(axis, values, place + raised, False, ms=2.6, **look)
        place -= 1
    axis.set_yticks(list(ticks), list(ticks.values()))
    axis.tick_params(axis="y", length=0)
    axis.set(ylim=(place + 0.4, 0.6), xlim=(-1.4, 0.9))
    axis.set_xticks([-1, -0.5, 0, 0.5], ["−1", "−½", "0", "½"])
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("exponent of the width $d$ at initialisation")


def _steps(axis, rows: pd.DataFrame) -> None:
    axis.axhspan(0.5 - _MARGIN, 0.5 + _MARGIN, **_DERIVED)
    axis.text(1.5 * rows["tokens"].max(), 0.5 + _MARGIN - 0.01, f"accepted ± {_MARGIN:g}",
              ha="right", va="top", fontsize=SMALL, color="#444444")  # fmt: skip
    for height in (0, 0.5):
        axis.axhline(height, **NEUTRAL, ls=":")
    for name, (colour, marker, _, aside) in GATE_LOOKS.items():
        own = rows[rows["of"] == name]
        look = {"color": colour, "marker": marker}
        for case, (_, style, shift) in _PARTS.items():
            by_tokens = own[own["case"] == case].groupby("tokens")["value"]
            places = [shift * aside * count for count in by_tokens.groups]
            means = [_mean(axis, values, at, True, mew=0, **look)
                     for at, (_, values) in zip(places, by_tokens, strict=True)]  # fmt: skip
            axis.plot(places, means, color=colour, ls=style, lw=1.1)
        for count, values in own[own["case"] == "ten steps"].groupby("tokens")["value"]:
            _mean(axis, values, _AFTER * aside * count, True, mfc="white", mew=0.9, **look)
    tokens = sorted(rows.loc[rows["tokens"] > 0, "tokens"].unique())
    axis.set(xscale="log", ylim=(-0.04, 0.7), xlim=(tokens[0] / 1.4, 1.6 * tokens[-1]))
    axis.set_xticks(tokens, [f"{count:g}" for count in tokens])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_yticks([0, 0.25, 0.5], ["0", "¼", "½"])
    axis.text(1.5 * tokens[-1], 0.51, "derived: ½", fontsize=SMALL, ha="right", va="bottom",
              color="#666666")  # fmt: skip
    axis.set(xlabel="tokens in a batch", ylabel="exponent of $d$ in the gates' change")
