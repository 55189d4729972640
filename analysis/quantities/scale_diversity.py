"""Scales over depth and width that multipliers learn (section 3.1), for claims and figures.

Norms are root mean squares, read at the end of the constant stage. Arms: NONE without
multipliers, SCALAR with scalar ones on all matrices, VECTOR with row and column ones; SCALAR_ORDER
and VECTOR_ORDER are the same from the same initial values, with another order of the data. What
Brownian motion (ABM) does to a multiplier is taken from those of the gate in the first layer: LR,
decay and schedule are everyone's. Every statistic is one value per seed.
"""

from __future__ import annotations

import zlib
from itertools import chain, starmap

import numpy as np
import pandas as pd

from analysis.quantities.norms import at_step, noise_spread, pooled_relative_norms
from analysis.tables.results import Tables, kept

# What each block adds to the residual stream: the output of its last matrix, whose multiplier is
# the one "at the end of the block".
BLOCKS = {"attention": "attention.out", "SSM": "ssm.out", "MLP": "mlp.down"}
# Multipliers inside the blocks; only the product of Q's and K's matters to the model. B and C pass
# the convolution and its SiLU first, so that their product is a summary.
INTERNAL = {
    "gate": ("mlp.gate",),
    "up": ("mlp.up",),
    "Q·K": ("attention.q", "attention.k"),
    "V": ("attention.v",),
    "dt": ("ssm.dt",),
    "z": ("ssm.z",),
    "x": ("ssm.x",),
    "B·C": ("ssm.B", "ssm.C"),
}
# The matrices of figure 3.
GROUPS = {
    "attention input": ("attention.q", "attention.k", "attention.v"),
    "SSM input": ("ssm.z", "ssm.x", "ssm.B", "ssm.C", "ssm.dt"),
    "MLP gate": ("mlp.gate",),
}
# All matrices of these groups.
MATRICES = tuple(chain(*GROUPS.values()))
LEARNED, REPLACED = "VECTOR", "ABM"
VARIANTS = ("NONE", LEARNED, REPLACED)


# How the names of statistics and of multipliers begin or end.
AXES = {"rows": "row", "columns": "column"}


def vector_step(tables: Tables) -> int:
    """The end of the constant stage; the last step where no vectors are kept of that one."""
    steps = tables.vectors["step"]
    return tables.stage_end if steps.eq(tables.stage_end).any() else int(steps.max())


# Depth (figure 2).


@kept
def by_layer(tables: Tables, arm: str, tensor: str, stat: str, step: int) -> pd.DataFrame:
    """``stat`` of ``tensor`` at the last probe up to ``step``: seeds in rows, layers in columns."""
    chosen = tables.pick(kind="train", arm=arm, tensor=tensor, stat=stat)
    last = at_step(chosen, step)
    return last.pivot(index="seed", columns="layer", values="value").astype(float)


def log_output(tables: Tables, arm: str, block: str) -> pd.DataFrame:
    """ln of the norm of a block's output (mean over tokens of the RMS): seeds × layers."""
    return np.log(by_layer(tables, arm, BLOCKS[block], "activation_norm", tables.stage_end))


def log_ratios(tables: Tables, arm: str = "SCALAR") -> dict[str, pd.DataFrame]:
    """ln(output norm of ``arm`` / that without multipliers) of each block: seeds × layers."""
    return {
        block: log_output(tables, arm, block) - log_output(tables, "NONE", block)
        for block in BLOCKS
    }


def log_multipliers(tables: Tables, tensors: tuple[str, ...], arm: str = "SCALAR") -> pd.DataFrame:
    """ln |s|, of several tensors that of their product: seeds × layers."""
    step = tables.stage_end
    parts = [by_layer(tables, arm, name, "scalar_multiplier_norm", step) for name in tensors]
    return sum(np.log(part) for part in parts)


def scalar_draws(tables: Tables) -> np.ndarray:
    """|s| of every draw of the Brownian motion of one scalar multiplier."""
    return _walked(tables, "SCALAR", "mlp.gate.scalar", "weight_norm_draws")


def _walked(tables: Tables, arm: str, tensor: str, stat: str) -> np.ndarray:
    """The values of a Brownian motion as the constant stage ends."""
    noise = {"kind": "brownian", "step": vector_step(tables)}
    vectors = tables.pick_vectors(arm=arm, tensor=tensor, stat=stat, **noise)
    return np.asarray(vectors["value"].iloc[0], dtype=float)


def scalar_noise(tables: Tables) -> float:
    """Standard deviation of ln |s| in the Brownian motion of one scalar multiplier."""
    return float(np.log(scalar_draws(tables)).std(ddof=1))


