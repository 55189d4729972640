"""Figure of ours: what the gain of magnitude and direction apart (OR, ER) is made of.

Differences of the loss after the decay, paired by seed; left of 0 is better. a: vectors on the
inputs of each matrix (HG), against direct ones: OR, ER, OR in a part of the vectors, and controls.
b: fewer magnitudes than OR has, against OR at the same place. Grey: two standard deviations over
the judging seeds of another difference, shared vectors less own ones, as a rough measure of chance;
not where a norm stands behind matrices, which varies more.
"""

from __future__ import annotations

import dataclasses

import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis.drawing.designs import LOOKS
from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import NOT_JUDGED, SMALL
from analysis.figures.sv_fig5 import chance
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"sv_reparametrization": (), "sv_heterogeneity": ("HG *", "STANDARD *")}


def _against(other: str, name: str, arm: str, design: str) -> Comparison:
    return Comparison(name, "sv_reparametrization", arm, other, design)


PANELS = {
    "a": [
        _against("HG", "magnitude apart (OR)", "HG_OR", "or"),
        _against("HG", "as exponentials (ER)", "HG_ER", "er"),
        _against("HG", "OR in the final vector alone", "HG_OR_FINAL", "or"),
        _against("HG", "OR in the blocks alone", "HG_OR_BLOCKS", "or"),
        _against("HG", "vector times a number", "HG_PRODUCT", "none"),
        _against("HG", "one number, no vector", "SCALAR", "none"),
        _against("HG", "direct vectors, LR × 3", "HG_FAST", "none"),
    ],
    "b": [
        _against("DP_OR", "DP: one magnitude for two", "DP_OR_ONE", "or"),
        _against("DNP_OR", "DNP: inputs' magnitudes fixed", "DNP_OR_STILL", "or"),
    ],
}
# What tells how much chance may do.
CHANCE = {
    "chance": [Comparison("shared by branches", "sv_heterogeneity", "STANDARD", "HG", "none")]
}
# Lines of a in groups: the designs, parts of one, and controls.
GROUPS = (2, 2, 3)
# By panel: its title, and what it becomes where a single seed says so.
TITLES = {
    "a": "a   On the inputs (HG): OR, ER and plain numbers",
    "b": "b   OR with fewer magnitudes, in theory the same",
}
FOUND = {
    "a": "a   One seed: OR and ER lower the loss; so does a plain number",
    "b": "b   One seed: OR with fewer magnitudes is not worse",
}
ZEROS = {"a": ("direct vectors (HG)", "#222222"), "b": ("OR with all magnitudes", LOOKS["or"][0])}
WORDS = (
    "HG: vectors γ on the inputs of each matrix.   DP: on both sides.   "
    "DNP: on both sides, norm between.\n"
    r"OR: $\gamma = \beta\,\mathrm{Norm}(\alpha)$.   "
    r"ER: $\gamma = e^{\beta}\,e^{\alpha - \mathrm{mean}(\alpha)}$.   "
    r"vector times a number: $\gamma = \beta\,\alpha$.   magnitude: the number $\beta$."
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel (chance: what grey is of), name, seed, value (nats per token)."""
    return measured(tables, PANELS | CHANCE)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels above each other, with the same limits and a zero of their own."""
    band = chance(numbers[numbers["panel"] == "chance"])
    numbers = numbers[numbers["panel"] != "chance"]
    sizes = [len(compared) + 0.8 for compared in PANELS.values()]
    figure, axes = page(2, 1, 4.1, h_pad=0.06, sharex=True, height_ratios=sizes)
    single = numbers["seed"].nunique() == 1
    low, high = min(numbers["value"].min(), 0), max(numbers["value"].max(), 0)
    room = (0.15 if single else 0.4) * (high - low)
    axes[0].set_xlim(min(low - room, -1.1 * band), max(high + room, 1.1 * band))
    means = numbers.groupby("name")["value"].mean()
    for axis, (panel, lines) in zip(axes, PANELS.items(), strict=True):
        rows = numbers[numbers["panel"] == panel]
        draw_gaps(axis, rows, lines)
        write_gaps(axis, rows, lines, digits=2)
        _zero(axis, *ZEROS[panel])
        axis.set_ylim(-0.6, len(lines) + 0.2)
        axis.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        axis.tick_params(labelbottom=True)
        found = single and (_lower(means, band) if panel == "a" else _not_worse(means, band))
        title = FOUND[panel] if found else TITLES[panel] + " (one seed)" * single
        label(axis, title, xlabel=f"← better        loss − loss of {ZEROS[panel][0]} (nats)")
    for border in (sum(GROUPS[1:]), GROUPS[2]):
        axes[0].axhline(border - 0.5, color="#dddddd", lw=0.6)
    fill = {"mfc": "none"} if single else {}
    marks = [key(name, color=LOOKS[design][0], marker=LOOKS[design][2], lw=0, **fill)
             for design, name in (("or", "OR"), ("er", "ER"), ("none", "control"))]  # fmt: skip
    if band and single:
        for axis, least in zip(axes, (0.0, 0.5), strict=True):
            axis.axvspan(-band, band, ymin=least, **NOT_JUDGED, lw=0, zorder=0)
        said = f"± 2 standard deviations of shared − own vectors ({band:.3f}): a rough measure"
        marks.append(Patch(**NOT_JUDGED, label=said))
    legend_below(figure, [key(WORDS, lw=0)], 1, handlelength=0, handletextpad=0)
    legend_below(figure, marks, len(marks), handletextpad=0.3)
    note = "one seed has no interval; DNP varies more than the grey;\n" if single else ""
    context = dataclasses.replace(context, others={})
    return caption(figure, context, note + told_of_points(numbers))


def _zero(axis, name: str, colour: str) -> None:
    """The line at 0 in its own colour, with what has this loss above it."""
    axis.axvline(0, color=colour, lw=0.9, zorder=1.5)
    axis.annotate(f"0: {name}", (0, 1), (-3, -1), xycoords=("data", "axes fraction"), ha="right",
                  va="top", textcoords="offset points", fontsize=SMALL, color=colour)  # fmt: skip


def _lower(means: pd.Series, band: float) -> bool:
    """Whether OR, ER and the vector times a number lie below zero by more than chance may do."""
    names = [PANELS["a"][place].name for place in (0, 1, 4)]
    return bool((means.reindex(names) < -band).all())


def _not_worse(means: pd.Series, band: float) -> bool:
    names = [each.name for each in PANELS["b"]]
    return bool((means.reindex(names) <= band).all())
