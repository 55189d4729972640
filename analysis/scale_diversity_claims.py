"""Judging functions of the scales over depth and width: D1 to D3, W1 to W3 (section 3.1).

Norms are root mean squares, read at the end of the constant stage. Arms: NONE without
multipliers, SCALAR with scalar ones on all matrices, VECTOR with row and column ones; SCALAR_ORDER
and VECTOR_ORDER are the same from the same initial values, with another order of the data. What
Brownian motion (ABM) does to a multiplier is taken from those of the gate in the first layer: LR,
decay and schedule are everyone's. Every statistic is one value per seed, and the figures draw
from the same tables.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import chain, starmap

import numpy as np
import pandas as pd

from analysis.judging import Judgement, at_least, at_most
from analysis.norms import at_step, noise_spread, pooled_relative_norms, stage_end_of

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
LEARNED, REPLACED = "VECTOR", "ABM"
VARIANTS = ("NONE", LEARNED, REPLACED)


@dataclass(frozen=True)
class Axis:
    """Rows or columns: where their norms, multipliers and Brownian motion are found."""

    norms: str
    effective: str
    multiplier: str
    brownian: str
    # The dimension of a matrix's shape over which one of these norms averages.
    over: int


AXES = {
    "rows": Axis("row_norms", "effective_row_norms", "row_multiplier", "mlp.gate.row", 1),
    "columns": Axis(
        "column_norms", "effective_column_norms", "column_multiplier", "mlp.gate.column", 0
    ),
}


def vector_step(vectors: pd.DataFrame, runs: pd.DataFrame) -> int:
    """The end of the constant stage; the last step where no vectors are kept of that one."""
    end = stage_end_of(runs)
    return end if vectors["step"].eq(end).any() else int(vectors["step"].max())


def _trained(runs: pd.DataFrame) -> dict:
    return runs[runs["kind"] == "train"].iloc[0]["description"]


# Depth (figure 2).


def by_layer(frame: pd.DataFrame, arm: str, tensor: str, stat: str, step: int) -> pd.DataFrame:
    """``stat`` of ``tensor`` at the last probe up to ``step``: seeds in rows, layers in columns."""
    of_arm = (frame["kind"] == "train") & (frame["arm"] == arm)
    chosen = frame[of_arm & (frame["tensor"] == tensor) & (frame["stat"] == stat)]
    return at_step(chosen, step).pivot_table("value", "seed", "layer").astype(float)


def log_output(frame: pd.DataFrame, runs: pd.DataFrame, arm: str, block: str) -> pd.DataFrame:
    """ln of the norm of a block's output (mean over tokens of the RMS): seeds × layers."""
    return np.log(by_layer(frame, arm, BLOCKS[block], "activation_norm", stage_end_of(runs)))


def log_ratios(
    frame: pd.DataFrame, runs: pd.DataFrame, arm: str = "SCALAR"
) -> dict[str, pd.DataFrame]:
    """Of each block ln(output norm of ``arm`` / that without multipliers): seeds × layers."""
    return {
        block: log_output(frame, runs, arm, block) - log_output(frame, runs, "NONE", block)
        for block in BLOCKS
    }


def log_multipliers(
    frame: pd.DataFrame, runs: pd.DataFrame, tensors: tuple[str, ...], arm: str = "SCALAR"
) -> pd.DataFrame:
    """ln |s|, of several tensors that of their product: seeds × layers."""
    step = stage_end_of(runs)
    parts = [by_layer(frame, arm, name, "scalar_multiplier_norm", step) for name in tensors]
    return sum(np.log(part) for part in parts)


def scalar_draws(vectors: pd.DataFrame, runs: pd.DataFrame) -> np.ndarray:
    """|s| of every draw of the Brownian motion of one scalar multiplier."""
    found = vectors[
        (vectors["kind"] == "brownian")
        & (vectors["arm"] == "SCALAR")
        & (vectors["tensor"] == "mlp.gate.scalar")
        & (vectors["stat"] == "weight_norm_draws")
        & (vectors["step"] == vector_step(vectors, runs))
    ]
    return np.asarray(found["value"].iloc[0], dtype=float)


def scalar_noise(vectors: pd.DataFrame, runs: pd.DataFrame) -> float:
    """Standard deviation of ln |s| in the Brownian motion of one scalar multiplier."""
    return float(np.log(scalar_draws(vectors, runs)).std(ddof=1))


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


