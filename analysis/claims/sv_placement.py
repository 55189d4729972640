"""Judging functions of SV10 to SV12: where vectors stand (second paper, section 3.2)."""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, at_most, judgement
from analysis.quantities.designs import at_share, course_of_gap, gap
from analysis.tables.results import Tables


def sv10(tables: Tables, criterion: dict) -> Judgement:
    """Vectors on both sides of a matrix lower the loss."""
    name, limit = "both sides − inputs only (nats)", criterion["thresholds"]["better"]
    gaps = gap(tables, "DP", "HG")
    return judgement(criterion, [at_most(name, gaps, limit, matters=criterion["smallest_effect"])])


def sv11(tables: Tables, criterion: dict) -> Judgement:
    """A norm between matrix and output vector does not lower the loss by itself.

    The fixed factor, ours, gives outputs another size as the norm does.
    """
    limits = criterion["thresholds"]
    parts = [
        at_least("DNP − inputs only (nats)", gap(tables, "DNP", "HG"), limits["no_gain"],
                 "against inputs only"),
        at_least("DNP − inputs only with a fixed factor (nats)", gap(tables, "DNP", "HG_FACTOR"),
                 limits["no_gain"], "against a fixed factor", ours=True),
    ]  # fmt: skip
    return judgement(criterion, parts)


def sv12(tables: Tables, criterion: dict) -> Judgement:
    """Vectors on the outputs are ahead of those on the inputs early, and behind at the end."""
    matters, gaps = criterion["smallest_effect"], course_of_gap(tables, "AP", "HG")
    parts = [
        at_most("outputs − inputs, training loss at a tenth of the steps (nats)",
                at_share(gaps, 0.1), 0.0, "early", matters=matters),
        at_least("outputs − inputs, training loss at the end (nats)",
                 at_share(gaps, 1.0), 0.0, "at the end", matters=matters),
    ]  # fmt: skip
    return judgement(criterion, parts)
