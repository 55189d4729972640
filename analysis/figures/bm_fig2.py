"""Learning rates and stability criteria over the width (Beyond MuP 3; the article trains nothing).

Above: the loss after the decay, less the lowest of its width, against a factor u on all LRs; means
over seeds, and a larger mark at the lowest. Below, left: the best u against the width, the minimum
of a parabola, with seeds, mean and 95% interval, and the exponent of the width in it. Middle: the
exponent of the width in the criteria of layers and of one update at u = 1, at the end of training.
Right: the criterion D of the head while it trains at u = 1, which bounds its loss.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import dots, median
from analysis.drawing.page import caption, label, legend_below, sheet
from analysis.drawing.style import NEUTRAL, NOT_JUDGED, log_axis
from analysis.drawing.transfer import basin, best, colours_of, handles_of, of_recipes
from analysis.quantities import steepest_width as found
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("steepest_width",)
# Colour, marker and name.
LOOKS = {
    "STEEPEST": ("#AA3377", "s", "steepest descent"),
    "HEAD_FIXED": ("#D1783C", "^", "its head fixed"),
    "ADAMW": ("#888888", "o", "AdamW, one LR"),
    "ADAMW_MUP": ("#2E7DB5", "D", "AdamW, muP"),
}
_COMPARED = ("STEEPEST", "ADAMW")
_KINDS = {"embedding": "embedding", "linear layers": "linear layers", "head": "LM head, D"}
_U = 1.0


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: quantity, recipe, width, rate, seed, step, value.

    Quantities are those of ``of_recipes``; ``layers: <kind>`` and ``updates: <kind>``, exponents;
    and ``D``.
    """
    table = tables[EXPERIMENTS[0]]
    parts = [of_recipes(table, LOOKS, "u")]
    end = table.settings["train"]["steps"]
    for recipe in _COMPARED:
        for of in found.STATS:
            for kind in _KINDS:
                values = found.exponent(table, of, kind, recipe, _U, end)
                rows = values.rename("value").reset_index()
                parts.append(rows.assign(quantity=f"{of}: {kind}", recipe=recipe))
        course = found.course(table, "layers", "head", recipe, _U)
        parts.append(course.assign(quantity="D", recipe=recipe))
    columns = ["quantity", "recipe", "width", "rate", "seed", "step", "value"]
    return pd.concat(parts, ignore_index=True).reindex(columns=columns)


def draw(numbers: pd.DataFrame, context: Context):
    """Four basins above, three panels below."""
    figure = sheet(4.6, w_pad=0.03, h_pad=0.04)
    above, below = figure.subfigures(2, 1, height_ratios=[1, 1.15])
    axes = above.subplots(1, len(LOOKS), sharey=True)
    for axis, letter, (recipe, (*_, name)) in zip(axes, "abcd", LOOKS.items(), strict=True):
        basin(axis, numbers, recipe)
        label(axis, f"{letter}   {name}", xlabel="factor $u$ on all LRs")
    axes[0].set_ylabel("loss − lowest of its width (nats)")
    left, middle, right = below.subplots(1, 3, width_ratios=[1.1, 1, 1.1])
    best(left, numbers, LOOKS, named=False)
    label(left, "e   Best factor by width", xlabel="width $d$", ylabel="best $u$")
    _exponents(middle, numbers)
    _over_training(right, numbers)
    handles = handles_of(numbers, LOOKS)
    legend_below(figure, handles, len(handles) // 2)
    note = "e: numbers are exponents of d, 95%   f, g: u = 1   f: Δ of one update"
    return caption(figure, context, f"{note}   g: medians, range; dashed: AdamW")


def _exponents(axis, numbers: pd.DataFrame) -> None:
    """Of layers and updates, a line each, steepest descent above AdamW."""
    named, colours, markers = {}, {}, {}
    for of in found.STATS:
        for kind, said in _KINDS.items():
            for recipe in _COMPARED:
                rows = numbers[(numbers["quantity"] == f"{of}: {kind}")
                               & (numbers["recipe"] == recipe)]  # fmt: skip
                name = said if of == "layers" else f"Δ of {said}"
                name = name if recipe == _COMPARED[0] else " " * len(named)
                named[name] = rows["value"].dropna()
                colours[name], markers[name], _ = LOOKS[recipe]
    dots(axis, named, colours, markers=markers)
    margin = criteria_of(EXPERIMENTS[0])["BM1"]["thresholds"]["margin"]
    axis.axvspan(-margin, margin, **NOT_JUDGED, lw=0, zorder=0)
    axis.axvline(0, **NEUTRAL)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    label(axis, "f   Criteria, at the end", xlabel="exponent of $d$")


def _over_training(axis, numbers: pd.DataFrame) -> None:
    for recipe, line in zip(_COMPARED, ("-", "--"), strict=True):
        rows = numbers[(numbers["quantity"] == "D") & (numbers["recipe"] == recipe)]
        for width, colour in colours_of(numbers).items():
            own = rows[rows["width"] == width]
            if len(own):
                median(axis, own, "step", color=colour, lw=1.1, ls=line)
    log_axis(axis)
    label(axis, "g   The head's D grows", xlabel="step", ylabel="$D$ (nats)")
