"""How well a learning rate (LR) that is best at one width serves others.

Tables are of runs over ``width`` and a ``rate``: the column ``lr``, or ``u``, a factor on all LRs.
Losses are validation losses after the decay, in nats
per token; a run that diverged has an infinite one. Values are by seed.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.quantities.losses import final_losses
from analysis.quantities.stats import log_slope
from analysis.tables.results import Tables, kept

# A parabola goes through LRs that are at most so many times larger or smaller than the middle.
_WINDOW = 4.0


@kept
def losses(tables: Tables, arm: str, rate: str = "lr") -> pd.DataFrame:
    """Seeds in rows, (width, rate) in columns."""
    keys = ["seed", "width", rate]
    rows = final_losses(tables)
    rows = rows[(rows["arm"] == arm) & (rows["step"] == tables.settings["train"]["steps"])]
    values = rows.set_index(keys)["value"]
    # A run that diverged before its first validation has no row.
    every = tables.pick(kind="train", arm=arm)[keys].drop_duplicates()
    runs = pd.MultiIndex.from_frame(every)
    values = values.where(np.isfinite(values)).reindex(runs).fillna(np.inf)
    return values.unstack(["width", rate]).sort_index(axis=1)


def widths(table: pd.DataFrame) -> list[float]:
    """Those of ``losses``, from the smallest."""
    return sorted(table.columns.unique("width"))


def minimum(of_width: pd.Series, centre: float) -> float:
    """The best LR of losses by LR: the minimum of a parabola in ln(LR) around ``centre``.

    The parabola is that of least squares through all LRs within a factor of 4 of ``centre``, and
    its minimum is looked for among them. Of runs, whose losses have noise, it spreads a third as
    much as that through the lowest loss and its neighbours. Runs that diverged are left out. Where
    fewer than four are left, or the parabola opens downward, the LR with the lowest loss is taken.
    """
    rates = of_width.index.to_numpy(dtype=float)
    near = of_width[np.abs(np.log(rates / centre)) < math.log(_WINDOW) + 0.05]
    near = near[np.isfinite(near)]
    if near.empty:
        return math.nan
    logs = np.log(near.index.to_numpy(dtype=float) / centre)
    if len(near) > 3:
        steep, slope, _ = np.polyfit(logs, near.to_numpy(dtype=float), 2)
        if steep > 0:
            return float(centre * np.exp(np.clip(-slope / (2 * steep), logs[0], logs[-1])))
    return float(near.idxmin())


@kept
def best_rate(tables: Tables, arm: str, rate: str = "lr") -> pd.DataFrame:
    """``minimum`` of every seed and width: seeds in rows, widths in columns.

    It is looked for around ``typical_rate``. Where that is the first or the last of its width, all
    seeds have nan, as the best LR may lie beyond.
    """
    table = losses(tables, arm, rate)
    found = {}
    for width in widths(table):
        of_width, centre = table[width], typical_rate(tables, arm, width, rate)
        inside = of_width.columns.min() < centre < of_width.columns.max()
        found[width] = of_width.apply(minimum, axis=1, centre=centre if inside else math.nan)
    return pd.DataFrame(found)


def drift(tables: Tables, arm: str, rate: str = "lr") -> pd.Series:
    """The exponent of the width in the best LR, by least squares.

    nan where the LR of the lowest mean over seeds is at an edge (``best_rate``).
    """
    found = best_rate(tables, arm, rate)
    return found.apply(lambda row: log_slope(row.index, row), axis=1)


def typical_rate(tables: Tables, arm: str, width: float, rate: str = "lr") -> float:
    """The LR of the grid whose mean loss over seeds is the lowest at this width."""
    return float(losses(tables, arm, rate)[width].mean(skipna=False).idxmin())


def regret(tables: Tables, arm: str, width: float, rate: str = "lr") -> pd.Series:
    """What the LR that is best at the smallest width costs at ``width``, in nats.

    Both LRs are those of the grid with the lowest mean over seeds, so that no seed chooses its own.
    """
    table = losses(tables, arm, rate)
    carried = typical_rate(tables, arm, widths(table)[0], rate)
    return table[width][carried] - table[width][typical_rate(tables, arm, width, rate)]


def steepness(tables: Tables, arm: str, width: float, factor: float, rate: str = "lr") -> pd.Series:
    """Mean loss at so many times more and less than the best LR less that at it, in nats.

    Of the grid's LRs; nan where it has neither.
    """
    table = losses(tables, arm, rate)[width]
    rates, best = table.columns.to_numpy(dtype=float), typical_rate(tables, arm, width, rate)
    sides = [each for each in rates
             if abs(abs(math.log(each / best)) - math.log(factor)) < 0.05]  # fmt: skip
    return table[sides].mean(axis=1) - table[best] if sides else table[best] * math.nan


def best_loss(tables: Tables, arm: str, width: float, rate: str = "lr") -> pd.Series:
    """At the LR of the grid with the lowest mean over seeds."""
    return losses(tables, arm, rate)[width][typical_rate(tables, arm, width, rate)]
