"""Judging function of BM5: the scale of attention over the size of heads.

A value of a seed is an exponent of the size of heads, or a difference of losses in nats per token.
"""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, at_most, judgement
from analysis.quantities import steepest_heads as found
from analysis.tables.results import Tables

NAMES = {"STEEPEST": "steepest descent", "ADAMW_MUP": "AdamW with muP"}


def bm5(tables: Tables, criterion: dict) -> Judgement:
    """The best scale falls as the size of heads; ours: so carried it costs less than by a root."""
    limits, parts, contrast = criterion["thresholds"], [], []
    for arm, name in NAMES.items():
        cost = found.carried(tables, arm, found.BY_ROOT) - found.carried(tables, arm, found.BY_SIZE)
        parts += [
            at_most(f"{name}: exponent of the size of heads in the best scale",
                    found.exponent(tables, arm), limits["exponent"], name),
            at_least(f"{name}: loss with the scale of the smallest heads carried by the root − by "
                     "the size (nats)", cost, 0.0, f"{name}, carried", ours=True,
                     matters=criterion["smallest_effect"]),
        ]  # fmt: skip
        contrast += [
            at_least(f"{name}: loss at {limits['times']:g} times and 1/{limits['times']:g} of the "
                     f"best factor − at it, heads of {size:g} (nats)",
                     found.steepness(tables, arm, size, limits["times"]), limits["steep"], name)
            for size in found.ends(tables, arm)
        ]  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)
