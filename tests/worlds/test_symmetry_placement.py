"""Planted worlds of placements with fewer symmetries: S5 and EM1, and their second entries."""

import functools

import pytest

from analysis.claims.judging import BELOW, HOLDS, OPEN, REFUTED
from analysis.tables.results import Tables
from tests.worlds.planted import check_breaks, frame, judged, noise, part

SEEDS = range(200, 216)
CLAIMS = ("S5", "S5.2", "EM1", "EM1.2")


@functools.cache
def world(free=0.02, free_light=0.03, no_embedding=0.04, spread=0.004, first=0.0, seeds=SEEDS):
    """Losses of the arms less that of all multipliers with light weight decay.

    Before the decay they stand the other way round. ``first``: what the first seed adds in the
    arms without some multipliers.
    """
    gaps = {"LIGHT": 0.0, "SYMMETRY_FREE": free, "SYMMETRY_FREE_LIGHT": free_light,
            "NO_EMBEDDING": no_embedding}  # fmt: skip
    rows = []
    for seed in seeds:
        together = noise(seed, size=0.1)
        for arm, gap in gaps.items():
            gap += first if arm != "LIGHT" and seed == seeds[0] else 0.0
            gap += noise(seed, arm, size=spread)
            for step, sign in ((300, -1), (400, 1)):
                at = {"arm": arm, "seed": seed, "step": step, "tensor": "model"}
                value = 3.4 + together + sign * gap
                rows.append({**at, "stat": "validation_loss", "value": value})
    return Tables(None, frame(rows))


@pytest.mark.parametrize("claim", ["S5", "S5.2"])
def test_each_part_of_s5_has_a_world_that_breaks_it_alone(claim):
    check_breaks(claim, world, {": worse": {"free": -0.02}, ": slightly": {"free": 0.07}})
    for name in (": worse", ": slightly"):
        assert part(claim, world(), name).interval.mean == pytest.approx(0.02, abs=0.004)
    assert "on both: +0.03" in judged(claim, world(free_light=0.031, spread=1e-4)).note
    # Both sides are one statement.
    assert judged(claim, world(free=0.07)).verdict == REFUTED
    assert judged(claim, world(free=-0.02)).verdict == REFUTED


@pytest.mark.parametrize("claim", ["EM1", "EM1.2"])
def test_the_part_of_em1_has_a_world_that_breaks_it(claim):
    check_breaks(claim, world, {"none on the embedding": {"no_embedding": -0.04}})
    measured = part(claim, world(), "none on the embedding").interval.mean
    assert measured == pytest.approx(0.04, abs=0.004)


@pytest.mark.parametrize("claim", CLAIMS)
def test_effects_too_small_unsure_or_of_one_seed(claim):
    assert judged(claim, world()).verdict == HOLDS
    assert judged(claim, world(free=0.0, no_embedding=0.0, spread=0.003)).verdict == BELOW
    assert judged(claim, world(free=0.01, no_embedding=0.01, spread=0.03)).verdict == OPEN
    assert judged(claim, world(first=-1.0)).verdict == OPEN
    enough = 16 if claim.endswith(".2") else 8
    assert judged(claim, world(seeds=SEEDS[:enough])).verdict == HOLDS
    assert judged(claim, world(seeds=SEEDS[: enough - 1])).verdict == OPEN
