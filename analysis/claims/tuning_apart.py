"""Judging functions of T1.2 to T9: the tuning ablation, with multipliers' LR searched apart.

T1.2 to T7.2 ask what T1 to T7 ask, of arms that another search has tuned.
"""

from __future__ import annotations

from analysis.claims import tuning_ablation
from analysis.claims.judging import Judgement, Part, at_least, judgement
from analysis.quantities.tuning_ablation import (
    OPTIMIZERS,
    SCALAR,
    WITH,
    WITHOUT,
    losses,
    losses_with_other_heads,
)
from analysis.tables.results import Tables
from analysis.tables.trials import TunedTables


def t1_2(tables: Tables, criterion: dict) -> Judgement:
    """Loss without minus loss with at each tier, as T1."""
    return tuning_ablation.t1(tables, criterion)


def t2_2(tables: Tables, criterion: dict) -> Judgement:
    """Three tiers of losses, as T2."""
    return tuning_ablation.t2(tables, criterion)


def t3_2(tables: Tables, criterion: dict) -> Judgement:
    """With multipliers: what a tuned weight decay and start add, as T3."""
    return tuning_ablation.t3(tables, criterion)


def t4_2(tables: Tables, criterion: dict) -> Judgement:
    """Mean gap over tiers, in the constant stage and the decay, as T4."""
    return tuning_ablation.t4(tables, criterion)


def t5_2(tables: Tables, criterion: dict) -> Judgement:
    """Without multipliers: what weight decay and forward factors add, as T5."""
    return tuning_ablation.t5(tables, criterion)


def t6_2(tables: Tables, criterion: dict) -> Judgement:
    """With multipliers: what a tuned LR of groups gains, as T6."""
    return tuning_ablation.t6(tables, criterion)


def t7_2(tables: TunedTables, criterion: dict) -> Judgement:
    """FLOPs of a search with multipliers, at equal loss, as T7."""
    return tuning_ablation.t7(tables, criterion)


def t8(tables: Tables, criterion: dict) -> Judgement:
    """All tuned: loss without multipliers, and of vectors, minus loss of scalars."""
    limit, size = criterion["thresholds"]["gain"], criterion["smallest_effect"]
    table = losses(tables)
    parts: list[Part] = []
    for kind, said in ((WITHOUT, "no multipliers"), (WITH, "vectors")):
        for name in OPTIMIZERS.values():
            gain = table[name, kind, "FULL"] - table[name, SCALAR, "FULL"]
            called, group = f"{name}: {said} − scalars, FULL", f"{name}, against {said}"
            parts.append(at_least(called, gain, limit, group, matters=size))
    return judgement(criterion, parts)


def t9(tables: Tables, criterion: dict) -> Judgement:
    """All tuned: what a scalar on the LM head gains, beside vectors and beside other scalars."""
    limit, size = criterion["thresholds"]["gain"], criterion["smallest_effect"]
    table, others = losses(tables), losses_with_other_heads(tables)
    parts: list[Part] = []
    for name in OPTIMIZERS.values():
        both, bare = others[name, WITH], others[name, SCALAR]
        vectors, scalars = (table[name, kind, "FULL"] for kind in (WITH, SCALAR))
        for called, gain, group in (
            ("no multipliers − vectors and a scalar on the LM head",
             table[name, WITHOUT, "FULL"] - both, "vectors with it beat no multipliers"),
            ("vectors − vectors and a scalar on the LM head", vectors - both, "beside vectors"),
            ("scalars but on the LM head − scalars", bare - scalars, "beside scalars"),
        ):  # fmt: skip
            parts.append(at_least(f"{name}: {called}", gain, limit, f"{name}, {group}",
                                  matters=size))  # fmt: skip
    return judgement(criterion, parts)
