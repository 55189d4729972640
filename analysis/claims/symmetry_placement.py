"""Judging functions of S5 and EM1: placements with fewer symmetries (appendix C).

Losses in nats per token after the decay, differences paired by seed.
"""

from __future__ import annotations

import pandas as pd

from analysis.claims.judging import Judgement, at_least, at_most, judgement
from analysis.quantities.losses import losses_by_arm
from analysis.quantities.symmetry import LIGHT, NO_EMBEDDING, SYMMETRY_FREE, SYMMETRY_FREE_LIGHT
from analysis.tables.results import Tables


def s5(tables: Tables, criterion: dict) -> Judgement:
    """The symmetry-free placement is slightly worse than all with light weight decay.

    Both sides belong to one statement: to lose less than 0.05 is no support of losing.
    """
    limits, losses = criterion["thresholds"], losses_by_arm(tables)
    gap = _beside_all(losses, SYMMETRY_FREE)
    same = _beside_all(losses, SYMMETRY_FREE_LIGHT).mean()
    parts = [
        at_least("symmetry-free − all, light (nats): worse", gap, limits["worse"],
                 matters=criterion["smallest_effect"]),
        at_most("symmetry-free − all, light (nats): slightly", gap, limits["slightly"]),
    ]  # fmt: skip
    return judgement(criterion, parts, f"with light weight decay on both: {same:+.4f}")


def s5_2(tables: Tables, criterion: dict) -> Judgement:
    """The same on more seeds."""
    return s5(tables, criterion)


def em1(tables: Tables, criterion: dict) -> Judgement:
    """Without the embedding's multipliers the loss is worse."""
    gap = _beside_all(losses_by_arm(tables), NO_EMBEDDING)
    name, limit = "none on the embedding − all, light (nats)", criterion["thresholds"]["worse"]
    parts = [at_least(name, gap, limit, matters=criterion["smallest_effect"])]
    return judgement(criterion, parts)


def em1_2(tables: Tables, criterion: dict) -> Judgement:
    """The same on more seeds."""
    return em1(tables, criterion)


def _beside_all(losses: pd.DataFrame, arm: str) -> pd.Series:
    return losses[arm] - losses[LIGHT]
