"""Judging function of N1: signal and noise of gradients (section 2), and the equilibrium."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from analysis.claims.judging import Judgement, at_least, judgement
from analysis.quantities.gradient_noise import OF, together
from analysis.tables.results import Tables


def n1(tables: Tables, criterion: dict) -> Judgement:
    """Multipliers against their matrices, and the ratio against the departure from S."""
    table, limits = together(tables), criterion["thresholds"]
    found = []
    for name, text in (("s", "scalars"), ("r", "rows"), ("c", "columns")):
        shares = (table[name] > table["W"]).groupby(table["seed"]).mean()
        found.append(
            at_least(f"share of matrices in which {text} have the higher ratio", shares,
                     limits["share"], text)
        )  # fmt: skip
    gaps = (1 - table["slope"]).abs()
    pairs = pd.DataFrame({"seed": table["seed"], "ratio": table["W"], "gap": gaps})
    correlations = pairs.groupby("seed")[["ratio", "gap"]].apply(
        lambda rows: spearmanr(rows["ratio"], rows["gap"]).statistic
    )
    found.append(
        at_least("rank correlation of W's ratio and |1 − slope|", correlations,
                 limits["correlation"], "indicator")
    )  # fmt: skip
    medians = ", ".join(f"{name} {np.median(table[name]):.2g}" for name in OF.values())
    return judgement(criterion, found, f"median ratios: {medians}")
