"""Judging functions of the scales over depth and width: D1 to D3, W1 to W3 (section 3.1).

Every value is one per seed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.claims.judging import Judgement, at_least, at_most, judgement, reads
from analysis.quantities.scale_diversity import (
    BLOCKS,
    GROUPS,
    INTERNAL,
    LEARNED,
    MATRICES,
    REPLACED,
    VARIANTS,
    correlation,
    distributions,
    log_multipliers,
    log_ratios,
    mixture_spread,
    repeats,
    rise,
    scalar_noise,
    second_half,
    settling,
    spread,
    vector_step,
)
from analysis.tables.results import Tables


def d1(tables: Tables, criterion: dict) -> Judgement:
    """Rise over depth of ln(output norm with / without multipliers), mean over the blocks."""
    ratios = log_ratios(tables)
    mean = sum(ratios.values()) / len(ratios)
    name = "rise of ln ratio from first to last layer, mean over blocks"
    components = [at_least(name, rise(mean), criterion["thresholds"]["rise"])]
    each = ", ".join(f"{block} {rise(table).mean():+.3f}" for block, table in ratios.items())
    layers = len(mean.columns)
    note = f"each block: {each}; {layers} layers, slope of the mean {_slope(mean):+.4f} a layer"
    return judgement(criterion, components, note)


def _slope(table: pd.DataFrame) -> float:
    return float(rise(table).mean() / (table.columns[-1] - table.columns[0]))


def d2(tables: Tables, criterion: dict) -> Judgement:
    """Spread of attention's ln ratio over the second half, and whether out multipliers follow it.

    Noise floors of the spread: the same pair of arms but for the order of the data, SCALAR and
    SCALAR_ORDER, and twice the Brownian motion of one ln |s|: the output is scaled by V's
    multiplier and out's, whose gradients s · ∂L/∂s are one and the same, so that from equal starts
    they move as one. ln |s_out| is a part of ln ratio, so that any noise in it would correlate;
    the ratio is therefore set beside the multiplier that the other order learned.
    """
    limits = criterion["thresholds"]
    first, again = (
        {block: second_half(table) for block, table in log_ratios(tables, arm).items()}
        for arm in ("SCALAR", "SCALAR_ORDER")
    )
    widths = {block: spread(table) for block, table in first.items()}
    differs, amplifies = "ratios differ", "multipliers amplify"
    own = widths["attention"]
    name = "attention's sd of ln ratio over the second half"
    repeat = spread(again["attention"] - first["attention"])
    noise = 2.0 * scalar_noise(tables)
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
        second_half(log_multipliers(tables, out, arm)) for arm in ("SCALAR", "SCALAR_ORDER")
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
    return judgement(criterion, components, note)


def d3(tables: Tables, criterion: dict) -> Judgement:
    """Spread of ln |s_dt| over layers against Brownian motion's, and whether it repeats."""
    limits = criterion["thresholds"]
    learned, repeated = (
        log_multipliers(tables, ("ssm.dt",), arm) for arm in ("SCALAR", "SCALAR_ORDER")
    )
    width, noise = spread(learned), scalar_noise(tables)
    components = [
        at_least(f"ln of the sd over layers of ln |s_dt| over ABM's ({noise:.3f})",
                 np.log(width / noise), limits["excess"]),
        at_least("correlation of ln |s_dt| between data orders",
                 correlation(learned, repeated), limits["repeats"]),
    ]  # fmt: skip
    others = {name: log_multipliers(tables, tensors) for name, tensors in INTERNAL.items()}
    each = ", ".join(f"{name} {spread(table).mean():.3f}" for name, table in others.items())
    note = f"sd over layers of ln |s|: {each}"
    return judgement(criterion, components, note)


@reads(*MATRICES)
def w1(tables: Tables, criterion: dict) -> Judgement:
    """Relative spread of the rows in NONE beyond that of pure noise: sqrt(sd² − 1/(2 d_in)).

    The contrast: norms are at rest, for a start that is still remembered is narrow by itself.
    """
    limits, components, contrast, notes = criterion["thresholds"], [], [], []
    found = distributions(tables, "rows")
    for group in GROUPS:
        rows = found[(found["group"] == group) & (found["variant"] == "NONE")]
        noise = mixture_spread(rows["noise"].iloc[0])
        beyond = np.sqrt((rows["spread"] ** 2 - noise**2).clip(lower=0.0))
        name = f"{group}: relative spread of rows beyond pure noise"
        components.append(at_most(name, beyond, limits["narrow"], group))
        name = f"{group}: |Δ ln ‖W‖| in the last quarter of the constant stage"
        contrast.append(at_most(name, settling(tables, group), limits["change"]))
        notes.append(f"{group} {rows['spread'].mean():.3f} (noise {noise:.3f})")
    note = _note("sd: " + ", ".join(notes), found[found["variant"] == "NONE"], tables)
    return judgement(criterion, components, note, contrast=contrast)


@reads(*MATRICES)
def w2(tables: Tables, criterion: dict) -> Judgement:
    """Spread of the effective rows' norms: VECTOR's over NONE's, over ABM's, and repeated."""
    return _broader("rows", tables, criterion)


@reads(*MATRICES)
def w3(tables: Tables, criterion: dict) -> Judgement:
    """Spread of the effective columns' norms: VECTOR's over NONE's, over ABM's, and repeated."""
    return _broader("columns", tables, criterion)


def _broader(axis: str, tables: Tables, criterion: dict) -> Judgement:
    limits, components, notes = criterion["thresholds"], [], []
    found = distributions(tables, axis)
    again = repeats(tables, axis)
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
        _note("sd: " + "; ".join(notes), found, tables),
    )


def _note(text: str, found: pd.DataFrame, tables: Tables) -> str:
    """Dead rows beside the spreads, and the step where it is not the usual one."""
    dead = found.groupby("variant", sort=False)["dead"].sum()
    text += "; dead: " + ", ".join(f"{variant} {count}" for variant, count in dead.items())
    late = vector_step(tables) != tables.stage_end
    return text + ("; read after the decay" if late else "")
