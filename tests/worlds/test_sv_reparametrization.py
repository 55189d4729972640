"""Planted worlds of magnitude and direction apart: SV13 to SV15d."""

import functools

from analysis.claims.judging import BELOW
from tests.worlds.designs import SEEDS, arms, checks, losses
from tests.worlds.planted import verdicts

# What each arm loses where every part holds, in nats.
GAPS = {
    "HG": 0.0,
    "HG_OR": -0.1,
    "HG_ER": -0.11,
    "DP": -0.01,
    "DP_OR": -0.12,
    "DP_ER": -0.13,
    "DNP": -0.05,
    "DNP_OR": -0.3,
    "DNP_ER": -0.2,
    "HG_PRODUCT": -0.104,
    "SCALAR": -0.096,
    "HG_FAST": 0.0,
    "HG_OR_FINAL": -0.06,
    "HG_OR_BLOCKS": -0.03,
    "DP_OR_ONE": -0.116,
    "DNP_OR_STILL": -0.31,
}
BREAKS = {
    "SV13": {
        "OR − direct, vectors on inputs": {"HG_OR": 0.05},
        "ER − direct, vectors on inputs": {"HG_ER": 0.05},
        "OR − direct, vectors on both": {"DP_OR": 0.05},
        "ER − direct, vectors on both": {"DP_ER": 0.05},
    },
    "SV13b": {"OR − direct, vectors on both": {"DP_OR": 0.05}},
    "SV14": {
        "DNP with OR − DP with OR": {"DP_OR": -0.4},
        "DNP with OR − DP with ER": {"DP_ER": -0.4},
        "DNP with OR − DNP with ER": {"DNP_ER": -0.4},
    },
    "SV15b": {"magnitude fixed − learned": {"DNP_OR_STILL": -0.2}},
    "SV15d": {
        "vector times a number − OR": {"HG_PRODUCT": 0.0},
        "a number alone − OR": {"SCALAR": 0.0},
        "vectors with a larger LR − OR": {"HG_FAST": -0.2},
        "direct − OR on the final vector": {"HG_OR_FINAL": 0.05},
        "direct − OR on the blocks": {"HG_OR_BLOCKS": 0.05},
        "one magnitude − two": {"DP_OR_ONE": 0.0},
        "direct − OR (nats)": {"HG_OR": 0.05, "HG_PRODUCT": 0.05, "SCALAR": 0.05, "HG_FAST": 0.2},
    },
    "SV15d.2": {
        "of a vector times a number": {"HG_PRODUCT": -0.02},
        "of a number alone": {"SCALAR": -0.02},
        "of OR on the final vector": {"HG_OR_FINAL": -0.02},
        "of OR on the blocks": {"HG_OR_BLOCKS": -0.09},
        "direct − OR (nats)": {"HG_OR": 0.05, "HG_OR_BLOCKS": 0.06},
    },
}
MEASURED = {
    "SV13": {"OR − direct, vectors on inputs": -0.1, "ER − direct, vectors on both": -0.12},
    "SV13b": {"OR − direct, vectors on both": -0.11},
    "SV14": {"− DP with OR": -0.18, "− DP with ER": -0.17, "− DNP with ER": -0.1},
    "SV15b": {"fixed − learned": -0.01},
    "SV15d": {
        "times a number": -0.004,
        "alone": 0.004,
        "larger LR": 0.1,
        "final": 0.06,
        "blocks": 0.03,
        "one magnitude": 0.004,
        "direct − OR (": 0.1,
    },
    "SV15d.2": {
        "a vector times a number": 0.054,
        "a number alone": 0.046,
        "the final vector": 0.01,
        "the blocks": -0.02,
        "direct − OR (": 0.1,
    },
}


@functools.cache
def world(seeds=SEEDS, spread=0.003, **changes):
    """The losses, each with the changes ``<arm>=`` to ``GAPS``."""
    return losses(arms(GAPS, changes), seeds, spread)


test_breaks, test_differences, test_planned = checks(world, BREAKS, MEASURED)


def test_a_small_gain_is_below_what_matters():
    parts = verdicts("SV13", world(HG_OR=-0.002, spread=0.001))
    assert parts["OR − direct, vectors on inputs (nats)"] == BELOW
