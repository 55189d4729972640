"""Judging function of WS5: the exponents of table 1 in equilibrium, derived and measured (4.2)."""

from __future__ import annotations

import numpy as np

from analysis.claims.judging import Component, Judgement, at_most, judgement
from analysis.quantities import table1
from analysis.tables.results import Tables


def ws5(tables: Tables, criterion: dict) -> Judgement:
    """Measured less derived exponents, on the side where the mean is: of the layer by draws, of
    ‖W‖ in a model by seeds.

    Parts are AdamW at full alignment, which is the paper's table; Muon and fresh inputs; a model,
    whose ‖y‖ then has the exponent of the table plus that of its alignment.
    """
    limits, found = criterion["thresholds"], []
    names = ["optimizer", "recipe", "stat"]
    layer = table1.exponents(table1.layer_values(tables), [*names, "case", "draw"])
    expected = [
        table1.derived(row.optimizer, row.recipe, row.case)[row.stat] for row in layer.itertuples()
    ]
    layer["gap"] = layer["exponent"] - expected
    is_papers = (layer["optimizer"] == "ADAM") & (layer["case"] == "one_input")
    for part, rows in (("table 1", layer[is_papers]), ("Muon, fresh inputs", layer[~is_papers])):
        for stat, of in rows.groupby("stat"):
            means = of.groupby(["optimizer", "recipe", "case"])["gap"].mean()
            worst = means.abs().idxmax()
            values = of.set_index(["optimizer", "recipe", "case"])["gap"].loc[worst]
            values = values * np.sign(means[worst])
            name = f"{stat}: |measured − derived|, worst: {' '.join(worst)}"
            found.append(at_most(name, values, limits["layer"], part))
    found += _model(tables, limits["model"])
    return judgement(criterion, found, _alignments(tables))


def _model(tables: Tables, limit: float) -> list[Component]:
    norms = table1.model_values(tables)
    norms = table1.exponents(norms[norms["stat"] == "weight_norm"], ["optimizer", "recipe", "seed"])
    found = []
    for (optimizer, recipe), rows in norms.groupby(["optimizer", "recipe"]):
        expected = table1.derived(optimizer, recipe, "fresh_inputs")["weight_norm"]
        gap = rows["exponent"] - expected
        gap = gap * np.sign(gap.mean())
        name = f"model, {optimizer} {recipe}: exponent of ‖W‖, |measured − derived|"
        found.append(at_most(name, gap, limit, "model"))
    return found


def _alignments(tables: Tables) -> str:
    values = table1.model_values(tables)
    values = values[values["stat"] == "alignment"]
    means = table1.exponents(values, ["optimizer", "recipe", "seed"]).groupby("optimizer")
    parts = [f"{name} {value:+.2f}" for name, value in means["exponent"].mean().items()]
    return "exponent of a model's alignment: " + ", ".join(parts)
