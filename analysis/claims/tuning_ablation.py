"""Judging functions of T1 to T7: four tiers of tuning without and with multipliers (section 5.1).

Losses are validation losses after the decay in nats, paired by seed. "Without" and "with" speak of
vector multipliers. Every optimizer is judged apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement, within
from analysis.quantities.tuning_ablation import (
    OPTIMIZERS,
    PARTS,
    SCALAR,
    TIERS,
    TUNED,
    WITH,
    WITHOUT,
    costs,
    gap_in,
    kept_nothing,
    losses,
    losses_before_decay,
)
from analysis.tables.find import NothingFound
from analysis.tables.results import Tables
from analysis.tables.trials import TunedTables


def t1(tables: Tables, criterion: dict) -> Judgement:
    """Loss without minus loss with at each tier; ours: scalars, at the tier without tuning."""
    limit, size = criterion["thresholds"]["gain"], criterion["smallest_effect"]
    table, parts = losses(tables), []
    own: list[Part] = []
    for name in OPTIMIZERS.values():
        plain = table[name, WITHOUT]
        for tier in TIERS:
            gain = plain[tier] - table[name, WITH, tier]
            called = f"{name} {tier}"
            parts.append(
                at_least(f"{called}: loss without − with", gain, limit, called, matters=size)
            )
        gain = plain["NONE"] - table[name, SCALAR, "NONE"]
        called = f"{name}, one scalar a matrix"
        own.append(
            at_least(f"{called}: loss without − with, NONE", gain, limit, called, ours=True,
                     matters=size)
        )  # fmt: skip
    return judgement(criterion, [*parts, *own])


def t2(tables: Tables, criterion: dict) -> Judgement:
    """Three tiers of losses; needed is that tuning gains something without multipliers."""
    limits, size = criterion["thresholds"], criterion["smallest_effect"]
    table, gap, near = losses(tables), limits["gap"], limits["near"]
    parts: list[Part] = []
    contrast: list[Part] = []
    for name in OPTIMIZERS.values():
        plain, own = table[name, WITHOUT], table[name, WITH]
        tuned = plain[list(TUNED)].mean(axis=1, skipna=False)
        worst, middle = plain["NONE"] - own["NONE"], own["NONE"] - tuned
        best, better = tuned - own["LR"], own["NONE"] - own["LR"]
        parts += [
            at_least(f"{name}: NONE without − NONE with", worst, gap, name, matters=size),
            within(f"{name}: NONE with − tuned without", middle, -near, near, name),
            at_least(f"{name}: tuned without − LR with", best, gap, name, matters=size),
            at_least(f"{name}: NONE with − LR with", better, gap, name, matters=size),
        ]
        contrast.append(_tuning_saves(table, name, name, criterion))
    return judgement(criterion, parts, contrast=contrast)


def t3(tables: Tables, criterion: dict) -> Judgement:
    """With multipliers: what a tuned weight decay and a tuned start add to a tuned LR."""
    return _adds_nothing(tables, criterion, WITH, "start")


def t4(tables: Tables, criterion: dict) -> Judgement:
    """Mean gap over tiers: from the second to the last sixth of the constant stage, and its decay.

    That it shrinks has no smallest effect that matters: the paper says that it is slight.
    """
    limits, size = criterion["thresholds"], criterion["smallest_effect"]
    change, parts, contrast, notes = limits["change"], [], [], []
    for name in OPTIMIZERS.values():
        early, late = gap_in(tables, name, 2), gap_in(tables, name, PARTS)
        before, after = (_mean_gap(of(tables), name) for of in (losses_before_decay, losses))
        grows, shrinks = f"{name} grows", f"{name} shrinks in the decay"
        growth, shrinking = late - early, before - after
        rest = after - limits["kept"] * before
        parts += [
            at_least(f"{name}: gap late − early", growth, change, grows, matters=size),
            at_least(f"{name}: gap before the decay − after it", shrinking, change, shrinks),
            at_least(f"{name}: gap after the decay − half of that before", rest, change, shrinks),
        ]
        contrast.append(at_least(f"{name}: gap late in the constant stage", late, change, grows))
        if before.notna().any():
            notes.append(f"{name} {before.mean():+.4f} to {after.mean():+.4f}")
    note = f"gap over the decay: {', '.join(notes)}" if notes else ""
    return judgement(criterion, parts, note, contrast)


def t5(tables: Tables, criterion: dict) -> Judgement:
    """Without multipliers: what a tuned weight decay and forward factors add to a tuned LR."""
    return _adds_nothing(tables, criterion, WITHOUT, "forward factors")


def t6(tables: Tables, criterion: dict) -> Judgement:
    """With multipliers: what a tuned LR of groups gains."""
    limit, size = criterion["thresholds"]["gain"], criterion["smallest_effect"]
    table, parts = losses(tables), []
    for name in OPTIMIZERS.values():
        gain = table[name, WITH, "NONE"] - table[name, WITH, "LR"]
        parts.append(at_least(f"{name}: NONE with − LR with", gain, limit, name, matters=size))
    return judgement(criterion, parts, _unchanged(tables, WITH, ("LR",)))


def t7(tables: TunedTables, criterion: dict) -> Judgement:
    """FLOPs of a search with multipliers over those of the whole search without, at equal loss."""
    limits, table, note = criterion["thresholds"], losses(tables), ""
    try:
        spent = costs(tables)["flops"]
    except NothingFound as error:
        spent, note = None, str(error)
    parts: list[Part] = []
    contrast: list[Part] = []
    for tier, ours, more in (("NONE", False, ""), ("LR", True, " with a tuned LR")):
        for name in OPTIMIZERS.values():
            group = f"{name}{more}"
            share = math.nan
            if spent is not None:
                share = spent[name, WITH, tier] / spent[name, WITHOUT, "FULL"]
            loss = table[name, WITH, tier] - table[name, WITHOUT, "FULL"]
            parts += [
                at_most(f"{name}: FLOPs of the search, {tier} with / FULL without",
                        [share] * len(loss), limits["cost"], group, ours=ours),
                at_most(f"{name}: loss, {tier} with − FULL without", loss, limits["margin"], group,
                        ours=ours),
            ]  # fmt: skip
            contrast.append(_tuning_saves(table, name, group, criterion))
    return judgement(criterion, parts, note, contrast)


def _adds_nothing(tables: Tables, criterion: dict, multipliers: str, last: str) -> Judgement:
    """LR minus LRWD and minus FULL; needed is that the search found a gain at all."""
    limits, table = criterion["thresholds"], losses(tables)
    parts: list[Part] = []
    contrast: list[Part] = []
    for name in OPTIMIZERS.values():
        own = table[name, multipliers]
        found = own["NONE"] - own[list(TUNED)].mean(axis=1, skipna=False)
        for tier, what in (("LRWD", "weight decay"), ("FULL", last)):
            group = f"{name} {what}"
            gain = own["LR"] - own[tier]
            parts.append(at_most(f"{name}: LR − {tier}", gain, limits["margin"], group))
            contrast.append(
                at_least(f"{group}: NONE − tuned", found, limits["gap"], group,
                         matters=criterion["smallest_effect"])
            )  # fmt: skip
    note = _unchanged(tables, multipliers, ("LRWD", "FULL"))
    return judgement(criterion, parts, note, contrast)


def _tuning_saves(table: pd.DataFrame, name: str, group: str, criterion: dict) -> Part:
    """Needed for what compares with tuning: without multipliers it gains something."""
    plain = table[name, WITHOUT]
    gain = plain["NONE"] - plain["FULL"]
    limit, size = criterion["thresholds"]["gap"], criterion["smallest_effect"]
    return at_least(f"{group}: NONE without − FULL without", gain, limit, group, matters=size)


def _mean_gap(table: pd.DataFrame, name: str) -> pd.Series:
    """Loss without minus with, mean over tiers."""
    return (table[name, WITHOUT] - table[name, WITH]).mean(axis=1, skipna=False)


def _unchanged(tables: Tables, multipliers: str, tiers: Sequence[str]) -> str:
    """Which of these tiers have the runs of the tier before, as the search kept nothing in them."""
    same = [
        f"{name} {tier}"
        for name in OPTIMIZERS.values()
        for tier in tiers
        if kept_nothing(tables, name, multipliers, tier)
    ]
    return f"the search kept nothing in {', '.join(same)}: no new runs" if same else ""
