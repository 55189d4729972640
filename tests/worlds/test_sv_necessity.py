"""Planted worlds of a model without scale vectors: SV1 to SV4."""

import functools

import pytest

from analysis.claims.judging import BELOW, OPEN
from tests.worlds.designs import SEEDS, arms, checks, losses
from tests.worlds.planted import judged, verdicts

# What each arm loses where every part holds, in nats.
GAPS = {
    "STANDARD": 0.0,
    "NONE": 0.1,
    "FINAL": 0.05,
    "STANDARD_TUNED": -0.01,
    "NONE_TUNED": 0.06,
    "NONE_1.4": -0.02,
    "NONE_TUNED_1.2": -0.03,
    "STANDARD_FACTOR": -0.02,
    "NONE_FACTOR": 0.03,
    "WIDE": -0.005,
    "UNIFIED": -0.1,
}
BREAKS = {
    "SV1": {"no vectors − standard": {"NONE": -0.05}},
    "SV1b": {
        "final vector only − standard": {"FINAL": -0.05},
        "no vectors − final vector only": {"NONE": 0.02},
        "with a fixed factor": {"NONE_FACTOR": -0.1},
    },
    "SV2": {"both tuned": {"NONE_TUNED": -0.05}},
    "SV3": {
        "1.4 × the steps": {"NONE_1.4": 0.05},
        "1.2 × the steps": {"NONE_TUNED_1.2": 0.05},
        "no vectors − standard, same LR": {"NONE": -0.03},
        "no vectors − standard, tuned LR": {"NONE_TUNED": -0.03},
    },
    "SV4": {
        "gain of a wider MLP": {"WIDE": -0.09},
        "standard − unified": {"UNIFIED": 0.05, "WIDE": 0.1},
    },
}
MEASURED = {
    "SV1": {"no vectors − standard": 0.1},
    "SV1b": {"final vector only − standard": 0.05, "no vectors − final": 0.05, "a fixed": 0.05},
    "SV2": {"both tuned": 0.07},
    "SV3": {
        "1.4 ×": -0.02,
        "1.2 ×": -0.02,
        "no vectors − standard, same": 0.1,
        "no vectors − standard, tuned": 0.07,
    },
    "SV4": {"wider": 0.02, "standard − unified": 0.1},
}


@functools.cache
def world(seeds=SEEDS, spread=0.003, **changes):
    """The losses, each with the changes ``<arm>=`` to ``GAPS``."""
    return losses(arms(GAPS, changes), seeds, spread)


test_breaks, test_differences, test_planned = checks(world, BREAKS, MEASURED)


@pytest.mark.parametrize(
    ("claim", "arm", "same"), [("SV1", "NONE", 0.0), ("SV2", "NONE_TUNED", -0.01)]
)
def test_no_difference_is_below_what_matters(claim, arm, same):
    assert judged(claim, world(**{arm: same})).verdict == BELOW
    assert judged(claim, world(**{arm: same}, spread=0.05)).verdict == OPEN


def test_a_small_effect_is_below_what_matters():
    parts = verdicts("SV1b", world(FINAL=0.002, spread=0.001))
    assert parts["final vector only − standard (nats)"] == BELOW
