"""Figures 45 to 64 of the third paper: sizes under AdamW while Gated Delta Networks train.

All at one LR. Rows are recipes, columns quantities, with a curve for each width. Where a quantity
has the exponent of the width that muP derives, the curves lie on each other: gradients are
multiplied by d. Lines are medians over seeds, bands their range.
"""

from __future__ import annotations

import dataclasses

import pandas as pd

from analysis.drawing.axes import median
from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import colour_of_width, log_axis
from analysis.quantities import gdn_transfer as found
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

# Of more seeds than those that have all LRs.
EXPERIMENTS = {"gdn_transfer": ("* lr=0.016 *",)}
RECIPES = {"SP": "SP", "MUP": "muP"}
MESSAGE = (
    "Over eight times the width queries shrink by a quarter and keys by a tenth with\n"
    "muP; with SP both grow eightfold. ∂h · d grows with muP, and shrinks with SP"
)
COLUMNS = {
    "q̃": r"query $\tilde{q}$",
    "k̃": r"key $\tilde{k}$",
    "∂h": r"stream $\partial h \cdot d$",
    "∂q̃": r"$\partial\tilde{q} \cdot d$",
    "∂k̃": r"$\partial\tilde{k} \cdot d$",
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: recipe, quantity, lr, seed, width, step, value (gradients times the width)."""
    table, parts = tables["gdn_transfer"], []
    lr = criteria_of("gdn_transfer")["GD7"]["thresholds"]["lr"]
    for recipe in RECIPES:
        for quantity in COLUMNS:
            rows = found.course(table, quantity, recipe, lr)
            power = -found.QUANTITIES[quantity][2]
            value = rows["value"] * rows["width"] ** power
            parts.append(rows.assign(value=value, recipe=recipe, quantity=quantity, lr=lr))
    columns = ["recipe", "quantity", "lr", "seed", "width", "step", "value"]
    return pd.concat(parts, ignore_index=True)[columns]


def draw(numbers: pd.DataFrame, context: Context):
    """A row for each recipe."""
    figure, axes = page(len(RECIPES), len(COLUMNS), 3.2, w_pad=0.03, sharex=True, sharey="col")
    headline(figure, MESSAGE, context)
    letters = iter("abcde")
    of_widths = sorted(numbers["width"].unique())
    colours = {width: colour_of_width(width) for width in of_widths}
    groups = dict(tuple(numbers.groupby(["recipe", "quantity", "width"])))
    for place, (row, (recipe, name)) in enumerate(zip(axes, RECIPES.items(), strict=True)):
        for axis, (quantity, title) in zip(row, COLUMNS.items(), strict=True):
            for width, colour in colours.items():
                if (recipe, quantity, width) in groups:
                    median(axis, groups[recipe, quantity, width], "step", color=colour, lw=1.1)
            log_axis(axis)
            if place == 0:
                label(axis, f"{next(letters)}   {title}")
        row[0].set_ylabel(f"{name}: RMS")
    for axis in axes[-1]:
        axis.set_xlabel("step")
    handles = [key(f"$d$ = {width:g}", color=colour) for width, colour in colours.items()]
    legend_below(figure, handles, len(handles))
    drawn = dataclasses.replace(context, seeds=sorted(numbers["seed"].unique()))
    smallest = f"{of_widths[0]:g}"
    told = "medians, range" if numbers["seed"].nunique() > 1 else "one seed"
    note = (
        f"LR {numbers['lr'].iloc[0]:g} at every width; {told}   SP: standard "
        "parametrization\ntilde: before normalising; ∂: gradient of the loss; at "
        f"$d$ = {smallest} both recipes are one model"
    )
    return caption(figure, drawn, note)
