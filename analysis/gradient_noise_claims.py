"""Judging function of N1: signal and noise of gradients (section 2), and the equilibrium."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from analysis.judging import Judgement, at_least
from analysis.norms import at_step, stage_end_of
from analysis.stats import log_slope

# What a gradient is taken with respect to, by the name of its measurement.
OF = {"gradient": "W", "scalar_gradient": "s", "row_gradient": "r", "column_gradient": "c"}
# Signals are averaged over the measurements after this share of the constant stage.
LATE = 0.4


def ratios(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Signal-to-noise ratios at S = 1: columns seed, tensor, layer, and W, s, r and c.

    ‖E g‖² over the variance of one batch's gradient, both per entry and averaged over the
    measurements late in the constant stage. Signals are estimated without bias, and may be
    negative where there is none. Matrices that S moves alone.
    """
    end = stage_end_of(runs)
    chosen = frame[(frame["S"] == 1.0) & frame["step"].between(LATE * end, end)]
    found = {}
    for stat, name in OF.items():
        parts = []
        for kind in ("signal", "noise"):
            rows = chosen[chosen["stat"] == f"{stat}_{kind}"]
            parts.append(rows.groupby(["seed", "tensor", "layer"])["value"].mean())
        found[name] = parts[0] / parts[1]
    return pd.DataFrame(found).dropna().reset_index()


def departures(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Columns seed, tensor, layer, slope: of ln ‖W‖ against ln S as the constant stage ends.

    Noise alone gives 1.
    """
    norms = at_step(frame[frame["stat"] == "weight_norm"], stage_end_of(runs))
    norms = norms.dropna(subset=["layer"])
    found = norms.groupby(["seed", "tensor", "layer"])[["S", "value"]].apply(
        lambda rows: log_slope(rows["S"], rows["value"]), include_groups=False
    )
    return found.rename("slope").reset_index()


def together(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """``ratios`` and ``departures`` of the same tensors."""
    return ratios(frame, runs).merge(departures(frame, runs), on=["seed", "tensor", "layer"])


def n1(frame, runs, criterion) -> Judgement:
    """Multipliers against their matrices, and the ratio against the departure from S."""
    table, limits = together(frame, runs), criterion["thresholds"]
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
    return Judgement(found, criterion["seeds"]["minimum"], f"median ratios: {medians}")


JUDGES = {"N1": n1}
