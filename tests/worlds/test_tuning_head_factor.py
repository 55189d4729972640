"""Planted worlds of a fixed factor against a learned scalar on the LM head: T10."""

import functools

from analysis.claims.judging import BELOW
from tests.worlds.designs import arms, checks, losses
from tests.worlds.planted import verdicts

SEEDS = range(126, 134)
GAPS = {"MUON_FULL": 0.2, "MUON_FULL_FACTOR": 0.1, "MUON_LRM_HEAD": 0.0, "MUON_LRM_FACTOR": 0.05}
LEAD = "no multipliers and a fixed factor − vectors and a scalar (nats)"
GAIN = "no multipliers − no multipliers and a fixed factor (nats)"
LEARNED = "vectors and a fixed factor − vectors and a scalar (nats)"
BREAKS = {
    "T10": {
        LEAD: {"MUON_FULL_FACTOR": -0.1},
        GAIN: {"MUON_FULL": 0.05},
        LEARNED: {"MUON_LRM_FACTOR": -0.05},
    }
}
MEASURED = {"T10": {LEAD: 0.1, GAIN: 0.1, LEARNED: 0.05}}


@functools.cache
def world(seeds=SEEDS, spread=0.003, **changes):
    """The losses, each with the changes ``<arm>=`` to ``GAPS``."""
    return losses(arms(GAPS, changes), seeds, spread)


test_breaks, test_differences, test_planned = checks(world, BREAKS, MEASURED)


def test_a_small_lead_is_below_what_matters():
    assert verdicts("T10", world(MUON_FULL_FACTOR=0.004, spread=0.001))[LEAD] == BELOW
