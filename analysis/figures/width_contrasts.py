"""Beside figure 5: the same norms with scales that begin at 1, learned and fixed.

All stand over their value at the base width, where both starts are the same, and so are both fixed
scales; seed by seed, on one axis for all norms of a row. Top: activations before a nonlinearity,
and the multipliers of two of them, learned and fixed factor together. Bottom: outputs to the
residual stream. Blue squares are learned, red circles fixed. As in figure 5 what begins or stays at
1 is dashed and hollow, and what does so at ∝ 1/d is solid, here pale. Lines are medians, bands the
range of the seeds that all four have. Numbers say how much the exponent of the width is larger
where the scale is learned from 1 than where it is fixed at 1, paired by seed, with 95% intervals:
over all widths, and without the largest.
"""

from __future__ import annotations

import dataclasses

import pandas as pd

from analysis.drawing.axes import median
from analysis.drawing.page import caption, headline, key, label, legend_below, sheet, written_of
from analysis.drawing.style import (
    ARM_COLOURS,
    ARM_LOOKS,
    BANDS_RANGE,
    NEUTRAL,
    SMALL,
    plain_log_axis,
    shade,
)
from analysis.figures import fig5
from analysis.quantities import width_scaling as ws
from analysis.quantities.stats import with_half
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("width_scaling",)
PALE = {"lw": 0.8, "ms": 1.8, "mew": 0, "zorder": 2}
FROM_ONE = {"ls": "--", "mfc": "white", "ms": 2.8, "mew": 0.8}
LOOKS = {
    ws.LEARNED: ARM_LOOKS["SPN"] | PALE | {"color": shade(ARM_COLOURS["SPN"], 0.4)},
    ws.SCALED: ARM_LOOKS["FPN"] | PALE | {"color": shade(ARM_COLOURS["FPN"], 0.4)},
    ws.FROM_ONE: ARM_LOOKS["SPN"] | FROM_ONE,
    ws.FIXED: ARM_LOOKS["FPN"] | FROM_ONE,
}
NAMES = {
    ws.FROM_ONE: "learned, from 1",
    ws.FIXED: "fixed at 1",
    ws.LEARNED: "learned, from ∝ 1/d",
    ws.SCALED: "fixed, ∝ 1/d",
}
NORMS, MULTIPLIERS = "activations", "multipliers"
# Panels by row: the row's message, and in a panel what it has and the quantities of figure 5.
ROWS = {
    "Scales learned from 1 damp the growth with the width of Q·K, dt and gate": [
        *((NORMS, (name,)) for name in ("Q·K", "dt", *ws.GATE)),
        (MULTIPLIERS, ("Q·K", "dt")),
    ],
    "Scales learned from 1 damp the MLP at all widths, attention mainly and\n"
    "the SSM only at d = 256; they make the embedding grow": [
        (NORMS, (name,)) for name in ws.FREE_IN_STREAM
    ],
}
# Behind words on a grid.
BEHIND = {"color": "white", "pad": 0.6}
# Of multipliers: where their names stand beside their lines, in points, and their markers.
NAMES_ASIDE = {"Q·K": (-9, -7), "dt": (8, 7)}
MARKERS = {"Q·K": "D", "dt": "^"}
NAMES_OF_AXES = {NORMS: "norm", MULTIPLIERS: "$|s|$"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Those of figure 5 that are drawn here, in its columns."""
    rows = fig5.numbers(tables)
    drawn = pd.MultiIndex.from_tuples(
        [(panel, name) for line in ROWS.values() for panel, names in line for name in names]
    )
    return rows[pd.MultiIndex.from_frame(rows[["panel", "quantity"]]).isin(drawn)]


def draw(numbers: pd.DataFrame, context: Context):
    """Two rows of panels under their messages, one legend below."""
    numbers = _shared_seeds(numbers)
    context = dataclasses.replace(context, seeds=sorted(map(int, numbers["seed"].unique())))
    base = _base_width(numbers)
    groups = dict(tuple(_over(numbers, base).groupby(["panel", "quantity", "arm"])))
    figure = sheet(4.4, w_pad=0.02, h_pad=0.03)
    letters = iter("abcdefgh")
    parts = figure.subfigures(len(ROWS), 1)
    for part, (message, places) in zip(parts, ROWS.items(), strict=True):
        headline(part, message, context)
        drawn: dict[str, list] = {NORMS: [], MULTIPLIERS: []}
        for axis, (panel, quantities) in zip(part.subplots(1, len(places)), places, strict=True):
            _lines(axis, groups, panel, quantities)
            _width_axis(axis, numbers)
            plain_log_axis(axis)
            axis.axhline(1, **NEUTRAL)
            title = " and ".join(quantities)
            if panel == NORMS:
                head = "" if drawn[panel] else "learned − fixed:\n"
                axis.text(0.04, 0.99, head + _less_fixed(groups, *quantities), va="top",
                          transform=axis.transAxes, fontsize=SMALL, bbox=BEHIND)  # fmt: skip
            else:
                title = f"$|s|$ of {title}"
            label(axis, f"{next(letters)}   {title}", xlabel="width $d$")
            if not drawn[panel]:
                axis.set_ylabel(f"{NAMES_OF_AXES[panel]} / at $d$ = {base:g}")
            drawn[panel].append(axis)
        for panel, own in drawn.items():
            if not own:
                continue
            _share(own, 5.0 if panel == NORMS else 1.0)
    handles = [key(f"scale {name}", **LOOKS[arm]) for arm, name in NAMES.items()]
    legend_below(figure, handles, len(handles), columnspacing=0.8, handlelength=2.4)
    note = f"at d = {base:g} all are 1 by construction"
    note += "; curves of fixed at 1 bend at the largest d" if written_of(context) else ""
    note += "\nnumbers: exponent of d with s learned from 1 less that with s fixed at 1, paired"
    note += " ± 95%" if len(context.seeds) > 1 else ""
    last = sorted(numbers["width"].unique())[-2]
    note += f"\nall: over all widths; to {last}: without the largest"
    note += f"; {BANDS_RANGE}; pale lines: no bands drawn" if len(context.seeds) > 1 else ""
    return caption(figure, context, note)


def _shared_seeds(numbers: pd.DataFrame) -> pd.DataFrame:
    """The rows of the seeds that every arm has; all rows where there is no such seed."""
    arms = [set(rows["seed"]) for _, rows in numbers.groupby("arm")]
    shared = numbers[numbers["seed"].isin(set.intersection(*arms))]
    return numbers if shared.empty else shared


def _over(numbers: pd.DataFrame, base: float) -> pd.DataFrame:
    """Values over those of the same seed at the width ``base``."""
    same = ["panel", "quantity", "arm", "seed"]
    at_base = numbers[numbers["width"] == base].set_index(same)["value"].rename("base")
    rows = numbers.join(at_base, on=same, how="inner")
    return rows.assign(value=rows["value"] / rows["base"])


def _lines(axis, groups: dict[tuple, pd.DataFrame], panel: str, quantities) -> None:
    """Of a norm all arms; of multipliers those that begin at 1, each with its name."""
    for arm, look in LOOKS.items() if panel == NORMS else [(ws.FROM_ONE, LOOKS[ws.FROM_ONE])]:
        for quantity in quantities:
            if (panel, quantity, arm) not in groups:
                continue
            rows = groups[panel, quantity, arm]
            band = (0, 1) if arm in (ws.FROM_ONE, ws.FIXED) else None
            own = look | ({"marker": MARKERS[quantity]} if panel == MULTIPLIERS else {})
            median(axis, rows, "width", band, 0.28, **own)
            if panel == MULTIPLIERS:
                widths = sorted(rows["width"].unique())
                at = rows.loc[rows["width"] == widths[-2], "value"].median()
                shift = NAMES_ASIDE[quantity]
                axis.annotate(quantity, (widths[-2], at), shift, textcoords="offset points",
                              ha="center", va="center", fontsize=SMALL,
                              color=shade(look["color"], -0.25))  # fmt: skip


def _less_fixed(groups: dict[tuple, pd.DataFrame], quantity: str) -> str:
    """The exponent of the learned scale from 1 less that of the scale fixed at 1, on two lines.

    The first is over all widths, and the second leaves out the largest.
    """
    if any((NORMS, quantity, arm) not in groups for arm in (ws.FROM_ONE, ws.FIXED)):
        return ""
    learned, fixed = (
        groups[NORMS, quantity, arm].pivot(index="seed", columns="width", values="value")
        for arm in (ws.FROM_ONE, ws.FIXED)
    )
    last = learned.columns[-2]
    whole, narrow = (
        with_half(ws.exponents(learned.loc[:, :most]) - ws.exponents(fixed.loc[:, :most]))
        for most in (None, last)
    )
    return f"all: {whole}\nto {last}: {narrow}"


def _width_axis(axis, numbers: pd.DataFrame) -> None:
    """A logarithmic axis with every width named, in letters that leave room."""
    fig5.width_axis(axis, numbers)
    axis.tick_params(axis="x", labelsize=SMALL)


def _share(axes, room: float) -> None:
    """One range for all of ``axes``, with its numbers where the axis has a name.

    It goes up by the factor ``room`` beyond what is drawn.
    """
    low, high = zip(*(axis.get_ylim() for axis in axes), strict=True)
    for axis in axes:
        axis.set_ylim(min(low), room * max(high))
        axis.yaxis.set_major_formatter("×{x:g}")
        axis.tick_params(labelleft=bool(axis.get_ylabel()))


def _base_width(numbers: pd.DataFrame) -> float:
    """The width at which both starts of learned scalars are the same; without pairs the middle."""
    arms = numbers.pivot_table("value", ["panel", "quantity", "seed", "width"], "arm")
    pairs = arms[[ws.LEARNED, ws.FROM_ONE]].dropna()
    if pairs.empty:
        widths = sorted(numbers["width"].unique())
        return widths[len(widths) // 2]
    same = (pairs[ws.LEARNED] == pairs[ws.FROM_ONE]).groupby("width").mean()
    return same.idxmax()
