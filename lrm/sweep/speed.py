"""How long runs take: as finished ones of their experiment say, else as planned."""

from __future__ import annotations

import statistics
from pathlib import Path

from lrm.errors import UserError
from lrm.plan.run import Run
from lrm.store.rundir import read_description, read_outcome


def measured_rate(results: Path, run: Run) -> float | None:
    """Median tokens per second of this experiment's finished runs at this scale."""
    rates = []
    for path in (results / "runs" / run.experiment).glob("*/done.json"):
        try:
            description, outcome = read_description(path.parent), read_outcome(path.parent)
        except UserError:
            continue  # an estimate need not stop at a damaged run
        if description["scale"] == run.scale and "tokens_per_second" in outcome:
            # The plan counts on one process a run.
            rates.append(outcome["tokens_per_second"] / outcome.get("processes", 1))
    return statistics.median(rates) if rates else None


def seconds(run: Run, rate: float | None) -> float:
    """Of the run at ``rate``; by its estimate where nothing was measured or it reads no tokens."""
    estimate = run.estimate()
    return estimate.tokens / rate if rate and estimate.tokens else estimate.seconds
