"""Norms, activations and multipliers over the width, and their exponents (section 4.2).

Norms are root mean squares, read at the end of the constant stage and averaged geometrically over
layers. A linear layer y = s W x with ‖x‖ = 1 has the alignment α = ‖y‖ / (s d ‖W‖), where s is the
learned multiplier times the fixed factor.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.norms import at_stage_ends, at_step, over_layers
from analysis.quantities.stats import log_slope
from analysis.tables.results import Tables, kept

LEARNED, FIXED, SCALED = "LEARNED", "FIXED", "SCALED"
FROM_ONE, DRIFT = "FROM_ONE", "DRIFT"
# Where learned multipliers begin: at ∝ 1/d, with which every width is centred, and at 1.
STARTS = {LEARNED: "from ∝ 1/d", FROM_ONE: "from 1"}
# Matrices of figure 5, averaged over types and layers.
MATRICES = {
    "embedding": ("embedding",),
    "attention": ("attention.q", "attention.k", "attention.v", "attention.out"),
    "SSM": ("ssm.z", "ssm.x", "ssm.B", "ssm.C", "ssm.dt", "ssm.out"),
    "MLP": ("mlp.gate", "mlp.up", "mlp.down"),
    "projector": ("projector",),
}
# Activations of figure 5: products of these norms.
FIXED_BY_MODEL = {
    "logits": ("projector",),
    "Q·K": ("attention.q", "attention.k"),
    "dt": ("ssm.dt",),
}
FREE_IN_STREAM = {
    "embedding": ("embedding",),
    "attention output": ("attention.out",),
    "SSM output": ("ssm.out",),
    "MLP output": ("mlp.down",),
}
GATE = {"gate": ("mlp.gate",)}
ACTIVATIONS = {**FIXED_BY_MODEL, **GATE, **FREE_IN_STREAM}
# Multipliers of figure 5: the activation that they scale, and the exponent muP expects.
MULTIPLIERS = {"projector": ("logits", -1.0), "dt": ("dt", -1.0), "Q·K": ("Q·K", -2.0)}


@kept
def by_width(
    tables: Tables,
    arm: str,
    stat: str,
    tensors: tuple[str, ...],
    product: bool,
    untrained: bool = False,
) -> pd.DataFrame:
    """Seeds in rows, widths in columns: ``stat`` at the end of each run's constant stage.

    Geometric mean over layers, and over ``tensors`` or of their product. ``untrained``: before the
    first step instead.
    """
    chosen = tables.pick(kind="train", arm=arm, stat=stat, tensor=tensors)
    start = chosen["step"] == 0
    logs = chosen[start] if untrained else at_stage_ends(chosen, tables.trained)
    logs = logs.assign(value=np.log(logs["value"].astype(float)))
    means = logs.pivot_table("value", "seed", "width") * (len(tensors) if product else 1)
    return np.exp(means)


def matrices(tables: Tables, arm: str, group: str) -> pd.DataFrame:
    """‖W‖ of a group of ``MATRICES``: seeds × widths."""
    return by_width(tables, arm, "weight_norm", MATRICES[group], product=False)


def activations(tables: Tables, arm: str, name: str, untrained: bool = False) -> pd.DataFrame:
    """Norms of ``ACTIVATIONS``, after multipliers: seeds × widths."""
    return by_width(tables, arm, "activation_norm", ACTIVATIONS[name], True, untrained)


def multipliers(
    tables: Tables, name: str, arm: str = LEARNED, untrained: bool = False
) -> pd.DataFrame:
    """|s| of ``MULTIPLIERS`` times the fixed factor, of Q·K the product of both: seeds × widths."""
    tensors = ACTIVATIONS[MULTIPLIERS[name][0]]
    learned = by_width(tables, arm, "scalar_multiplier_norm", tensors, True, untrained)
    return learned * _fixed_factors(tables, arm, tensors)


def _fixed_factors(tables: Tables, arm: str, tensors: tuple[str, ...]) -> pd.DataFrame:
    """Seeds × widths: the product over ``tensors`` of forward factors, the same in all layers."""

    def product(description: dict) -> float:
        forward = {
            rule["tensor"].partition("@")[0]: rule["forward"]
            for rule in description["rules"]
            if rule["multiplier"] is None
        }
        return np.prod([forward[tensor] for tensor in tensors])

    runs = tables.trained[tables.trained["arm"] == arm]
    factors = runs.assign(factor=runs["description"].map(product))
    return factors.pivot_table("factor", "seed", "width")


def alignment(
    tables: Tables, name: str, arm: str = LEARNED, untrained: bool = False
) -> pd.DataFrame:
    """α = ‖y‖ / (s d ‖W‖), of Q·K the product of both: seeds × widths."""
    activation = MULTIPLIERS[name][0]
    tensors = ACTIVATIONS[activation]
    y = activations(tables, arm, activation, untrained)
    weights = by_width(tables, arm, "weight_norm", tensors, True, untrained)
    d = np.asarray(y.columns, dtype=float) ** len(tensors)
    return y / (multipliers(tables, name, arm, untrained) * weights * d)


@kept
def course(tables: Tables, arm: str, tensors: tuple[str, ...], stat: str, step: int):
    """``stat`` of ``arm`` at ``step``, geometric mean over layers and tensors: seeds × widths."""
    chosen = at_step(tables.pick(arm=arm, stat=stat, tensor=tensors), step)
    keys = ["seed", "width", "value"]
    return over_layers(chosen[keys]).pivot_table("value", "seed", "width").astype(float)


def drifting(tables: Tables) -> str:
    """The arm whose multipliers drift as far as the paper's: where there is no other, LEARNED."""
    return DRIFT if (tables.scalars["arm"] == DRIFT).any() else LEARNED


def exponents(table: pd.DataFrame) -> pd.Series:
    """The exponent a of value ∝ d^a by seed, least squares over all widths."""
    d = np.asarray(table.columns, dtype=float)
    return table.apply(lambda row: log_slope(d, row.to_numpy(dtype=float)), axis=1)


def local_slopes(logs: pd.DataFrame) -> dict[tuple[int, int], pd.Series]:
    """By pair of neighbouring widths the slope in ln d of ``logs``, seeds × widths, by seed."""
    return {
        (low, high): (logs[high] - logs[low]) / np.log(high / low)
        for low, high in zip(logs.columns, logs.columns[1:], strict=False)
    }
