"""Judging functions of the scales over depth and width: D1 to D3, W1 to W3 (section 3.1).

Every value is one per seed; ln is the natural logarithm. SCALAR and SCALAR_ORDER, and VECTOR and
VECTOR_ORDER, are two orders of the data from the same initial values.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement, reads
from analysis.quantities.scale_diversity import (
    BLOCKS,
    GROUPS,
    INTERNAL,
    LEARNED,
    MATRICES,
    REPLACED,
    VARIANTS,
    allowed,
    correlation,
    distributions,
    layer_effect,
    log_multipliers,
    log_ratios,
    mixture_spread,
    repeats,
    rise,
    scalar_noise,
    second_half,
    settling,
    spread,
    steady_rise,
    vector_step,
)
from analysis.tables.results import Tables

ORDERS = ("SCALAR", "SCALAR_ORDER")
# What is asked beyond the paper, in the words of the claims' lines.
BEYOND_NOISE = "more than Brownian motion"
REPEATS = "the pattern repeats in another order of the data"


def d1(tables: Tables, criterion: dict) -> Judgement:
    """Rise over depth of ln(output norm with / without multipliers), mean over the blocks."""
    ratios = log_ratios(tables)
    mean = pd.concat(ratios).groupby(level="seed").mean()
    name = "rise of ln(output norm with / without) from the first to the last layer"
    limit = criterion["thresholds"]["rise"]
    group = "mean over the blocks, dead layers included"
    parts = [at_least(name, rise(mean), limit, group, matters=criterion["smallest_effect"])]
    each = "; ".join(f"{block} {_rises(table)}" for block, table in ratios.items())
    return judgement(criterion, parts, each)


def _rises(table: pd.DataFrame) -> str:
    """Mean and median rise over seeds, and by how much multipliers shrink the outputs."""
    rises, smaller = rise(table), np.exp(-table.mean().mean())
    return (
        f"{rises.mean():+.2f} (median {rises.median():+.2f}), "
        f"outputs {smaller:.1f} times smaller with multipliers"
    )


def d1_2(tables: Tables, criterion: dict) -> Judgement:
    """Rise over depth of each block's ln ratio, and of ln |s| at the block's end.

    The rise is that of the median slope between two layers, which a dead layer hardly moves; of
    each seed the mean over both orders of the data.
    """
    limit, size = criterion["thresholds"]["rise"], criterion["smallest_effect"]
    parts = []
    for block, tensor in BLOCKS.items():
        tables_of = {
            "outputs": [log_ratios(tables, arm)[block] for arm in ORDERS],
            "multipliers": [log_multipliers(tables, (tensor,), arm) for arm in ORDERS],
        }
        for what, pair in tables_of.items():
            rises = np.mean([steady_rise(table) for table in pair], axis=0)
            quantity = "ln(output norm with / without)" if what == "outputs" else "ln |s_out|"
            name = f"{block}: rise of {quantity} from the first to the last layer"
            group = f"{block} {what}"
            parts.append(at_least(name, rises, limit, group, matters=size))
    return judgement(criterion, parts)


def d2(tables: Tables, criterion: dict) -> Judgement:
    """Spread of attention's ln ratio over the second half, and whether out multipliers follow it.

    Noise floors of the spread, both ours: the same pair of arms but for the order of the data, and
    twice the Brownian motion of one ln |s|: the output is scaled by V's multiplier and out's, whose
    gradients s · ∂L/∂s are one and the same, so that from equal starts they move as one. ln |s_out|
    is a part of ln ratio, so that any noise in it would correlate; the ratio is therefore set
    beside the multiplier that the other order learned.
    """
    limits = criterion["thresholds"]
    first, again = (
        {block: second_half(table) for block, table in log_ratios(tables, arm).items()}
        for arm in ORDERS
    )
    widths = {block: spread(table) for block, table in first.items()}
    own, noise = widths["attention"], scalar_noise(tables)
    between = spread(first["attention"].sub(again["attention"]))
    parts = [
        at_least("sd over the second half of attention's ln ratio", own, limits["spread"],
                 "attention's layers differ"),
        at_least("attention's sd − sd between data orders", own - between, 0.0,
                 "more than between orders of the data", ours=True),
        at_least("attention's sd − twice Brownian motion's", own - 2.0 * noise, 0.0,
                 BEYOND_NOISE, ours=True),
    ]  # fmt: skip
    for block in ("MLP", "SSM"):
        gap = own - widths[block]
        parts.append(
            at_least(f"attention's sd − {block}'s", gap, 0.0, f"more than the {block}'s", ours=True)
        )
    learned, repeated = (
        second_half(log_multipliers(tables, (BLOCKS["attention"],), arm)) for arm in ORDERS
    )
    crossed = [correlation(first["attention"], repeated), correlation(again["attention"], learned)]
    parts += [
        at_least("correlation of ln ratio with the other order's ln |s_out|",
                 np.mean(crossed, axis=0), limits["amplified"], "out multipliers amplify it"),
        at_least("correlation of ln |s_out| between data orders", correlation(learned, repeated),
                 limits["repeats"], REPEATS, ours=True),
    ]  # fmt: skip
    return judgement(criterion, parts, f"Brownian motion's sd of ln |s|: {noise:.3f}")


def d2_2(tables: Tables, criterion: dict) -> Judgement:
    """Spread of attention's ln ratio over the second half, and what the out multiplier adds to it.

    Amplified: without ln |s_out|, which is a part of the ratio, layers would differ less. Of each
    seed the mean over both orders of the data. Ours: more than twice Brownian motion's, as D2; and
    whether the same layers stand out in the other order.
    """
    limits, matters = criterion["thresholds"], criterion["smallest_effect"]
    ratios = [second_half(log_ratios(tables, arm)["attention"]) for arm in ORDERS]
    outs = [second_half(log_multipliers(tables, (BLOCKS["attention"],), arm)) for arm in ORDERS]
    own = np.mean([np.log(spread(ratio)) for ratio in ratios], axis=0)
    rest = np.mean(
        [np.log(spread(ratio - out)) for ratio, out in zip(ratios, outs, strict=True)], axis=0
    )
    noise = scalar_noise(tables)
    name = "ln of the sd over the second half of attention's ln ratio"
    parts = [
        at_least(f"{name}, over {limits['spread']:g}", own - np.log(limits["spread"]), 0.0,
                 "attention's layers differ", matters=matters),
        at_least(f"{name}, over that without the out multiplier", own - rest,
                 limits["amplified"], "out multipliers amplify it", matters=matters),
        at_least(f"{name}, over twice Brownian motion's", own - np.log(2.0 * noise), 0.0,
                 BEYOND_NOISE, ours=True),
        at_least("correlation of attention's ln ratio between the data orders",
                 correlation(*ratios), limits["repeats"], REPEATS, ours=True),
    ]  # fmt: skip
    return judgement(criterion, parts, f"Brownian motion's sd of ln |s|: {noise:.3f}")


def d3(tables: Tables, criterion: dict) -> Judgement:
    """Spread of ln |s_dt| over layers against Brownian motion's, and whether it repeats.

    Both are ours: the paper says no more than that the multipliers vary.
    """
    limits = criterion["thresholds"]
    learned, repeated = (log_multipliers(tables, INTERNAL["dt"], arm) for arm in ORDERS)
    noise = scalar_noise(tables)
    parts = [
        at_least("ln of the sd over layers of ln |s_dt| over Brownian motion's",
                 np.log(spread(learned) / noise), limits["excess"], BEYOND_NOISE, ours=True,
                 matters=criterion["smallest_effect"]),
        at_least("correlation of ln |s_dt| between data orders",
                 correlation(learned, repeated), limits["repeats"], REPEATS, ours=True),
    ]  # fmt: skip
    note = f"{_internal_spreads(tables)}; of Brownian motion {noise:.3f}"
    return judgement(criterion, parts, note)


def d3_2(tables: Tables, criterion: dict) -> Judgement:
    """Spread of ln |s_dt| over layers; ours: the share of it that all seeds and orders have."""
    limits = criterion["thresholds"]
    learned, repeated = (log_multipliers(tables, INTERNAL["dt"], arm) for arm in ORDERS)
    shared = layer_effect(learned, repeated)
    name = "covariance over layers of ln |s_dt| with the other seeds' in another data order"
    parts = [
        at_least("sd over layers of ln |s_dt|", spread(learned), limits["spread"],
                 "dt varies over layers"),
        at_least(f"{name}, above 0", shared, limits["shared"],
                 "the same layers in other seeds and data", ours=True,
                 matters=criterion["smallest_effect"]),
        at_least(f"{name}, of an sd of 0.2", shared, limits["strong"],
                 "strongly the same layers", ours=True),
    ]  # fmt: skip
    return judgement(criterion, parts)


def _internal_spreads(tables: Tables) -> str:
    others = {name: log_multipliers(tables, tensors) for name, tensors in INTERNAL.items()}
    each = ", ".join(f"{name} {spread(table).mean():.3f}" for name, table in others.items())
    return f"sd over layers of ln |s|: {each}"


@reads(*MATRICES)
def w1(tables: Tables, criterion: dict) -> Judgement:
    """Relative spread of the rows in NONE beyond that of pure noise: sqrt(sd² − 1/(2 d_in)).

    The contrast: norms are at rest, for a start that is still remembered is narrow by itself.
    """
    limits, parts, contrast, notes = criterion["thresholds"], [], [], []
    every = distributions(tables, "rows")
    for group in GROUPS:
        rows = every[(every["group"] == group) & (every["variant"] == "NONE")]
        noise = mixture_spread(rows["noise"].iloc[0])
        beyond = np.sqrt((rows["spread"] ** 2 - noise**2).clip(lower=0.0))
        name = f"{group}: relative spread of rows beyond pure noise"
        parts.append(at_most(name, beyond, limits["narrow"], group))
        name = f"{group}: |Δ ln ‖W‖| in the last quarter of the constant stage"
        contrast.append(at_most(name, settling(tables, group), limits["change"], group))
        notes.append(f"{group} {rows['spread'].mean():.3f} (noise {noise:.3f})")
    note = _note("sd: " + ", ".join(notes), every[every["variant"] == "NONE"], tables)
    return judgement(criterion, parts, note, contrast)


@reads(*MATRICES)
def w2(tables: Tables, criterion: dict) -> Judgement:
    """Spread of the effective rows' norms over NONE's; ours: over Brownian motion's, repeated."""
    limit = criterion["thresholds"]["repeats"]
    return _broader("rows", tables, criterion, _correlations("rows", tables, limit))


