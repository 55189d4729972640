"""Planted worlds of where scale vectors stand: SV10 to SV12."""

import functools

import pytest

from analysis.claims.judging import BELOW, OPEN
from tests.worlds.designs import SEEDS, arms, checks, losses
from tests.worlds.planted import judged, noise, runs_of

# What each arm loses where every part holds, in nats.
GAPS = {"HG": 0.0, "AP": 0.0, "DP": -0.05, "DNP": 0.06, "HG_FACTOR": -0.01}
BREAKS = {
    "SV10": {"both sides": {"DP": 0.05}},
    "SV11": {
        "DNP − inputs only (nats)": {"HG": 0.1},
        "DNP − inputs only with a fixed factor": {"HG_FACTOR": 0.1},
    },
    "SV12": {"at a tenth": {"early": 0.05}, "at the end": {"late": -0.05}},
}
MEASURED = {
    "SV10": {"both sides": -0.05},
    "SV11": {"DNP − inputs only (": 0.06, "a fixed": 0.07},
    "SV12": {"at a tenth": -0.05, "at the end": 0.05},
}


@functools.cache
def world(seeds=SEEDS, spread=0.003, early=-0.05, late=0.05, **changes):
    """The losses, each with the changes ``<arm>=`` to ``GAPS``, and training losses."""
    rows = [row for seed in seeds for row in training(seed, spread, early, late)]
    runs = runs_of(("HG", "AP"), seeds, {"probes": {"every": 20}, "train": {"steps": 400}})
    return losses(arms(GAPS, changes), seeds, spread, rows, runs)


def training(seed, spread, early, late):
    """Losses of HG and AP at every 20th step of 400; ``early`` and ``late`` are gaps of AP."""
    for step in range(20, 401, 20):
        # Only just before a tenth of the steps, and just before the end.
        gap = early if step <= 40 else late if step > 360 else 0.3
        for arm in ("HG", "AP"):
            value = 5 - step / 400 + (gap + noise(seed, step, size=spread)) * (arm == "AP")
            yield {
                "arm": arm,
                "seed": seed,
                "step": step,
                "tensor": "model",
                "stat": "train_loss",
                "value": value,
            }


test_breaks, test_differences, test_planned = checks(world, BREAKS, MEASURED)


@pytest.mark.parametrize(("claim", "arm", "same"), [("SV10", "DP", 0.0)])
def test_no_difference_is_below_what_matters(claim, arm, same):
    assert judged(claim, world(**{arm: same})).verdict == BELOW
    assert judged(claim, world(**{arm: same}, spread=0.05)).verdict == OPEN
