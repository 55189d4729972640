"""Figure 9 of the second paper: the unified design with WSD, beside the cosine.

Gap of the training loss over training, unified less standard on the same batches; below 0 the
unified design is ahead. The LR of WSD falls in the shaded part. Ours: the main paper's multipliers
less standard.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import median
from analysis.drawing.designs import LOOKS
from analysis.drawing.page import caption, headline, key, legend_below, page
from analysis.drawing.style import ARM_COLOURS, MEDIANS, NEUTRAL, SMALL
from analysis.quantities.designs import course_of_gap
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
    """One panel."""
    figure, axis = page(1, 1, 2.5)
    headline(figure, MESSAGE, context)
    shown = {name: look for name, (_, _, *look) in PAIRS.items() if name in set(numbers["name"])}
    for name, (colour, line) in shown.items():
        rows = numbers[numbers["name"] == name]
        median(axis, rows, "share", color=colour, ls=line, alpha=0.12)
    falls = numbers.loc[numbers["name"] == "unified, WSD", "falls"].iloc[0]
    axis.axvspan(falls, 1.0, color="#eeeeee", zorder=0)
    axis.annotate("WSD: the rate falls", (falls, 1), (3, -3), va="top", fontsize=SMALL,
                  xycoords=axis.get_xaxis_transform(), textcoords="offset points")  # fmt: skip
    axis.axhline(0, **NEUTRAL)
    axis.set(xlabel="share of the steps", ylabel="training loss − that of\nstandard vectors (nats)")
    handles = [key(name, color=colour, ls=line) for name, (colour, line) in shown.items()]
    legend_below(figure, handles, 3)
    return caption(figure, context, MEDIANS if len(context.seeds) > 1 else "")
