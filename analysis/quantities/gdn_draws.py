"""Losses of Gated Delta Networks by the draw of their heads' numbers and by the seed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from analysis.quantities.losses import final_losses
from analysis.quantities.stats import Interval
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


def products_of_draws(table: pd.DataFrame) -> pd.DataFrame:
    """By draw, of losses less the mean of their seed: mean product of two seeds, and mean square.

    The expectation of ``product`` is the variance that draws share between seeds, and that of
    ``square`` the variance between runs of one seed: both are multiplied by n / (n − 1) of n draws,
    for the mean that is taken out. Values of draws hardly depend on each other. nan with one seed,
    and where a loss is missing.
    """
    seeds, draws = table.shape
    apart = table.sub(table.mean(axis=1), axis=0)
    squares = (apart**2).sum(skipna=False)
    pairs = apart.sum(skipna=False) ** 2 - squares
    product = pairs / (seeds * (seeds - 1)) if seeds > 1 else squares * np.nan
    factor = draws / (draws - 1) if draws > 1 else np.nan
    return factor * pd.DataFrame({"product": product, "square": squares / seeds})


def share_of_draws(table: pd.DataFrame) -> Interval:
    """What draws in general explain of the variance over all runs, with its 95% interval.

    Mean squares of two ways without repetition: that of draws over that of what is left follows
    F times 1 + seeds · ρ, where ρ is the variance of draws over that of what is left. Of both and
    of the variance of seeds, which is taken as estimated, draws have ρ / (ρ + 1 + that of seeds).
    """
    seeds, draws = table.shape
    of_draws = seeds * table.mean().var()
    left = seeds * chance_of_mean(table) ** 2
    of_seeds = max(draws * table.mean(axis=1).var() / left - 1, 0.0) / draws
    degrees = draws - 1, (draws - 1) * (seeds - 1)

    def share(quantile: float) -> float:
        ratio = (of_draws / left / quantile - 1) / seeds
        return float(ratio / (ratio + 1 + of_seeds))

    high, low = stats.f.ppf([0.025, 0.975], *degrees)
    return Interval(share(1.0), share(low), share(high), draws)


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
