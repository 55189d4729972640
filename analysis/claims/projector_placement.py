"""Judging functions of PR1 and PR2: what else could scale the projector (section 4.4)."""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, judgement
from analysis.quantities.losses import final_losses
from analysis.tables.results import Tables


def pr1(tables: Tables, criterion: dict) -> Judgement:
    """Loss with row multipliers on the projector minus without, at the columns' LR; paired."""
    losses = final_losses(tables)
    base = losses[losses["arm"] == "COLUMNS"].set_index("seed")["value"]
    rows = losses[losses["arm"] == "ROWS"].pivot_table("value", "seed", "row_lr")
    gap = (rows[criterion["row_lr"]] - base).dropna()
    name = f"rows (LR {criterion['row_lr']:g}) − columns (nats)"
    components = [at_least(name, gap, criterion["thresholds"]["worse"])]
    every = ", ".join(f"{lr:g}: {(rows[lr] - base).mean():+.4f}" for lr in rows.columns)
    return judgement(criterion, components, f"by LR of the rows: {every}")


def pr2(tables: Tables, criterion: dict) -> Judgement:
    """Best loss over inner fixed scalars without column multipliers minus that with them; paired.

    The contrast: both ends of the sweep are worse than its centre, so that the best scalar lies
    inside.
    """
    losses, limits = final_losses(tables), criterion["thresholds"]
    base = losses[losses["arm"] == "COLUMNS"].set_index("seed")["value"]
    fixed = losses[losses["arm"] == "FIXED"].pivot_table("value", "seed", "s")
    low, *inner, high = fixed.columns
    best = fixed[inner].mean().idxmin()
    gap = (fixed[best] - base).dropna()
    components = [at_least(f"fixed s = {best:g} − columns (nats)", gap, -limits["margin"])]
    contrast = [
        at_least(f"fixed s = {s:g} − s = 1 (nats)", fixed[s] - fixed[1.0], limits["contrast"])
        for s in (low, high)
    ]
    every = ", ".join(f"{s:g}: {(fixed[s] - base).mean():+.4f}" for s in fixed.columns)
    minimum = criterion["seeds"]["minimum"]
    return Judgement(components, minimum, f"by s: {every}", contrast=contrast)
