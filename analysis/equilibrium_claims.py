"""Judging function of EQ1: ‖W‖ ∝ η^½ at fixed λ and ∝ λ^−½ at fixed η."""

from __future__ import annotations

import pandas as pd

from analysis.judging import Judgement, within
from analysis.norms import at_step, geometric_mean
from analysis.stats import log_slope

AXES = {"LR": 0.5, "WD": -0.5}


def exponents(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Columns arm, seed, exponent, noise_exponent.

    The exponent of the geometric mean of the block matrices' norms (over tensors and layers) at
    the end of the constant stage, and the same of their Brownian twins.
    """
    settings = runs[runs["kind"] == "train"].iloc[0]["description"]["settings"]
    stage_end = settings["train"]["steps"] - settings["schedule"]["decay_steps"]
    twins = frame[frame["kind"] == "brownian"]
    matrices = twins["tensor"].unique()
    norms = frame[(frame["stat"] == "weight_norm") & frame["tensor"].isin(matrices)]
    norms = at_step(norms, stage_end)
    rows = []
    for arm in AXES:
        chosen = norms[norms["arm"] == arm]
        noise = chosen[chosen["kind"] == "brownian"]
        for seed, own in chosen[chosen["kind"] == "train"].groupby("seed"):
            rows.append(
                {
                    "arm": arm,
                    "seed": seed,
                    "exponent": _exponent(own),
                    "noise_exponent": _exponent(noise),
                }
            )
    return pd.DataFrame(rows)


def _exponent(norms: pd.DataFrame) -> float:
    means = norms.groupby("factor")["value"].apply(geometric_mean)
    return log_slope(means.index, means)


def eq1(frame, runs, criterion) -> Judgement:
    """Both exponents within the margin of ±½."""
    found = exponents(frame, runs)
    margin = criterion["thresholds"]["margin"]
    components = []
    for arm, expected in AXES.items():
        values = found.loc[found["arm"] == arm, "exponent"]
        name = {"LR": "exponent of η at fixed λ", "WD": "exponent of λ at fixed η"}[arm]
        components += within(name, values, expected - margin, expected + margin)
    noise = found.groupby("arm")["noise_exponent"].mean()
    note = ", ".join(f"Brownian motion, {arm}: {value:.3f}" for arm, value in noise.items())
    return Judgement(components, criterion["seeds"]["minimum"], note)


JUDGES = {"EQ1": eq1}
