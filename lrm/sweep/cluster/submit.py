"""Submits the runs that are missing by submitit, and waits until they have finished."""

from __future__ import annotations

import math
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lrm.cli import Display, bar, counted
from lrm.errors import UserError, first_line, printable
from lrm.store.files import make_folder
from lrm.store.lock import holder_of, start_of
from lrm.store.rundir import forget_failure, is_complete, read_failure
from lrm.sweep import machine, twins
from lrm.sweep.cluster.settings import Cluster
from lrm.sweep.cluster.shares import Share, check_noise, shares
from lrm.sweep.cluster.state import Submission, here, last_line, log_of, name_of, queued
from lrm.sweep.twins import Job

_GRACE = 0.75  # of the notice, for checkpoints; submitit needs the rest
_OFTEN = 10_000  # how often a task may be queued again
_POLL, _LONGEST_POLL = 0.5, 15.0  # seconds between two looks


def submit(jobs: Sequence[Job], results: Path, engine: str, cluster: Cluster) -> None:
    """Submit those of ``jobs`` that no task has on its list yet.

    Raises UserError where submitit is not installed, or the scheduler refuses the job.
    """
    results = results.resolve()
    if engine == "local":
        if unused := cluster.of_slurm:
            print(f"local tasks leave out what is SLURM's: {', '.join(unused)}")
        if machine.gpus():
            print("local tasks compute on CPUs; without --cluster a sweep takes the GPUs")
    already = queued(results)
    left = [
        (run, path)
        for run, path in twins.firsts(jobs)
        # A run that failed is left by the tasks that have it on their list.
        if name_of(run) not in already or read_failure(path) is not None
    ]
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of them are queued already, or copied from another")
    if not left:
        return
    found = shares([(run, path.resolve()) for run, path in left], cluster, results)
    check_noise(found, cluster)
    for _, path in left:
        forget_failure(path)
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder = make_folder(results / "cluster" / stamp)
    tasks = _submit(found, folder, engine, cluster, results / "data")
    Submission(
        folder,
        engine,
        tasks,
        [[name_of(run) for run, _ in share.jobs] for share in found],
        {name_of(run): {"scale": run.scale, "label": run.label} for run, _ in left},
        {task: start_of(int(task)) for task in tasks if engine == "local"},
        here(),
    ).write()
    counts = f"{counted(len(left), 'run')} in {counted(len(tasks), 'task')}"
    print(f"{counts}: {', '.join(tasks)}; their logs are in {folder}")


def _submit(
    found: Sequence[Share], folder: Path, engine: str, cluster: Cluster, corpora: Path
) -> dict[str, int]:
    """The share of each task, by the task's id."""
    try:
        import submitit
    except ImportError:
        raise UserError("--cluster needs submitit; run pip install 'lrm-suite[cluster]'") from None
    from lrm.sweep.cluster.job import Task

    grace = cluster.notice_seconds * _GRACE
    tasks: dict[Any, int] = {}
    try:
        make = submitit.LocalExecutor if engine == "local" else submitit.SlurmExecutor
        executor = make(folder, max_num_timeout=_OFTEN)
        executor.update_parameters(**_parameters(engine, cluster, found[0].jobs[0][0].experiment))
        for number, share in enumerate(found):
            calls = [Task(share.of_task(task), corpora, share.workers, grace, share.tasks)
                     for task in range(share.tasks)]  # fmt: skip
            with executor.batch():
                submitted = [executor.submit(call) for call in calls]
            tasks |= dict.fromkeys(submitted, number)
    except (RuntimeError, ValueError, OSError) as error:
        for job in tasks:  # of other shares: nobody would know of them
            job.cancel(check=False)
        if not tasks:
            shutil.rmtree(folder, ignore_errors=True)
        raise UserError(
            f"the jobs were not submitted ({_reason(error)}); {_remedy(engine)}"
        ) from None
    return {job.job_id: number for job, number in tasks.items()}


def _reason(error: Exception) -> str:
    """In a line: of several by sbatch the last, in which it gives up."""
    said = [line for line in str(error).splitlines() if line.startswith("sbatch: ")]
    return printable(said[-1]) if said else first_line(error)


def _remedy(engine: str) -> str:
    change = "change cluster.yaml or --cluster-set"
    if engine == "local":
        return change
    return f"see whether sinfo works here; if it does, {change}, else use --cluster local"


def _parameters(engine: str, cluster: Cluster, experiment: str) -> dict[str, Any]:
    """By the names that submitit has for the engine's."""
    minutes = math.ceil(cluster.hours * 60)
    common = {"gpus_per_node": cluster.gpus or None, "setup": list(cluster.setup) or None}
    if engine == "local":
        given = {**common, "timeout_min": cluster.hours * 60}
    else:
        given = {
            **common,
            "job_name": f"lrm-{experiment}",
            "time": minutes,
            "partition": cluster.partition,
            "account": cluster.account,
            "qos": cluster.qos,
            "cpus_per_task": cluster.cpus,
            "mem": cluster.memory_gb and f"{math.ceil(cluster.memory_gb * 1024)}MB",
            "ntasks_per_node": 1,
            "array_parallelism": cluster.at_once or cluster.most_tasks,  # submitit has 256
            # srun does not take it over from sbatch in every version of SLURM.
            "srun_args": [f"--cpus-per-task={cluster.cpus}", *cluster.container],
            "additional_parameters": {"requeue": True, **cluster.sbatch},
        }
    given["signal_delay_s"] = cluster.notice_seconds
    return {name: value for name, value in given.items() if value is not None}


def wait(jobs: Sequence[Job], results: Path) -> None:
    """Until all jobs have finished, showing how many have.

    Raises UserError where no task is left that could train those that are missing; it names the
    first failure, or the task that ended before its run began, and the last line of its log.
    """
    display, pause = Display(["cluster"]), _POLL
    gone = 0
    while True:
        left = [job for job in jobs if not is_complete(job[1])]
        waiting = queued(results)
        holders = {name_of(run): holder_of(path) for run, path in left}
        running = sum(holder is not None for holder in holders.values())
        done = len(jobs) - len(left)
        failed = sum(read_failure(path) is not None for _, path in left)
        line = (f"{bar(done / len(jobs))} {done}/{len(jobs)} runs finished, {running} running, "
                f"{len(left) - running - failed} left")  # fmt: skip
        line += f", {failed} failed (make list says why)" if failed else ""
        display.show([line], last=not left)
        if not left:
            return
        # Twice: what a task has just finished may not be seen here yet.
        gone = 0 if any(holders[name] or name in waiting for name in holders) else gone + 1
        if gone > 1:
            break
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_POLL)
    twins.copy_finished(jobs)
    left = [job for job in left if not is_complete(job[1])]
    if left:
        are = "run is" if len(left) == 1 else "runs are"
        raise UserError(
            f"{len(left)} {are} not finished: {_why(left, results)}. The same command submits "
            "them again"
        )


def _why(left: Sequence[Job], results: Path) -> str:
    for run, path in left:
        if (failure := read_failure(path)) is not None:
            return f"{run.label}: {failure['error']}{_told(failure['log'])}"
    run = left[0][0]
    return f"the tasks of {run.label} ended before it did{_told(log_of(run, results))}"


def _told(log: str | Path | None) -> str:
    if log and Path(log).is_dir():
        return f" ({log} has no log of it: look at setup and container)"
    return f" ({log}: {last_line(log) or 'empty'})" if log else ""
