"""Judging function of T10 (ours): a fixed factor on the LM head, or a learned scalar, all tuned.

Differences of the loss after the decay in nats per token, paired by seed.
"""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, judgement
from analysis.quantities.designs import gap
from analysis.tables.results import Tables


def t10(tables: Tables, criterion: dict) -> Judgement:
    """Vectors and a learned scalar on the LM head beat no multipliers and a fixed factor there."""
    limit, size = criterion["thresholds"]["gain"], criterion["smallest_effect"]
    parts = [
        at_least(f"{name} (nats)", gap(tables, arm, against), limit, group, ours=ours,
                 matters=size)
        for name, arm, against, group, ours in (
            ("no multipliers and a fixed factor − vectors and a scalar",
             "MUON_FULL_FACTOR", "MUON_LRM_HEAD", "the lead stays", False),
            ("no multipliers − no multipliers and a fixed factor",
             "MUON_FULL", "MUON_FULL_FACTOR", "a factor gains", True),
            ("vectors and a fixed factor − vectors and a scalar",
             "MUON_LRM_FACTOR", "MUON_LRM_HEAD", "a learned scalar beats a factor", True),
        )
    ]  # fmt: skip
    return judgement(criterion, parts)
