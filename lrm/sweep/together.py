"""Which runs a process of a sweep trains at once (``lrm.train.batched``). No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lrm.plan.cost import COMPILED_FROM
from lrm.plan.rules import point_factors
from lrm.plan.run import Run
from lrm.sweep.machine import gpus
from lrm.sweep.twins import Job

# At most, where ``execution.batch_runs`` is auto. On CPUs auto is off: a run's bits, which are
# promised there, would depend on what runs beside it, and little is gained (``make bench`` has the
# rows "runs at once").
MOST = 16


def most(run: Run) -> int:
    """How many runs of its shape are trained at once with it, as ``execution.batch_runs`` says.

    ``auto`` means 16 on a GPU, of which the process takes as many as fit, and 1 elsewhere.
    """
    asked = run.execution.batch_runs
    if asked != "auto":
        return asked
    device = run.execution.device
    return MOST if device.startswith("cuda") or (device == "auto" and gpus()) else 1


def obstacle(run: Run) -> str | None:
    """Why a run cannot be trained together with others; None where it can."""
    execution = run.execution
    if run.performed_together_by is None:
        return f"runs of the kind {run.kind} go by themselves"
    if run.settings.train.multiplier_implementation == "optimizer" and any(
        plan.multipliers for plan in run.plans
    ):
        return "train.multiplier_implementation = optimizer builds the weights of one run at a time"
    if run.settings.model.experts is not None:
        return "model.experts sorts the tokens of one run at a time"
    if execution.micro_batch:
        return "execution.micro_batch splits the batch of one run"
    if execution.recompute:
        return "execution.recompute is for models too large for that"
    if execution.parallel is not None:
        return "execution.parallel is for models too large for that"
    return None


def shape(run: Run) -> tuple:
    """The same for runs that may be trained at once, which have no ``obstacle``.

    They have the same model, tensors that learn, fixed factors and kinds of multipliers, and go
    through equally large batches for equally many steps. ``execution.compile = auto`` decides alike
    for all of them, as it does for each alone. Seeds, rates, initial values, data orders, clipping
    and probes may differ.
    """
    train = run.settings.train
    tensors = tuple(
        (plan.key, plan.forward, plan.trainable)
        + tuple((each.axis, each.parametrization.name) for each in plan.multipliers)
        for plan in run.plans
    )
    points = tuple(sorted(point_factors(run.settings).items()))
    sizes = (train.steps, train.batch_size, train.sequence_length, train.z_loss)
    ramp = run.settings.schedule.batch_ramp
    is_long = run.estimate().seconds >= COMPILED_FROM
    return (type(run), run.settings.model, tensors, points, sizes, ramp, run.execution, is_long)


def companions(job: Job, ready: Sequence[Job], workers: int) -> list[Job]:
    """``job``, and those of the ``ready`` ones that are trained at once with it.

    Runs of one shape are shared out evenly over the ``workers`` that there are.
    """
    run = job[0]
    number = most(run)
    if number == 1 or obstacle(run) is not None:
        return [job]
    own = shape(run)
    able = [other for other in ready if other is not job and obstacle(other[0]) is None]
    others = [other for other in able if shape(other[0]) == own]
    number = min(number, math.ceil((1 + len(others)) / workers))
    return [job, *others[: number - 1]]


def told(runs: Sequence[Run]) -> list[str]:
    """What a dry run says of it: lines."""
    asked = [run for run in runs if run.trains and most(run) > 1]
    if not asked:
        return []
    reasons = dict.fromkeys(filter(None, map(obstacle, asked)))
    lots: dict[tuple, int] = {}
    for run in asked:
        if obstacle(run) is None:
            lots[shape(run)] = lots.get(shape(run), 0) + 1
    lines = []
    if lots:
        counts = ", ".join(map(str, lots.values()))
        lines.append(
            f"trained at once: up to {most(asked[0])} runs of one shape; there are {counts} runs "
            "of the same shape"
        )
    alone = len(asked) - sum(lots.values())
    if alone:
        lines.append(f"trained one by one: {alone} runs; {'; '.join(reasons)}")
    return lines
