"""Exponents of the norm in LR and weight decay, each swept alone (equation 1)."""

from __future__ import annotations

import pandas as pd

from analysis.quantities.norms import at_step, geometric_mean
from analysis.quantities.stats import log_slope
from analysis.tables.results import Tables

# Each arm's exponent in theory.
AXES = {"LR": 0.5, "WD": -0.5}


def exponents(tables: Tables) -> pd.DataFrame:
    """Columns arm, tensor, seed, exponent, noise_exponent.

    The exponent of each block matrix's norm (geometric mean over layers) at the end of the
    constant stage, and that of its Brownian twin; ``tensor`` is ``all`` for the geometric mean
    over matrices.
    """
    swept = tables.pick(kind="brownian")["tensor"].unique()
    norms = at_step(tables.pick(stat="weight_norm", tensor=tuple(swept)), tables.stage_end)
    rows = []
    for arm in AXES:
        of_arm = norms[norms["arm"] == arm]
        for tensor in ("all", *swept):
            chosen = of_arm if tensor == "all" else of_arm[of_arm["tensor"] == tensor]
            noise = _exponent(chosen[chosen["kind"] == "brownian"])
            for seed, own in chosen[chosen["kind"] == "train"].groupby("seed"):
                row = {"arm": arm, "tensor": tensor, "seed": seed, "exponent": _exponent(own)}
                rows.append(row | {"noise_exponent": noise})
    return pd.DataFrame(rows)


def _exponent(norms: pd.DataFrame) -> float:
    means = norms.groupby("factor")["value"].apply(geometric_mean)
    return log_slope(means.index, means)
