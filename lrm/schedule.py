"""Learning-rate schedule as a pure function of the step. No torch here."""

from __future__ import annotations

import numpy as np

from lrm.config import ScheduleConfig


def lr_factor(schedule: ScheduleConfig, steps: int, step: int) -> float:
    """What multiplies every group's LR at ``step`` (0-based) of ``steps``.

    Linear warmup over ``warmup_steps``, a constant stage at 1, then exponential decay over the
    last ``decay_steps``, whose last step runs at ``1 / decay_factor`` (appendix A: 8).
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    into_decay = step - constant_end(schedule, steps) + 1
    if into_decay > 0:
        return schedule.decay_factor ** (-into_decay / schedule.decay_steps)
    return 1.0


def lr_factors(schedule: ScheduleConfig, steps: int) -> np.ndarray:
    """``lr_factor`` at every step, shape (steps,)."""
    return np.array([lr_factor(schedule, steps, step) for step in range(steps)])


def constant_end(schedule: ScheduleConfig, steps: int) -> int:
    """Number of steps done when the constant stage ends."""
    return steps - schedule.decay_steps
