"""Judging functions of PR1 and PR2: what else could scale the projector (section 4.4).

Losses are in nats per token after the decay, one per seed; ``row_lr`` is the LR of the row
multipliers, and ``s`` the fixed scalar over the centre of the projector experiment.
"""

from __future__ import annotations

import pandas as pd

from analysis.claims.judging import Judgement, at_least, judgement
from analysis.quantities.losses import final_losses
from analysis.tables.results import Tables

UP_TO, FROM = "scalars up to the centre", "scalars from the centre up"


def pr1(tables: Tables, criterion: dict) -> Judgement:
    """Loss with row multipliers on the projector minus without, at the columns' LR; paired."""
    rows, lr = _gaps(tables, "ROWS", "row_lr"), criterion["row_lr"]
    name = f"rows (LR {lr:g}) − columns (nats)"
    worse, matters = criterion["thresholds"]["worse"], criterion["smallest_effect"]
    parts = [at_least(name, rows[lr].dropna(), worse, matters=matters)]
    return judgement(criterion, parts, f"by LR of the rows: {_means(rows)}")


def pr1_2(tables: Tables, criterion: dict) -> Judgement:
    """The same at each LR of the rows, that of the columns first."""
    rows, chosen = _gaps(tables, "ROWS", "row_lr"), criterion["row_lr"]
    worse, matters = criterion["thresholds"]["worse"], criterion["smallest_effect"]
    parts = [
        at_least(f"rows (LR {lr:g}) − columns (nats)", rows[lr].dropna(), worse,
                 f"rows at LR {lr:g}", matters=matters)
        for lr in sorted(rows.columns, key=lambda lr: (lr != chosen, lr))
    ]  # fmt: skip
    return judgement(criterion, parts, f"by LR of the rows: {_means(rows)}")


def pr2(tables: Tables, criterion: dict) -> Judgement:
    """Best loss over inner fixed scalars without column multipliers minus that with them; paired.

    The contrast: both ends of the sweep are worse than its centre, so that the best scalar lies
    inside.
    """
    fixed, limits = _gaps(tables, "FIXED", "s"), criterion["thresholds"]
    low, *inner, high = fixed.columns
    best = fixed[inner].mean().idxmin()
    name = f"best fixed scalar (s = {best:g}) − columns (nats)"
    parts = [at_least(name, fixed[best].dropna(), -limits["margin"])]
    contrast = [
        at_least(f"fixed s = {s:g} − s = 1 (nats)", fixed[s] - fixed[1.0], limits["contrast"])
        for s in (low, high)
    ]
    return judgement(criterion, parts, f"by s: {_means(fixed)}", contrast)


def pr2_2(tables: Tables, criterion: dict) -> Judgement:
    """Loss of each inner fixed scalar minus that with columns; medians, since seeds may jump."""
    return _inner(tables, criterion, robust=True)


def pr2_3(tables: Tables, criterion: dict) -> Judgement:
    """The same of means: a seed that jumps speaks for the columns, and widens the interval."""
    return _inner(tables, criterion, robust=False)


def _inner(tables: Tables, criterion: dict, robust: bool) -> Judgement:
    """Of each inner fixed scalar; the contrast: each end of the sweep is worse than its centre.

    The contrast is of medians in either case.
    """
    fixed, limits = _gaps(tables, "FIXED", "s"), criterion["thresholds"]
    low, *inner, high = fixed.columns
    parts = [
        at_least(f"fixed s = {s:g} − columns (nats)", fixed[s], -limits["margin"], _side(s),
                 robust=robust)
        for s in inner
    ]  # fmt: skip
    contrast = [
        at_least(f"fixed s = {s:g} − s = 1 (nats)", fixed[s] - fixed[1.0], limits["contrast"],
                 _side(s), robust=True)
        for s in (low, high)
    ]  # fmt: skip
    return judgement(criterion, parts, f"by s: {_means(fixed)}", contrast)


def _gaps(tables: Tables, arm: str, axis: str) -> pd.DataFrame:
    """Loss of ``arm`` minus that of COLUMNS, with seeds in rows and ``axis`` in columns."""
    losses = final_losses(tables)
    base = losses[losses["arm"] == "COLUMNS"].set_index("seed")["value"]
    return losses[losses["arm"] == arm].pivot_table("value", "seed", axis).sub(base, axis=0)


def _side(s: float) -> str | None:
    """The group of a fixed scalar; the centre itself belongs to both."""
    if s == 1.0:
        return None
    return UP_TO if s < 1 else FROM


def _means(gaps: pd.DataFrame) -> str:
    return ", ".join(f"{name:g}: {gap.mean():+.4f}" for name, gap in gaps.items())
