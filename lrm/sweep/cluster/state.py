"""Which runs are queued on a cluster, as their submissions and SLURM tell it; from any machine.

``results/cluster/<submission>/jobs.json`` lists the tasks of an array job and the runs of each.
Beside it lie submitit's files: what each task does, its logs and how it ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lrm.errors import UserError
from lrm.plan.run import Run
from lrm.store.files import read_json, write_json
from lrm.store.lock import start_of

_TAIL = 1 << 14  # bytes of a log, of which the last line is told
_ENDED = "ended"  # a file in the folder of a submission that has no task left


@dataclass(frozen=True)
class Submission:
    """One call of submitit; a run is named ``<experiment>/<id>``."""

    folder: Path
    engine: str
    tasks: dict[str, int]  # the share of each task, by the task's id
    shares: list[list[str]]  # the runs of each share
    runs: dict[str, dict[str, str]]  # ``scale`` and ``label`` of each run
    # When each process started that is a task of the submitter's machine; none of SLURM's.
    starts: dict[str, str] = field(default_factory=dict)
    by: str = ""  # who has submitted, and where

    def write(self) -> None:
        """To its folder."""
        record = dataclasses.asdict(self)
        del record["folder"]
        write_json(self.folder / "jobs.json", record)

    def active(self, queue: dict[str, str] | None) -> dict[str, str]:
        """The tasks that have not ended, each with its state in small letters.

        ``queue`` is what SLURM says of the user's tasks; None where it does not answer here. Once
        the submitter sees none any more, a file in the folder says so.
        """
        left = [task for task in self.tasks if not self._result(task).exists()]
        if self.engine == "local":
            found = {
                task: "running"
                for task in left
                if (start := self.starts.get(task)) and start_of(int(task)) == start
            }
        elif queue is None:
            found = dict.fromkeys(left, "submitted")
        else:
            found = {task: queue[task] for task in left if task in queue}
        # Others' tasks are not in the queue, and those of other machines may not be seen.
        if not left or (not found and self.by == here()):
            with contextlib.suppress(OSError):
                (self.folder / _ENDED).touch()
        return found

    def _result(self, task: str) -> Path:
        return self.folder / f"{task}_0_result.pkl"


def name_of(run: Run) -> str:
    """``<experiment>/<id>``."""
    return f"{run.experiment}/{run.id}"


def submissions(results: Path) -> list[Submission]:
    """Those that have not ended, the oldest first; those that cannot be read are left out."""
    files = sorted((results / "cluster").glob("*/jobs.json"))
    return _read(file for file in files if not (file.parent / _ENDED).exists())


def _read(files: Iterable[Path]) -> list[Submission]:
    found = []
    for file in files:
        with contextlib.suppress(UserError, TypeError):
            found.append(Submission(file.parent, **read_json(file, ("tasks", "runs"))))
    return found


def log_of(run: Run, results: Path) -> Path | None:
    """The newest error log of a task that had the run on its list, or the folder that has none."""
    for submission in _read(sorted((results / "cluster").glob("*/jobs.json"), reverse=True)):
        if name_of(run) in submission.runs:
            shares = {
                number for number, names in enumerate(submission.shares) if name_of(run) in names
            }
            tasks = [task for task, share in submission.tasks.items() if share in shares]
            logs = [log for task in tasks for log in submission.folder.glob(f"{task}_*.err")]
            return max(logs, key=lambda log: log.stat().st_mtime, default=submission.folder)
    return None


def queued(results: Path) -> dict[str, dict[str, str]]:
    """By run: the tasks that have it on their list and have not ended, each with its state."""
    found: dict[str, dict[str, str]] = {}
    known = submissions(results)
    queue = _queue() if any(each.engine == "slurm" for each in known) else None
    for submission in known:
        for task, state in submission.active(queue).items():
            for run in submission.shares[submission.tasks[task]]:
                found.setdefault(run, {})[task] = state
    return found


def last_line(log: Path | str | None) -> str:
    """The last line of a log that says something; empty where there is none."""
    with contextlib.suppress(OSError, TypeError), open(log, "rb") as file:
        file.seek(max(file.seek(0, 2) - _TAIL, 0))
        lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


def is_running(job: str) -> bool:
    """Whether SLURM says so of this job: it does while it preempts, and not after ``scancel``.

    ``job`` is ``N_k`` of a task of an array: N alone is also the number of one of its tasks, and
    names all of them.
    """
    command = ["squeue", f"--jobs={job}", "--noheader", "--format=%T"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return found.stdout.strip() == "RUNNING"
    return False


def here() -> str:
    """This user on this machine."""
    return f"{os.getuid()}@{socket.gethostname()}"


def _queue() -> dict[str, str] | None:
    """The state of each of the user's jobs; None where SLURM cannot be asked."""
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i %T"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    words = (line.split() for line in found.stdout.splitlines())
    return {job: state.lower() for job, state in words}
