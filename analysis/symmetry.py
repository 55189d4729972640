"""Where multipliers go along the model's symmetries: Q against K, and the residual stream (4.1).

The scale of a matrix's multipliers is ‖r‖‖c‖, that of what they multiply ‖W‖; norms are root mean
squares. Each quantity is the natural logarithm, by seed, layer and step.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

Q, K = "attention.q", "attention.k"
# Arms: no multipliers; "all" without weight decay on them, with the literal and the scaled one.
NONE, FREE, LITERAL, LIGHT = "NONE", "FREE", "LITERAL", "LIGHT"
SYMMETRY_FREE, NO_EMBEDDING, LOG = "SYMMETRY_FREE", "NO_EMBEDDING", "LOG"
FAST, FAST_BF16 = "FAST", "FAST_BF16"
_PARTS = ("row_multiplier_norm", "column_multiplier_norm")


def log_scale(frame: pd.DataFrame, arm: str, tensor: str) -> pd.Series:
    """ln ‖r‖‖c‖ of a matrix's multipliers, ln ‖W‖ where it has none; by seed, layer, step."""
    chosen = frame[(frame["kind"] == "train") & (frame["arm"] == arm)]
    chosen = chosen[chosen["tensor"] == tensor]
    parts = chosen[chosen["stat"].isin(_PARTS)]
    if parts.empty:
        parts = chosen[chosen["stat"] == "weight_norm"]
    logs = parts.assign(value=np.log(parts["value"]))
    return logs.groupby(["seed", "layer", "step"])["value"].sum()


def paths(frame: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Columns seed, layer, step, product, ratio: ln of Q·K and of Q/K."""
    q, k = log_scale(frame, arm, Q), log_scale(frame, arm, K)
    return pd.DataFrame({"product": q + k, "ratio": q - k}).reset_index()


def brownian_paths(vectors: pd.DataFrame, arm: str, step: int) -> pd.DataFrame:
    """Columns draw, layer, product, ratio: those of the multipliers' ABM at ``step``."""
    chosen = vectors[(vectors["kind"] == "brownian") & (vectors["arm"] == arm)]
    chosen = chosen[(chosen["stat"] == "weight_norm_draws") & (chosen["step"] == step)]
    found = []
    for layer, of_layer in chosen.groupby("layer"):
        draws = {row.tensor: np.log(np.asarray(row.value)) for row in of_layer.itertuples()}
        q, k = (draws[f"{name}.row"] + draws[f"{name}.column"] for name in (Q, K))
        found.append(
            pd.DataFrame({"draw": range(len(q)), "layer": layer, "product": q + k, "ratio": q - k})
        )
    return pd.concat(found, ignore_index=True)


def residual(frame: pd.DataFrame, arm: str) -> pd.Series:
    """ln of the norm of the residual stream behind the last layer, by seed and step."""
    chosen = frame[(frame["arm"] == arm) & (frame["tensor"] == "residual")]
    chosen = chosen[chosen["stat"] == "activation_norm"]
    last = chosen[chosen["layer"] == chosen["layer"].max()]
    return np.log(last.set_index(["seed", "step"])["value"]).sort_index()
