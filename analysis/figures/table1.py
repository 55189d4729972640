"""Table 1 (section 4.2): exponents of the width, derived and measured.

For three recipes and three optimizers: the output and its relative update of a linear layer in
equilibrium that sees one input (fully aligned, the paper's assumption) or fresh ones (not
aligned); and of the MLP's up projection in a model its norm, its alignment, and its output, which
follows from the two. Means over draws or seeds with 95% intervals.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

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
# An exponent this near to the derived one agrees with it; the claims ask the same.
NEAR = 0.1
_LOOKS: dict[bool | None, dict[str, str]] = {
    True: {"color": "#00735a"},
    False: {"color": "#C04000", "weight": "bold"},
    None: {"color": "#59636e"},
}
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
    figure, axis, write = text_page(4.9)
    left, width, high = 0.2, (1 - 0.2) / len(_COLUMNS), 0.091
    places = {column: left + width * (n + 0.5) for n, column in enumerate(_COLUMNS)}
    for case, name in _GROUPS.items():
        own = [x for (of, _), x in places.items() if of == case]
        write(sum(own) / len(own), 0.985, name, ha="center", fontsize=7.5)
        axis.plot([own[0] - width * 0.45, own[-1] + width * 0.45], [0.965] * 2, color="black",
                  lw=0.6, transform=axis.transAxes)  # fmt: skip
    for (_, stat), x in places.items():
        write(x, 0.94, _HEADS[stat], ha="center", fontsize=8)
    write(0.0, 0.94, "exponent of d", fontsize=7.5, weight="bold")
    groups = dict(tuple(numbers.groupby(["optimizer", "recipe", "case", "stat"])))
    y = 0.96
    for optimizer, recipe in table1.MODELS.values():
        if recipe == next(iter(table1.RECIPES)):
            y -= 0.054
            write(0.0, y, _OPTIMIZER[optimizer], fontsize=7.5, weight="bold")
            y += 0.04
        y -= high
        write(0.02, y, _RECIPE[recipe], fontsize=7)
        for (case, stat), x in places.items():
            rows = groups.get((optimizer, recipe, case, stat))
            if rows is None:
                continue
            if rows["derived"].notna().any():
                write(x, y + 0.027, _signed(rows["derived"].mean()), ha="center", fontsize=7.5)
            mean = interval(rows["exponent"])
            off = abs(mean.mean - rows["derived"].mean())
            look = _LOOKS[None if np.isnan(off) else bool(off <= NEAR)]
            write(x, y, _signed(mean.mean), ha="center", fontsize=7.5, **look)
            if mean.n > 1:
                half = f"± {(mean.high - mean.low) / 2:.2f}"
                write(x, y - 0.023, half, ha="center", fontsize=6, **look)
    said = {"derived (above)": {"color": "black"}, f"measured, within {NEAR:g} of it": _LOOKS[True],
            f"measured, off by more than {NEAR:g}": _LOOKS[False],
            "measured, nothing derived": _LOOKS[None]}  # fmt: skip
    for n, (words, look) in enumerate(said.items()):
        write((0.0, 0.2, 0.44, 0.75)[n], 0.012, words, fontsize=6.5, **look)
    return caption(figure, context, "± 95%: layer over draws of noise, model over seeds")


def _signed(value: float) -> str:
    text = f"{value:.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", "−")
