"""Where multipliers go along the model's symmetries: Q against K, and the residual stream (4.1).

Norms are root mean squares; every quantity is a natural logarithm.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

Q, K = "attention.q", "attention.k"
# Arms of symmetry: no multipliers; "all" without weight decay on them, the same with another order
# of the data, with the literal weight decay, with the scaled one. Of symmetry_placement the others.
NONE, FREE, FREE_ORDER, LITERAL, LIGHT = "NONE", "FREE", "FREE_ORDER", "LITERAL", "LIGHT"
SYMMETRY_FREE, SYMMETRY_FREE_LIGHT = "SYMMETRY_FREE", "SYMMETRY_FREE_LIGHT"
NO_EMBEDDING = "NO_EMBEDDING"
# Everything that writes to the residual stream.
WRITERS = ("embedding", "attention.out", "ssm.out", "mlp.down")
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
    """Columns seed, layer, step, product, ratio: those of Q's and K's ``log_scale``."""
    q, k = log_scale(frame, arm, Q), log_scale(frame, arm, K)
    return pd.DataFrame({"product": q + k, "ratio": q - k}).reset_index()


def brownian_ends(vectors: pd.DataFrame, arm: str, step: int) -> pd.DataFrame:
    """Columns draw, layer, product, ratio: the ABM of Q's and K's multipliers at ``step``."""
    chosen = vectors[(vectors["kind"] == "brownian") & (vectors["arm"] == arm)]
    chosen = chosen[(chosen["stat"] == "weight_norm_draws") & (chosen["step"] == step)]
    chosen = chosen[chosen["tensor"].str.startswith((Q, K))]
    found = []
    for layer, of_layer in chosen.groupby("layer"):
        draws = {row.tensor: np.log(np.asarray(row.value)) for row in of_layer.itertuples()}
        q, k = (draws[f"{name}.row"] + draws[f"{name}.column"] for name in (Q, K))
        table = {"draw": range(len(q)), "layer": layer, "product": q + k, "ratio": q - k}
        found.append(pd.DataFrame(table))
    return pd.concat(found, ignore_index=True)


# Smaller multipliers, relative to their vector's norm, count as so large: the logarithm of one
# that changes sign says nothing.
_LEAST = 0.1


def rotated_pairs(q: np.ndarray, k: np.ndarray, head: int) -> tuple[np.ndarray, np.ndarray]:
    """(product, ratio) of rows by key head and rotated pair, each (keys, head / 2).

    ``q`` (queries · head,), ``k`` (keys · head,): multipliers or norms of rows. Means of ln |r|
    over what one symmetry scales together: both channels of a pair, in all heads that share a key.
    Less their mean over pairs, which column multipliers share. Independent noise has the same
    variance in both.
    """
    log_q, log_k = (
        np.log(np.maximum(np.abs(values) / np.sqrt(np.mean(np.square(values))), _LEAST))
        for values in (q, k)
    )
    keys = len(k) // head
    of_q = log_q.reshape(keys, -1, 2, head // 2).mean((1, 2))
    of_k = log_k.reshape(keys, 2, head // 2).mean(1)
    product, ratio = of_q + of_k, of_q - of_k
    return product - product.mean(), ratio - ratio.mean()


def pairs(
    vectors: pd.DataFrame, arm: str, step: int, head: int, stat: str = "row_multiplier"
) -> pd.DataFrame:
    """``rotated_pairs`` of ``stat`` at ``step``: product, ratio; index seed, layer, pair."""
    chosen = vectors[(vectors["kind"] == "train") & (vectors["arm"] == arm)]
    chosen = chosen[(chosen["step"] == step) & (chosen["stat"] == stat)]
    found = {}
    for (seed, layer), rows in chosen.groupby(["seed", "layer"]):
        value = rows.set_index("tensor")["value"].map(np.asarray)
        found[seed, layer] = _table(*rotated_pairs(value[Q], value[K], head))
    return pd.concat(found, names=["seed", "layer", "pair"])


def brownian_pairs(vectors: pd.DataFrame, arm: str, step: int, head: int) -> pd.DataFrame:
    """The same of the ABM of Q's and K's row multipliers, with draws in place of seeds.

    A run keeps so many values of all draws; those that are whole for both are taken.
    """
    of_arm = vectors[(vectors["arm"] == arm) & (vectors["step"] == step)]
    trained = of_arm[(of_arm["kind"] == "train") & (of_arm["stat"] == "row_multiplier")]
    sizes = trained.drop_duplicates("tensor").set_index("tensor")["value"].map(len)
    chosen = of_arm[(of_arm["kind"] == "brownian") & (of_arm["stat"] == "values")]
    found = {}
    for layer, rows in chosen.groupby("layer"):
        value = rows.set_index("tensor")["value"]
        of_draws = (_whole(value[f"{name}.row"], sizes[name]) for name in (Q, K))
        for draw, (q, k) in enumerate(zip(*of_draws, strict=False)):
            found[draw, layer] = _table(*rotated_pairs(q, k, head))
    return pd.concat(found, names=["draw", "layer", "pair"])


def _whole(values, size: int) -> np.ndarray:
    """The whole draws in ``values``, shape (draws, size)."""
    draws = len(values) // size
    return np.reshape(values[: draws * size], (draws, size))


def _table(product: np.ndarray, ratio: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"product": product.ravel(), "ratio": ratio.ravel()})


def residual(frame: pd.DataFrame, arm: str) -> pd.Series:
    """ln of the norm of the residual stream behind the last layer, by seed and step."""
    chosen = frame[(frame["arm"] == arm) & (frame["tensor"] == "residual")]
    chosen = chosen[chosen["stat"] == "activation_norm"]
    last = chosen[chosen["layer"] == chosen["layer"].max()]
    return np.log(last.set_index(["seed", "step"])["value"]).sort_index()


def written(frame: pd.DataFrame, arm: str) -> pd.DataFrame:
    """ln of the norm of what each of ``WRITERS`` adds, mean over layers; index seed, step."""
    chosen = frame[(frame["arm"] == arm) & (frame["stat"] == "activation_norm")]
    chosen = chosen[chosen["tensor"].isin(WRITERS)]
    logs = chosen.assign(value=np.log(chosen["value"]))
    return logs.pivot_table("value", ["seed", "step"], "tensor")[list(WRITERS)]


def late(steps: pd.Index, end: int) -> tuple[int, int]:
    """The measured steps nearest below a half, and at the end, of a constant stage."""
    early = steps[steps <= end]
    return int(early[early <= end // 2].max()), int(early.max())
