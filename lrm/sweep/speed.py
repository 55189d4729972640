"""How long runs take: as finished ones of their experiment say, else as planned."""

from __future__ import annotations

import statistics
from pathlib import Path

from lrm.errors import UserError
from lrm.plan.run import Run
from lrm.store.rundir import read_description, read_outcome


def measured(results: Path, runs: list[Run]) -> float | None:
    """Median of the seconds that finished ones of ``runs`` took, over those of their estimates.

    A run's size is in its estimate, so that those of another width or depth are told alike.
    Runs count that are among ``runs`` but for their seed and length. None where there is none.
    """
    alike = {_place(run.arm, run.grid): run for run in runs}
    ratios = []
    for path in (results / "runs" / runs[0].experiment).glob("*/done.json"):
        try:
            description, outcome = read_description(path.parent), read_outcome(path.parent)
        except UserError:
            continue  # an estimate need not stop at a damaged run
        if description["scale"] != runs[0].scale or "tokens_per_second" not in outcome:
            continue
        run = alike.get(_place(description["arm"], description["grid"]))
        if run is None or run.estimate().tokens == 0:
            continue
        if description["settings"]["model"] != run.settings.model_dump(mode="json")["model"]:
            continue
        # The plan counts on one process a run.
        seconds = run.estimate().tokens / outcome["tokens_per_second"]
        ratios.append(seconds * outcome.get("processes", 1) / run.estimate().seconds)
    return statistics.median(ratios) if ratios else None


def seconds(run: Run, ratio: float | None) -> float:
    """Of the run, by its estimate and ``measured``, which is of runs that read tokens."""
    estimate = run.estimate()
    return estimate.seconds * ratio if ratio and estimate.tokens else estimate.seconds


def _place(arm: str, grid: dict) -> tuple:
    return arm, tuple(sorted(grid.items()))
