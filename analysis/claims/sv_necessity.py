"""Judging functions of SV1 to SV4: a model without scale vectors (second paper, section 2.1).

Differences of the loss after the decay in nats per token, paired by seed.
"""

from __future__ import annotations

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement
from analysis.quantities.designs import gap
from analysis.tables.results import Tables


def sv1(tables: Tables, criterion: dict) -> Judgement:
    """Without any vector the loss is higher, at one LR."""
    cost = gap(tables, "NONE", "STANDARD")
    name, limit = "no vectors − standard (nats)", criterion["thresholds"]["worse"]
    return judgement(criterion, [at_least(name, cost, limit, matters=criterion["smallest_effect"])])


def sv1b(tables: Tables, criterion: dict) -> Judgement:
    """Which vectors they are: those of the blocks, or the final one, for which a factor may do."""
    limit, matters = criterion["thresholds"]["worse"], criterion["smallest_effect"]
    parts = [
        at_least("final vector only − standard (nats)", gap(tables, "FINAL", "STANDARD"),
                 limit, "vectors of the blocks", matters=matters),
        at_least("no vectors − final vector only (nats)", gap(tables, "NONE", "FINAL"),
                 limit, "the final vector", matters=matters),
        at_least("no vectors − standard, with a fixed factor on the LM head (nats)",
                 gap(tables, "NONE_FACTOR", "STANDARD_FACTOR"), limit,
                 "all, with a fixed factor on the LM head", matters=matters),
    ]  # fmt: skip
    return judgement(criterion, parts)


def sv2(tables: Tables, criterion: dict) -> Judgement:
    """Without any vector the loss is higher, each side at its own LR."""
    cost = gap(tables, "NONE_TUNED", "STANDARD_TUNED")
    name, limit = "no vectors − standard, both tuned (nats)", criterion["thresholds"]["worse"]
    return judgement(criterion, [at_least(name, cost, limit, matters=criterion["smallest_effect"])])


def sv3(tables: Tables, criterion: dict) -> Judgement:
    """So many more steps bring the loss back; it means something only where it was lost."""
    limits = criterion["thresholds"]
    compared = {"same LR": ("NONE", "NONE_1.4", "STANDARD", "1.4"),
                "tuned LR": ("NONE_TUNED", "NONE_TUNED_1.2", "STANDARD_TUNED", "1.2")}  # fmt: skip
    parts: list[Part] = []
    contrast: list[Part] = []
    for group, (arm, longer, against, times) in compared.items():
        parts.append(at_most(f"no vectors, {times} × the steps − standard, {group} (nats)",
                             gap(tables, longer, against), limits["reached"], group))  # fmt: skip
        contrast.append(at_least(f"no vectors − standard, {group} (nats)",
                                 gap(tables, arm, against), limits["lost"], group))  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


def sv4(tables: Tables, criterion: dict) -> Judgement:
    """As many parameters in the MLP bring less than a share of what the unified design brings."""
    limits = criterion["thresholds"]
    gain, wide = gap(tables, "STANDARD", "UNIFIED"), gap(tables, "STANDARD", "WIDE")
    name = f"{limits['share']:g} × gain of the unified design − gain of a wider MLP (nats)"
    parts = [at_least(name, limits["share"] * gain - wide, 0.0)]
    contrast = [at_least("standard − unified (nats)", gain, limits["gain"])]
    return judgement(criterion, parts, contrast=contrast)
