"""Judging function of EQ1: ‖W‖ ∝ η^½ at fixed λ and ∝ λ^−½ at fixed η."""

from __future__ import annotations

import pandas as pd

from analysis.judging import Judgement, at_most, within
from analysis.norms import at_step, geometric_mean, stage_end_of
from analysis.stats import log_slope

AXES = {"LR": 0.5, "WD": -0.5}


def exponents(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Columns arm, tensor, seed, exponent, noise_exponent.

    The exponent of each block matrix's norm (geometric mean over layers) at the end of the
    constant stage, and that of its Brownian twin; ``tensor`` is ``all`` for the geometric mean
    over matrices.
    """
    swept = frame.loc[frame["kind"] == "brownian", "tensor"].unique()
    norms = frame[(frame["stat"] == "weight_norm") & frame["tensor"].isin(swept)]
    norms = at_step(norms, stage_end_of(runs))
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


def eq1(frame, runs, criterion) -> Judgement:
    """Both exponents near ±½ and near Brownian motion's, and no matrix far from its twin's."""
    found, limits = exponents(frame, runs), criterion["thresholds"]
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
    return Judgement(components, criterion["seeds"]["minimum"], note)


JUDGES = {"EQ1": eq1}
