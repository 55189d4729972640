"""Learning-rate and batch schedules as pure functions of the step. No torch here."""

from __future__ import annotations

import functools
import math

import numpy as np

from lrm.plan.config import ProbeConfig, ScheduleConfig, TrainConfig


def lr_factor(schedule: ScheduleConfig, steps: int, step: int) -> float:
    """What multiplies every group's LR at ``step`` (0-based) of ``steps``.

    Linear warmup over ``warmup_steps``, a constant stage at 1, then decay over the last
    ``decay_steps``, whose last step runs at ``1 / decay_factor`` (appendix A: exponential, by
    8); a decay to zero would reach it one step after the last, which would else be idle. Of
    ``decay_steps`` the last ``minimum_steps`` stay at ``1 / decay_factor`` (section 5.2). While
    the batch ramps up, times the square root of its size relative to the final one.
    """
    return _stage_factor(schedule, steps, step) * math.sqrt(batch_fraction(schedule, step))


def _stage_factor(schedule: ScheduleConfig, steps: int, step: int) -> float:
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    into_decay = step - constant_end(schedule, steps) + 1
    if into_decay <= 0:
        return 1.0
    falling = schedule.decay_steps - schedule.minimum_steps
    into_decay = min(into_decay, falling)
    if schedule.shape == "exponential":
        return schedule.decay_factor ** (-into_decay / falling)
    floor = 1 / schedule.decay_factor if schedule.decay_factor else 0.0
    done = into_decay / (falling + (schedule.decay_factor is None))
    if schedule.shape == "cosine":
        return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2
    return 1 - (1 - floor) * done


@functools.cache
def lr_factors(schedule: ScheduleConfig, steps: int) -> np.ndarray:
    """``lr_factor`` at every step, shape (steps,), read-only: many runs share one schedule."""
    ramps_end = max([schedule.warmup_steps, *(each.until_step for each in schedule.batch_ramp)])
    decays = max(ramps_end, constant_end(schedule, steps))
    factors = np.ones(steps)  # as in the constant stage, which may be millions of steps long
    for step in (*range(ramps_end), *range(decays, steps)):
        factors[step] = lr_factor(schedule, steps, step)
    factors.setflags(write=False)
    return factors


def constant_end(schedule: ScheduleConfig, steps: int) -> int:
    """Number of steps done when the decay begins, whatever its shape.

    That is the end of the warmup where there is no constant stage, and of the training where
    nothing decays.
    """
    return steps - schedule.decay_steps


def stage_ends(schedule: ScheduleConfig, steps: int) -> tuple[int, int]:
    """Numbers of steps done when the decay begins and when the training ends; both are measured."""
    return constant_end(schedule, steps), steps


def vector_steps(probes: ProbeConfig, schedule: ScheduleConfig, steps: int) -> set[int]:
    """The numbers of steps after which vectors are measured: at intervals and at stages' ends."""
    return {*range(0, steps + 1, probes.vectors_every), *stage_ends(schedule, steps)}


@functools.cache
def snapshot_steps(train: TrainConfig) -> tuple[int, ...]:
    """The numbers of steps after which weights are kept, in their order."""
    left, count = train.steps - train.snapshots_after, train.snapshots
    return tuple(train.steps - left * rest // count for rest in reversed(range(count)))


def batch_fraction(schedule: ScheduleConfig, step: int) -> float:
    """Size of the batch at ``step`` relative to ``train.batch_size``."""
    for stage in schedule.batch_ramp:
        if step < stage.until_step:
            return stage.fraction
    return 1.0


def batch_size_at(schedule: ScheduleConfig, batch_size: int, step: int) -> int:
    """Sequences of the batch at ``step``; ``batch_size`` is the final number."""
    return round(batch_fraction(schedule, step) * batch_size)


def sequences_before(schedule: ScheduleConfig, batch_size: int, step: int) -> int:
    """Sequences in all batches before ``step``."""
    total, begin = 0, 0
    for stage in schedule.batch_ramp:
        end = min(stage.until_step, step)
        total += (end - begin) * round(stage.fraction * batch_size)
        begin = end
    return total + (step - begin) * batch_size
