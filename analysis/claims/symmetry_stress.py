"""Judging functions of S6 and LOG1: drift in half precision, log-scale multipliers (4.1).

Losses in nats per token after the decay, differences paired by seed. FASTER drifts at ten times the
multipliers' LR, FASTER_LIGHT is held by light weight decay at the same LR, FAST has five times it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.claims.judging import Judgement, at_least, at_most, judgement
from analysis.quantities import symmetry
from analysis.quantities.losses import diverged, losses_by_arm, rise
from analysis.tables.results import Tables

HARM = "harm in half precision"
GAIN = "at most a slight gain"


def s6(tables: Tables, criterion: dict) -> Judgement:
    """What half precision costs where multipliers drift, beyond its cost where they are held.

    It is a harm, and ours: the paper's statement is of divergence or NaN.
    """
    losses, limit = losses_by_arm(tables), criterion["thresholds"]["harm"]
    parts = [
        at_least("(bfloat16 − float32), drifting less held (nats)", _harm(losses), limit, HARM,
                 ours=True, matters=criterion["smallest_effect"])
    ]  # fmt: skip
    costs = ", ".join(
        f"{text} {_of_half_precision(losses, arm).mean():+.4f}"
        for text, arm in (("held", "FASTER_LIGHT"), ("usual LR", "FREE"))
    )
    return judgement(criterion, parts, f"bfloat16 − float32: {costs}; {_streams(tables)}")


def s6_2(tables: Tables, criterion: dict) -> Judgement:
    """How many drifting runs diverge in half precision; ours: what drift costs, in nats."""
    limits, size, losses = (
        criterion["thresholds"],
        criterion["smallest_effect"],
        losses_by_arm(tables),
    )
    group = "divergence in half precision"
    drifting, held = (
        diverged(tables, arm, limits["rise"]) for arm in ("FASTER_BF16", "FASTER_LIGHT_BF16")
    )
    parts = [
        at_least("share of drifting runs in bfloat16 that diverge", drifting, limits["share"],
                 group),
        at_least("(bfloat16 − float32), drifting less held (nats)", _harm(losses), limits["harm"],
                 HARM, ours=True, matters=size),
        at_least("float32: drifting − held (nats)", losses["FASTER"] - losses["FASTER_LIGHT"],
                 limits["harm"], "harm in float32", ours=True, matters=size),
    ]  # fmt: skip
    name = "share of runs in bfloat16 that diverge although they are held"
    contrast = [at_most(name, held, limits["share"], group)]
    return judgement(criterion, parts, _streams(tables), contrast)


def _harm(losses: pd.DataFrame) -> pd.Series:
    """Cost of half precision where multipliers drift, less that where they are held."""
    return _of_half_precision(losses, "FASTER") - _of_half_precision(losses, "FASTER_LIGHT")


def _of_half_precision(losses: pd.DataFrame, arm: str) -> pd.Series:
    return losses[f"{arm}_BF16"] - losses[arm]


def _streams(tables: Tables) -> str:
    arms = ("FREE", "FREE_BF16", "FASTER_LIGHT", "FASTER_LIGHT_BF16", "FASTER", "FASTER_BF16")
    ends = {
        arm: symmetry.residual(tables, arm).xs(tables.stage_end, level="step").mean()
        for arm in arms
    }
    return "residual norm " + ", ".join(f"{arm} {np.exp(log):.3g}" for arm, log in ends.items())


def log1(tables: Tables, criterion: dict) -> Judgement:
    """Log-scale multipliers: at most a slight gain, and instability."""
    limits, losses = criterion["thresholds"], losses_by_arm(tables)
    size = criterion["smallest_effect"]
    parts = [
        at_most("direct − log-scale (nats)", losses["FREE"] - losses["LOG"], limits["gain"], GAIN),
        at_least("largest rise of the training loss, log-scale − direct (nats)",
                 rise(tables, "LOG") - rise(tables, "FREE"), limits["worse"],
                 "a training loss that jumps at the usual LR", matters=size),
        at_least("five times the LR: loss, log-scale − direct (nats)",
                 losses["LOG_FAST"] - losses["FAST"], limits["worse"],
                 "a worse loss at five times the LR", matters=size),
    ]  # fmt: skip
    return judgement(criterion, parts)


def log1_2(tables: Tables, criterion: dict) -> Judgement:
    """The same, with jumps of the training loss at both LRs; ours: the loss at the larger one."""
    limits, losses = criterion["thresholds"], losses_by_arm(tables)
    parts = [
        at_most("direct − log-scale (nats)", losses["FREE"] - losses["LOG"], limits["gain"], GAIN)
    ]
    for text, log, direct in (("the usual LR", "LOG", "FREE"),
                              ("five times the LR", "LOG_FAST", "FAST")):  # fmt: skip
        parts.append(
            at_least(f"{text}: largest rise of the training loss, log-scale − direct (nats)",
                     rise(tables, log) - rise(tables, direct), limits["jump"],
                     f"a training loss that jumps at {text}",
                     matters=criterion["smallest_effect"])
        )  # fmt: skip
    parts.append(
        at_least("five times the LR: loss, log-scale − direct (nats)",
                 losses["LOG_FAST"] - losses["FAST"], limits["worse"],
                 "a worse loss at five times the LR", ours=True)
    )  # fmt: skip
    return judgement(criterion, parts)
