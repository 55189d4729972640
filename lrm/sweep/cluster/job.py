"""What one task of an array job does: a sweep over its share of the runs.

submitit calls it, and calls ``checkpoint`` at its signal (SIGUSR2), which SLURM sends before the
time limit. The workers save, and submitit queues the task again. SLURM announces a preemption, and
a ``scancel``, by SIGTERM. Then the workers save too, and after a preemption the task is queued
again. SLURM itself would not do so, because the task ends before SLURM has to kill it.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from submitit import JobEnvironment
from submitit.helpers import DelayedSubmission

from lrm.errors import Stopped, UserError
from lrm.store.rundir import is_complete
from lrm.sweep.cluster.state import is_running
from lrm.sweep.machine import check_device_by_torch
from lrm.sweep.scheduler import Shift, Sweep
from lrm.sweep.twins import Job


class Task:
    """Trains those of ``jobs`` that no other of the ``tasks`` trains, ``workers`` at a time."""

    def __init__(
        self, jobs: Sequence[Job], corpora: Path, workers: int, grace: float, tasks: int = 1
    ):
        self.given = (jobs, corpora, workers, grace, tasks)
        self._sweep: Sweep | None = None

    def __call__(self) -> int:
        """Returns how many of the jobs have finished, whoever trained them.

        Raises UserError where this machine has not the device of a run, and UserError or
        RuntimeError where a run failed; exits where a signal asked it to stop.
        """
        jobs, corpora, workers, grace, *more = self.given
        tasks = more[0] if more else 1  # of a task that an earlier version has queued
        left = [job for job in jobs if not is_complete(job[1])]
        if left:
            # A broken GPU would fail one run after another, which other tasks could train.
            on_gpus = (run for run, _ in left if run.trains or run.kind == "evaluation")
            for name in sorted({run.execution.device for run in on_gpus}):
                check_device_by_torch(name)
            shift = Shift(grace, JobEnvironment().paths.stderr, tasks)
            self._sweep = Sweep(left, corpora, workers, shift=shift)
            try:
                self._sweep.run()
            except Stopped as stop:
                place = JobEnvironment()
                if place.cluster == "slurm" and is_running(place.job_id):
                    signal.raise_signal(getattr(signal, f"SIG{place.USR_SIG}"))
                raise SystemExit(128 + stop.args[0]) from None
            except UserError as error:
                raise UserError(f"{error}; the other runs of this task were not stopped") from None
        return sum(is_complete(path) for _, path in jobs)

    def checkpoint(self) -> DelayedSubmission:
        """Have the workers save; what is to be done when the task starts again."""
        if self._sweep is not None:
            self._sweep.end()
        return DelayedSubmission(Task(*self.given))