@reads(*MATRICES)
def w3(tables: Tables, criterion: dict) -> Judgement:
    """The same of columns."""
    limit = criterion["thresholds"]["repeats"]
    return _broader("columns", tables, criterion, _correlations("columns", tables, limit))


@reads(*MATRICES)
def w2_2(tables: Tables, criterion: dict) -> Judgement:
    """As W2, but the pattern must repeat no more than the measured spread allows."""
    return _broader("rows", tables, criterion, _shares("rows", tables, criterion))


@reads(*MATRICES)
def w3_2(tables: Tables, criterion: dict) -> Judgement:
    """The same of columns."""
    return _broader("columns", tables, criterion, _shares("columns", tables, criterion))


def _correlations(axis: str, tables: Tables, limit: float) -> dict[str, tuple]:
    """By group of matrices the name, the values and the limit of what must repeat."""
    again = repeats(tables, axis)
    name = "correlation of ln |multiplier| between data orders"
    return {group: (name, again[group].dropna(), limit) for group in GROUPS}


def _shares(axis: str, tables: Tables, criterion: dict) -> dict[str, tuple]:
    """The same as a difference from the part of the largest possible correlation asked for."""
    limits = criterion["thresholds"]
    asked = (limits["share"] * allowed(tables, axis)).clip(lower=limits["least"])
    gaps = repeats(tables, axis).sub(asked)
    share = f"{limits['share']:g} of what its spread allows"
    name = f"correlation of ln |multiplier| between data orders − {share}"
    return {group: (name, gaps[group].dropna(), 0.0) for group in GROUPS}


