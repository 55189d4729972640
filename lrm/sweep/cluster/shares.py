"""How the runs of a sweep are shared out over jobs, and what that costs.

Runs of one model, on batches of one size, make a share: most of what was compiled for one serves
the others. A share has as many tasks as its estimated work needs. Each task gets all runs of the
share, beginning with another one, and claims them one after another. So no task is idle while runs
are left, whatever the estimates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrm.cli import columns, size
from lrm.errors import UserError
from lrm.plan.cost import price
from lrm.plan.run import Run
from lrm.sweep import speed
from lrm.sweep.cluster.settings import Cluster
from lrm.sweep.twins import Job

_USED = 0.8  # of a task's hours


@dataclass(frozen=True)
class Share:
    """Runs of one size, by how many ``tasks``; ``seconds`` of all runs, and of the ``longest``.

    ``unsaved``: the longest of those that begin again when they are stopped, and its seconds.
    ``measured``: seconds follow from runs that have finished, and not from the scale's device.
    """

    jobs: tuple[Job, ...]
    workers: int  # of each task
    tasks: int
    seconds: float
    longest: float
    unsaved: tuple[Run, float] | None = None
    measured: bool = False

    def of_task(self, number: int) -> list[Job]:
        """All jobs, the one first with which this task begins; its sweep orders the rest."""
        start = number * len(self.jobs) // self.tasks
        return [*self.jobs[start:], *self.jobs[:start]]


def shares(jobs: Iterable[Job], cluster: Cluster, results: Path | None = None) -> list[Share]:
    """The jobs by size; a run that begins with another's multipliers is in that one's share.

    Runs of the same model that have finished in ``results`` say how long these take; else estimates
    do.
    """
    found: dict[Any, list[Job]] = {}
    places: dict[tuple[str, str], list[Run]] = {}
    for job in jobs:
        found.setdefault(_sizes(job[0]), []).append(job)
        places.setdefault((job[0].experiment, job[0].scale), []).append(job[0])
    ratios = {}
    if results is not None:
        ratios = {place: speed.measured(results, runs) for place, runs in places.items()}

    def shared(alike: list[Job]) -> Share:
        own = [ratios.get((run.experiment, run.scale)) for run, _ in alike]
        seconds = [speed.seconds(run, ratio) for (run, _), ratio in zip(alike, own, strict=True)]
        return _share(alike, cluster, seconds, all(own))

    return [shared(alike) for alike in found.values()]


def _sizes(run: Run) -> str:
    while run.after is not None:
        run = run.after
    train = run.settings.train
    sizes = (train.batch_size, train.sequence_length, train.multiplier_implementation)
    # Noise needs no GPU, and would hold one from which training is kept.
    return repr((run.trains, run.settings.model, sizes, run.execution))


def _share(
    jobs: Sequence[Job], cluster: Cluster, seconds: Sequence[float], measured: bool
) -> Share:
    workers = cluster.workers(max(run.execution.threads for run, _ in jobs))
    hours = cluster.work_hours or _USED * cluster.hours
    tasks = math.ceil(sum(seconds) / 3600 / hours / workers)
    most = min(math.ceil(len(jobs) / workers), cluster.most_tasks)
    timed = zip((run for run, _ in jobs), seconds, strict=True)
    noise = [(run, took) for run, took in timed if not run.trains and run.kind != "evaluation"]
    unsaved = max(noise, key=lambda one: one[1], default=None)
    tasks = min(max(tasks, 1), most)
    return Share(tuple(jobs), workers, tasks, sum(seconds), max(seconds), unsaved, measured)


def check_noise(found: Sequence[Share], cluster: Cluster) -> None:
    """Raise UserError where a run on noise, which is not saved, would begin again at each limit."""
    for share in found:
        if share.unsaved is not None and share.unsaved[1] > 3600 * cluster.hours:
            run, seconds = share.unsaved
            raise UserError(
                f"{run.experiment} {run.label} takes about {_hours(seconds / 3600)} hours, is not "
                f"saved, and would begin again at the limit of {cluster.hours:g} hours; choose "
                "other runs by --only, or raise hours"
            )


def text(found: Sequence[Share], cluster: Cluster) -> list[str]:
    """What a dry run says of jobs, their hours and their price."""
    if not found:
        return ["no jobs: every run has finished"]
    told = []
    try:
        check_noise(found, cluster)
    except UserError as error:
        told.append(f"not as it stands: {error}")
    if cluster.gpus > 1 and any(len(share.jobs) % share.workers for share in found):
        told.append("a task keeps all of its GPUs until its last run ends: make the runs of a "
                    "share a multiple of those at a time, or give tasks one")  # fmt: skip
    for device in sorted({
        share.jobs[0][0].cost.device for share in found
        if share.jobs[0][0].trains and not share.measured
    }):  # fmt: skip
        if bool(cluster.gpus) == device.endswith("CPU core"):
            told.append(f"hours are those of a {device}, and tasks have "
                        f"{'GPUs' if cluster.gpus else 'none'}: name the device of theirs and its "
                        "speed by --set cost.device=… and cost.flops_per_second=…")  # fmt: skip
    head = ("share", "runs", "tasks", "runs at a time", "hours of work", "longest run")
    rows = [head]
    hours = dollars = 0.0
    for number, share in enumerate(found):
        own = share.seconds / 3600
        run = share.jobs[0][0]
        scale = run.cost.price_per_hour
        per_hour = scale if cluster.price_per_hour is None else cluster.price_per_hour
        hours += own * run.estimate().devices
        dollars += own * run.estimate().devices * per_hour
        numbers = (number, len(share.jobs), share.tasks, share.tasks * share.workers)
        rows.append((*map(str, numbers), _hours(own), _hours(share.longest / 3600)))
    tasks = sum(share.tasks for share in found)
    unit = "GPU hours" if cluster.gpus else "hours of one worker"
    gpus = f"{cluster.gpus} GPUs, " if cluster.gpus else ""
    at_once = f"{cluster.at_once} of a share" if cluster.at_once else "all"
    # Three copies of the weights, and a second file while the first is replaced.
    saved = sum(
        24 * share.jobs[0][0].estimate().parameters * share.workers
        * min(share.tasks, cluster.at_once or share.tasks)
        for share in found if share.jobs[0][0].trains
    )  # fmt: skip
    return [
        f"jobs: {tasks} array tasks of {gpus}{cluster.cpus} CPUs and at most "
        f"{cluster.hours:g} hours each, {at_once} at a time",
        *columns(rows),
        f"{_hours(hours)} {unit}{price(dollars)}; a run that is longer than a task's limit saves a "
        f"checkpoint and is queued again; checkpoints take {size(saved)} meanwhile",
        *told,
    ]


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 0.05 else f"{hours:.2g}"
