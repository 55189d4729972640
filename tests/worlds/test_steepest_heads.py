"""Planted worlds of the scale of attention over the size of heads: BM5."""

import functools
import math

import pandas as pd
import pytest

from analysis.claims.judging import HOLDS, OPEN, REFUTED
from analysis.quantities import steepest_heads as found
from analysis.tables.results import Tables
from lrm.plan.claims import judging_seeds
from tests.worlds.planted import CRITERIA, check_breaks, frame, judged, noise, part, runs_of

SEEDS = tuple(judging_seeds(CRITERIA["BM5"]))
SIZES, FACTORS = ("8", "128"), tuple(2.0**step for step in range(-5, 3))
ARMS = {"STEEPEST": "steepest descent", "ADAMW_MUP": "AdamW with muP"}
SETTINGS = {"train": {"steps": 300}}


@functools.cache
def world(seeds=SEEDS, powers=(), curvature=0.03, bump=()):
    """Parabolas in the factor's logarithm, whose minimum lies where the scale goes as a power."""
    powers = dict.fromkeys(ARMS, -1.0) | dict(powers)
    rows = [
        {"arm": arm, "seed": seed, "head_size": size, "factor": factor, "step": 300,
         "tensor": "model", "stat": "validation_loss",
         "value": 4 + noise(seed, arm, size, factor, size=0.002)
         + curvature * math.log(factor / best(powers[arm], size)) ** 2
         + dict(bump).get((arm, size, factor), 0.0)}
        for arm in ARMS for seed in seeds for size in SIZES for factor in FACTORS
    ]  # fmt: skip
    return Tables(runs_of(list(ARMS), list(seeds), SETTINGS), frame(rows), pd.DataFrame())


def best(power, size):
    return (float(size) / 8) ** (power + 0.5)


def breaks():
    for arm, name in ARMS.items():
        carried = f"{name}: loss with the scale of the smallest"
        yield f"{name}: exponent", {"powers": ((arm, -0.6),), "also": (carried,)}
        # The root's factor is the better one by luck at one point.
        yield carried, {"bump": (((arm, "128", 1.0), -0.2), ((arm, "128", 0.25), 0.05)),
                        "also": (f"{name}: exponent", f"{name}: loss at")}  # fmt: skip
        for size in SIZES:
            flat = {"curvature": 0.004, "also": ("loss at", "exponent", "carried")}
            yield (
                f"{name}: loss at 4 times and 1/4 of the best factor − at it, heads of {size}",
                flat,
            )


def test_each_part_is_broken_by_a_world():
    check_breaks("BM5", world, dict(breaks()))


def test_fewer_seeds_leave_it_open():
    assert judged("BM5", world()).verdict == HOLDS
    assert judged("BM5", world(seeds=SEEDS[:-1])).verdict == OPEN


def test_the_root_is_refuted():
    assert judged("BM5", world(powers=tuple((arm, -0.5) for arm in ARMS))).verdict == REFUTED


def test_a_scale_is_carried_by_a_power():
    """By the root the factor stays, and by the size it falls as the root of the ratio of sizes."""
    tables = world(curvature=0.1)
    table = found.by_size(tables).scalars.query("arm == 'STEEPEST' and width == 128")
    for power, factor in ((found.BY_ROOT, 1.0), (found.BY_SIZE, 0.25)):
        expected = table[table["factor"] == factor].set_index("seed")["value"]
        pd.testing.assert_series_equal(
            found.carried(tables, "STEEPEST", power), expected, check_names=False
        )
    assert found.carried(tables, "STEEPEST", 0.0).isna().sum() == 0
    assert found.carried(tables, "STEEPEST", 1.0).isna().all()
    mean = found.exponent(tables, "STEEPEST").mean()
    assert mean == pytest.approx(-1, abs=0.03)
    assert part("BM5", tables, "steepest descent: exponent").values[0] == pytest.approx(-1, abs=0.1)
