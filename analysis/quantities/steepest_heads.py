"""The best scale of attention's logits by the size of its heads (*Beyond MuP 3*).

Attention divides by the root of a head's size, and a factor multiplies that. Losses are validation
losses after the decay, in nats per token; values are by seed.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.quantities import transfer
from analysis.tables.results import Tables, kept

# What the scale of logits goes as: the size of a head to this power.
BY_SIZE, BY_ROOT = -1.0, -0.5
RATE = "factor"


@kept
def by_size(tables: Tables) -> Tables:
    """The same with the size of heads as ``width``, which ``transfer`` compares."""
    sizes = tables.scalars["head_size"].astype(float)
    return Tables(tables.runs, tables.scalars.assign(width=sizes))


def ends(tables: Tables, arm: str) -> tuple[float, float]:
    """The smallest and the largest size of heads."""
    sizes = transfer.widths(transfer.losses(by_size(tables), arm, RATE))
    return sizes[0], sizes[-1]


def exponent(tables: Tables, arm: str) -> pd.Series:
    """Of the size of a head in the best scale of logits; nan where the best is at an edge."""
    return transfer.drift(by_size(tables), arm, RATE) + BY_ROOT


def carried(tables: Tables, arm: str, power: float) -> pd.Series:
    """Loss with the largest heads and the scale that is best for the smallest, carried by a power.

    The factor is that of the grid with the lowest mean over seeds at the smallest size, times the
    ratio of the sizes to the power − (−½). nan where the grid does not have it.
    """
    table = transfer.losses(by_size(tables), arm, RATE)
    smallest, largest = ends(tables, arm)
    best = transfer.typical_rate(by_size(tables), arm, smallest, RATE)
    wanted = best * (largest / smallest) ** (power - BY_ROOT)
    for factor in table[largest]:
        if math.isclose(factor, wanted, rel_tol=1e-6):
            return table[largest][factor]
    return table[largest].iloc[:, 0] * math.nan


def steepness(tables: Tables, arm: str, size: float, times: float) -> pd.Series:
    """Mean loss at so many times more and less than the best scale less that at it, in nats.

    nan where the grid has one side alone, of which a parabola's other side would say nothing.
    """
    table = transfer.losses(by_size(tables), arm, RATE)[size]
    best = transfer.typical_rate(by_size(tables), arm, size, RATE)
    values = transfer.steepness(by_size(tables), arm, size, times, RATE)
    both = all(np.isclose(list(table), best * side).any() for side in (times, 1 / times))
    return values if both else values * math.nan
