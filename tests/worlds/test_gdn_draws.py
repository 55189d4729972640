"""Planted worlds of the draw of the heads' numbers: GD15."""

import functools

import pytest

from analysis.claims.judging import HOLDS, OPEN, REFUTED
from analysis.quantities.gdn_draws import covariance_of_draws, losses
from analysis.tables.results import Tables
from tests.worlds.planted import check_breaks, frame, judged, noise

SEEDS, DRAWS = range(200, 208), range(1000, 1008)


@functools.cache
def world(seeds=SEEDS, of_draw=0.04, of_seed=0.03, of_run=0.01):
    """Losses that add what a draw does, what a seed does, and chance; standard deviations."""
    rows = [
        {"arm": "CROSSED", "seed": seed, "draw": draw, "step": 160, "tensor": "model",
         "stat": "validation_loss",
         "value": 4 + noise("draw", draw, size=of_draw) + noise("seed", seed, size=of_seed)
         + noise(seed, draw, size=of_run)}
        for seed in seeds for draw in DRAWS
    ]  # fmt: skip
    return Tables(None, frame(rows))


BREAKS = {
    "covariance over draws": {"of_draw": 0.003, "of_seed": 0.001, "of_run": 0.001},
    "less a quarter": {"of_seed": 0.3},
}


def test_each_part_is_broken_by_a_world():
    check_breaks("GD15", world, BREAKS)


def test_fewer_seeds_leave_it_open():
    assert judged("GD15", world()).verdict == HOLDS
    assert judged("GD15", world(seeds=SEEDS[:-1])).verdict == OPEN


def test_chance_alone_has_no_covariance():
    assert judged("GD15", world(of_draw=0.0, of_run=0.05)).verdict in (REFUTED, OPEN)
    found = covariance_of_draws(losses(world(of_run=0.0)))
    assert found.std() == pytest.approx(0, abs=1e-12)
    variance = losses(world(of_run=0.0)).mean().var()
    assert found.mean() == pytest.approx(variance)
