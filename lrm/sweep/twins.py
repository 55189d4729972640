"""Runs that compute the same under different names: trained once, and copied for the others.

Two tiers of a search that kept no change are such arms. What is copied says so in its ``run.json``.
Runs that judge are copied within their experiment alone: those of another one ran before, or
after, the criteria of this one were fixed, and a copy would hide which.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from lrm.cli import FIRST_JUDGING_SEED
from lrm.errors import UserError, line_of
from lrm.plan.run import Run
from lrm.store.rundir import check_results, is_begun, is_complete, open_run, read_description

Job = tuple[Run, Path]  # a run and its directory


def kind(run: Run) -> tuple[str, str]:
    """What twins have in common; of runs that have an id."""
    judges = run.criteria and run.seed >= FIRST_JUDGING_SEED
    return run.computation, run.experiment if judges else ""


def firsts(jobs: Iterable[Job]) -> list[Job]:
    """Of jobs that compute the same the first, every job that another comes after, and those begun.

    What was begun goes on by itself, and is copied from none.
    """
    jobs = list(jobs)
    needed = {source(*job) for job in jobs} | {path for _, path in jobs if is_begun(path)}
    found: dict[tuple[str, str], Path] = {}
    for run, path in jobs:
        found.setdefault(kind(run), path)
    # By directory: arms of two experiments may have one id.
    chosen = needed.union(found.values())
    return [job for job in jobs if job[1] in chosen]


def source(run: Run, path: Path) -> Path | None:
    """The directory of the run that ``run``, whose own is ``path``, comes after, if any."""
    return None if run.after is None else path.parent / run.after_id


def copy_finished(jobs: Iterable[Job]) -> int:
    """Finish the runs that compute what a finished one of ``jobs`` has; how many they were.

    A run that was begun goes on by itself: its directory is not touched. Nor is a run finished
    whose twin is damaged: that is told, and it can be trained.
    """
    jobs = list(jobs)
    finished = {kind(run): path for run, path in jobs if is_complete(path)}
    waiting = [(run, path) for run, path in jobs
               if kind(run) in finished and not is_begun(path)]  # fmt: skip
    return sum(_copy(run, finished[kind(run)], path) for run, path in waiting)


def _copy(run: Run, source: Path, path: Path) -> bool:
    """Whether it could be copied."""
    try:
        known = read_description(source)
        check_results(source)
    except UserError as error:
        print(line_of(error), file=sys.stderr)
        return False
    said = {**known, **run.describe(), "computed_as": known.get("computed_as", known["id"])}
    if known.get("experiment") == run.experiment:
        # Those that stood when it was trained.
        said["criteria"] = known.get("criteria", {})
    # Another sweep may be about to copy it too.
    with open_run(path, waits=True) as directory:
        if not directory.complete:
            directory.take_over(source, said)
    return True
