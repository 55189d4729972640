"""Planted worlds of the transfer of learning rates in Gated Delta Networks, AdamW and SGD."""

import functools
import math
from itertools import product

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import HOLDS, OPEN
from analysis.quantities.gdn_transfer import QUANTITIES
from analysis.quantities.transfer import best_rate, drift, losses, minimum, regret, steepness
from analysis.tables.results import Tables
from tests.worlds.planted import CRITERIA, check_breaks, frame, judged, noise, runs_of

WIDTHS = (32, 64, 128, 256)
STEPS = 320
SETTINGS = {"train": {"steps": STEPS}}
SEEDS = {"AdamW": range(200, 208), "SGD": range(200, 216)}
CLAIMS = {
    "AdamW": ("GD1", "GD2", "GD6", "GD7", "GD8"),
    "SGD": ("GD3", "GD4", "GD5", "GD9", "GD16"),
}
RATES = {
    "AdamW": tuple(4e-3 * 2 ** (step / 2) for step in range(9)),
    "SGD": tuple(0.05 * 2 ** (step / 2) for step in range(8)),
}
BASE = {"AdamW": 1.6e-2, "SGD": 0.2}
# The exponent of the width in the best LR, and how far an arm lies above muP's losses.
DRIFTS = {
    "AdamW": {"SP": -0.5, "MUP": 0.02},
    "SGD": {"SP": -0.45, "ORIGINAL": -0.4, "PAPER": 0.02, "ORIGINAL_UNCLIPPED": -0.4,
            "PAPER_UNCLIPPED": 0.02},
}  # fmt: skip
ABOVE = {"SP": 0.1}
POWERS = {"SP": {"q̃": 0.8, "k̃": 0.8, "∂h": -0.5}, "ORIGINAL": {"∂q̃": -0.6, "∂k̃": -0.6}}
# The LR of the grid at which sizes are judged.
JUDGED_LR = {"AdamW": 0.016, "SGD": 0.1}


def rows(optimizer, seed, drifts, levels, powers, curvature, shares):
    for arm, exponent in (DRIFTS[optimizer] | dict(drifts)).items():
        own = WIDTHS if not arm.endswith("UNCLIPPED") else (32, 256)
        for width in own:
            m = width / 32
            best = BASE[optimizer] * m ** (exponent + noise(seed, arm, size=0.02))
            level = 4 - 0.1 * math.log(m) + ABOVE.get(arm, 0.0) * (m > 1)
            level += dict(levels).get((arm, width), 0.0) + noise(seed, arm, width, size=0.002)
            share = dict(shares).get((arm, width), 0.9) + noise(seed, width, size=0.01)
            for lr in RATES[optimizer]:
                place = {"arm": arm, "seed": seed, "width": width, "lr": round(lr, 12)}
                loss = level + curvature * math.log(lr / best) ** 2
                yield place | {"step": STEPS, "tensor": "model", "stat": "validation_loss",
                               "value": loss}  # fmt: skip
                yield place | {"step": 40, "tensor": "model", "stat": "clipped_fraction",
                               "value": share}  # fmt: skip
            place = {"arm": arm, "seed": seed, "width": width, "lr": JUDGED_LR[optimizer]}
            for quantity, (stat, tensor, derived) in QUANTITIES.items():
                power = dict(powers).get((arm, quantity))
                power = POWERS.get(arm, {}).get(quantity, derived) if power is None else power
                value = m ** (power + noise(seed, arm, quantity, size=0.02))
                name = "embedding" if tensor == "block.in" else tensor
                yield place | {"step": STEPS, "tensor": name, "stat": stat, "value": value}


@functools.cache
def world(optimizer, seeds=None, drifts=(), levels=(), powers=(), curvature=0.1, shares=()):
    """Parabolas in ln(LR), whose minima lie at powers of the width; the rest by name."""
    seeds = SEEDS[optimizer] if seeds is None else seeds
    found = (rows(optimizer, seed, drifts, levels, powers, curvature, shares) for seed in seeds)
    table = frame(row for own in found for row in own)
    runs = runs_of(list(DRIFTS[optimizer]), list(seeds), SETTINGS)
    return Tables(runs, table, pd.DataFrame())


def of_transfer():
    yield "muP: exponent of the width in the best LR", {"drifts": (("MUP", 0.4),)}
    flat = {"curvature": 0.03, "also": ("loss at twice",)}
    for width in (32, 256):
        yield f"− at it, width {width}", flat


def of_sp():
    falls = {"drifts": (("SP", 0.1), ("MUP", 0.5)), "also": ("what the base's LR costs",)}
    yield "SP: exponent of the width in the best LR", falls
    yield "SP − muP: exponent", {"drifts": (("MUP", -0.35),)}
    # As far as SP falls muP rises: carrying the base's LR costs as much.
    yield "SP − muP: what the base's LR costs", {"drifts": (("MUP", 0.5),)}


def of_losses():
    for width in WIDTHS[1:]:
        yield f"muP − SP at width {width}", {"levels": ((("SP", width), -0.2),)}
    for narrow, wide in zip(WIDTHS, WIDTHS[1:], strict=False):
        both = tuple(((arm, wide), 0.2) for arm in ("SP", "MUP"))
        yield f"muP: width {wide} − width {narrow}", {"levels": both}


