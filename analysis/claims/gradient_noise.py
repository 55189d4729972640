"""Judging functions of N1: signal and noise of gradients (section 2), and the equilibrium."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from analysis.claims.judging import Judgement, Part, at_least, judgement
from analysis.quantities.gradient_noise import OF, log_gains, together
from analysis.tables.results import Tables

MULTIPLIERS = {"s": "scalars", "r": "rows", "c": "columns"}


def n1(tables: Tables, criterion: dict) -> Judgement:
    """In how many matrices multipliers have the higher ratio, and the indicator (ours)."""
    table, limits = together(tables), criterion["thresholds"]
    parts = []
    for name, text in MULTIPLIERS.items():
        shares = (table[name] > table["W"]).groupby(table["seed"]).mean()
        parts.append(
            at_least(f"share of matrices in which {text} have the higher ratio", shares,
                     limits["share"], text)
        )  # fmt: skip
    return judgement(criterion, [*parts, _indicator(table, limits)], _medians(table))


def n1_2(tables: Tables, criterion: dict) -> Judgement:
    """The multipliers' ratio over their matrix's in logarithms, and the indicator (ours)."""
    table, limits = together(tables), criterion["thresholds"]
    parts = []
    for name, text in MULTIPLIERS.items():
        gains = log_gains(table, name)
        parts.append(
            at_least(f"ln of the {text}' ratio over the matrix's, median over matrices", gains,
                     limits["gain"], text, matters=criterion["smallest_effect"])
        )  # fmt: skip
    return judgement(criterion, [*parts, _indicator(table, limits)], _medians(table))


def _indicator(table: pd.DataFrame, limits: dict) -> Part:
    """Rank correlation over matrices of the matrix's ratio with its departure from slope 1."""
    gaps = (1 - table["slope"]).abs()
    pairs = pd.DataFrame({"seed": table["seed"], "ratio": table["W"], "gap": gaps})
    correlations = pairs.groupby("seed")[["ratio", "gap"]].apply(
        lambda rows: spearmanr(rows["ratio"], rows["gap"]).statistic
    )
    name = "rank correlation of the matrix's ratio with its |1 − slope of ln ‖W‖ in ln S|"
    group = "the ratio tells which matrices leave the equilibrium"
    return at_least(name, correlations, limits["correlation"], group, ours=True)


def _medians(table: pd.DataFrame) -> str:
    medians = ", ".join(f"{name} {np.median(table[name]):.2g}" for name in OF.values())
    return f"median ratios: {medians}"
