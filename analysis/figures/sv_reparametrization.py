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
from analysis.tables.results import FIRST_JUDGING_SEED, Tables

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
        _against("DNP_OR", "DNP: input magnitudes fixed", "DNP_OR_STILL", "or"),
    ],
}
# What tells how much chance may do.
CHANCE = {
    "chance": [Comparison("shared by branches", "sv_heterogeneity", "STANDARD", "HG", "none")]
}
# Lines of a in groups, from above: their number, and what each group is.
GROUPS = ((2, "in all vectors"), (2, "in a part"), (3, "controls"))
# By panel: its title, and what it becomes where a single seed says so.
TITLES = {
    "a": "a   On the inputs (HG): OR, ER and plain numbers",
    "b": "b   OR with fewer magnitudes, in theory the same",
}
FOUND = {
    "a": "a   n = 1: lower loss of OR, ER, vector × number; equal arms: ±{:.3f} (b)",
    "b": "b   One seed: arms that are equal in theory differ by up to {:.3f}",
}
ZEROS = {"a": ("direct vectors (HG)", "#222222"), "b": ("OR with all magnitudes", LOOKS["or"][0])}
WORDS = (
    "HG: vectors γ on the inputs of each matrix.   DP: on inputs and outputs.\n"
    "DNP: DP with an RMSNorm after the matrix, before the output vector.\n"
    r"OR: $\gamma = \beta\,\mathrm{Norm}(\alpha)$.   "
    r"ER: $\gamma = e^{\beta}\,e^{\alpha - \mathrm{mean}(\alpha)}$.   "
    r"vector times a number: $\gamma = \beta\,\alpha$.   magnitude: the number $\beta$."
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel (chance: what grey is of), name, seed, value (nats per token)."""
    return measured(tables, PANELS | CHANCE)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels above each other, with the same limits and a zero of their own."""
    of_chance = numbers[numbers["panel"] == "chance"]
    band = chance(of_chance)
    numbers = numbers[numbers["panel"] != "chance"]
    sizes = [len(compared) + 0.8 for compared in PANELS.values()]
    figure, axes = page(2, 1, 4.1, h_pad=0.06, sharex=True, height_ratios=sizes)
    single = numbers["seed"].nunique() == 1
    low, high = min(numbers["value"].min(), 0), max(numbers["value"].max(), 0)
    means = numbers.groupby("name")["value"].mean()
    equal = means[[each.name for each in PANELS["b"]]].abs().max()
    room = (0.17 if single else 0.4) * (high - low)
    axes[0].set_xlim(min(low - room, -1.1 * band), max(high + room, 1.1 * band, 1.1 * equal))
    for axis, (panel, lines) in zip(axes, PANELS.items(), strict=True):
        rows = numbers[numbers["panel"] == panel]
        draw_gaps(axis, rows, lines)
        write_gaps(axis, rows, lines)
        _zero(axis, *ZEROS[panel])
        axis.set_ylim(-0.6, len(lines) + 0.2)
        axis.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        own = means.reindex([each.name for each in lines])
        found = single and (panel == "b" or _lower(own, band))
        title = FOUND[panel].format(equal) if found else TITLES[panel]
        label(axis, title + " (one seed)" * (single and not found))
    axes[-1].set_xlabel("← better        difference of the loss (nats)")
    _name_groups(axes[0])
    fill = {"mfc": "none"} if single else {}
    marks = [key(name, color=LOOKS[design][0], marker=LOOKS[design][2], lw=0, **fill)
             for design, name in (("or", "OR"), ("er", "ER"), ("none", "control"))]  # fmt: skip
    if band and single:
        for axis, least in zip(axes, (0.0, 0.5), strict=True):
            axis.axvspan(-band, band, ymin=least, **NOT_JUDGED, lw=0, zorder=0)
        for edge in (-equal, equal):
            axes[0].axvline(edge, color="#777777", lw=0.8, ls=":", zorder=1)
        judging = int((of_chance["seed"] >= FIRST_JUDGING_SEED).sum())
        said = f"± {band:.3f}: 2 s.d. of shared − own vectors ({judging} seeds), rough"
        marks.append(Patch(**NOT_JUDGED, label=said))
        marks.append(key(f"± {equal:.3f} (b)", color="#777777", lw=0.8, ls=":"))
    legend_below(figure, [key(WORDS, lw=0)], 1, handlelength=0, handletextpad=0)
    legend_below(figure, marks, len(marks), handletextpad=0.3)
    note = "one seed has no interval; the grey may be too narrow; "
    note += "not drawn at DNP, which varies more\n"
    context = dataclasses.replace(context, others={})
    return caption(figure, context, note * single + told_of_points(numbers))


def _zero(axis, name: str, colour: str) -> None:
    """The line at 0 in its own colour, with what has this loss above it."""
    axis.axvline(0, color=colour, lw=0.9, zorder=1.5)
    axis.annotate(f"0: {name}", (0, 1), (-3, -1), xycoords=("data", "axes fraction"), ha="right",
                  va="top", textcoords="offset points", fontsize=SMALL, color=colour)  # fmt: skip


def _name_groups(axis) -> None:
    """What each group of lines is, to the right of them, and a line between two groups."""
    low = -0.5
    for size, name in reversed(GROUPS):
        axis.text(0.96, low + size / 2, name, transform=axis.get_yaxis_transform(), ha="right",
                  va="center", fontsize=SMALL, color="#444444", style="italic")  # fmt: skip
        low += size
        if name != GROUPS[0][1]:
            axis.axhline(low, color="#dddddd", lw=0.6)


def _lower(means: pd.Series, band: float) -> bool:
    """Whether OR, ER and the vector times a number lie below zero by more than chance may do."""
    return bool((means.iloc[[0, 1, 4]] < -band).all())
