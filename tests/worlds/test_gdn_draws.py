"""Planted worlds of the draw of the heads' numbers: GD15 and GD15.2."""

import functools

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import HOLDS, OPEN, REFUTED
from analysis.quantities.gdn_draws import covariance_of_draws, losses, products_of_draws
from analysis.tables.results import Tables
from tests.worlds.planted import check_breaks, frame, judged, noise

SEEDS, DRAWS = range(200, 208), range(1000, 1008)
MANY = {"seeds": range(208, 216), "draws": range(1008, 1056)}


@functools.cache
def world(seeds=SEEDS, draws=DRAWS, of_draw=0.04, of_seed=0.03, of_run=0.01):
    """Losses that add what a draw does, what a seed does, and chance; standard deviations."""
    rows = [
        {"arm": "CROSSED", "seed": seed, "draw": draw, "step": 160, "tensor": "model",
         "stat": "validation_loss",
         "value": 4 + noise("draw", draw, size=of_draw) + noise("seed", seed, size=of_seed)
         + noise(seed, draw, size=of_run)}
        for seed in seeds for draw in draws
    ]  # fmt: skip
    return Tables(None, frame(rows))


def many(**changes):
    return world(**MANY | changes)


STILL = {"of_draw": 0.003, "of_seed": 0.001, "of_run": 0.001}
BREAKS = {
    "GD15": (world, {"covariance over draws": STILL, "less a quarter": {"of_seed": 0.3}}),
    "GD15.2": (many, {"mean product": STILL, "less a quarter": {"of_run": 0.1}}),
}


@pytest.mark.parametrize("claim", BREAKS)
def test_each_part_is_broken_by_a_world(claim):
    check_breaks(claim, *BREAKS[claim])


def test_fewer_seeds_or_draws_leave_it_open():
    assert judged("GD15", world()).verdict == HOLDS
    assert judged("GD15", world(seeds=SEEDS[:-1])).verdict == OPEN
    assert judged("GD15.2", many()).verdict == HOLDS
    assert judged("GD15.2", many(draws=MANY["draws"][:-1])).verdict == OPEN
    for fewer in (MANY["seeds"][:2], MANY["seeds"][:-1]):
        assert judged("GD15.2", many(seeds=fewer)).verdict == OPEN


def test_a_missing_loss_leaves_its_draw_without_a_value():
    table = losses(world())
    table.iloc[0, 0] = np.nan
    found = products_of_draws(table)
    assert found.iloc[0].isna().all() and found.iloc[1:].notna().all(axis=None)


def test_chance_alone_has_no_covariance():
    assert judged("GD15", world(of_draw=0.0, of_run=0.05)).verdict in (REFUTED, OPEN)
    assert judged("GD15.2", many(of_draw=0.0, of_run=0.05)).verdict in (REFUTED, OPEN)
    found = covariance_of_draws(losses(world(of_run=0.0)))
    assert found.std() == pytest.approx(0, abs=1e-12)
    variance = losses(world(of_run=0.0)).mean().var()
    assert found.mean() == pytest.approx(variance)


def test_products_are_those_of_all_pairs_of_seeds():
    table = losses(world())
    apart = table.sub(table.mean(axis=1), axis=0).to_numpy()
    pairs = [apart[a] * apart[b] for a in range(8) for b in range(8) if a != b]
    found = products_of_draws(table)
    np.testing.assert_allclose(found["product"], 8 / 7 * np.mean(pairs, axis=0), rtol=1e-9)
    np.testing.assert_allclose(found["square"], 8 / 7 * (apart**2).mean(axis=0), rtol=1e-9)


def test_products_are_unbiased():
    """Both mean over many tables what was planted."""
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        draws, seeds = rng.normal(0, 2, (1, 6)), rng.normal(0, 5, (4, 1))
        found.append(products_of_draws(pd.DataFrame(draws + seeds + rng.normal(0, 3, (4, 6)))))
    means = pd.concat(found).mean()
    assert means["product"] == pytest.approx(4, abs=0.4)
    assert means["square"] == pytest.approx(13, abs=0.6)