def _broader(axis: str, tables: Tables, criterion: dict, repeated: dict) -> Judgement:
    """By group of matrices: broader than without multipliers, than noise, and repeated."""
    limits, size = criterion["thresholds"], criterion["smallest_effect"]
    every, parts, notes = distributions(tables, axis), [], []
    beyond: list[Part] = []
    again: list[Part] = []
    for group in GROUPS:
        table = every[every["group"] == group].pivot(index="seed", columns="variant")["spread"]
        logs = np.log(table)
        over = f"{group}: ln of the {axis}' spread over"
        parts.append(
            at_least(f"{over} that without multipliers", logs[LEARNED] - logs["NONE"],
                     limits["broader"], group, matters=size)
        )  # fmt: skip
        beyond.append(
            at_least(f"{over} Brownian motion's", logs[LEARNED] - logs[REPLACED],
                     limits["excess"], f"{group} beyond Brownian motion", ours=True, matters=size)
        )  # fmt: skip
        name, values, limit = repeated[group]
        again.append(
            at_least(f"{group}: {name}", values, limit, f"{group} repeats in other data", ours=True)
        )
        sizes = ", ".join(f"{variant} {table[variant].mean():.3f}" for variant in VARIANTS)
        notes.append(f"{group} {sizes}")
    parts += beyond + again
    return judgement(criterion, parts, _note("sd: " + "; ".join(notes), every, tables))


def _note(text: str, every: pd.DataFrame, tables: Tables) -> str:
    """Dead rows beside the spreads, and the step where it is not the usual one."""
    dead = every.groupby("variant", sort=False)["dead"].sum()
    text += "; dead: " + ", ".join(f"{variant} {count}" for variant, count in dead.items())
    late = vector_step(tables) != tables.stage_end
    return text + ("; read after the decay" if late else "")
