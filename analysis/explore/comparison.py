"""Own runs beside the published ones of the same experiment, and what was changed in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.tables.context import published_beside, seeds_of
from analysis.tables.find import EXPERIMENTS, RESULTS
from analysis.tables.results import Tables
from lrm.errors import UserError
from lrm.plan.experiment import load


def compare(
    experiment: str, changed: str | None = None, scale: str = "tiny", results: Path = RESULTS
) -> pd.DataFrame:
    """The ``scalars`` of the published runs, and below them those of all own runs.

    Two columns more: ``source``, and ``changes``, the settings in which a run differs from what
    the experiment's YAML asks for, such as ``train.steps=200``, and the corpus where no published
    run has it. ``changed`` keeps of the own runs
    those with this one among their changes.

    Raises NothingFound where one side has no runs, and UserError where no run was changed so.
    """
    beside = published_beside(scale, results)
    published = Tables.load(experiment, scale, "reference", beside)
    own = Tables.load(experiment, scale, "runs", results, configuration="all")
    changes = _changes(experiment, scale, own.runs)
    texts = {d["corpus"]["hash"] for d in published.runs["description"] if d["corpus"]}
    for description in own.runs["description"]:
        # Of another Python's standard library the settings are the same.
        if description["corpus"] and description["corpus"]["hash"] not in texts:
            changes[description["id"]].append(f"corpus={description['corpus']['name']}")
    if changed is not None:
        if changed not in {one for those in changes.values() for one in those}:
            known = sorted({", ".join(those) for those in changes.values()} - {""})
            raise UserError(
                f"no own run of {experiment} at {scale} has the change {changed!r}; there are "
                + ("; ".join(known) or "only runs as the YAML asks for")
            )
        changes = {run: those for run, those in changes.items() if changed in those}
    named = {run: ", ".join(those) for run, those in changes.items()}
    mine = own.scalars[own.scalars["run"].isin(named.keys())]
    return pd.concat(
        [
            published.scalars.assign(source="reference", changes=""),
            mine.assign(source="runs", changes=mine["run"].map(named)),
        ],
        ignore_index=True,
    )


def _changes(experiment: str, scale: str, runs: pd.DataFrame) -> dict[str, list[str]]:
    """For each run its changes; a run whose label the YAML does not ask for has that as one."""
    planned = {
        (run.kind, run.label): run.settings.model_dump(mode="json")
        for run in load(EXPERIMENTS / experiment / "config.yaml").runs(scale, seeds_of(runs))
    }
    found = {}
    for description in runs["description"]:
        asked = planned.get((description["kind"], description["label"]))
        found[description["id"]] = (
            ["another configuration"]
            if asked is None
            else list(_differences(asked, description["settings"]))
        )
    return found


def _differences(asked: Any, has: Any, key: str = "") -> Iterator[str]:
    if isinstance(asked, dict) and isinstance(has, dict):
        for name in sorted(asked.keys() | has.keys()):
            inside = f"{key}.{name}" if key else name
            yield from _differences(asked.get(name), has.get(name), inside)
    elif asked != has:
        yield f"{key}={has}"
