"""Fits and intervals. Means carry two-sided 95% Student intervals over seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Interval:
    """A mean over ``n`` seeds with its 95% interval (infinite for n < 2)."""

    mean: float
    low: float
    high: float
    n: int


def interval(values, confidence: float = 0.95) -> Interval:
    """Student interval of the mean of ``values`` (n,)."""
    values = np.asarray(values, dtype=float)
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return Interval(mean, -np.inf, np.inf, n)
    half = stats.t.ppf(0.5 + confidence / 2, n - 1) * values.std(ddof=1) / np.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def log_slope(x, y) -> float:
    """Least-squares exponent a of y ∝ x^a; ``x`` and ``y`` (n,) positive, n ≥ 2."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def log_range(values) -> float:
    """ln(max / min) of positive values."""
    values = np.asarray(values, dtype=float)
    return float(np.log(values.max() / values.min()))
