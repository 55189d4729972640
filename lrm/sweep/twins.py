"""Runs that compute the same under different names: trained once, and copied for the others.

Two tiers of a search that kept no change are such arms. What is copied says so in its ``run.json``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from lrm.plan.run import Run
from lrm.store.files import write_atomic, write_json
from lrm.store.rundir import is_complete, open_run, read_description

Job = tuple[Run, Path]  # a run and its directory
_COPIED = ("scalars.parquet", "vectors.parquet", "weights.pt")


def firsts(jobs: Iterable[Job]) -> list[Job]:
    """Of jobs that compute the same the first, and every job that another comes after."""
    jobs = list(jobs)
    needed = {run.after_id for run, _ in jobs}
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
    with open_run(path):
        for name in _COPIED:
            if (source / name).exists():
                write_atomic(path / name, (source / name).read_bytes())
        known = read_description(source)
        write_json(path / "run.json", {**known, **run.describe(), "computed_as": known["id"]})
        shutil.copyfile(source / "done.json", path / "done.json")
