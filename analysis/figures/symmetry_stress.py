"""Ours beside figure 4: multipliers under stress (section 4.1).

a: norm of the residual stream in two precisions, without weight decay on multipliers, at their LR
in figure 4 and at ten times it, and there with weight decay, which holds them. Lines are medians,
bands the range of seeds, outlined for bfloat16. b: what leaving that weight decay out costs: loss
after the LR decay, without less with it, paired by seed, in each precision and the difference of
the two. c: loss of log-scale multipliers less that of direct ones, at the LR of figure 4 and at
five times it, each on an axis of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import decay_line, dots, end, median, name_ends
from analysis.drawing.gaps import that_judge, told_of_judging
from analysis.drawing.page import (
    caption,
    finding,
    headline,
    key,
    key_of_decay,
    label,
    legend_below,
    sheet,
    written_of,
)
from analysis.drawing.style import ARM_COLOURS, NEUTRAL, SMALL, log_axis, shade
from analysis.quantities import symmetry
from analysis.quantities.losses import diverged, losses_by_arm
from analysis.quantities.stats import with_interval
from analysis.tables.context import Context, planned, stacked
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables, stage_end

EXPERIMENTS = ("symmetry_stress",)
VECTOR, LOGARITHMS = ARM_COLOURS["VPN"], "#7B3294"
DRIFTING = shade(VECTOR, -0.5)
TWIN = "_BF16"
_DASHES = "-", (0, (3, 1.2))
# Colour of an arm, its name without the precision, and what one line's end says for both
# precisions where the published lines are one.
STREAM = {
    "FREE": ("#777777", "LR {lr:g}, no weight decay,\n", "both (they coincide)"),
    "FASTER": (DRIFTING, "LR {faster:g}, no weight decay,\n", None),
    "FASTER_LIGHT": (shade(VECTOR, 0.2), "LR {faster:g}, weight decay\n{weight_decay:g}, ", "both"),
}
MESSAGE = (
    "At ten times figure 4's LR and without weight decay on multipliers the stream drifts\n"
    "and the loss rises, more in bfloat16; no run diverged"
)
DIFFERENCE = "difference of the losses (nats)     worse →"
# Rows of b and c, in nats.
COSTS = {
    "drift in float32": {"FASTER": 1, "FASTER_LIGHT": -1},
    "drift in bfloat16": {f"FASTER{TWIN}": 1, f"FASTER_LIGHT{TWIN}": -1},
    "bfloat16 − float32": {
        f"FASTER{TWIN}": 1, f"FASTER_LIGHT{TWIN}": -1, "FASTER": -1, "FASTER_LIGHT": 1,
    },
}  # fmt: skip
LOGS = {"LR of figure 4": {"LOG": 1, "FREE": -1}, "five times it": {"LOG_FAST": 1, "FAST": -1}}
# The rows' names in the figure, with the multipliers' LR of the arms in LOGS.
NAMES = {
    "drift in float32": "without −\nwith, fp32",
    "drift in bfloat16": "without −\nwith, bf16",
    "bfloat16 − float32": "bf16 − fp32",
    "LR of figure 4": "LR {FREE:g}, as\nin figure 4",
    "five times it": "LR {FAST:g}\n(five times)",
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm (of b and c: the row), seed, step, value (norm, or nats per token).

    And in ``diverged`` whether a run in bfloat16 without weight decay on multipliers did, as 1.
    """
    table = tables["symmetry_stress"]
    parts = []
    for arm in STREAM:
        for twin in (arm, f"{arm}{TWIN}"):
            norms = np.exp(symmetry.residual(table, twin)).rename("value").reset_index()
            parts.append(norms.assign(panel="residual", arm=twin))
    limit = criteria_of("symmetry_stress")["S6.2"]["thresholds"]["rise"]
    found = diverged(table, f"FASTER{TWIN}", limit).rename("value").rename_axis("seed")
    parts.append(found.reset_index().assign(panel="diverged", arm=f"FASTER{TWIN}"))
    losses = losses_by_arm(table)
    for panel, sums in (("drift", COSTS), ("logarithms", LOGS)):
        gaps = pd.DataFrame({name: _summed(losses, signs) for name, signs in sums.items()})
        parts.append(stacked(gaps.rename_axis(columns="arm"), panel=panel))
    columns = ["panel", "arm", "seed", "step", "value"]
    return pd.concat(parts)[columns].sort_values(columns[:-1], ignore_index=True)


def _summed(losses: pd.DataFrame, signs: Mapping[str, int]) -> pd.Series:
    return sum(sign * losses[arm] for arm, sign in signs.items())


