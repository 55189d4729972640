"""How long runs take: as finished ones of their experiment say, else as planned."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from lrm.errors import UserError
from lrm.plan.run import Run
from lrm.store.rundir import read_description, read_outcome


def measured(results: Path, runs: list[Run]) -> float | None:
    """Median of the seconds that finished ones of ``runs`` took, over those of their estimates.

    A run's size is in its estimate, so that those of another width or depth are told alike. Those
    count that have the model, the optimizer and the shape of batches of a training run among
    ``runs``. None where there is none.
    """
    alike = {
        _shape(run.settings.model_dump(mode="json")): run.estimate() for run in runs if run.trains
    }
    ratios = []
    for path in (results / "runs" / runs[0].experiment).glob("*/done.json"):
        try:
            description, outcome = read_description(path.parent), read_outcome(path.parent)
        except UserError:
            continue  # an estimate need not stop at a damaged run
        if description["scale"] != runs[0].scale or "tokens_per_second" not in outcome:
            continue
        planned = alike.get(_shape(description["settings"]))
        if planned is None or planned.tokens == 0:
            continue
        # Of one device, of which the plan may count on several.
        seconds = planned.tokens / outcome["tokens_per_second"] * outcome.get("processes", 1)
        ratios.append(seconds / (planned.seconds * runs[0].cost.devices))
    return statistics.median(ratios) if ratios else None


def seconds(run: Run, ratio: float | None) -> float:
    """Of the run, by its estimate and ``measured``, which is of runs that read tokens."""
    estimate = run.estimate()
    return estimate.seconds * ratio if ratio and estimate.tokens else estimate.seconds


def _shape(settings: dict) -> str:
    """What decides how long a token takes."""
    train, optimizer = settings["train"], settings["optimizer"]
    kind = (optimizer["name"], train["batch_size"], train["sequence_length"])
    return json.dumps([settings["model"], *kind], sort_keys=True)
