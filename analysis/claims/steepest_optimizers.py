"""Judging functions of BM3, BM3b, BM3c, BM3d and BM6: optimizers by layer, tuned alike.

A value of a seed is a difference of losses after the decay, in nats per token.
"""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, judgement, within
from analysis.quantities.designs import gap
from analysis.tables.results import Tables

ADAMW, MUON, STEEPEST = "ADAMW", "MUON_ADAMW", "STEEPEST"


def bm3(tables: Tables, criterion: dict) -> Judgement:
    """Muon beside AdamW beats AdamW, and steepest descent of every layer beats it in turn."""
    matters = criterion["smallest_effect"]
    parts = [
        at_least("AdamW − Muon beside AdamW (nats)", gap(tables, ADAMW, MUON), 0.0,
                 "Muon beats AdamW", matters=matters),
        at_least("Muon beside AdamW − steepest descent (nats)", gap(tables, MUON, STEEPEST), 0.0,
                 "steepest descent beats Muon", matters=matters),
    ]  # fmt: skip
    return judgement(criterion, parts)


def bm3b(tables: Tables, criterion: dict) -> Judgement:
    """Muon on embedding and head is worse than their own directions."""
    name = "Muon on every matrix − steepest descent (nats)"
    part = at_least(name, gap(tables, "MUON_EVERYWHERE", STEEPEST), 0.0,
                    matters=criterion["smallest_effect"])  # fmt: skip
    return judgement(criterion, [part])


def bm3c(tables: Tables, criterion: dict) -> Judgement:
    """Which of AdamW's three tensors gains by its own direction alone."""
    named = {"MUON_EMBEDDING": "embedding", "MUON_HEAD": "head", "MUON_GAINS": "gains"}
    parts = [
        at_least(f"Muon beside AdamW − with the own direction of the {kind} (nats)",
                 gap(tables, MUON, arm), 0.0, kind, matters=criterion["smallest_effect"])
        for arm, kind in named.items()
    ]  # fmt: skip
    return judgement(criterion, parts)


def bm3d(tables: Tables, criterion: dict) -> Judgement:
    """Rows of the embedding had better move in steps that do not see their token too."""
    part = at_least("only rows seen − all rows (nats)", gap(tables, "STEEPEST_SEEN", STEEPEST), 0.0,
                    matters=criterion["smallest_effect"])  # fmt: skip
    return judgement(criterion, [part])


def bm6(tables: Tables, criterion: dict) -> Judgement:
    """How gains are moved hardly matters."""
    margin = criterion["smallest_effect"]
    parts = [
        within(f"{name} (nats)", gap(tables, arm, MUON), -margin, margin, group)
        for arm, name, group in (("MUON_GAINS", "gains by sign − by AdamW", "sign"),
                                 ("MUON_FROZEN", "gains frozen − by AdamW", "frozen"))
    ]  # fmt: skip
    return judgement(criterion, parts)
