"""Medians with intervals that assume no distribution. No torch here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Median:
    """A median, and two order statistics around it.

    ``coverage`` is the probability that they enclose the true median; it is the least that
    reaches 95%, or what minimum and maximum give, which is less below six values.
    """

    median: float
    low: float
    high: float
    coverage: float

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def median(values: Sequence[float], level: float = 0.95) -> Median:
    """The median of ``values``, which must not be empty, with its interval."""
    ordered = sorted(values)
    n = len(ordered)
    rank, coverage = 1, _coverage(n, 1)
    while rank < n // 2 and _coverage(n, rank + 1) >= level:
        rank += 1
        coverage = _coverage(n, rank)
    return Median(statistics.median(ordered), ordered[rank - 1], ordered[n - rank], coverage)


def _coverage(n: int, rank: int) -> float:
    """P(the rank-th smallest <= median <= the rank-th largest) of n independent values."""
    return max(0.0, 1 - 2 * sum(math.comb(n, k) for k in range(rank)) / 2**n)