def d1(frame, runs, criterion) -> Judgement:
    """Rise over depth of ln(output norm with / without multipliers), mean over the blocks."""
    ratios = log_ratios(frame, runs)
    mean = sum(ratios.values()) / len(ratios)
    name = "rise of ln ratio from first to last layer, mean over blocks"
    components = [at_least(name, rise(mean), criterion["thresholds"]["rise"])]
    each = ", ".join(f"{block} {rise(table).mean():+.3f}" for block, table in ratios.items())
    layers = len(mean.columns)
    note = f"each block: {each}; {layers} layers, slope of the mean {_slope(mean):+.4f} a layer"
    return Judgement(components, criterion["seeds"]["minimum"], note)


def _slope(table: pd.DataFrame) -> float:
    return float(rise(table).mean() / (table.columns[-1] - table.columns[0]))


def d2(frame, vectors, runs, criterion) -> Judgement:
    """Spread of attention's ln ratio over the second half, and whether out multipliers follow it.

    Noise floors of the spread: the same pair of arms but for the order of the data, SCALAR and
    SCALAR_ORDER, and twice the Brownian motion of one ln |s|: the output is scaled by V's
    multiplier and out's, whose gradients s · ∂L/∂s are one and the same, so that from equal starts
    they move as one. ln |s_out| is a part of ln ratio, so that any noise in it would correlate;
    the ratio is therefore set beside the multiplier that the other order learned.
    """
    limits = criterion["thresholds"]
    first, again = (
        {block: second_half(table) for block, table in log_ratios(frame, runs, arm).items()}
        for arm in ("SCALAR", "SCALAR_ORDER")
    )
    widths = {block: spread(table) for block, table in first.items()}
    differs, amplifies = "ratios differ", "multipliers amplify"
    own = widths["attention"]
    name = "attention's sd of ln ratio over the second half"
    repeat = spread(again["attention"] - first["attention"])
    noise = 2.0 * scalar_noise(vectors, runs)
    components = [
        at_least(name, own, limits["spread"], differs),
        at_least(f"{name} − sd between data orders", own - repeat, 0.0, differs),
        at_least(f"{name} − ABM's ({noise:.3f})", own - noise, 0.0, differs),
    ]
    for block in ("MLP", "SSM"):
        gap = own - widths[block]
        components.append(at_least(f"{name} − {block}'s", gap, 0.0, differs))
    out = (BLOCKS["attention"],)
    learned, repeated = (
        second_half(log_multipliers(frame, runs, out, arm)) for arm in ("SCALAR", "SCALAR_ORDER")
    )
    crossed = (
        correlation(first["attention"], repeated) + correlation(again["attention"], learned)
    ) / 2
    components += [
        at_least("correlation of ln ratio with the other order's ln |s_out|", crossed,
                 limits["amplified"], amplifies),
        at_least("correlation of ln |s_out| between data orders", correlation(learned, repeated),
                 limits["repeats"], amplifies),
    ]  # fmt: skip
    # Without the part that is s itself: would the ratio differ the same way?
    rest = correlation(first["attention"] - learned, learned).mean()
    same = correlation(first["attention"], learned).mean()
    note = (
        f"within one order the correlation with ln |s_out| is {same:+.2f}, of what remains of the "
        f"ratio without s_out {rest:+.2f}; spread of MLP {widths['MLP'].mean():.3f}, of SSM "
        f"{widths['SSM'].mean():.3f}"
    )
    return Judgement(components, criterion["seeds"]["minimum"], note)


def d3(frame, vectors, runs, criterion) -> Judgement:
    """Spread of ln |s_dt| over layers against Brownian motion's, and whether it repeats."""
    limits = criterion["thresholds"]
    learned, repeated = (
        log_multipliers(frame, runs, ("ssm.dt",), arm) for arm in ("SCALAR", "SCALAR_ORDER")
    )
    width, noise = spread(learned), scalar_noise(vectors, runs)
    components = [
        at_least(f"ln of the sd over layers of ln |s_dt| over ABM's ({noise:.3f})",
                 np.log(width / noise), limits["excess"]),
        at_least("correlation of ln |s_dt| between data orders",
                 correlation(learned, repeated), limits["repeats"]),
    ]  # fmt: skip
    others = {name: log_multipliers(frame, runs, tensors) for name, tensors in INTERNAL.items()}
    each = ", ".join(f"{name} {spread(table).mean():.3f}" for name, table in others.items())
    note = f"sd over layers of ln |s|: {each}"
    return Judgement(components, criterion["seeds"]["minimum"], note)


# Width (figure 3).


