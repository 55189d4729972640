"""Sweeps of S, which multiplies a matrix's LR and divides its weight decay at fixed ηλ.

Tables have seeds in rows and S in columns. Norms are root mean squares, read at the end of the
constant stage; losses are nats per token after the decay.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import pandas as pd

from analysis.quantities.losses import final_losses
from analysis.quantities.stats import log_slope
from analysis.tables.results import Tables


class Sweep(ABC):
    """The tables of such an experiment; ``learned`` are its arms with multipliers."""

    learned: tuple[str, ...]

    def __init__(self, tables: Tables):
        self.tables = tables
        self.stage_end = tables.stage_end

    def loss(self, arm: str) -> pd.DataFrame:
        """Validation loss after the decay."""
        losses = final_losses(self.tables)
        return losses[losses["arm"] == arm].pivot_table("value", "seed", "S")

    @abstractmethod
    def multiplier(self, arm: str) -> pd.DataFrame:
        """The norm of the arm's multipliers."""

    @abstractmethod
    def is_multiplier(self, rule: dict) -> bool:
        """Whether an entry of the stored table of rules is one of those multipliers."""

    def multiplier_lr(self, arm: str) -> float:
        """LR of the multipliers, from the stored table of rules."""
        trained = self.tables.trained
        rules = trained[trained["arm"] == arm].iloc[0]["description"]["rules"]
        return max(rule["lr"] for rule in rules if self.is_multiplier(rule))

    def judged(self, criterion: dict) -> list[float]:
        """The S at which the multipliers of every learned arm can travel to where they have to go.

        Needed is the value learned at S = 1 (between grid points: interpolated in logs) over S.
        ``criterion["travel"]`` bounds the change by a ``fraction`` of Ση, and one step by the part
        ``step`` of the value. Outside of ``criterion["range"]`` S is shown only.
        """
        limits, (low, high) = criterion["travel"], criterion.get("range", (0.0, math.inf))
        reached = []
        for arm in sorted(set(self.tables.trained["arm"]) & set(self.learned)):
            values, lr = self.multiplier(arm), self.multiplier_lr(arm)
            logs = np.log(values).mean()
            at_one = float(np.exp(np.interp(0.0, np.log(logs.index.astype(float)), logs)))
            reached.append({
                s
                for s in values.columns
                if low <= s <= high
                and abs(at_one / s - 1) <= limits["fraction"] * lr * self.stage_end
                and lr <= limits["step"] * at_one / s
            })  # fmt: skip
        return sorted(set.intersection(*reached)) if reached else []


def slopes(table: pd.DataFrame, points: list[float]) -> pd.Series:
    """Log-log slope against S over ``points``, one per seed."""
    return table[points].apply(lambda row: log_slope(row.index, row), axis=1)


def excess(losses: pd.DataFrame, s: float, points: list[float] | None = None) -> pd.Series:
    """Loss at ``s`` over the arm's own best mean (among ``points``), paired by seed."""
    means = (losses if points is None else losses[points]).mean()
    return losses[s] - losses[means.idxmin()]
