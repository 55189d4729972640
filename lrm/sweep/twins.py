"""Runs that compute the same under different names: trained once, and copied for the others.

Two tiers of a search that kept no change are such arms. What is copied says so in its ``run.json``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lrm.plan.run import Run
from lrm.store.rundir import is_complete, open_run, read_description

Job = tuple[Run, Path]  # a run and its directory


def firsts(jobs: Iterable[Job]) -> list[Job]:
    """Of jobs that compute the same the first, every job that another comes after, and those begun.

    What was begun goes on by itself, and is copied from none.
    """
    jobs = list(jobs)
    needed = {source(*job) for job in jobs} | {path for _, path in jobs if path.exists()}
    found: dict[str, Path] = {}
    for run, path in jobs:
        found.setdefault(run.computation, path)
    # By directory: arms of two experiments may have one id.
    chosen = needed.union(found.values())
    return [job for job in jobs if job[1] in chosen]


def source(run: Run, path: Path) -> Path | None:
    """The directory of the run that ``run``, whose own is ``path``, comes after, if any."""
    return None if run.after is None else path.parent / run.after_id


def copy_finished(jobs: Iterable[Job]) -> int:
    """Finish the runs that compute what a finished one of ``jobs`` has; how many they were.

    A run that was begun goes on by itself: its directory is not touched.
    """
    jobs = list(jobs)
    finished = {run.computation: path for run, path in jobs if is_complete(path)}
    waiting = [(run, path) for run, path in jobs
               if run.computation in finished and not path.exists()]  # fmt: skip
    for run, path in waiting:
        _copy(run, finished[run.computation], path)
    return len(waiting)


def _copy(run: Run, source: Path, path: Path) -> None:
    # Another sweep may be about to copy it too.
    with open_run(path, waits=True) as directory:
        if directory.complete:
            return
        known = read_description(source)
        directory.take_over(source, {**known, **run.describe(), "computed_as": known["id"]})
