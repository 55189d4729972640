"""Beside figure 5: the same norms and multipliers from another start, and with a fixed scale.

All stand over their value at the base width, where both starts are the same, and so are both fixed
scales; seed by seed, on one axis for all norms of a row. Top: activations before a nonlinearity,
and the multipliers of two of them, learned and fixed factor together. Bottom: outputs to the
residual stream. Filled and solid is what begins at ∝ 1/d, open and dashed what begins at 1; blue is
learned, and red stays there. Lines are medians, bands the range of the seeds that all four have.
Numbers are exponents of the width, means over these seeds, of what begins at 1: fixed and learned.
"""

from __future__ import annotations

import dataclasses

import pandas as pd

from analysis.drawing.axes import median
from analysis.drawing.page import caption, key, label, legend_below, sheet
from analysis.drawing.style import (
    ARM_COLOURS,
    BANDS_RANGE,
    NEUTRAL,
    SMALL,
    plain_log_axis,
    shade,
)
from analysis.figures import fig5
from analysis.quantities import width_scaling as ws
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("width_scaling",)
LOOKS = {
    ws.LEARNED: {"color": ARM_COLOURS["SPN"], "marker": "s"},
    ws.FROM_ONE: {"color": ARM_COLOURS["SPN"], "marker": "s", "ls": "--", "mfc": "white"},
    ws.SCALED: {"color": ARM_COLOURS["FPN"], "marker": "o"},
    ws.FIXED: {"color": ARM_COLOURS["FPN"], "marker": "o", "ls": "--", "mfc": "white"},
}
NAMES = {
    ws.LEARNED: "learned, from $\\propto 1/d$",
    ws.FROM_ONE: "learned, from 1",
    ws.SCALED: "fixed, $\\propto 1/d$",
    ws.FIXED: "fixed at 1",
}
NORMS, MULTIPLIERS = "activations", "multipliers"
# Panels by row: the row's message, and by panel the quantity of figure 5 and the title.
ROWS = {
    "Learned from 1, scales damp the growth of Q·K, dt and gate; |s| falls with the width": [
        *((NORMS, name, name) for name in ("Q·K", "dt", *ws.GATE)),
        *((MULTIPLIERS, name, f"$|s|$ of {name}") for name in ("Q·K", "dt")),
    ],
    "Learned from 1, scales damp attention, SSM and MLP, but make the embedding grow": [
        (NORMS, name, name) for name in ws.FREE_IN_STREAM
    ],
}
# Whose exponents stand in a panel, and their names there.
TOLD = {
    NORMS: {ws.FIXED: "fixed at 1", ws.FROM_ONE: "learned"},
    MULTIPLIERS: {ws.LEARNED: r"from $\propto 1/d$", ws.FROM_ONE: "from 1"},
}
NAMES_OF_AXES = {NORMS: "norm", MULTIPLIERS: "$|s|$"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Those of figure 5 that are drawn here, in its columns."""
    rows = fig5.numbers(tables)
    drawn = pd.MultiIndex.from_tuples([place[:2] for line in ROWS.values() for place in line])
    return rows[pd.MultiIndex.from_frame(rows[["panel", "quantity"]]).isin(drawn)]


def draw(numbers: pd.DataFrame, context: Context):
    """Two rows of panels under their messages, one legend below."""
    numbers = _shared_seeds(numbers)
    context = dataclasses.replace(context, seeds=sorted(map(int, numbers["seed"].unique())))
    base = _base_width(numbers)
    groups = dict(tuple(_over(numbers, base).groupby(["panel", "quantity", "arm"])))
    figure = sheet(4.1, w_pad=0.015, h_pad=0.03)
    letters = iter("abcdefghijkl")
    parts = figure.subfigures(len(ROWS), 1)
    for part, (message, places) in zip(parts, ROWS.items(), strict=True):
        part.suptitle(message, x=0.01, ha="left", fontsize=7.5, weight="bold")
        drawn: dict[str, list] = {}
        for axis, (panel, quantity, title) in zip(
            part.subplots(1, len(places)), places, strict=True
        ):
            for arm, look in LOOKS.items():
                if (panel, quantity, arm) in groups:
                    rows = groups[panel, quantity, arm]
                    median(axis, rows, "width", alpha=0.28, ms=2.8, mew=0.8, **look)
            _width_axis(axis, numbers)
            plain_log_axis(axis)
            axis.axhline(1, **NEUTRAL)
            label(axis, f"{next(letters)}   {title}", xlabel="width $d$")
            if panel not in drawn:
                axis.set_ylabel(f"{NAMES_OF_AXES[panel]} / at $d$ = {base:g}")
            _exponents(axis, groups, panel, quantity)
            drawn.setdefault(panel, []).append(axis)
        for panel, own in drawn.items():
            _share(own, room=2.2 if panel == NORMS else 1.8)
    handles = [key(f"scale {NAMES[arm]}", ms=2.8, mew=0.8, **look) for arm, look in LOOKS.items()]
    legend_below(figure, handles, len(handles), columnspacing=1.0)
    note = f"at d = {base:g} all are 1 by construction; numbers: mean exponents of d"
    note += " (learned: from 1)"
    if len(context.seeds) > 1:
        note += f"\n{BANDS_RANGE}"
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


def _width_axis(axis, numbers: pd.DataFrame) -> None:
    """A logarithmic axis, every second width named."""
    fig5.width_axis(axis, numbers)
    widths = sorted(numbers["width"].unique())
    axis.set_xticks(widths, [f"{d:g}" if not i % 2 else "" for i, d in enumerate(widths)])


def _exponents(axis, groups: dict[tuple, pd.DataFrame], panel: str, quantity: str) -> None:
    """The exponents of the width of two arms, in their colours, in the corner without lines."""
    left = panel == NORMS
    for line, (arm, name) in enumerate(TOLD[panel].items()):
        if (panel, quantity, arm) not in groups:
            continue
        mean = groups[panel, quantity, arm].drop_duplicates("seed")["exponent"].mean()
        axis.annotate(f"{name}: {mean:z.2f}".replace("-", "−"), (0.04 if left else 1.0, 1),
                      (0, -4.5 - 8 * line), xycoords="axes fraction", va="center",
                      textcoords="offset points", ha="left" if left else "right",
                      fontsize=SMALL, color=shade(LOOKS[arm]["color"], -0.25))  # fmt: skip


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
