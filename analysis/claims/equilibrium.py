"""Judging function of EQ1: ‖W‖ ∝ η^½ at fixed λ and ∝ λ^−½ at fixed η."""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_most, judgement, within
from analysis.quantities.equilibrium import AXES, exponents
from analysis.tables.results import Tables


def eq1(tables: Tables, criterion: dict) -> Judgement:
    """Both exponents near ±½ and near Brownian motion's, and no matrix far from its twin's."""
    found, limits = exponents(tables), criterion["thresholds"]
    components, notes = [], []
    for arm, expected in AXES.items():
        rows = found[found["arm"] == arm]
        together = rows[rows["tensor"] == "all"]
        name = {"LR": "exponent of η at fixed λ", "WD": "exponent of λ at fixed η"}[arm]
        margin = limits["margin"]
        components += within(name, together["exponent"], expected - margin, expected + margin)
        gap = (rows["exponent"] - rows["noise_exponent"]).abs()
        together_gap = gap[together.index]
        components.append(at_most(f"{name}: distance from ABM's", together_gap, margin))
        worst = gap.groupby(rows["tensor"]).mean().idxmax()
        of_worst = gap[rows["tensor"] == worst]
        components.append(
            at_most(f"{name}: worst matrix ({worst}), from ABM's", of_worst, limits["worst"])
        )
        notes.append(f"{arm} {together['noise_exponent'].iloc[0]:.3f}")
    note = "Brownian motion's exponents: " + ", ".join(notes)
    return judgement(criterion, components, note)
