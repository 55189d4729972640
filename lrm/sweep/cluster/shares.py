"""How the runs of a sweep are shared out over jobs, and what that costs.

Runs of one shape make a share: what was compiled for one serves all of them. A share has as many
tasks as its estimated work needs. Each task gets all runs of the share, beginning with another one,
and claims them one after another. So no task is idle while runs are left, whatever the estimates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lrm.cli import columns
from lrm.plan.run import Run
from lrm.sweep.cluster.settings import Cluster
from lrm.sweep.twins import Job

_USED = 0.8  # of a task's hours


@dataclass(frozen=True)
class Share:
    """Runs of one shape, by how many ``tasks``; ``seconds`` of all runs, as estimated."""

    jobs: tuple[Job, ...]
    workers: int  # of each task
    tasks: int
    seconds: float

    def of_task(self, number: int) -> list[Job]:
        """All jobs, in the order in which the task with this number takes them."""
        start = number * len(self.jobs) // self.tasks
        return [*self.jobs[start:], *self.jobs[:start]]


def shares(jobs: Iterable[Job], cluster: Cluster, rate: float | None = None) -> list[Share]:
    """The jobs by shape; a run that begins with another's multipliers is in that one's share.

    ``rate`` is the tokens per second that was measured, where the estimate is not to be used.
    """
    found: dict[Any, list[Job]] = {}
    for job in jobs:
        found.setdefault(_shape(job[0]), []).append(job)
    return [_share(alike, cluster, rate) for alike in found.values()]


def _shape(run: Run) -> str:
    while run.after is not None:
        run = run.after
    train = run.settings.train
    sizes = (train.batch_size, train.sequence_length, train.multiplier_implementation)
    return repr((run.settings.model, sizes, run.execution))


def _share(jobs: Sequence[Job], cluster: Cluster, rate: float | None) -> Share:
    workers = cluster.workers(max(run.execution.threads for run, _ in jobs))
    seconds = sum(_seconds(run, rate) for run, _ in jobs)
    hours = cluster.work_hours or _USED * cluster.hours
    tasks = math.ceil(seconds / 3600 / hours / workers)
    most = min(math.ceil(len(jobs) / workers), cluster.most_tasks)
    return Share(tuple(jobs), workers, min(max(tasks, 1), most), seconds)


def _seconds(run: Run, rate: float | None) -> float:
    estimate = run.estimate()
    return estimate.tokens / rate if rate and estimate.tokens else estimate.seconds


def text(found: Sequence[Share], cluster: Cluster) -> list[str]:
    """What a dry run says of jobs, their hours and their price."""
    if not found:
        return ["no jobs: every run has finished"]
    head = ("share", "runs", "tasks", "runs at a time", "hours of work", "longest run")
    rows = [head]
    hours = dollars = 0.0
    for number, share in enumerate(found):
        own = share.seconds / 3600
        cost = share.jobs[0][0].cost
        price = cost.price_per_hour if cluster.price_per_hour is None else cluster.price_per_hour
        hours += own
        dollars += own * price * cost.devices
        longest = max(run.estimate().seconds for run, _ in share.jobs) / 3600
        rows.append((str(number), str(len(share.jobs)), str(share.tasks),
                     str(share.tasks * share.workers), _hours(own), _hours(longest)))  # fmt: skip
    tasks = sum(share.tasks for share in found)
    unit = "GPU hours" if cluster.gpus else "hours of one worker"
    gpus = f"{cluster.gpus} GPUs, " if cluster.gpus else ""
    return [
        f"jobs: {tasks} array tasks of {gpus}{cluster.cpus} CPUs and at most "
        f"{cluster.hours:g} hours each, {cluster.at_once} at a time",
        *columns(rows),
        f"{_hours(hours)} {unit}, about ${dollars:,.0f}; a run that is longer than a task's limit "
        "saves a checkpoint and is queued again",
    ]


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 0.05 else f"{hours:.2g}"
