"""Figure of ours: do scale vectors help by freeing the scale of matrices, or by preconditioning?

a: what vectors gain (loss without them less loss with them; right is better), with weight decay on
matrices and without, frozen at what was learned, and of one number for each matrix. b: loss against
a fixed scale S of the matrices, with a norm behind each and without, no vectors in either. c: two
questions on which the papers disagree, as gains on the unified design; right of 0 is better.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import judging_alone, median
from analysis.drawing.designs import LOOKS
from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, headline, key, label, legend_below, sheet
from analysis.drawing.style import NEUTRAL, NOT_JUDGED, power_of_two
from analysis.quantities.designs import scale_gap
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

# Runs of X2 are arms of sv_decay too, where more seeds have all arms.
EXPERIMENTS = {
    "sv_against_lrm": (),
    "sv_decay": ("DNP_OR_NONE *", "DNP_OR_INPUT *", "DNP_OR_ALL *"),
}


def _against(name: str, arm: str, against: str, design: str) -> Comparison:
    return Comparison(name, "sv_against_lrm", arm, against, design)


GAINS = [
    _against("vectors", "NONE", "HG", "hg"),
    _against("no weight decay", "NONE_UNDECAYED", "HG_UNDECAYED", "hg"),
    _against("frozen as learned", "NONE", "HG_LEARNED", "frozen"),
    _against("one number each", "NONE", "SCALAR", "scalar"),
]
ASKED = [
    Comparison("decay on all vectors", "sv_decay", "DNP_OR_ALL", "DNP_OR_INPUT", "unified"),
    Comparison("decay on none", "sv_decay", "DNP_OR_NONE", "DNP_OR_INPUT", "unified"),
    _against("rows on the LM head", "UNIFIED_HEAD", "UNIFIED", "unified"),
]
PANELS = {"a": GAINS, "c": ASKED}
MESSAGE = (
    "One learned number for each matrix and the final norm gains about as much as vectors.\n"
    "Without any weight decay vectors gain about a quarter of that (0.17 to 0.32)"
)
SCALED = {"PLAIN": ("none", "no norm behind"), "NORMED": ("dnp", "a norm behind each of them")}
SIZES = (0.0625, 0.25, 1.0, 4.0)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, S, seed, value (nats per token; in c a loss less the design's)."""
    gaps = measured(tables, PANELS)
    # Seeds of the same runs judge another claim.
    of_decay = gaps["name"].isin([each.name for each in ASKED if each.experiment == "sv_decay"])
    decay = judging_alone(gaps[of_decay], criteria_of("sv_against_lrm")["X2"])
    rows = [gaps[~of_decay | gaps.index.isin(decay.index)]]
    for arm in SCALED:
        for size in SIZES:
            values = scale_gap(tables["sv_against_lrm"], arm, size).rename("value").reset_index()
            rows.append(values.assign(panel="b", name=arm, S=size))
    return pd.concat(rows, ignore_index=True)[["panel", "name", "S", "seed", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels."""
    figure = sheet(3.6, w_pad=0.04, h_pad=0.04)
    headline(figure, MESSAGE, context)
    axes = figure.subplot_mosaic(
        [["a", "b"], ["c", "b"]], height_ratios=[4, 3], width_ratios=[1.15, 1]
    )
    for panel, compared in PANELS.items():
        rows = numbers[numbers["panel"] == panel]
        if panel == "c":  # gains, as in a
            rows = rows.assign(value=-rows["value"])
        draw_gaps(axes[panel], rows, compared, below=0.3)
        low, high = min(rows["value"].min(), 0), max(rows["value"].max(), 0)
        axes[panel].set_xlim(low - 0.1 * (high - low), high + 0.1 * (high - low))
        axes[panel].set_ylim(-0.7, len(compared) - 0.6)
        write_gaps(axes[panel], rows, compared)
    matters = criteria_of("sv_against_lrm")["X2"]["smallest_effect"]
    axes["c"].axvspan(-matters, matters, **NOT_JUDGED, lw=0, zorder=0)
    label(axes["a"], "a   Gains", xlabel="loss without − loss with (nats)   better →")
    label(
        axes["c"],
        "c   Where the papers differ",
        xlabel="unified design's loss − loss (nats)   better →",
    )
    swept = numbers[numbers["panel"] == "b"]
    for arm, (design, _) in SCALED.items():
        colour, _, marker = LOOKS[design]
        median(axes["b"], swept[swept["name"] == arm], "S", color=colour, marker=marker, ms=4)
    axes["b"].axhline(0, **NEUTRAL)
    axes["b"].set_xscale("log", base=4)
    axes["b"].set_xticks(SIZES, map(power_of_two, SIZES))
    axes["b"].minorticks_off()
    label(
        axes["b"],
        "b   Fixed scale S",
        xlabel="S of the matrices",
        ylabel="loss − loss at S = 1 (nats)",
    )
    handles = [
        key(f"b: {name}", color=LOOKS[design][0], marker=LOOKS[design][2], ms=4)
        for design, name in SCALED.values()
    ]
    legend_below(figure, handles, 2)
    note = f"S: a fixed factor on q, k, v, gate and up; b: medians and range; grey: ± {matters:g}\n"
    note += "unified design: vectors on both sides, a norm between, magnitude and direction apart\n"
    return caption(figure, context, note + told_of_points(numbers), n=_counts(numbers))


def _counts(numbers: pd.DataFrame) -> str:
    """The number of seeds of each panel, and of its lines where they differ."""
    parts = []
    for panel, rows in numbers.groupby("panel"):
        counts = rows.groupby("name", sort=False)["seed"].nunique()
        if counts.nunique() == 1:
            parts.append(f"{panel}: n = {counts.iloc[0]}")
        else:
            said = ", ".join(f"{count} ({name})" for name, count in counts.items())
            parts.append(f"{panel}: n = {said}")
    return "   ".join(parts)
