"""Where multipliers go along the model's symmetries: Q against K, and the residual stream (4.1).

Norms are root mean squares; every quantity is a natural logarithm.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.tables.results import Tables, kept

Q, K = "attention.q", "attention.k"
# The first line holds the arms of symmetry: no multipliers; "all" without weight decay on them, the
# same with another order of the data, with the literal weight decay, with the scaled one. The next
# two lines hold those of symmetry_placement.
NONE, FREE, FREE_ORDER, LITERAL, LIGHT = "NONE", "FREE", "FREE_ORDER", "LITERAL", "LIGHT"
SYMMETRY_FREE, SYMMETRY_FREE_LIGHT = "SYMMETRY_FREE", "SYMMETRY_FREE_LIGHT"
NO_EMBEDDING = "NO_EMBEDDING"
# Everything that writes to the residual stream.
WRITERS = ("embedding", "attention.out", "ssm.out", "mlp.down")
_PARTS = ("row_multiplier_norm", "column_multiplier_norm")


def log_scale(tables: Tables, arm: str, tensor: str) -> pd.Series:
    """ln ‖r‖‖c‖ of a matrix's multipliers, ln ‖W‖ where it has none; by seed, layer, step."""
    of_tensor = {"kind": "train", "arm": arm, "tensor": tensor}
    parts = tables.pick(stat=_PARTS, **of_tensor)
    if parts.empty:
        parts = tables.pick(stat="weight_norm", **of_tensor)
    logs = parts.assign(value=np.log(parts["value"]))
    return logs.groupby(["seed", "layer", "step"])["value"].sum()


def paths(tables: Tables, arm: str) -> pd.DataFrame:
    """Columns seed, layer, step, product, ratio: those of Q's and K's ``log_scale``."""
    q, k = log_scale(tables, arm, Q), log_scale(tables, arm, K)
    return pd.DataFrame({"product": q + k, "ratio": q - k}).reset_index()


def brownian_ends(tables: Tables, arm: str) -> pd.DataFrame:
    """Columns draw, layer, product, ratio: the ABM of Q's and K's multipliers at the stage's end.

    ``product`` and ``ratio`` are natural logarithms.
    """
    chosen = tables.pick_vectors(
        kind="brownian", arm=arm, stat="weight_norm_draws", step=tables.stage_end
    )
    chosen = chosen[chosen["tensor"].str.startswith((Q, K))]
    parts = []
    for layer, of_layer in chosen.groupby("layer"):
        draws = {row.tensor: np.log(np.asarray(row.value)) for row in of_layer.itertuples()}
        q, k = (draws[f"{name}.row"] + draws[f"{name}.column"] for name in (Q, K))
        table = {"draw": range(len(q)), "layer": layer, "product": q + k, "ratio": q - k}
        parts.append(pd.DataFrame(table))
    return pd.concat(parts, ignore_index=True)


def layer_spread(tables: Tables, arm: str) -> pd.Series:
    """Root mean square over layers of ln (Q / K) as the constant stage ends, by seed.

    Q and K are the scales of a layer, ‖r‖‖c‖.
    """
    found = paths(tables, arm)
    found = found[found["step"] <= tables.stage_end]
    last = found[found["step"] == found["step"].max()]
    return _over_layers(last, "seed")


def brownian_layer_spread(tables: Tables, arm: str) -> pd.Series:
    """The same of the Brownian motion of Q's and K's multipliers, by draw."""
    return _over_layers(brownian_ends(tables, arm), "draw")


def _over_layers(table: pd.DataFrame, by: str) -> pd.Series:
    return np.sqrt((table.set_index(by)["ratio"] ** 2).groupby(level=by).mean())


# Smaller multipliers, relative to their vector's norm, count as so large: the logarithm of one
# that changes sign says nothing.
_LEAST = 0.1


