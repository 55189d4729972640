"""Judging functions of GD15 and GD15.2: the draw of the heads' numbers.

A value of a seed (GD15) or of a draw (GD15.2) is in nats².
"""

from __future__ import annotations

import math

from analysis.claims.judging import Judgement, at_least, judgement
from analysis.quantities.gdn_draws import covariance_of_draws, losses, products_of_draws
from analysis.tables.results import Tables
from lrm.plan.claims import judging_seeds


def gd15(tables: Tables, criterion: dict) -> Judgement:
    """Ours: what a draw does to the loss repeats between seeds, and is a good part of all noise."""
    limits, table = criterion["thresholds"], losses(tables)
    own = covariance_of_draws(table)
    all_runs = table.stack().var()
    parts = [
        at_least("covariance over draws between seeds (nats²)", own, limits["covariance"],
                 "draws matter"),
        at_least("the same less a quarter of the variance over all runs (nats²)",
                 own - limits["share"] * all_runs, 0.0, "a quarter of the noise"),
    ]  # fmt: skip
    return judgement(criterion, parts)


def gd15_2(tables: Tables, criterion: dict) -> Judgement:
    """Ours: the same with a value for each of many draws, which hardly depend on each other.

    Open before all seeds have run: a draw has one value over all of them, so that values cannot be
    counted as seeds are.
    """
    limits, table = criterion["thresholds"], losses(tables)
    own = products_of_draws(table)
    if len(table) < len(judging_seeds(criterion)):
        own *= math.nan
    parts = [
        at_least("mean product of two seeds, by draw (nats²)", own["product"],
                 limits["covariance"], "draws matter"),
        at_least("the same less a quarter of the mean square (nats²)",
                 own["product"] - limits["share"] * own["square"], 0.0, "a quarter of the noise"),
    ]  # fmt: skip
    return judgement(criterion, parts)
