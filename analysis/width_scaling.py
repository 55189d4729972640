"""Norms, activations and multipliers over the width, and their exponents (section 4.2).

Norms are root mean squares, read at the end of the constant stage and averaged geometrically over
layers. Of a linear layer y = s W x with ‖x‖ = 1, α = ‖y‖ / (s d ‖W‖) is the alignment.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.norms import at_step, stage_end
from analysis.stats import log_slope

LEARNED, FIXED, SCALED = "LEARNED", "FIXED", "SCALED"
# Matrices of figure 5 (left), averaged over types and layers.
MATRICES = {
    "embedding": ("embedding",),
    "attention": ("attention.q", "attention.k", "attention.v", "attention.out"),
    "SSM": ("ssm.z", "ssm.x", "ssm.B", "ssm.C", "ssm.dt", "ssm.out"),
    "MLP": ("mlp.gate", "mlp.up", "mlp.down"),
    "projector": ("projector",),
}
# Activations of figure 5 (middle): products of these norms.
SCALES_KNOWN = {"logits": ("projector",), "Q·K": ("attention.q", "attention.k"), "dt": ("ssm.dt",)}
SCALES_FREE = {
    "embedding": ("embedding",),
    "attention output": ("attention.out",),
    "SSM output": ("ssm.out",),
    "MLP output": ("mlp.down",),
}
GATE = {"gate": ("mlp.gate",)}
ACTIVATIONS = {**SCALES_KNOWN, **GATE, **SCALES_FREE}
# Multipliers of figure 5 (right), and the exponent that muP expects.
MULTIPLIERS = {"projector": -1.0, "dt": -1.0, "Q·K": -2.0}
_OF = {"projector": "logits", "dt": "dt", "Q·K": "Q·K"}


def by_width(
    frame: pd.DataFrame,
    runs: pd.DataFrame,
    arm: str,
    stat: str,
    tensors: tuple[str, ...],
    product: bool,
) -> pd.DataFrame:
    """Seeds in rows, widths in columns: ``stat`` at the end of each run's constant stage.

    Geometric mean over layers, and over ``tensors`` or of their product.
    """  # fmt: skip
    chosen = frame[(frame["kind"] == "train") & (frame["arm"] == arm) & (frame["stat"] == stat)]
    chosen = chosen[chosen["tensor"].isin(tensors)]
    parts = []
    for end, of_end in chosen.groupby(chosen["run"].map(_stage_ends(runs))):
        parts.append(at_step(of_end, end))
    logs = pd.concat(parts)
    logs = logs.assign(value=np.log(logs["value"].astype(float)))
    means = logs.pivot_table("value", "seed", "width") * (len(tensors) if product else 1)
    return np.exp(means)


def _stage_ends(runs: pd.DataFrame) -> dict[str, int]:
    trained = runs[runs["kind"] == "train"]
    return {row.run: stage_end(row.description["settings"]) for row in trained.itertuples()}


def matrices(frame: pd.DataFrame, runs: pd.DataFrame, arm: str, group: str) -> pd.DataFrame:
    """‖W‖ of a group of ``MATRICES``."""
    return by_width(frame, runs, arm, "weight_norm", MATRICES[group], product=False)


def activations(frame: pd.DataFrame, runs: pd.DataFrame, arm: str, name: str) -> pd.DataFrame:
    """Norms of ``ACTIVATIONS``, after multipliers."""
    return by_width(frame, runs, arm, "activation_norm", ACTIVATIONS[name], product=True)


def multipliers(frame: pd.DataFrame, runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """|s| of ``MULTIPLIERS`` that were learned, of Q·K their product."""
    tensors = ACTIVATIONS[_OF[name]]
    return by_width(frame, runs, LEARNED, "scalar_multiplier_norm", tensors, product=True)


def alignment(frame: pd.DataFrame, runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """α but for a factor that no width changes: ‖y‖ / (s d ‖W‖), of Q·K the product of both."""
    tensors = ACTIVATIONS[_OF[name]]
    y = activations(frame, runs, LEARNED, _OF[name])
    weights = by_width(frame, runs, LEARNED, "weight_norm", tensors, product=True)
    d = np.asarray(y.columns, dtype=float) ** len(tensors)
    return y / (multipliers(frame, runs, name) * weights * d)


def exponents(table: pd.DataFrame) -> pd.Series:
    """Of each seed the exponent a of value ∝ d^a, least squares over all widths."""
    d = np.asarray(table.columns, dtype=float)
    return table.apply(lambda row: log_slope(d, row.to_numpy(dtype=float)), axis=1)


def local_exponents(table: pd.DataFrame) -> pd.DataFrame:
    """Between neighbouring widths, under the larger one: seeds × widths but the first."""
    logs = np.log(table)
    steps = np.diff(np.log(np.asarray(table.columns, dtype=float)))
    return logs.diff(axis=1).iloc[:, 1:] / steps