def norms(vectors: pd.DataFrame, runs: pd.DataFrame, axis: str, variant: str) -> pd.DataFrame:
    """Columns group, tensor, layer, seed, value: norms of the effective rows or columns.

    ``value`` is an array. The variant ABM is VECTOR with its multipliers along this axis replaced
    by draws of their Brownian motion. Fixed forward factors and RMSNorm weights are not in it.
    """
    names = AXES[axis]
    if variant == "NONE":
        return _table(vectors, runs, "NONE", names.norms)
    found = _table(vectors, runs, LEARNED, names.effective)
    if variant == LEARNED:
        return found
    keys = ["group", "tensor", "layer", "seed"]
    multipliers = _table(vectors, runs, LEARNED, names.multiplier)
    both = found.merge(multipliers, on=keys, suffixes=("", "_multiplier"))
    draws = brownian_multipliers(vectors, runs, axis)
    both["value"] = [
        value / np.abs(multiplier) * _drawn(draws, len(value), row)
        for value, multiplier, row in zip(
            both["value"], both["value_multiplier"], both[keys].to_dict("records"), strict=True
        )
    ]
    return both[[*keys, "value"]]


def brownian_multipliers(vectors: pd.DataFrame, runs: pd.DataFrame, axis: str) -> np.ndarray:
    """|r| or |c| of the Brownian motion of the gate's multiplier, entry by entry, of all draws."""
    found = vectors[
        (vectors["kind"] == "brownian")
        & (vectors["arm"] == LEARNED)
        & (vectors["tensor"] == AXES[axis].brownian)
        & (vectors["stat"] == "values")
        & (vectors["step"] == vector_step(vectors, runs))
    ]
    return np.abs(np.asarray(found["value"].iloc[0], dtype=float))


def _drawn(draws: np.ndarray, count: int, row: dict) -> np.ndarray:
    """Entries are alike and independent: any of them may stand at any row of any matrix."""
    key = [int(row["seed"]), int(row["layer"]), zlib.crc32(row["tensor"].encode())]
    return np.random.default_rng(key).choice(draws, count)


def _table(vectors: pd.DataFrame, runs: pd.DataFrame, arm: str, stat: str) -> pd.DataFrame:
    groups = {tensor: group for group, tensors in GROUPS.items() for tensor in tensors}
    found = vectors[
        (vectors["kind"] == "train")
        & (vectors["arm"] == arm)
        & (vectors["stat"] == stat)
        & (vectors["step"] == vector_step(vectors, runs))
        & vectors["tensor"].isin(list(groups))
    ]
    table = found[["tensor", "layer", "seed", "value"]].reset_index(drop=True)
    table["value"] = [np.asarray(value, dtype=float) for value in table["value"]]
    return table.assign(group=table["tensor"].astype(str).map(groups))


