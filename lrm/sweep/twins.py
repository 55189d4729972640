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
    needed = {run.after_id for run, _ in jobs} | {run.id for run, path in jobs if path.exists()}
    found: dict[str, Job] = {}
    for job in jobs:
        found.setdefault(job[0].computation, job)
    chosen = {run.id for run, _ in found.values()} | needed
    return [job for job in jobs if job[0].id in chosen]


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
