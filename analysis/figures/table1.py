"""Table 1 (section 4.2): exponents of the width, derived and measured.

For three recipes and three optimizers: the output and its relative update of a linear layer in
equilibrium that sees one input (fully aligned, the paper's assumption) or fresh ones (not
aligned); and of the MLP's up projection in a model its norm, its alignment, and its output, which
follows from the two. Means over draws or seeds with 95% intervals.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from analysis.drawing.page import caption, text_page
from analysis.quantities import table1
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("table1",)
_RECIPE = {"LR": "η ∝ 1/d", "LR_WD": "η ∝ 1/d, λ ∝ d", "S": "s ∝ 1/d"}
_OPTIMIZER = {"ADAM": "AdamW", "MUON": "Muon (Moonlight)", "JORDAN": "Muon (Jordan)"}
_COLUMNS = (
    ("one_input", "output_norm"), ("one_input", "relative_update"),
    ("fresh_inputs", "output_norm"), ("fresh_inputs", "relative_update"),
    ("model", "weight_norm"), ("model", "alignment"), ("model", "output_norm"),
)  # fmt: skip
# An exponent this near to the derived one agrees with it; the claims ask the same. Of one that is
# farther, the interval says whether chance may have done it.
NEAR = 0.1
# What is behind a measured exponent that is not near.
_FILLS = {"open": "#FBF0C4", "off": "#F8CDB4"}
_DERIVED = {"color": "#767676"}
_HEADS = {
    "output_norm": "‖y‖", "relative_update": "‖Δy‖/‖y‖", "alignment": "α", "weight_norm": "‖W‖",
}  # fmt: skip
_GROUPS = {
    "one_input": "layer, one input",
    "fresh_inputs": "layer, fresh inputs",
    "model": "a model's MLP up",
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: optimizer, recipe, case, stat, derived, seed (or draw), exponent."""
    table = tables["table1"]
    names = ["optimizer", "recipe", "stat"]
    layer = table1.layer_values(table)
    layer = table1.exponents(layer, [*names, "case", "draw"]).rename(columns={"draw": "seed"})
    layer["derived"] = [
        table1.derived(row.optimizer, row.recipe, row.case)[row.stat] for row in layer.itertuples()
    ]
    model = table1.model_values(table)
    model = table1.exponents(model, [*names, "seed"]).assign(case="model")
    # A model's gradients have full rank; its alignment, and so its output, follow from nothing.
    model["derived"] = [
        table1.derived(row.optimizer, row.recipe, "fresh_inputs")["weight_norm"]
        if row.stat == "weight_norm"
        else float("nan")
        for row in model.itertuples()
    ]
    columns = ["optimizer", "recipe", "case", "stat", "derived", "seed", "exponent"]
    rows = pd.concat([layer, model], ignore_index=True)[columns]
    return rows.sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """A table: in each cell the derived exponent, the measured one and its interval."""
    figure, axis, write = text_page(4.35)
    left, line = 0.155, 0.032
    width = (1 - left) / len(_COLUMNS)
    places = {column: left + width * (n + 0.5) for n, column in enumerate(_COLUMNS)}
    for case, name in _GROUPS.items():
        own = [x for (of, _), x in places.items() if of == case]
        write(sum(own) / len(own), 0.985, name, ha="center", fontsize=7.5)
        _rule(axis, own[0] - width * 0.45, own[-1] + width * 0.45, 0.963)
    for (_, stat), x in places.items():
        write(x, 0.935, _HEADS[stat], ha="center", fontsize=7.5)
    write(0.0, 0.935, "exponent of d", fontsize=7, weight="bold")
    groups = dict(tuple(numbers.groupby(["optimizer", "recipe", "case", "stat"])))
    y, above = 0.935, {}
    for optimizer, recipe in table1.MODELS.values():
        if recipe == next(iter(table1.RECIPES)):
            y -= 0.032
            _rule(axis, 0.0, 1.0, y)
            y -= 0.027
            write(0.0, y, _OPTIMIZER[optimizer], fontsize=7, weight="bold")
            y += 0.01
        y -= 2.28 * line
        write(0.012, y + line / 2, _RECIPE[recipe], fontsize=6.8)
        for (case, stat), x in places.items():
            rows = groups.get((optimizer, recipe, case, stat))
            if rows is None:
                continue
            values = tuple(rows.sort_values("seed")["exponent"])
            if above.get((optimizer, case, stat)) == values:
                write(x, y + line / 2, "as above", ha="center", **_DERIVED)
                continue
            above[optimizer, case, stat] = values
            derived, mean = rows["derived"].mean(), interval(rows["exponent"])
            if np.isfinite(derived):
                write(x, y + line, _signed(derived), ha="center", **_DERIVED)
            if (fill := _FILLS.get(_verdict(derived, mean))) is not None:
                _fill(axis, x, y, width * 0.98, line, fill)
            half = f" ± {(mean.high - mean.low) / 2:.2f}" if mean.n > 1 else ""
            write(x, y, _signed(mean.mean) + half, ha="center")
    y -= 0.034
    _rule(axis, 0.0, 1.0, y)
    y -= 0.032
    write(0.0, y, "upper: derived", **_DERIVED)
    write(0.145, y, "lower: measured ± 95%")
    keys = {"off": (0.385, f"interval more than {NEAR:g} off"),
            "open": (0.665, f"more than {NEAR:g} off, interval nearer")}  # fmt: skip
    for verdict, (x, words) in keys.items():
        _fill(axis, x, y, 0.025, line, _FILLS[verdict])
        write(x + 0.02, y, words)
    write(0.0, y - 0.036, "as above: the same draws by construction. "
          "y: output, Δy: its update, α: alignment, ‖y‖ = s d α ‖W‖.")  # fmt: skip
    layer = numbers[numbers["case"] != "model"]
    draws = layer.groupby(["optimizer", "recipe", "case", "stat"])["seed"].nunique().max()
    return caption(figure, context, f"layer: n = {draws} draws")


def _fill(axis, x: float, y: float, width: float, height: float, colour: str) -> None:
    corner = x - width / 2, y - height / 2
    axis.add_patch(Rectangle(corner, width, height, color=colour, lw=0, transform=axis.transAxes))


def _rule(axis, low: float, high: float, y: float) -> None:
    axis.plot([low, high], [y] * 2, color="black", lw=0.5, transform=axis.transAxes)


def _verdict(derived: float, mean) -> str:
    """Whether a measured exponent is near the derived one, off, or open; free where none is."""
    if np.isnan(derived):
        return "free"
    if abs(mean.mean - derived) <= NEAR:
        return "near"
    reaches = mean.low <= derived + NEAR and mean.high >= derived - NEAR
    return "open" if reaches else "off"


def _signed(value: float) -> str:
    text = f"{value:.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", "−")
