"""What is derived for Gated Delta Networks over the width d, against what is measured (ours).

a: exponents of d in sizes and gradients as models begin, by recipe; bars are what is derived, 0.15
to either side. b: exponent of how far a step of SGD moves the gates at a constant LR, against the
tokens in a batch. Dots are means over seeds, lines their 95% intervals.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import NullLocator

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, SMALL, shade
from analysis.quantities import gdn_theory as found
from analysis.quantities.gdn_theory import DERIVED, FEW, GATES, MANY, RECIPES
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("gdn_theory",)
# Colour, marker, name and place of each recipe on a quantity's line.
LOOKS = {
    "SP": ("#888888", "o", "SP", 0.26),
    "ORIGINAL": ("#D1783C", "^", "muP for SGD before the paper", 0.0),
    "PAPER": ("#2E7DB5", "s", "the paper's", -0.26),
}
_MARGIN = 0.15
# What is drawn in a: sizes, what reads memories, gradients. The memories' lines have two names.
_LONG = {"S": ("size", "gdn.state.long"), "o": ("size", "gdn.read.long")}
NAMES = {
    "q̃": r"$\tilde{q}$", "k̃": r"$\tilde{k}$", "v": r"$v$", "z_α": r"$z_\alpha$",
    "z_β": r"$z_\beta$", "⟨q, k⟩": r"$\langle q, k \rangle$",
    "S": r"$S$, short memory", "o": r"$o$, short memory",
    "S long": r"$S$, long memory", "o long": r"$o$, long memory",
    "∂h": r"$\partial h$", "∂q̃": r"$\partial\tilde{q}$", "∂k̃": r"$\partial\tilde{k}$",
    "∂v": r"$\partial v$", "∂o": r"$\partial o$", "∂z_α": r"$\partial z_\alpha$",
    "∂z_β": r"$\partial z_\beta$",
}  # fmt: skip
# Colour, marker, name, and where beside the number of tokens a gate's dots stand.
GATE_LOOKS = {"Δz_α": ("#222222", "o", r"$\Delta z_\alpha$", 0.94),
              "Δz_β": ("#8E6BBF", "D", r"$\Delta z_\beta$", 1.06)}  # fmt: skip
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
    widths = sorted(table.pick(arm="STEP")["width"].unique())
    for width in (widths[0], widths[-1]):
        rows.append(pd.DataFrame({"panel": "b", "of": "d", "case": "width", "tokens": 0,
                                  "seed": 0, "value": [width]}))  # fmt: skip
    return pd.concat(rows, ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, axes = page(1, 2, 3.9, w_pad=0.06, width_ratios=[1.25, 1.0])
    panels = dict(tuple(numbers.groupby("panel")))
    _sizes(axes[0], panels["a"])
    _steps(axes[1], panels["b"])
    marks = [key(name, color=colour, marker=marker, lw=0, ms=4)
             for colour, marker, name, _ in LOOKS.values()]  # fmt: skip
    marks.append(Patch(color="#dddddd", lw=0, label="derived, ± 0.15"))
    legend_below(figure, marks, 4)
    return caption(figure, context, "means over seeds with 95% intervals")


def _mean(axis, values, at: float, across: bool, **look) -> float:
    """A mean and its interval, on a line or ``across`` it."""
    mean, spot = interval(values), {"color": look["color"], "zorder": 3}
    ends = [mean.low, mean.high] if mean.n > 1 else [mean.mean] * 2
    axis.plot(*(([at] * 2, ends) if across else (ends, [at] * 2)), lw=1.0, **spot)
    axis.plot(*((at, mean.mean) if across else (mean.mean, at)), lw=0, ms=3.4, zorder=4, **look)
    return mean.mean


def _sizes(axis, rows: pd.DataFrame) -> None:
    groups = rows.groupby(["of", "case"])["value"]
    names = list(reversed(NAMES))
    for place, name in enumerate(names):
        derived = DERIVED[name.removesuffix(" long")][2]
        axis.add_patch(Rectangle((derived - _MARGIN, place - 0.44), 2 * _MARGIN, 0.88,
                                 color="#dddddd", lw=0, zorder=0))  # fmt: skip
        for recipe, (colour, marker, _, raised) in LOOKS.items():
            values = groups.get_group((name, recipe)).dropna()
            _mean(axis, values, place + raised, False, color=colour, marker=marker, mew=0)
    axis.set_yticks(range(len(names)), [NAMES[name] for name in names])
    axis.tick_params(axis="y", length=0)
    axis.set(ylim=(-0.6, len(names) - 0.4), xlim=(-1.4, 0.9))
    axis.set_xticks([-1, -0.5, 0, 0.5], ["−1", "−½", "0", "½"])
    axis.grid(axis="y", visible=False)
    between = names.index("∂h") + 0.5
    axis.axhline(between, color="#777777", lw=0.6)
    label(axis, "a   As derived, save for long memories",
          xlabel="exponent of the width $d$ at initialisation")  # fmt: skip


def _steps(axis, rows: pd.DataFrame) -> None:
    low, high = rows.loc[rows["of"] == "d", "value"]
    axis.axvspan(low, high, color="#f2f2f2", lw=0, zorder=0)
    axis.axhline(0.5, **NEUTRAL, ls=":")
    axis.axhline(0, **NEUTRAL, ls=":")
    for name, (colour, marker, _, aside) in GATE_LOOKS.items():
        own = rows[rows["of"] == name]
        look = {"color": colour, "marker": marker}
        for case, style in (("change", "-"), ("own", "--")):
            by_tokens = own[own["case"] == case].groupby("tokens")["value"]
            places = [aside * count for count in by_tokens.groups]
            means = [_mean(axis, values, at, True, mew=0, **look)
                     for at, (_, values) in zip(places, by_tokens, strict=True)]  # fmt: skip
            axis.plot(places, means, color=colour, ls=style, lw=1.1)
        for count, values in own[own["case"] == "ten steps"].groupby("tokens")["value"]:
            _mean(axis, values, _AFTER * aside * count, True, mfc="white", mew=0.9, **look)
    tokens = sorted(rows.loc[rows["tokens"] > 0, "tokens"].unique())
    axis.set(xscale="log", ylim=(-0.2, 0.72), xlim=(tokens[0] / 1.4, 1.6 * tokens[-1]))
    axis.set_xticks(tokens, [f"{count:g}" for count in tokens])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_yticks([0, 0.25, 0.5], ["0", "¼", "½"])
    handles = [key(said, color=colour, marker=marker, ms=3.4, lw=1.1)
               for colour, marker, said, _ in GATE_LOOKS.values()]  # fmt: skip
    handles += [Line2D([], [], color="#555555", ls="--", lw=1.1, label="a token's own part"),
                Line2D([], [], color="#555555", marker="o", mfc="white", ms=3.4, lw=0,
                       label="after ten steps")]  # fmt: skip
    axis.legend(handles=handles, loc="lower left", fontsize=SMALL, frameon=False)
    axis.text((low * high) ** 0.5, 0.71, "widths $d$", ha="center", va="top", fontsize=SMALL,
              color=shade("#000000", 0.4))  # fmt: skip
    label(axis, "b   Gates: only with few tokens", xlabel="tokens in a batch",
          ylabel="exponent of $d$ in a step of the gates")  # fmt: skip
