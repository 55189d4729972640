"""Judging function of S6.3: drift of multipliers in float16 (4.1).

FASTER drifts at ten times the multipliers' LR, FASTER_LIGHT is held by light weight decay at the
same LR. Both are in float16.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.claims.judging import Judgement, at_least, at_most, judgement
from analysis.quantities.losses import rise
from analysis.tables.results import Tables


def s6_3(tables: Tables, criterion: dict) -> Judgement:
    """How many drifting runs diverge in float16, where those that are held do not."""
    limits, group = criterion["thresholds"], "divergence in float16"
    drifting, held = (_diverged(tables, arm, limits["rise"]) for arm in ("FASTER", "FASTER_LIGHT"))
    part = at_least("share of drifting runs in float16 that diverge", drifting, limits["share"],
                    group)  # fmt: skip
    name = "share of runs in float16 that diverge although they are held"
    contrast = [at_most(name, held, limits["share"], group)]
    notes = [f"{arm} {_overflows(tables, arm)}" for arm in ("FASTER", "FASTER_LIGHT")]
    return judgement(criterion, [part], f"losses that are no number: {', '.join(notes)}", contrast)


def _diverged(tables: Tables, arm: str, by: float) -> pd.Series:
    """1 for each seed with a loss that is not finite, or a training loss that rose by more.

    Also of runs that ended before the first tenth of the steps, which have no rise.
    """
    losses = tables.pick(arm=arm, stat=("train_loss", "validation_loss"))
    ended = ~np.isfinite(losses["value"]).groupby(losses["seed"]).all()
    rose = rise(tables, arm).reindex(ended.index) > by
    return (ended | rose).astype(float)


def _overflows(tables: Tables, arm: str) -> str:
    """Of how many runs the training loss ended as no number, and when."""
    losses = tables.pick(arm=arm, stat="train_loss")
    steps = losses.loc[~np.isfinite(losses["value"])].groupby("seed")["step"].min()
    when = f" (steps up to {steps.min()} to {steps.max()})" if len(steps) else ""
    return f"{len(steps)} of {losses['seed'].nunique()} runs{when}"
