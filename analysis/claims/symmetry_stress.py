"""Judging functions of S6 and LOG1: drift in half precision, log-scale multipliers (4.1)."""

from __future__ import annotations

import numpy as np

from analysis.claims.judging import Judgement, at_least, at_most, judgement
from analysis.quantities import symmetry
from analysis.quantities.losses import losses_by_arm, rise
from analysis.tables.results import Tables


def s6(tables: Tables, criterion: dict) -> Judgement:
    """What half precision costs where multipliers drift, beyond its cost where they are held."""
    losses = losses_by_arm(tables)
    held = losses["FASTER_LIGHT_BF16"] - losses["FASTER_LIGHT"]
    gap = losses["FASTER_BF16"] - losses["FASTER"] - held
    usual = (losses["FREE_BF16"] - losses["FREE"]).mean()
    norms = {
        arm: np.exp(symmetry.residual(tables, arm).xs(tables.stage_end, level="step").mean())
        for arm in ("FREE", "FREE_BF16", "FASTER_LIGHT", "FASTER", "FASTER_BF16")
    }
    note = f"bfloat16 − float32: held {held.mean():+.4f}, usual LR {usual:+.4f}; residual norm "
    note += ", ".join(f"{arm} {value:.3g}" for arm, value in norms.items())
    found = [at_least("(bfloat16 − float32), drifting less held (nats)", gap,
                      criterion["thresholds"]["harm"])]  # fmt: skip
    return judgement(criterion, found, note)


def log1(tables: Tables, criterion: dict) -> Judgement:
    """Log-scale multipliers: at most a slight gain, and instability."""
    limits, losses = criterion["thresholds"], losses_by_arm(tables)
    rises = {arm: rise(tables, arm) for arm in ("FREE", "LOG", "FAST", "LOG_FAST")}
    found = [
        at_most("direct − log-scale (nats)", losses["FREE"] - losses["LOG"], limits["gain"],
                "gain"),
        at_least("largest rise of the training loss, log-scale − direct (nats)",
                 rises["LOG"] - rises["FREE"], limits["worse"], "instability"),
        at_least("five times the LR: loss, log-scale − direct (nats)",
                 losses["LOG_FAST"] - losses["FAST"], limits["worse"], "instability, larger LR"),
    ]  # fmt: skip
    more = (rises["LOG_FAST"] - rises["FAST"]).mean()
    return judgement(criterion, found, f"rise at five times the LR, log-scale − direct {more:+.3f}")
