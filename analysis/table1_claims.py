"""Judging function of WS5: the exponents of table 1 in equilibrium, derived and measured (4.2)."""

from __future__ import annotations

from analysis import table1
from analysis.judging import Judgement, within

_ADAM = "ADAM"


def ws5(frame, vectors, runs, criterion) -> Judgement:
    """Measured less derived exponents: of the linear layer by draws, of a model by seeds.

    Parts are the layer under AdamW at full alignment, which is the paper's table, the layer's other
    cases, and the model.
    """
    limits, found = criterion["thresholds"], []
    layer = table1.exponents(table1.layer_values(vectors, runs), ["arm", "case", "stat", "draw"])
    for (arm, case, stat), rows in layer.groupby(["arm", "case", "stat"], observed=True):
        optimizer, _, recipe = arm.partition("_")
        gap = rows["exponent"] - table1.derived(optimizer, recipe, case)[stat]
        is_papers = optimizer == _ADAM and case == "one_input"
        part = "table 1" if is_papers else "other optimizers and inputs"
        found += within(f"{arm} {case}: {stat}, measured − derived", gap, -limits["layer"],
                        limits["layer"], part)  # fmt: skip
    model = table1.exponents(table1.model_values(frame, runs), ["arm", "seed", "stat"])
    for arm, rows in model.groupby("arm", observed=True):
        optimizer, _, recipe = arm.partition("_")
        table = rows.pivot(index="seed", columns="stat", values="exponent")
        expected = table["alignment"].map(
            lambda a, o=optimizer, r=recipe: table1.derived(o, r, "fresh_inputs", a)["output_norm"]
        )
        found += within(f"{arm} model: ‖y‖, measured − from α", table["output_norm"] - expected,
                        -limits["model"], limits["model"], "model")  # fmt: skip
    return Judgement(found, criterion["seeds"]["minimum"])


VECTOR_JUDGES = {"WS5": ws5}
VECTOR_TENSORS: dict[str, tuple[str, ...]] = {"WS5": ()}