def of_sizes():
    for quantity in ("q̃", "k̃"):
        yield f"muP: exponent of {quantity}", {"powers": ((("MUP", quantity), 0.4),)}
        alike = {"powers": ((("SP", quantity), 0.1),)}
        yield f"SP: |exponent − derived| of {quantity}", alike


def of_gradients():
    yield "muP: exponent of ∂h", {"powers": ((("MUP", "∂h"), -0.5),)}
    yield "SP: exponent of ∂h", {"powers": ((("SP", "∂h"), -1.0),)}


def of_sgd():
    yield "the paper's: exponent of the width", {"drifts": (("PAPER", 0.35),)}
    yield "before − the paper's: what", {"drifts": (("ORIGINAL", 0.02),)}
    flat = {"curvature": 0.03, "also": ("loss at twice",)}
    for width in (32, 256):
        yield f"− at it, width {width}", flat


def of_either():
    for quantity in ("∂q̃", "∂k̃"):
        yield f"the paper's: exponent of {quantity}", {"powers": ((("PAPER", quantity), -0.6),)}
        alike = {"powers": ((("ORIGINAL", quantity), -0.95),)}
        yield f"before: |exponent of {quantity}", alike


def of_clipping():
    names = {"SP": "SP", "ORIGINAL": "muP before the paper", "PAPER": "the paper's"}
    for (arm, name), width in product(names.items(), WIDTHS):
        shares = ((((arm, width)), 0.3),)
        yield f"{name}: share of clipped steps at width {width}", {"shares": shares}
    yield "unclipped − clipped", {"drifts": (("ORIGINAL_UNCLIPPED", 0.1),)}


BREAKS = {
    "GD1": dict(of_transfer()),
    "GD2": dict(of_sp()),
    "GD3": dict(of_sgd()),
    "GD4": {"SP": {"drifts": (("SP", -0.1),)}},
    "GD5": {"before": {"drifts": (("ORIGINAL", 0.05),)}},
    "GD6": dict(of_losses()),
    "GD7": dict(of_sizes()),
    "GD8": dict(of_gradients()),
    "GD9": dict(of_either()),
    "GD16": dict(of_clipping()),
}
ALL = [(claim, optimizer) for optimizer, claims in CLAIMS.items() for claim in claims]


@pytest.mark.parametrize(("claim", "optimizer"), ALL)
def test_each_part_is_broken_by_a_world(claim, optimizer):
    check_breaks(claim, functools.partial(world, optimizer), BREAKS[claim])


@pytest.mark.parametrize(("claim", "optimizer"), ALL)
def test_fewer_seeds_leave_it_open(claim, optimizer):
    assert judged(claim, world(optimizer)).verdict == HOLDS
    assert judged(claim, world(optimizer, seeds=SEEDS[optimizer][:-1])).verdict == OPEN
    ends = SEEDS[optimizer][0], SEEDS[optimizer][-1]
    assert CRITERIA[claim]["seeds"]["judge"] == "{}-{}".format(*ends)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_best_rate_may_move_either_way(sign):
    moved = judged("GD4", world("SGD", drifts=(("SP", 0.4 * sign),)))
    assert moved.verdict == HOLDS
    moved = judged("GD1", world("AdamW", drifts=(("MUP", 0.4 * sign),)))
    assert moved.verdict != HOLDS


def test_a_minimum_is_a_parabolas():
    rates = pd.Index(RATES["AdamW"])
    values = 4 + 0.1 * np.log(rates / 1.3e-2) ** 2
    assert minimum(pd.Series(values, rates)) == pytest.approx(1.3e-2)
    assert math.isnan(minimum(pd.Series(np.arange(9.0), rates)))
    assert math.isnan(minimum(pd.Series(-np.arange(9.0), rates)))
    beside = pd.Series([3.0, 2.0, 1.0, np.inf, np.inf, np.inf, np.inf, np.inf, np.inf], rates)
    assert minimum(beside) == rates[2]


def test_an_edge_leaves_it_open():
    tables = world("AdamW", drifts=(("MUP", 0.9),))
    assert best_rate(tables, "MUP")[256].isna().all() and drift(tables, "MUP").isna().all()
    assert judged("GD1", tables).verdict == OPEN


def test_rates_are_chosen_over_seeds():
    tables = world("AdamW")
    table = losses(tables, "SP")
    carried, own = table[32].mean().idxmin(), table[256].mean().idxmin()
    assert carried == pytest.approx(1.6e-2) and own == pytest.approx(5.66e-3, rel=1e-2)
    pd.testing.assert_series_equal(regret(tables, "SP", 256), table[256][carried] - table[256][own])
    assert regret(tables, "MUP", 256).mean() == 0
    # At a factor of two a parabola of curvature 0.1 has risen by 0.1 ln(2)².
    risen = steepness(tables, "MUP", 32, 2.0).mean()
    assert risen == pytest.approx(0.1 * math.log(2) ** 2, rel=0.05)


def test_a_run_that_ended_early_has_an_infinite_loss():
    plain = world("AdamW")
    table = plain.scalars.copy()
    there = (table["arm"] == "MUP") & (table["width"] == 64) & (table["lr"] == RATES["AdamW"][-1])
    table.loc[there & (table["stat"] == "validation_loss"), "step"] = 100
    found = losses(Tables(plain.runs, table, pd.DataFrame()), "MUP")
    assert np.isinf(found[64].iloc[:, -1]).all() and np.isfinite(found[128]).all().all()
