"""Stability criteria over the width (Beyond MuP 3; the article trains nothing).

a: the exponent of the width in the criteria of layers, and of one update (Δ), at the end of
training with the LRs that were tuned at width 64; bars are means with 95% intervals, points seeds.
b: the criterion D of the head while it trains: its loss is at most D + log V.
"""

from __future__ import annotations

import pandas as pd
from matplotlib import rcParams

from analysis.drawing.axes import dots, median
from analysis.drawing.page import caption, finding, headline, key, label, legend_below, page
from analysis.drawing.style import DASHED_KEYS, NEUTRAL, NOT_JUDGED, colour_of_width, log_axis
from analysis.figures.bm_fig2 import LOOKS
from analysis.quantities import steepest_width as found
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = {"steepest_width": ("STEEPEST * u=1 *", "ADAMW * u=1 *")}
_COMPARED = {"STEEPEST": "-", "ADAMW": "--"}
_KINDS = {"embedding": "embedding", "linear layers": "linear layers", "head": "LM head, D",
          "gains": "gains"}  # fmt: skip
_U = 1.0
MESSAGE = (
    "With steepest descent criteria hardly depend on the width, but for those of gains (a);\n"
    "the head's D ends alike at every width (b)"
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: quantity (``layers: <kind>`` and ``updates: <kind>``, exponents; D), recipe, …."""
    table, parts = tables["steepest_width"], []
    end = table.settings["train"]["steps"]
    for recipe in _COMPARED:
        for of in found.STATS:
            for kind in _KINDS:
                values = found.exponent(table, of, kind, recipe, _U, end)
                rows = values.rename("value").reset_index()
                parts.append(rows.assign(quantity=f"{of}: {kind}", recipe=recipe))
        course = found.course(table, "layers", "head", recipe, _U)
        parts.append(course.assign(quantity="D", recipe=recipe))
    columns = ["quantity", "recipe", "width", "seed", "step", "value"]
    return pd.concat(parts, ignore_index=True).reindex(columns=columns)


def draw(numbers: pd.DataFrame, context: Context):
    """Exponents beside the course of D."""
    figure, (left, right) = page(1, 2, 4.9, w_pad=0.04, width_ratios=[1, 1.1])
    headline(figure, MESSAGE, context)
    _exponents(left, numbers)
    of_d = numbers[numbers["quantity"] == "D"]
    widths = sorted(of_d["width"].unique())
    colours = {width: colour_of_width(width) for width in widths}
    for recipe, line in _COMPARED.items():
        for width, colour in colours.items():
            own = of_d[(of_d["recipe"] == recipe) & (of_d["width"] == width)]
            if len(own):
                median(right, own, "step", color=colour, lw=1.2, ls=line)
    log_axis(right)
    label(
        right,
        finding(context, "b   The head's D grows", "b   The head's D"),
        xlabel="step",
        ylabel="$D$ (nats)",
    )
    handles = [key(LOOKS[recipe][2], color=LOOKS[recipe][0], marker=LOOKS[recipe][1], ms=3.6,
                   ls=line) for recipe, line in _COMPARED.items()]  # fmt: skip
    handles += [key(f"$d$ = {width:g}", color=colour) for width, colour in colours.items()]
    legend_below(figure, handles, (len(handles) + 1) // 2, **DASHED_KEYS)
    note = "LRs tuned at one width   a: Δ of one update, points: seeds, bars: means, 95%; "
    note += f"grey: within ± {_margin():g}"
    return caption(figure, context, f"{note}\nb: medians, range")


def _margin() -> float:
    return criteria_of("steepest_width")["BM1"]["thresholds"]["margin"]


def _exponents(axis, numbers: pd.DataFrame) -> None:
    """Of layers and updates, a line each, steepest descent above AdamW."""
    named, colours, markers = {}, {}, {}
    for of in found.STATS:
        for kind in _KINDS:
            for recipe in _COMPARED:
                rows = numbers[(numbers["quantity"] == f"{of}: {kind}")
                               & (numbers["recipe"] == recipe)]  # fmt: skip
                name = f"{of}: {kind}: {recipe}"
                named[name] = rows["value"].dropna()
                colours[name], markers[name], _ = LOOKS[recipe]
    dots(axis, named, colours, markers=markers, below=0.43)
    # One name for the lines of a criterion, between hair lines.
    said = [*_KINDS.values(), *(f"Δ of {kind}" for kind in _KINDS.values())]
    step = len(_COMPARED)
    last = len(named) - 1
    axis.set_yticks([last - place * step - (step - 1) / 2 for place in range(len(said))], said)
    for place in range(1, len(said)):
        axis.axhline(last + 0.5 - place * step, color=rcParams["grid.color"], lw=0.6, zorder=0)
    axis.axvspan(-_margin(), _margin(), **NOT_JUDGED, lw=0, zorder=0)
    axis.axvline(0, **NEUTRAL)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    label(axis, "a   Criteria at the end", xlabel="exponent of $d$")
