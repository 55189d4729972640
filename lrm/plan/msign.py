"""Constants of Newton–Schulz iterations, and what multiplies the LR behind them. Needs nothing."""

from __future__ import annotations

import math

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def shape_factor(rule: str, rows: int, columns: int) -> float:
    """What multiplies the LR of a step on a matrix.

    Jordan's ("original"), Moonlight's ("match_rms_adamw"), or that of steepest descent in the
    spectral norm times sqrt(columns / rows) ("spectral").
    """
    if rule == "spectral":
        return math.sqrt(rows / columns)
    if rule == "original":
        return math.sqrt(max(1.0, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))
