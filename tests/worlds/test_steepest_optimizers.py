"""Planted worlds of optimizers by layer: BM3, BM3b, BM3c, BM3d and BM6."""

import functools

import pytest

from analysis.claims.judging import BELOW, OPEN, REFUTED
from tests.worlds.designs import SEEDS, arms, checks, losses
from tests.worlds.planted import judged

# What each arm loses where every part holds, in nats.
GAPS = {
    "STEEPEST": 0.0, "STEEPEST_SEEN": 0.03, "MUON_EVERYWHERE": 0.04, "MUON_ADAMW": 0.08,
    "ADAMW": 0.2, "MUON_EMBEDDING": 0.05, "MUON_HEAD": 0.06, "MUON_GAINS": 0.078,
    "MUON_FROZEN": 0.081,
}  # fmt: skip
GAINING = {**GAPS, "MUON_GAINS": 0.06}
BREAKS = {
    "BM3": {"AdamW − Muon beside": {"ADAMW": 0.05},
            "− steepest descent": {"STEEPEST": 0.1}},
    "BM3b": {"Muon on every matrix": {"MUON_EVERYWHERE": -0.02}},
    "BM3d": {"only rows seen": {"STEEPEST_SEEN": -0.02}},
    "BM6": {"by sign": {"MUON_GAINS": 0.05}, "frozen": {"MUON_FROZEN": 0.1}},
}  # fmt: skip
MEASURED = {
    "BM3": {"AdamW − Muon beside": 0.12, "− steepest descent": 0.08},
    "BM3b": {"Muon on every matrix": 0.04},
    "BM3d": {"only rows seen": 0.03},
    "BM6": {"by sign": -0.002, "frozen": 0.001},
}


@functools.cache
def world(seeds=SEEDS, spread=0.003, **changes):
    """The losses, each with the changes ``<arm>=`` to ``GAPS``."""
    return losses(arms(GAPS, changes), seeds, spread)


@functools.cache
def world_of_gains(seeds=SEEDS, spread=0.003, **changes):
    """One in which gains gain by their own direction as well, as BM3c asks and BM6 does not."""
    return losses(arms(GAINING, changes), seeds, spread)


test_breaks, test_differences, test_planned = checks(world, BREAKS, MEASURED)
test_breaks_of_gains, test_differences_of_gains, test_planned_of_gains = checks(
    world_of_gains,
    {"BM3c": {"embedding": {"MUON_EMBEDDING": 0.1}, "head": {"MUON_HEAD": 0.1},
              "gains": {"MUON_GAINS": 0.1}}},
    {"BM3c": {"embedding": 0.03, "head": 0.02, "gains": 0.02}},
)  # fmt: skip


@pytest.mark.parametrize(("claim", "arm"), [("BM3b", "MUON_EVERYWHERE"), ("BM3d", "STEEPEST_SEEN")])
def test_no_difference_is_below_what_matters(claim, arm):
    assert judged(claim, world(**{arm: 0.0})).verdict == BELOW
    assert judged(claim, world(**{arm: 0.0}, spread=0.05)).verdict == OPEN
    assert judged(claim, world(**{arm: -0.05})).verdict == REFUTED