def draw(numbers: pd.DataFrame, context: Context):
    """a above, b and c below."""
    figure = sheet(5.0, w_pad=0.04, h_pad=0.03)
    headline(figure, MESSAGE, context)
    axes = figure.subplot_mosaic(
        [["a", "a"], ["b", "c"], ["b", "five times it"]], height_ratios=[2.9, 1, 1]
    )
    plan = planned("symmetry_stress", context)
    rates = {arm: settings["multipliers"]["lr"] for arm, settings in plan.items()}
    faster = f"LR {rates['FASTER']:g}"
    decay = plan["FASTER_LIGHT"]["multipliers"]["weight_decay"]
    streams = numbers[numbers["panel"] == "residual"]
    _streams(axes["a"], streams, stage_end(plan["FREE"]), written_of(context), lr=rates["FREE"],
             faster=rates["FASTER"], weight_decay=decay)  # fmt: skip
    judged = criteria_of("symmetry_stress")["S6.2"]
    shown = "in bfloat16 the stream drifts further"
    title = f"a   {faster}: {finding(context, shown, 'the residual stream')}"
    title += _diverged(numbers[numbers["panel"] == "diverged"], judged)
    gaps = numbers[numbers["panel"].isin(["drift", "logarithms"])]
    judging = that_judge(gaps, judged)
    names = {row: name.format(**rates) for row, name in NAMES.items()}
    usual, fast = LOGS
    for place, rows, colour, digits in (
        ("b", list(COSTS), DRIFTING, 2), ("c", [usual], LOGARITHMS, 3),
        (fast, [fast], LOGARITHMS, 3),
    ):  # fmt: skip
        own = gaps["arm"].isin(rows)
        shown = gaps[own].replace({"arm": names})
        named = [names[row] for row in rows]
        _gaps(axes[place], named, shown[judging[own]], shown[~judging[own]], colour, digits)
    label(axes["a"], title, xlabel="step", ylabel="RMS of the residual stream")
    shown = finding(context, "it costs more in bfloat16", "what it costs")
    label(axes["b"], f"b   No weight decay, {faster}:\n     {shown}", xlabel=DIFFERENCE)
    shown = f": at LR {rates['FREE']:g}\n     within 0.01 nats, at {rates['FAST']:g} worse"
    label(axes["c"], f"c   Log-scale less direct{finding(context, shown, '')}")
    axes[fast].set_xlabel(DIFFERENCE)
    handles = [key_of_decay("LR decay begins"), key("a: float32"),
               key("a: bfloat16 (band outlined)", ls=_DASHES[1])]  # fmt: skip
    legend_below(figure, handles, len(handles))
    every, shown = streams["seed"].nunique(), gaps.loc[judging, "seed"].nunique()
    ratio = np.ptp(axes[fast].get_xlim()) / np.ptp(axes["c"].get_xlim())
    note = (
        "LR, weight decay: the multipliers'; a: medians and range\n"
        "b: loss after LR decay, without − with weight decay on multipliers; "
        f"the criterion asks that {judged['thresholds']['share']:.0%} of the runs diverge\n"
        "c: loss after LR decay, log-scale (multiplier kept as its logarithm) − direct; "
        f"the axes differ {ratio:.0f}-fold\n"
        f"{told_of_judging(gaps, judging)}"
    )
    n = f"n = {every} (a), judged: {shown} of them (b, c)" if shown else ""
    return caption(figure, context, note, n=n)


def _streams(
    axis, rows: pd.DataFrame, decays_from: int, published: bool, **settings: float
) -> None:
    groups, ends = dict(tuple(rows.groupby("arm"))), {}
    for arm, (colour, name, both) in STREAM.items():
        one = published and both is not None
        names = (f"{name}{both}", None) if one else (f"{name}float32", f"{name}bfloat16")
        for twin, look, name in zip((arm, f"{arm}{TWIN}"), _DASHES, names, strict=True):
            median(axis, groups[twin], "step", color=colour, ls=look)
            if twin != arm and arm != "FREE" and rows["seed"].nunique() > 1:
                values = groups[twin].groupby("step")["value"]
                for edge in (values.min(), values.max()):
                    axis.plot(edge.index, edge, color=colour, lw=0.6, ls=look)
            if name:
                ends[name.format(**settings)] = end(groups[twin], "step"), shade(colour, -0.2)
    log_axis(axis)
    decay_line(axis, decays_from)
    name_ends(axis, ends, at=1.03, line=1.8)


def _diverged(rows: pd.DataFrame, criterion: Mapping) -> str:
    """How many of the runs diverged, and how many of them judge."""
    judging = int(that_judge(rows, criterion).sum())
    if not judging:
        return ""
    count = rows["value"].sum()
    said = f"{count:.0f}" if count else "none"
    return f"; {said} of {len(rows)} diverged ({judging} judge)"


def _gaps(axis, rows: list[str], judging, others, colour: str, digits: int) -> None:
    """A line for each of ``rows``; the mean of the seeds that judge stands beside it in numbers."""
    named, hollow = (
        {name: found.loc[found["arm"] == name, "value"] for name in rows}
        for found in (judging, others)
    )
    markers = dict.fromkeys(rows, "^" if colour == DRIFTING else "o")
    colours = dict.fromkeys(rows, colour)
    dots(axis, named, colours, markers=markers, below=0.2)
    dots(axis, dict.fromkeys(rows, ()), colours, markers=markers, hollow=hollow, below=0.36)
    axis.set_ylim(-0.6, len(rows) - 0.6)
    for place, values in enumerate(reversed(named.values())):
        if len(values) > 1:
            said = with_interval(values, digits).replace("-", "−")
            axis.text(1.02, place, said, transform=axis.get_yaxis_transform(), va="center",
                      fontsize=SMALL)  # fmt: skip
    axis.axvline(0, **NEUTRAL)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
