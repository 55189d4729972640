"""Planted worlds of a freed scale or preconditioning: X1, X2, X4, X5 and X5.2."""

import functools

import pytest

from analysis.claims.judging import BELOW, OPEN
from tests.worlds.designs import SEEDS, arms, checks, losses
from tests.worlds.planted import judged, verdicts

# What each arm loses where every part holds, in nats.
GAPS = {
    "NONE": 0.2,
    "HG": 0.0,
    "NONE_UNDECAYED": 0.1,
    "HG_UNDECAYED": 0.1,
    "HG_LEARNED": 0.0,
    "SCALAR": 0.0,
    "UNIFIED": -0.1,
    "UNIFIED_ALIKE": -0.04,
    "UNIFIED_FREE": -0.05,
    "UNIFIED_HEAD": -0.04,
}
# Losses at a small S, 1/16 and ¼, and at S = 4 less that at S = 1.
SCALED = {"PLAIN": (0.1, 0.12), "NORMED": (0.0, 0.0)}
BREAKS = {
    "X1": {"row vector on the LM head": {"UNIFIED_HEAD": -0.2}},
    "X2": {"− on all": {"UNIFIED_ALIKE": -0.2}, "− on none": {"UNIFIED_FREE": -0.2}},
    "X4": {
        "without weight decay": {"NONE_UNDECAYED": 0.3},
        "gain of frozen vectors": {"HG_LEARNED": 0.19},
        "gain of scalars": {"SCALAR": 0.19},
        "no vectors − vectors": {
            "NONE": 0.0,
            "NONE_UNDECAYED": -0.2,
            "HG_LEARNED": -0.2,
            "SCALAR": -0.2,
        },
    },
    "X5": {
        "with a norm: S = ¼": {"NORMED": (0.1, 0.0)},
        "with a norm: S = 4": {"NORMED": (0.0, 0.1)},
        "without a norm: S = ¼": {"PLAIN": (0.0, 0.12)},
        "without a norm: S = 4": {"PLAIN": (0.1, 0.0)},
    },
    "X5.2": {
        "with a norm: S = 1/16": {"NORMED": (0.1, 0.0)},
        "with a norm: S = 4": {"NORMED": (0.0, 0.1)},
        "without a norm: S = 1/16": {"PLAIN": (0.0, 0.12)},
        "without a norm: S = 4": {"PLAIN": (0.1, 0.0)},
    },
}
MEASURED = {
    "X1": {"LM head": 0.06},
    "X2": {"− on all": -0.06, "− on none": -0.05},
    "X4": {"without weight": 0.05, "frozen": 0.05, "scalars": 0.1, "no vectors − vectors": 0.2},
    "X5": {"with a norm: S = ¼": 0.0, "without a norm: S = ¼": 0.1, "without a norm: S = 4": 0.12},
    "X5.2": {"with a norm: S = 1/16": 0.0, "without a norm: S = 1/16": 0.1},
}


@functools.cache
def world(seeds=SEEDS, spread=0.003, **changes):
    """The losses, each with the changes ``<arm>=`` to ``GAPS`` and to ``SCALED``."""
    points = arms(GAPS, changes)
    for arm, sides in SCALED.items():
        low, high = changes.get(arm, sides)
        points += [
            (arm, gap, {"S": size})
            for size, gap in ((0.0625, low), (0.25, low), (1.0, 0.0), (4.0, high))
        ]
    return losses(points, seeds, spread)


test_breaks, test_differences, test_planned = checks(world, BREAKS, MEASURED)


@pytest.mark.parametrize(("claim", "arm", "same"), [("X1", "UNIFIED_HEAD", -0.1)])
def test_no_difference_is_below_what_matters(claim, arm, same):
    assert judged(claim, world(**{arm: same})).verdict == BELOW
    assert judged(claim, world(**{arm: same}, spread=0.05)).verdict == OPEN


def test_a_small_effect_is_below_what_matters():
    parts = verdicts("X2", world(UNIFIED_ALIKE=-0.098, spread=0.001))
    assert parts["on input vectors alone − on all (nats)"] == BELOW
