"""Judging functions of S5 and EM1: placements with fewer symmetries (appendix C)."""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, at_most, judgement
from analysis.quantities.losses import losses_by_arm
from analysis.quantities.symmetry import LIGHT, NO_EMBEDDING, SYMMETRY_FREE, SYMMETRY_FREE_LIGHT
from analysis.tables.results import Tables


def s5(tables: Tables, criterion: dict) -> Judgement:
    """The symmetry-free placement is slightly worse than all with light weight decay."""
    limits, losses = criterion["thresholds"], losses_by_arm(tables)
    gap = losses[SYMMETRY_FREE] - losses[LIGHT]
    same = (losses[SYMMETRY_FREE_LIGHT] - losses[LIGHT]).mean()
    return judgement(criterion, [
        at_least("symmetry-free − all, light (nats)", gap, limits["worse"]),
        at_most("symmetry-free − all, light (nats), slightly", gap, limits["slightly"]),
    ], f"with light weight decay on both: {same:+.4f}")  # fmt: skip


def em1(tables: Tables, criterion: dict) -> Judgement:
    """Without the embedding's multipliers."""
    losses = losses_by_arm(tables)
    gap = losses[NO_EMBEDDING] - losses[LIGHT]
    limit = criterion["thresholds"]["worse"]
    return judgement(criterion, [at_least("none on the embedding − all, light (nats)", gap, limit)])
