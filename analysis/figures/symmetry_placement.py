"""Beside figure 4: loss of placements with fewer multipliers, less that of all (appendix C).

Differences of the loss after the decay, paired by seed. a: against all multipliers with light
weight decay; left of 0 fewer multipliers are better. b: the symmetry-free placement without weight
decay against the same with it. Grey are effects that are too small to matter. Bars, and the numbers
beside them, are of the seeds that judge; other seeds are hollow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import dots
from analysis.drawing.gaps import that_judge, told_of_judging
from analysis.drawing.page import caption, finding, headline, label, page
from analysis.drawing.style import ARM_COLOURS, NEUTRAL, NOT_JUDGED, SMALL
from analysis.quantities import symmetry
from analysis.quantities.losses import losses_by_arm
from analysis.quantities.stats import with_interval
from analysis.tables.context import Context, planned, stacked
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables
from lrm.cli import counted

EXPERIMENTS = ("symmetry_placement",)
_UNDECAYED = "SYMMETRY_FREE − SYMMETRY_FREE_LIGHT"
NAMES = {
    "a": {
        symmetry.SYMMETRY_FREE: "symmetry-free, λ = 0",
        symmetry.SYMMETRY_FREE_LIGHT: "symmetry-free, λ = {light:g} (no claim)",
        symmetry.NO_EMBEDDING: "none on the embedding, λ = {light:g}",
    },
    "b": {_UNDECAYED: "λ = 0 − λ = {light:g} (no claim)"},
}
MESSAGE = (
    "Symmetry-free without weight decay is not worse than all multipliers with it;\n"
    "for none on the embedding this is open"
)
# Of panels: what the published runs show, and the plain title of others.
TITLES = {
    "a": ("a   Losses less that of all multipliers, λ = {light:g}",) * 2,
    "b": (
        "b   Symmetry-free: loss is lower without weight decay,\n     perhaps by less than matters",
        "b   Symmetry-free: without weight decay − with",
    ),
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm (or two, of which it is the difference), seed, value (nats per token)."""
    losses = losses_by_arm(tables["symmetry_placement"])
    gaps = losses[list(NAMES["a"])].sub(losses[symmetry.LIGHT], axis=0)
    gaps[_UNDECAYED] = losses[symmetry.SYMMETRY_FREE] - losses[symmetry.SYMMETRY_FREE_LIGHT]
    return stacked(gaps)[["arm", "seed", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels above each other, with one axis."""
    figure, axes = page(2, 1, 3.3, h_pad=0.03, sharex=True, height_ratios=[3, 1.1])
    headline(figure, MESSAGE, context)
    criterion = criteria_of("symmetry_placement")["S5.2"]
    plan = planned("symmetry_placement", context)[symmetry.LIGHT]
    light = plan["multipliers"]["weight_decay"]
    judging, matters = that_judge(numbers, criterion), criterion["smallest_effect"]
    for axis, (panel, arms) in zip(axes, NAMES.items(), strict=True):
        named, hollow = (
            {name.format(light=light): rows.loc[rows["arm"] == arm, "value"]
             for arm, name in arms.items()}
            for rows in (numbers[judging], numbers[~judging])
        )  # fmt: skip
        colours = dict.fromkeys(named, ARM_COLOURS["VPN"])
        dots(axis, named, colours, below=0.2)
        dots(axis, dict.fromkeys(named, ()), colours, hollow=hollow, below=0.38)
        axis.set_ylim(-0.65, len(named) - 0.55)
        for place, values in enumerate(reversed(named.values())):
            _say(axis, place, values)
        axis.axvspan(-matters, matters, **NOT_JUDGED, lw=0, zorder=0)
        axis.axvline(0, **NEUTRAL)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0)
        axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        label(axis, finding(context, *TITLES[panel]).format(light=light))
    axes[1].set_xlabel("← better     difference of the validation losses after LR decay (nats)")
    shown = numbers[judging] if judging.any() else numbers
    note = (
        f"{told_of_judging(numbers, judging)}\n"
        "symmetry-free: the placement of the paper's appendix C, with fewer redundant multipliers\n"
        f"λ: weight decay of multipliers; their LR: {plan['multipliers']['lr']:g}; "
        f"base LR: {plan['optimizer']['lr']:g}, not swept; grey: below the {matters:g} that matters"
    )
    seeds = sorted(map(int, shown["seed"].unique()))
    others = numbers["seed"].nunique() - len(seeds)
    n = f"n = {counted(len(seeds), 'judging seed')}" + f", {counted(others, 'other')}" * (
        others > 0
    )
    return caption(figure, dataclasses.replace(context, seeds=seeds), note,
                   n=n if judging.any() else "")  # fmt: skip


def _say(axis, place: int, values: Collection[float]) -> None:
    """The mean and its interval in numbers, to the right of their line."""
    if len(values) > 1:
        said = with_interval(values, digits=4).replace("-", "−").replace(" ", "\n", 1)
        look = {"va": "center", "fontsize": SMALL, "annotation_clip": False}
        beside = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axis.annotate(said, (1, place), (4, 0), **beside, **look)
