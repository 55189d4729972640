"""Planted worlds of a vector for each branch: SV8 and SV9."""

import functools

import numpy as np
import pytest

from analysis.claims.judging import BELOW, OPEN
from tests.worlds.designs import SEEDS, arms, checks, losses
from tests.worlds.planted import judged, noise, part

# What each arm loses where every part holds, in nats.
GAPS = {"STANDARD": 0.0, "STANDARD_REORDERED": 0.0, "HG": -0.05}
BREAKS = {
    "SV8": {"largest distance": {"apart": 0.02}, "correlation of the pattern": {"repeats": 0.0}},
    "SV9": {"a vector for each branch": {"HG": 0.05}},
}
MEASURED = {"SV9": {"a vector for each": -0.05}}


@functools.cache
def world(seeds=SEEDS, spread=0.003, apart=0.5, repeats=1.0, **changes):
    """The losses, each with the changes ``<arm>=`` to ``GAPS``, and norms of the branches."""
    rows = [row for seed in seeds for row in growing(seed, apart, repeats)]
    return losses(arms(GAPS, changes), seeds, spread, rows)


def growing(seed, apart, repeats):
    """Norms of W_q, W_k and W_v in two layers: noise times a course of its own for each."""
    for arm in ("STANDARD", "STANDARD_REORDERED"):
        again = arm != "STANDARD"
        for layer in (0, 1):
            for step in (0, 50, 100, 200, 300, 400):
                for n, branch in enumerate(("q", "k", "v")):
                    own = np.sin(step / 60 + (2.1 * n if not again or repeats > 0 else 5 * n + 1))
                    factor = np.exp((0.8 if again else 0.5) * apart * own * (step > 0) + 0.3)
                    of_noise = (1 + step / 100) * (1 + layer)
                    at = {
                        "seed": seed,
                        "step": step,
                        "tensor": f"attention.{branch}",
                        "layer": layer,
                        "stat": "weight_norm",
                    }
                    value = of_noise * factor * (1 + noise(seed, arm, layer, step, n, size=0.01))
                    yield {**at, "arm": arm, "value": value}
                    if not again:
                        yield {
                            **at,
                            "arm": arm,
                            "kind": "brownian",
                            "seed": np.nan,
                            "value": of_noise,
                        }


test_breaks, test_differences, test_planned = checks(world, BREAKS, MEASURED)


@pytest.mark.parametrize(("claim", "arm", "same"), [("SV9", "HG", 0.0)])
def test_no_difference_is_below_what_matters(claim, arm, same):
    assert judged(claim, world(**{arm: same})).verdict == BELOW
    assert judged(claim, world(**{arm: same}, spread=0.05)).verdict == OPEN


def test_patterns_of_branches():
    """The distance is that of branches from one another: what all share does not enter."""
    spread = part("SV8", world(), "largest distance").interval.mean
    assert spread == pytest.approx(0.25 * np.sqrt(3), rel=0.1)
    assert part("SV8", world(), "correlation").interval.mean > 0.95
