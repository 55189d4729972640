"""Losses of Gated Delta Networks by the draw of their heads' numbers and by the seed."""

from __future__ import annotations

import pandas as pd

from analysis.quantities.losses import final_losses
from analysis.tables.results import Tables


def losses(tables: Tables) -> pd.DataFrame:
    """After the decay, in nats per token: seeds in rows, draws in columns."""
    return final_losses(tables).pivot(index="seed", columns="draw", values="value")


def covariance_of_draws(table: pd.DataFrame) -> pd.Series:
    """By seed: the covariance over draws of its losses with the mean of the other seeds.

    Its expectation is the variance that draws share between seeds.
    """
    found = {}
    for seed, row in table.iterrows():
        found[seed] = row.cov(table.drop(index=seed).mean())
    return pd.Series(found)


def chance_of_mean(table: pd.DataFrame) -> float:
    """Standard deviation of a column's mean by chance alone: what rows and columns do not explain.

    0 where one row or one column leaves nothing over.
    """
    rows, columns = table.shape
    if min(rows, columns) < 2:
        return 0.0
    left = table.sub(table.mean(axis=1), axis=0)
    left = left - left.mean()
    return float(((left**2).to_numpy().sum() / ((rows - 1) * (columns - 1)) / rows) ** 0.5)