def rise(table: pd.DataFrame) -> pd.Series:
    """Least-squares slope against the layer times the depth, from the first layer to the last."""
    layers = np.asarray(table.columns, dtype=float)
    slopes = np.polyfit(layers, table.to_numpy().T, 1)[0]
    return pd.Series(slopes * (layers[-1] - layers[0]), table.index)


def spread(table: pd.DataFrame) -> pd.Series:
    """Standard deviation over the layers, one per seed."""
    return table.std(axis=1, ddof=1)


def second_half(table: pd.DataFrame) -> pd.DataFrame:
    """The later half of the layers (the middle one is not among them)."""
    return table[table.columns[-(len(table.columns) // 2) :]]


def correlation(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series:
    """Pearson's over the layers, one per seed."""
    return one.corrwith(other, axis=1)


# Width (figure 3).


@kept
def norms(tables: Tables, axis: str, variant: str) -> pd.DataFrame:
    """Columns group, tensor, layer, seed, value: norms of the effective rows or columns.

    ``value`` is an array. The variant ABM is VECTOR with its multipliers along this axis replaced
    by draws of their Brownian motion. Fixed forward factors and RMSNorm weights are not in it.
    """
    if variant == "NONE":
        return _table(tables, "NONE", f"{AXES[axis]}_norms")
    learned = _table(tables, LEARNED, f"effective_{AXES[axis]}_norms")
    if variant == LEARNED:
        return learned
    keys = ["group", "tensor", "layer", "seed"]
    multipliers = _table(tables, LEARNED, f"{AXES[axis]}_multiplier")
    both = learned.merge(multipliers, on=keys, suffixes=("", "_multiplier"))
    draws = brownian_multipliers(tables, axis)
    both["value"] = [
        value / np.abs(multiplier) * _drawn(draws, len(value), row)
        for value, multiplier, row in zip(
            both["value"], both["value_multiplier"], both[keys].to_dict("records"), strict=True
        )
    ]
    return both[[*keys, "value"]]


def brownian_multipliers(tables: Tables, axis: str) -> np.ndarray:
    """|r| or |c| of the Brownian motion of the gate's multiplier, entry by entry, of all draws."""
    return np.abs(_walked(tables, LEARNED, f"mlp.gate.{AXES[axis]}", "values"))


def _drawn(draws: np.ndarray, count: int, row: dict) -> np.ndarray:
    """Entries are alike and independent: any of them may stand at any row of any matrix."""
    key = [int(row["seed"]), int(row["layer"]), zlib.crc32(row["tensor"].encode())]
    return np.random.default_rng(key).choice(draws, count)


@kept
def _table(tables: Tables, arm: str, stat: str) -> pd.DataFrame:
    groups = {tensor: group for group, tensors in GROUPS.items() for tensor in tensors}
    trained = {"kind": "train", "step": vector_step(tables)}
    vectors = tables.pick_vectors(arm=arm, stat=stat, tensor=tuple(groups), **trained)
    table = vectors[["tensor", "layer", "seed", "value"]].reset_index(drop=True)
    table["value"] = [np.asarray(value, dtype=float) for value in table["value"]]
    return table.assign(group=table["tensor"].astype(str).map(groups))


@kept
def distributions(tables: Tables, axis: str) -> pd.DataFrame:
    """Columns group, variant, seed, relative, spread, dead, noise.

    ``relative``: norms over the mean of their layer and matrix (slices of merged ones apart),
    pooled over both, without dead ones, which ``dead`` counts. ``spread`` is its standard
    deviation, ``noise`` what pure noise in matrices of these shapes gives (``noise_mixture``).
    """
    records = []
    for variant in VARIANTS:
        table = norms(tables, axis, variant)
        for (group, seed), rows in table.groupby(["group", "seed"]):
            relative, dead = pooled_relative_norms(rows)
            records.append(
                {
                    "group": group,
                    "variant": variant,
                    "seed": seed,
                    "relative": relative,
                    "spread": float(relative.std()),
                    "dead": dead,
                    "noise": noise_mixture(tables, rows, axis),
                }
            )
    return pd.DataFrame(records)


def noise_mixture(tables: Tables, rows: pd.DataFrame, axis: str) -> dict[float, float]:
    """Spreads of the norms of pure noise, 1 / sqrt(2 d) with d entries in each, and their shares.

    Slices of a merged matrix have columns of different lengths.
    """
    rules = tables.trained.iloc[0]["description"]["rules"]
    along = {"rows": 1, "columns": 0}[axis]  # the dimension over which one of these norms averages
    over = {rule["tensor"].partition("@")[0]: rule["shape"][along] for rule in rules
            if rule["multiplier"] is None and len(rule["shape"]) == 2}  # fmt: skip
    widths = noise_spread(rows["tensor"].map(over))
    counts = rows["value"].map(len).groupby(widths.to_numpy()).sum()
    return (counts / counts.sum()).to_dict()


def mixture_spread(mixture: dict[float, float]) -> float:
    """Standard deviation of Gaussians about the same mean with these spreads and shares."""
    return float(np.sqrt(sum(share * width**2 for width, share in mixture.items())))


def repeats(tables: Tables, axis: str) -> pd.DataFrame:
    """Correlation of ln |r| (or ln |c|) between data orders: groups in columns, seeds in rows.

    It is the mean over matrices and layers with their numbers of rows as weights: a matrix of a
    few rows, where any two patterns correlate, counts little. Dead rows are left out.
    """
    keys = ["group", "tensor", "layer", "seed"]
    one, other = (
        _table(tables, arm, f"{AXES[axis]}_multiplier") for arm in (LEARNED, f"{LEARNED}_ORDER")
    )
    both = one.merge(other, on=keys, suffixes=("", "_again"))
    pairs = zip(both["value"], both["value_again"], strict=True)
    both["correlation"], both["weight"] = zip(*starmap(_log_correlation, pairs), strict=True)
    both = both[both["correlation"].notna()]
    weighted = (both["correlation"] * both["weight"]).groupby([both["seed"], both["group"]]).sum()
    return (weighted / both.groupby(["seed", "group"])["weight"].sum()).unstack("group")


def _log_correlation(one: np.ndarray, other: np.ndarray) -> tuple[float, int]:
    one, other = np.abs(one), np.abs(other)
    alive = (one > 1.0e-3 * one.mean()) & (other > 1.0e-3 * other.mean())
    one, other = np.log(one[alive]), np.log(other[alive])
    if alive.sum() < 3 or not (one.std() and other.std()):
        return np.nan, 0
    return float(np.corrcoef(one, other)[0, 1]), int(alive.sum())


def settling(tables: Tables, group: str) -> pd.Series:
    """|Δ mean ln ‖W‖| over the last quarter of the constant stage in NONE, one per seed."""
    end, changes = tables.stage_end, []
    for tensor in GROUPS[group]:
        late, early = (
            np.log(by_layer(tables, "NONE", tensor, "weight_norm", step)).mean(axis=1)
            for step in (end, end * 3 // 4)
        )
        changes.append(late - early)
    return (sum(changes) / len(changes)).abs()


# What a single layer or a single order of the data does not move.


def steady_rise(table: pd.DataFrame) -> pd.Series:
    """The median slope between two layers (Theil and Sen) times the depth, one per seed.

    Where fewer than about three layers in ten are dead, they do not decide it.
    """
    layers = np.asarray(table.columns, dtype=float)
    early, late = np.triu_indices(len(layers), 1)
    values = table.to_numpy()
    slopes = (values[:, late] - values[:, early]) / (layers[late] - layers[early])
    return pd.Series(np.median(slopes, axis=1) * (layers[-1] - layers[0]), table.index)


def layer_effect(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series:
    """Covariance over layers of each seed's ``one`` with the mean ``other`` of the other seeds.

    Its mean is the variance of what all seeds and both orders of the data have in common. Without
    anything in common it is 0. With something in common the values depend on each other, since each
    has the mean of the others in it, and their interval is too short.
    """
    one, other = (table.sub(table.mean(axis=1), axis=0) for table in (one, other))
    others = (other.sum() - other) / (len(other) - 1)
    return (one * others).sum(axis=1) / (one.shape[1] - 1)


def allowed(tables: Tables, axis: str) -> pd.DataFrame:
    """The largest correlation between data orders that the spread of ln |multiplier| allows.

    1 − 1/ratio² with the ratio of its sd within a matrix to that of its Brownian motion, if that
    is the noise of each run: groups in columns, seeds in rows; below 0 where noise spreads more.
    """
    noise = _log_variance(brownian_multipliers(tables, axis))
    table = _table(tables, LEARNED, f"{AXES[axis]}_multiplier")
    weights = table["value"].map(len)
    weighted = table["value"].map(_log_variance) * weights
    keys = [table["seed"], table["group"]]
    variances = weighted.groupby(keys).sum() / weights.groupby(keys).sum()
    return 1.0 - noise / variances.unstack("group")


def _log_variance(values: np.ndarray) -> float:
    """Variance of ln |values| without dead ones."""
    sizes = np.abs(values)
    return float(np.log(sizes[sizes > 1.0e-3 * sizes.mean()]).var())
