"""Judging function of WS5: the exponents of table 1 in equilibrium, derived and measured (4.2).

A criterion without a threshold for models is judged by layers alone: WS5.2 is.

A value is |measured − derived| of an exponent of the width, one per draw of noise for the layer and
one per seed for a model.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.claims.judging import Judgement, Part, at_most, judgement
from analysis.quantities import table1
from analysis.tables.results import Tables

# In words: what is measured, recipes and optimizers.
STATS = {"output_norm": "‖y‖", "relative_update": "‖Δy‖/‖y‖", "alignment": "α"}
# One input that never changes makes W = w xᵀ, so that α = 1.
GROUPS = {"output_norm": "‖y‖ of a layer", "relative_update": "‖Δy‖/‖y‖ of a layer",
          "alignment": "α of a layer (an identity)"}  # fmt: skip
RECIPES = {"LR": "η ∝ 1/d", "LR_WD": "η ∝ 1/d and λ ∝ d", "S": "s ∝ 1/d"}
OPTIMIZERS = {"ADAM": "AdamW", "MUON": "Moonlight's Muon", "JORDAN": "Jordan's Muon"}
OTHERS = "layer with Muon or fresh inputs"


def ws5(tables: Tables, criterion: dict) -> Judgement:
    """Exponents near those derived: of the layer ‖y‖, ‖Δy‖/‖y‖ and α, of a model ‖W‖.

    AdamW at full alignment is the paper's table; Muon and fresh inputs are ours. Of a model ‖y‖ is
    no test of its own: α is defined by ‖y‖ = s d α ‖W‖. Models are left out where the criterion has
    no threshold for them.
    """
    limits, parts, worst = criterion["thresholds"], [], []
    gaps = _layer(tables)
    is_papers = (gaps["optimizer"] == "ADAM") & (gaps["case"] == "one_input")
    for is_ours, rows in ((False, gaps[is_papers]), (True, gaps[~is_papers])):
        for stat, text in STATS.items():
            values, case = _worst(rows[rows["stat"] == stat])
            group = OTHERS if is_ours else GROUPS[stat]
            where = OTHERS if is_ours else "layer with AdamW and one input"
            parts.append(at_most(f"{where}: |measured − derived| exponent of {text}, worst case",
                                 values, limits["layer"], group, ours=is_ours))  # fmt: skip
            worst.append(f"{text} {case}")
    note = f"worst: {', '.join(worst)}"
    if "model" in limits:
        parts += _model(tables, limits["model"])
        note = f"{note}; {_alignments(tables)}"
    return judgement(criterion, parts, note)


def _layer(tables: Tables) -> pd.DataFrame:
    """Columns optimizer, recipe, case, stat, draw, gap: measured − derived exponents."""
    names = ["optimizer", "recipe", "stat", "case", "draw"]
    layer = table1.exponents(table1.layer_values(tables), names)
    derived = [
        table1.derived(row.optimizer, row.recipe, row.case)[row.stat] for row in layer.itertuples()
    ]
    return layer.assign(gap=layer["exponent"].sub(derived))


def _worst(rows: pd.DataFrame) -> tuple[pd.Series, str]:
    """Of the case whose mean gap is largest: its gaps, positive in the mean, and its name."""
    names = ["optimizer", "recipe", "case"]
    means = rows.groupby(names)["gap"].mean()
    case = means.abs().idxmax()
    values = rows.set_index(names)["gap"].loc[case]
    return values * np.sign(means[case]), " ".join(case)


def _model(tables: Tables, limit: float) -> list[Part]:
    norms = table1.model_values(tables)
    norms = table1.exponents(norms[norms["stat"] == "weight_norm"], ["optimizer", "recipe", "seed"])
    parts = []
    for optimizer, whose in OPTIMIZERS.items():
        for recipe, text in RECIPES.items():
            rows = norms[(norms["optimizer"] == optimizer) & (norms["recipe"] == recipe)]
            expected = table1.derived(optimizer, recipe, "fresh_inputs")["weight_norm"]
            gap = rows["exponent"].sub(expected)
            name = f"model with {whose}, {text}: |measured − derived| exponent of ‖W‖"
            parts.append(at_most(name, gap * np.sign(gap.mean()), limit,
                                 f"‖W‖ of a model with {whose}"))  # fmt: skip
    return parts


def _alignments(tables: Tables) -> str:
    values = table1.model_values(tables)
    values = values[values["stat"] == "alignment"]
    means = table1.exponents(values, ["optimizer", "recipe", "seed"]).groupby("optimizer")
    parts = [f"{name} {value:+.2f}" for name, value in means["exponent"].mean().items()]
    return "exponent of a model's alignment: " + ", ".join(parts)
