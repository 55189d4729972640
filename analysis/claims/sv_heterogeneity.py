"""Judging functions of SV8 and SV9: a vector for each branch (second paper, section 3.1)."""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, at_most, judgement
from analysis.quantities.designs import branch_pattern, branch_spread, excess_growth, gap
from analysis.tables.results import Tables


def sv8(tables: Tables, criterion: dict) -> Judgement:
    """Query, key and value matrices grow and decay at different rates, beyond what noise does."""
    limits = criterion["thresholds"]
    growth, again = excess_growth(tables, "STANDARD"), excess_growth(tables, "STANDARD_REORDERED")
    parts = [
        at_least("largest distance of ln(‖W‖ / noise's) between two branches",
                 branch_spread(growth), limits["apart"], "rates differ"),
        at_least("correlation of the pattern with that of another order of the data",
                 branch_pattern(growth, again), limits["repeats"], "the pattern repeats",
                 ours=True),
    ]  # fmt: skip
    return judgement(criterion, parts)


def sv9(tables: Tables, criterion: dict) -> Judgement:
    """A vector for each branch lowers the loss."""
    name, limit = "a vector for each branch − shared (nats)", criterion["thresholds"]["better"]
    gaps = gap(tables, "HG", "STANDARD")
    return judgement(criterion, [at_most(name, gaps, limit, matters=criterion["smallest_effect"])])