def distributions(vectors: pd.DataFrame, runs: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Columns group, variant, seed, relative, spread, dead, noise.

    ``relative``: norms over the mean of their layer and matrix (slices of merged ones apart),
    pooled over both, without dead ones, which ``dead`` counts. ``spread`` is its standard
    deviation, ``noise`` what pure noise in matrices of these shapes gives (``noise_mixture``).
    """
    found = []
    for variant in VARIANTS:
        table = norms(vectors, runs, axis, variant)
        for (group, seed), rows in table.groupby(["group", "seed"]):
            relative, dead = pooled_relative_norms(rows)
            found.append(
                {
                    "group": group,
                    "variant": variant,
                    "seed": seed,
                    "relative": relative,
                    "spread": float(relative.std()),
                    "dead": dead,
                    "noise": noise_mixture(rows, runs, axis),
                }
            )
    return pd.DataFrame(found)


def noise_mixture(rows: pd.DataFrame, runs: pd.DataFrame, axis: str) -> dict[float, float]:
    """Spreads of the norms of pure noise, 1 / sqrt(2 d) with d entries in each, and their shares.

    Slices of a merged matrix have columns of different lengths.
    """
    rules = _trained(runs)["rules"]
    over = {rule["tensor"].partition("@")[0]: rule["shape"][AXES[axis].over] for rule in rules
            if rule["multiplier"] is None and len(rule["shape"]) == 2}  # fmt: skip
    counts: dict[float, float] = {}
    for tensor, value in zip(rows["tensor"], rows["value"], strict=True):
        width = noise_spread(over[tensor])
        counts[width] = counts.get(width, 0.0) + len(value)
    total = sum(counts.values())
    return {width: count / total for width, count in sorted(counts.items())}


def mixture_spread(mixture: dict[float, float]) -> float:
    """Standard deviation of Gaussians about the same mean with these spreads and shares."""
    return float(np.sqrt(sum(share * width**2 for width, share in mixture.items())))


def repeats(vectors: pd.DataFrame, runs: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Correlation of ln |r| (or ln |c|) between data orders: groups in columns, seeds in rows.

    Of each matrix and layer, averaged with their numbers of rows as weights, so that a matrix of
    a few rows, where any two patterns correlate, counts little. Dead ones are left out.
    """
    keys = ["group", "tensor", "layer", "seed"]
    one, other = (
        _table(vectors, runs, arm, AXES[axis].multiplier) for arm in (LEARNED, f"{LEARNED}_ORDER")
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


def settling(frame: pd.DataFrame, runs: pd.DataFrame, group: str) -> pd.Series:
    """|Δ mean ln ‖W‖| over the last quarter of the constant stage in NONE, one per seed."""
    end = stage_end_of(runs)
    change = [
        np.log(by_layer(frame, "NONE", tensor, "weight_norm", end)).mean(axis=1)
        - np.log(by_layer(frame, "NONE", tensor, "weight_norm", end * 3 // 4)).mean(axis=1)
        for tensor in GROUPS[group]
    ]
    return (sum(change) / len(change)).abs()


def w1(frame, vectors, runs, criterion) -> Judgement:
    """Relative spread of the rows in NONE beyond that of pure noise: sqrt(sd² − 1/(2 d_in)).

    The contrast: norms are at rest, for a start that is still remembered is narrow by itself.
    """
    limits, components, contrast, notes = criterion["thresholds"], [], [], []
    found = distributions(vectors, runs, "rows")
    for group in GROUPS:
        rows = found[(found["group"] == group) & (found["variant"] == "NONE")]
        noise = mixture_spread(rows["noise"].iloc[0])
        beyond = np.sqrt((rows["spread"] ** 2 - noise**2).clip(lower=0.0))
        name = f"{group}: relative spread of rows beyond pure noise"
        components.append(at_most(name, beyond, limits["narrow"], group))
        name = f"{group}: |Δ ln ‖W‖| in the last quarter of the constant stage"
        contrast.append(at_most(name, settling(frame, runs, group), limits["change"]))
        notes.append(f"{group} {rows['spread'].mean():.3f} (noise {noise:.3f})")
    note = _note("sd: " + ", ".join(notes), found[found["variant"] == "NONE"], vectors, runs)
    return Judgement(components, criterion["seeds"]["minimum"], note, contrast=contrast)


def w2(frame, vectors, runs, criterion) -> Judgement:
    """Spread of the effective rows' norms: VECTOR's over NONE's, over ABM's, and repeated."""
    return _broader("rows", vectors, runs, criterion)


def w3(frame, vectors, runs, criterion) -> Judgement:
    """Spread of the effective columns' norms: VECTOR's over NONE's, over ABM's, and repeated."""
    return _broader("columns", vectors, runs, criterion)


def _broader(axis: str, vectors, runs, criterion) -> Judgement:
    limits, components, notes = criterion["thresholds"], [], []
    found = distributions(vectors, runs, axis)
    again = repeats(vectors, runs, axis)
    for group in GROUPS:
        table = found[found["group"] == group].pivot(index="seed", columns="variant")["spread"]
        logs = np.log(table)
        over = f"{group}: ln of the {axis}' spread over"
        components += [
            at_least(f"{over} NONE's", logs[LEARNED] - logs["NONE"], limits["broader"], group),
            at_least(f"{over} ABM's", logs[LEARNED] - logs[REPLACED], limits["excess"], group),
            at_least(f"{group}: correlation of ln |multiplier| between data orders",
                     again[group].dropna(), limits["repeats"], group),
        ]  # fmt: skip
        sizes = ", ".join(f"{variant} {table[variant].mean():.3f}" for variant in VARIANTS)
        notes.append(f"{group} {sizes}")
    return Judgement(
        components,
        criterion["seeds"]["minimum"],
        _note("sd: " + "; ".join(notes), found, vectors, runs),
    )


def _note(text: str, found: pd.DataFrame, vectors: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Dead rows beside the spreads, and the step where it is not the usual one."""
    dead = found.groupby("variant", sort=False)["dead"].sum()
    text += "; dead: " + ", ".join(f"{variant} {count}" for variant, count in dead.items())
    late = vector_step(vectors, runs) != stage_end_of(runs)
    return text + ("; read after the decay" if late else "")


JUDGES = {"D1": d1}
VECTOR_JUDGES = {"D2": d2, "D3": d3, "W1": w1, "W2": w2, "W3": w3}
# Of the trained runs they read the vectors of these.
VECTOR_TENSORS = {claim: tuple(chain(*GROUPS.values())) for claim in ("W1", "W2", "W3")}
