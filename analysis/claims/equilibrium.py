"""Judging functions of EQ1: ‖W‖ ∝ η^½ at fixed λ and ∝ λ^−½ at fixed η."""

from __future__ import annotations

import pandas as pd

from analysis.claims.judging import Judgement, at_most, judgement, within
from analysis.quantities.equilibrium import AXES, exponents
from analysis.tables.results import Tables

NAMES = {"LR": "exponent of η at fixed λ", "WD": "exponent of λ at fixed η"}
AS_NOISE = " as Brownian motion"
GROUPS = {"LR": "learning rate", "WD": "weight decay"}


def eq1(tables: Tables, criterion: dict) -> Judgement:
    """Both exponents near ±½ and near Brownian motion's, and no matrix far from its twin's."""
    table, limits = exponents(tables), criterion["thresholds"]
    margin, parts = limits["margin"], []
    for arm, expected in AXES.items():
        rows = table[table["arm"] == arm]
        together = rows[rows["tensor"] == "all"]
        name, group = NAMES[arm], GROUPS[arm]
        parts.append(
            within(name, together["exponent"], expected - margin, expected + margin, group)
        )
        gap = (rows["exponent"] - rows["noise_exponent"]).abs()
        parts.append(
            at_most(f"{name}: distance from Brownian motion's", gap[together.index], margin, group)
        )
        worst = gap.groupby(rows["tensor"]).mean().idxmax()
        of_worst = gap[rows["tensor"] == worst]
        name = f"{name}: worst matrix ({worst}), distance from Brownian motion's"
        parts.append(at_most(name, of_worst, limits["worst"], group))
    return judgement(criterion, parts, _noise(table))


def eq1_2(tables: Tables, criterion: dict) -> Judgement:
    """Both exponents near ±½; ours: near Brownian motion's, and so each matrix's."""
    table, limits = exponents(tables), criterion["thresholds"]
    margin, parts = limits["margin"], []
    for arm, expected in AXES.items():
        rows = table[table["arm"] == arm]
        together = rows[rows["tensor"] == "all"]["exponent"]
        parts.append(
            within(NAMES[arm], together, expected - margin, expected + margin, GROUPS[arm])
        )
    for arm in AXES:
        rows = table[table["arm"] == arm]
        gap = rows["exponent"] - rows["noise_exponent"]
        for tensor, of_tensor in gap.groupby(rows["tensor"], sort=False):
            limit = margin if tensor == "all" else limits["worst"]
            whose = "all matrices" if tensor == "all" else tensor
            name = f"{NAMES[arm]}, {whose}: difference from Brownian motion's"
            group = ("all matrices together" if tensor == "all" else "each matrix") + AS_NOISE
            parts.append(within(name, of_tensor, -limit, limit, group, ours=True))
    return judgement(criterion, parts, _noise(table))


def _noise(table: pd.DataFrame) -> str:
    each = table[table["tensor"] == "all"].groupby("arm")["noise_exponent"].first()
    return "Brownian motion's exponents: " + ", ".join(f"{a} {each[a]:.3f}" for a in AXES)
