"""Fits and intervals. Means carry two-sided 95% Student intervals over seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
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


def with_interval(values, digits: int = 3) -> str:
    """Mean over seeds and its 95% interval as text, 0.979 [0.973, 0.984]; n = 1: the value."""
    mean = interval(values)
    ends = f" [{mean.low:z.{digits}f}, {mean.high:z.{digits}f}]" if mean.n > 1 else ""
    return f"{mean.mean:z.{digits}f}{ends}"


def with_half(values, digits: int = 2) -> str:
    """Mean over seeds and half of its 95% interval as text, 0.17 ± 0.11; n = 1: the value."""
    mean = interval(values)
    half = f" ± {(mean.high - mean.low) / 2:.{digits}f}" if mean.n > 1 else ""
    return f"{mean.mean:z.{digits}f}{half}".replace("-", "−")


def mean_sd(values) -> str:
    """Mean and standard deviation over seeds as text, 3.550 ± 0.015; n = 1: the value."""
    values = np.asarray(values, dtype=float)
    spread = f" ± {values.std(ddof=1):.3f}" if len(values) > 1 else ""
    return f"{values.mean():.3f}{spread}"


def median_interval(values, confidence: float = 0.95) -> Interval:
    """Interval of the median from order statistics, for heavy tails: no distribution assumed.

    The narrowest symmetric pair of order statistics whose coverage is at least ``confidence``;
    infinite where even the extremes do not reach it (n < 6 at 95%). ``mean`` is the median.
    """
    values = np.sort(np.asarray(values, dtype=float))
    n = len(values)
    # P(the median lies outside the k-th smallest … k-th largest) = 2 P(Binomial(n, ½) < k).
    inside = [
        k for k in range(1, n // 2 + 1) if 1 - 2 * stats.binom.cdf(k - 1, n, 0.5) >= confidence
    ]
    low, high = (values[inside[-1] - 1], values[-inside[-1]]) if inside else (-np.inf, np.inf)
    return Interval(float(np.median(values)), float(low), float(high), n)


def mean_below(values, border: float) -> float:
    """p-value of "the mean lies below ``border``": one-sided Student test, 1 for n < 2."""
    values = np.asarray(values, dtype=float)
    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        return 1.0
    spread = values.std(ddof=1) / np.sqrt(n)
    gap = values.mean() - border
    if spread == 0:
        return float(gap > 0)
    return float(stats.t.cdf(gap / spread, n - 1))


def median_below(values, border: float) -> float:
    """p-value of "the median lies below ``border``": one-sided sign test."""
    values = np.asarray(values, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        return 1.0
    return float(stats.binom.cdf((values > border).sum(), len(values), 0.5))


def holm(p_values, level: float = 0.05) -> np.ndarray:
    """Which hypotheses are rejected by Holm's correction at this family-wise level: (n,) bool."""
    p_values = np.asarray(p_values, dtype=float)
    order = np.argsort(p_values, kind="stable")
    passed = p_values[order] <= level / np.arange(len(p_values), 0, -1)
    rejected = np.zeros(len(p_values), dtype=bool)
    rejected[order[: len(passed) if passed.all() else int(np.argmin(passed))]] = True
    return rejected


def log_slope(x, y) -> float:
    """Least-squares exponent a of y ∝ x^a; ``x`` and ``y`` (n,) positive, n ≥ 2."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def log_range(values) -> float:
    """ln(max / min) of positive values."""
    values = np.asarray(values, dtype=float)
    return float(np.log(values.max() / values.min()))


def in_its_direction(values: pd.Series) -> pd.Series:
    """``values`` in the direction of their mean, by seed.

    Sizes of single values would have a mean above 0 by noise alone.
    """
    return values * np.sign(values.mean())
