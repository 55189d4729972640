"""Judging function of WS5: the exponents of table 1 in equilibrium, derived and measured (4.2)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import table1
from analysis.judging import Judgement, at_most


def ws5(frame, vectors, runs, criterion) -> Judgement:
    """Measured less derived exponents, on the side where the mean is: of the layer by draws, of
    ‖W‖ in a model by seeds.

    Parts are AdamW at full alignment, which is the paper's table; Muon and fresh inputs; a model,
    whose ‖y‖ then has the exponent of the table plus that of its alignment.
    """
    limits, found = criterion["thresholds"], []
    names = ["optimizer", "recipe", "stat"]
    layer = table1.exponents(table1.layer_values(vectors, runs), [*names, "case", "draw"])
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
    found += _model(frame, runs, limits["model"])
    return Judgement(found, criterion["seeds"]["minimum"], _alignments(frame, runs))


def _model(frame, runs, limit: float) -> list:
    norms = table1.model_values(frame, runs)
    norms = table1.exponents(norms[norms["stat"] == "weight_norm"], ["optimizer", "recipe", "seed"])
    found = []
    for (optimizer, recipe), rows in norms.groupby(["optimizer", "recipe"]):
        expected = table1.derived(optimizer, recipe, "fresh_inputs")["weight_norm"]
        gap = rows["exponent"] - expected
        gap = gap * np.sign(gap.mean())
        name = f"model, {optimizer} {recipe}: exponent of ‖W‖, |measured − derived|"
        found.append(at_most(name, gap, limit, "model"))
    return found


def _alignments(frame: pd.DataFrame, runs: pd.DataFrame) -> str:
    values = table1.model_values(frame, runs)
    values = values[values["stat"] == "alignment"]
    means = table1.exponents(values, ["optimizer", "recipe", "seed"]).groupby("optimizer")
    parts = [f"{name} {value:+.2f}" for name, value in means["exponent"].mean().items()]
    return "exponent of a model's alignment: " + ", ".join(parts)


VECTOR_JUDGES = {"WS5": ws5}
VECTOR_TENSORS: dict[str, tuple[str, ...]] = {"WS5": ()}