def rotated_pairs(q: np.ndarray, k: np.ndarray, head: int) -> tuple[np.ndarray, np.ndarray]:
    """(product, ratio) of rows by key head and rotated pair, each (keys, head / 2).

    ``q`` (queries · head,), ``k`` (keys · head,): multipliers or norms of rows. Means of ln |r|
    over what one symmetry scales together: both channels of a pair, in all heads that share a key.
    Their mean over pairs, which column multipliers share, is subtracted. Independent noise has the
    same variance in both.
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


@kept
def pairs(tables: Tables, arm: str, stat: str = "row_multiplier") -> pd.DataFrame:
    """``rotated_pairs`` of ``stat`` as the constant stage ends.

    Columns product and ratio, natural logarithms; index seed, layer, pair.
    """
    vectors = tables.pick_vectors(kind="train", arm=arm, step=tables.stage_end, stat=stat)
    both = {}
    for series, rows in vectors.groupby(["seed", "layer"]):
        value = rows.set_index("tensor")["value"].map(np.asarray)
        both[series] = value[Q], value[K]
    return _pairs(tables, both, "seed")


def brownian_pairs(tables: Tables, arm: str) -> pd.DataFrame:
    """``pairs`` of the ABM of Q's and K's row multipliers, with draws in place of seeds.

    A run keeps a number of values of all draws together; draws that are whole for both are taken.
    """
    of_arm = {"arm": arm, "step": tables.stage_end}
    trained = tables.pick_vectors(kind="train", stat="row_multiplier", **of_arm)
    sizes = trained.drop_duplicates("tensor").set_index("tensor")["value"].map(len)
    vectors = tables.pick_vectors(kind="brownian", stat="values", **of_arm)
    both = {}
    for layer, rows in vectors.groupby("layer"):
        value = rows.set_index("tensor")["value"]
        of_draws = (_whole(value[f"{name}.row"], sizes[name]) for name in (Q, K))
        both |= {(draw, layer): pair for draw, pair in enumerate(zip(*of_draws, strict=False))}
    return _pairs(tables, both, "draw")


def _whole(values, size: int) -> np.ndarray:
    """The whole draws in ``values``, shape (draws, size)."""
    draws = len(values) // size
    return np.reshape(values[: draws * size], (draws, size))


def _pairs(tables: Tables, both: dict, by: str) -> pd.DataFrame:
    """``rotated_pairs`` of Q's and K's rows, by (seed or draw, layer)."""
    head, parts = tables.settings["model"]["head_dim"], {}
    for series, (q, k) in both.items():
        product, ratio = rotated_pairs(q, k, head)
        parts[series] = pd.DataFrame({"product": product.ravel(), "ratio": ratio.ravel()})
    return pd.concat(parts, names=[by, "layer", "pair"])


def residual(tables: Tables, arm: str) -> pd.Series:
    """ln of the norm of the residual stream behind the last layer, by seed and step."""
    chosen = tables.pick(arm=arm, tensor="residual", stat="activation_norm")
    last = chosen[chosen["layer"] == chosen["layer"].max()]
    return np.log(last.set_index(["seed", "step"])["value"]).sort_index()


@kept
def written(tables: Tables, arm: str) -> pd.DataFrame:
    """ln of the norm of what each of ``WRITERS`` adds, mean over layers; index seed, step."""
    chosen = tables.pick(arm=arm, stat="activation_norm", tensor=WRITERS)
    logs = chosen.assign(value=np.log(chosen["value"]))
    return logs.pivot_table("value", ["seed", "step"], "tensor")[list(WRITERS)]


def late_change(tables: Tables, arm: str) -> pd.DataFrame:
    """The change of ``written`` over the second half of the constant stage, by seed."""
    table = written(tables, arm)
    steps = table.index.get_level_values("step")
    steps = steps[steps <= tables.stage_end]
    first = steps[steps <= tables.stage_end // 2].max()
    return table.xs(steps.max(), level="step") - table.xs(first, level="step")


def joint_growth(tables: Tables, arm: str) -> pd.Series:
    """What late changes of ln of the norms of ``WRITERS`` have in common, by seed.

    Along the symmetry all change alike: the smallest change where all grow or all fall, and 0
    where some grow and others fall. Missing where a layer of one writes nothing.
    """
    changes = late_change(tables, arm)
    growth, fall = changes.clip(lower=0), changes.clip(upper=0)
    return growth.min(axis=1, skipna=False) + fall.max(axis=1, skipna=False)


def spread(pairs: pd.DataFrame, by: str = "seed") -> pd.DataFrame:
    """Root mean square of products and ratios of ``pairs``, by seed (or draw)."""
    return np.sqrt((pairs**2).groupby(level=by).mean())


def mean_growth(tables: Tables, arm: str) -> pd.Series:
    """Mean of ``late_change`` over ``WRITERS``, by seed: the part along the symmetry.

    Missing where a layer of one writes nothing.
    """
    return late_change(tables, arm).mean(axis=1, skipna=False)


def brownian_growth(tables: Tables, arm: str) -> float:
    """``mean_growth`` if ln ‖r‖‖c‖ of the writers' multipliers moved as their Brownian motions do.

    A mean over draws and layers, read at the same steps as the trained runs'.
    """
    names = tuple(f"{writer}.{side}" for writer in WRITERS for side in ("row", "column"))
    chosen = tables.pick(kind="brownian", arm=arm, stat="weight_norm", tensor=names)
    logs = chosen.assign(value=np.log(chosen["value"].astype(float)))
    of_steps = logs.pivot_table("value", "tensor", "step")
    steps = of_steps.columns[of_steps.columns <= tables.stage_end]
    first = steps[steps <= tables.stage_end // 2].max()
    return 2 * float((of_steps[steps.max()] - of_steps[first]).mean())
