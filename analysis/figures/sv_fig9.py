"""Figure 9 of the second paper: the unified design with WSD, beside the cosine.

a: gap of the training loss over training, unified less standard on the same batches; below 0 the
unified design is ahead. The LR of WSD falls in the shaded part. Ours: the main paper's multipliers
less standard. b: how much the gaps with WSD change in that part, by seed, as SV21 and X3 ask; left
of 0 the lead grows.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import dots, median
from analysis.drawing.designs import LOOKS
from analysis.drawing.gaps import by_stage, write_above
from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import ARM_COLOURS, ARM_LOOKS, MEDIANS, NEUTRAL, SMALL
from analysis.quantities.designs import at_share, course_of_gap
from analysis.quantities.unified import constant_share
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = {"sv_unified": ("STANDARD *", "UNIFIED *", "WSD_*")}
# By name: the two arms, a colour and a line.
PAIRS = {
    "unified, WSD": ("WSD_UNIFIED", "WSD_STANDARD", LOOKS["unified"][0], "-"),
    "unified, cosine": ("UNIFIED", "STANDARD", LOOKS["unified"][0], ":"),
    "multipliers, WSD (ours)": ("WSD_MULTIPLIERS", "WSD_STANDARD", ARM_COLOURS["VPN"], "--"),
}
# Names and markers of those in b.
FALLING = {
    "unified, WSD": ("unified", LOOKS["unified"][2]),
    "multipliers, WSD (ours)": ("multipliers\n(ours)", ARM_LOOKS["VPN"]["marker"]),
}

MESSAGE = (
    "While the learning rate falls the unified design's lead grows,\n"
    "and that of the main paper's multipliers shrinks"
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: name, falls (share of the steps), seed, share, value (nats per token)."""
    table, rows = tables["sv_unified"], []
    there = set(table.trained["arm"])
    for name, (arm, against, *_) in PAIRS.items():
        if arm not in there:  # at the paper's scale there are no multipliers
            continue
        falls = constant_share(table, arm)
        rows.append(stacked(course_of_gap(table, arm, against), name=name, falls=falls))
    return pd.concat(rows, ignore_index=True)[["name", "falls", "seed", "share", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, (axis, right) = page(1, 2, 2.7, w_pad=0.05, width_ratios=[1.15, 1])
    headline(figure, MESSAGE, context)
    shown = {name: look for name, (_, _, *look) in PAIRS.items() if name in set(numbers["name"])}
    for name, (colour, line) in shown.items():
        rows = numbers[numbers["name"] == name]
        median(axis, rows, "share", color=colour, ls=line, alpha=0.12)
    falls = numbers.loc[numbers["name"] == "unified, WSD", "falls"].iloc[0]
    axis.axvspan(falls, 1.0, color="#eeeeee", zorder=0)
    axis.annotate("WSD: the\nrate falls", (falls, 1), (3, -3), va="top", fontsize=SMALL,
                  xycoords=axis.get_xaxis_transform(), textcoords="offset points")  # fmt: skip
    axis.axhline(0, **NEUTRAL)
    label(
        axis,
        "a   Over training",
        xlabel="share of the steps",
        ylabel="training loss − that of\nstandard vectors (nats)",
    )
    _changes(right, _while_falling(numbers))
    label(right, "b   WSD, in the grey part", xlabel="← lead grows    change of the gap (nats)")
    handles = [key(name, color=colour, ls=line) for name, (colour, line) in shown.items()]
    legend_below(figure, handles, 3)
    several = len(context.seeds) > 1
    note = "WSD: warmup, a stable rate, then its decay"
    if several:
        note += f"\na: {MEDIANS}; b: points: seeds; bars: means with 95% intervals"
    return caption(figure, context, note)


def _while_falling(numbers: pd.DataFrame) -> pd.DataFrame:
    """By seed the gaps with WSD at the end, less those at the end of the stable stage."""
    rows = []
    for name, (said, _) in FALLING.items():
        own = numbers[numbers["name"] == name]
        if own.empty:
            continue
        gaps = own.pivot(index="seed", columns="share", values="value")
        change = at_share(gaps, 1.0) - at_share(gaps, own["falls"].iloc[0])
        rows.append(change.rename("value").reset_index().assign(name=said))
    return pd.concat(rows, ignore_index=True)


def _changes(axis, rows: pd.DataFrame) -> None:
    """A line for each gap."""
    shown = {said: (PAIRS[name][2], marker) for name, (said, marker) in FALLING.items()
             if said in set(rows["name"])}  # fmt: skip
    named, hollow = by_stage(rows, list(shown))
    colours, markers = ({said: look[n] for said, look in shown.items()} for n in (0, 1))
    dots(axis, named, colours, markers=markers, hollow=hollow, below=0.2)
    axis.axvline(0, **NEUTRAL)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    low, high = min(rows["value"].min(), 0), max(rows["value"].max(), 0)
    axis.set_xlim(low - 0.25 * (high - low), high + 0.25 * (high - low))
    axis.set_ylim(-0.5, len(shown) - 0.4)
    write_above(axis, rows, list(shown))
