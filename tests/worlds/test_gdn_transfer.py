"""Planted worlds of the transfer of learning rates in Gated Delta Networks, AdamW and SGD."""

import functools
import math
from itertools import product

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import HOLDS, OPEN
from analysis.quantities.gdn_transfer import PLACES, QUANTITIES
from analysis.quantities.transfer import (
    best_rate,
    drift,
    losses,
    minimum,
    regret,
    steepness,
    typical_rate,
)
from analysis.tables.results import Tables
from lrm.cli import parse_seeds
from tests.worlds.planted import CRITERIA, check_breaks, frame, judged, noise, part, runs_of

WIDTHS = (32, 64, 128, 256)
STEPS = 320
SETTINGS = {"train": {"steps": STEPS}}
SEEDS = range(200, 216)
CLAIMS = {
    "AdamW": (
        "GD1",
        "GD2",
        "GD2.2",
        "GD6",
        "GD7",
        "GD8",
        "GD10",
        "GD10b",
        "GD11",
        "GD14",
        "GM1",
        "GM2",
    ),
    "SGD": ("GD3", "GD4", "GD5", "GD9", "GD16"),
}
RATES = {
    "AdamW": tuple(4e-3 * 2 ** (step / 2) for step in range(9)),
    "SGD": tuple(0.05 * 2 ** (step / 2) for step in range(8)),
}
BASE = {"AdamW": 1.6e-2, "SGD": 0.2}
# The exponent of the width in the best LR, and how far an arm lies above muP's losses.
DRIFTS = {
    "AdamW": {"SP": -0.5, "MUP": 0.02, "SP_SCALARS": 0.03},
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
            for gate in ("gdn.alpha", "gdn.beta") if arm == "SP_SCALARS" else ():
                power = dict(powers).get((arm, gate), -0.5) + noise(seed, gate, size=0.02)
                yield place | {"step": STEPS, "tensor": gate, "stat": "scalar_multiplier_norm",
                               "value": 0.7 * m**power}  # fmt: skip


# By arm, stat and tensor: level at width 32, and exponent of the width, of what heads tell.
HEADS = {
    **{(arm, "head_mean", "gdn.written"): (0.5, 0.0) for arm in ("MUP", "SP")},
    **{("MUP", "deviation", gate): (0.8, 0.0) for gate in ("gdn.alpha", "gdn.beta")},
    **{("SP", "deviation", gate): (0.8, 0.6) for gate in ("gdn.alpha", "gdn.beta")},
    ("MUP", "head_mean", "gdn.kept"): (0.9, 0.0),
    ("MUP", "memory", "gdn.kept"): (15.0, 0.0),
    ("MUP", "unrelated_cosine", "gdn.q"): (0.06, 0.0),
    **{("MUP", f"cosine_{place}", "gdn.q"): (0.07, 0.0) for place in PLACES},
    **{("SP", f"cosine_{place}", "gdn.q"): (0.4, 0.0) for place in PLACES},
}


def heads(seed, changes):
    """Of two layers with three heads each, at the start and at the end."""
    for place, (level, power) in HEADS.items():
        arm, stat, tensor = place
        for width, step, layer in product(WIDTHS, (0, STEPS), (0, 1)):
            level_here, power_here = level, power
            for key, (new, exponent) in changes:
                if key in ((*place,), (*place, width), (*place, step), (*place, width, step)):
                    level_here, power_here = new, exponent
            value = level_here * (width / 32) ** power_here
            values = [value * (1 + noise(seed, place, layer, head, size=0.02)) for head in range(3)]
            yield {"arm": arm, "seed": seed, "width": width, "lr": 0.016, "step": step,
                   "tensor": tensor, "layer": layer, "stat": stat,
                   "value": np.array(values)}  # fmt: skip


@functools.cache
def world(
    optimizer, seeds=None, drifts=(), levels=(), powers=(), curvature=0.1, shares=(), told=()
):
    """Parabolas in ln(LR), whose minima lie at powers of the width; the rest by name.

    ``told`` changes what heads tell: of a place in ``HEADS``, perhaps at a width or a step alone.
    """
    seeds = SEEDS if seeds is None else seeds
    found = (rows(optimizer, seed, drifts, levels, powers, curvature, shares) for seed in seeds)
    table = frame(row for own in found for row in own)
    runs = runs_of(list(DRIFTS[optimizer]), list(seeds), SETTINGS)
    vectors = pd.DataFrame()
    if optimizer == "AdamW":
        vectors = frame(row for seed in seeds for row in heads(seed, told))
    return Tables(runs, table, vectors)


def of_gates():
    for width in WIDTHS:
        off = {"told": ((("MUP", "head_mean", "gdn.written", width), (0.8, 0.0)),)}
        yield f"muP: mean β at width {width}", off
    for gate, name in (("gdn.alpha", "z_α"), ("gdn.beta", "z_β")):
        grows = {"told": ((("MUP", "deviation", gate), (0.8, 0.5)),)}
        yield f"muP: exponent of the standard deviation of {name}", grows
        still = {"told": ((("SP", "deviation", gate), (0.8, 0.1)),)}
        yield f"SP: exponent of the standard deviation of {name}", still


def of_cosines():
    for width in WIDTHS:
        # The largest of five places counts, and its sign does not.
        one = (("MUP", "cosine_half", "gdn.q", width), (-0.5, 0.0))
        other = (("MUP", "cosine_last", "gdn.q", width), (0.5, 0.0))
        name = f"muP: largest mean |cos(q, k)| of five places, width {width}"
        yield name, {"told": (one, other)}
        apart = (("MUP", "unrelated_cosine", "gdn.q", width), (0.4, 0.0))
        yield f"one token − of two, width {width}", {"told": (apart,)}
    small = tuple((("SP", f"cosine_{place}", "gdn.q"), (0.1, 0.0)) for place in PLACES)
    yield "SP: largest mean", {"told": small}


def of_scalars():
    costs = ("what the base's LR costs",)
    yield "exponent of the width", {"drifts": (("SP_SCALARS", 0.5),), "also": costs}
    # The grid's best at the smallest width is another than at the largest.
    moved = ("exponent of the width",)
    yield "what the base's LR costs", {"drifts": (("SP_SCALARS", -0.5),), "also": moved}
    for width in WIDTHS[1:]:
        yield f"− muP at width {width}", {"levels": ((("SP_SCALARS", width), 0.1),)}


def of_memories():
    for step, moment in ((0, "at the start"), (STEPS, "at the end")):
        for width in WIDTHS:
            long = (("MUP", "memory", "gdn.kept", width, step), (60.0, 0.0))
            also = (f"exponent of the memory {moment}",)
            yield f"{moment}, width {width}", {"told": (long,), "also": also}
        grows = (("MUP", "memory", "gdn.kept", step), (6.0, 0.3))
        yield f"exponent of the memory {moment}", {"told": (grows,)}


def of_transfer():
    both = {"drifts": (("MUP", 0.4),)}
    costs, moved = "what the base's LR costs", "exponent of the width"
    yield "muP: exponent of the width in the best LR", both | {"also": (costs,)}
    yield "muP: what the base's LR costs", both | {"also": (moved,)}
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
        yield f"before: exponent of {quantity}", alike


def of_clipping():
    names = {"SP": "SP", "ORIGINAL": "muP before the paper", "PAPER": "the paper's"}
    for (arm, name), width in product(names.items(), WIDTHS):
        shares = ((((arm, width)), 0.3),)
        yield f"{name}: share of clipped steps at width {width}", {"shares": shares}
    yield "unclipped − clipped", {"drifts": (("ORIGINAL_UNCLIPPED", 0.1),)}


BREAKS = {
    "GD1": dict(of_transfer()),
    "GD2": dict(of_sp()),
    "GD2.2": dict(of_sp()),
    "GD3": dict(of_sgd()),
    "GD4": {"SP": {"drifts": (("SP", -0.1),)}},
    "GD5": {"before": {"drifts": (("ORIGINAL", 0.05),)}},
    "GD6": dict(of_losses()),
    "GD7": dict(of_sizes()),
    "GD8": dict(of_gradients()),
    "GD9": dict(of_either()),
    "GD10": dict(of_gates()),
    "GD10b": {
        "share": {"told": ((("MUP", "head_mean", "gdn.kept", 256), (0.999, 0.0)),)},
    },
    "GD11": dict(of_cosines()),
    "GD14": dict(of_memories()),
    "GM1": dict(of_scalars()),
    "GM2": {
        f"|s| of {name}": {"powers": ((("SP_SCALARS", gate), 0.0),)}
        for gate, name in (("gdn.alpha", "W_α"), ("gdn.beta", "W_β"))
    },
    "GD16": dict(of_clipping()),
}
ALL = [(claim, optimizer) for optimizer, claims in CLAIMS.items() for claim in claims]


@pytest.mark.parametrize(("claim", "optimizer"), ALL)
def test_each_part_is_broken_by_a_world(claim, optimizer):
    check_breaks(claim, functools.partial(world, optimizer), BREAKS[claim])


@pytest.mark.parametrize(("claim", "optimizer"), ALL)
def test_fewer_seeds_leave_it_open(claim, optimizer):
    seeds = tuple(parse_seeds(CRITERIA[claim]["seeds"]["judge"]))
    assert len(seeds) == CRITERIA[claim]["seeds"]["planned"]
    assert judged(claim, world(optimizer, seeds=seeds)).verdict == HOLDS
    assert judged(claim, world(optimizer, seeds=seeds[:-1])).verdict == OPEN


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_best_rate_may_move_either_way(sign):
    moved = judged("GD4", world("SGD", drifts=(("SP", 0.4 * sign),)))
    assert moved.verdict == HOLDS
    moved = judged("GD1", world("AdamW", drifts=(("MUP", 0.4 * sign),)))
    assert moved.verdict != HOLDS


def told(stat, tensor, *where, at):
    return {"told": ((("MUP", stat, tensor, *where), at),)}


# What a part says where the border below it and that above it lie alike: (claim, part, changes, its
# mean in that world).
SIGNED = [
    ("GD1", "muP: exponent of the width", {"drifts": (("MUP", 0.3),)}, 0.3),
    ("GD10", "muP: exponent of the standard deviation of z_α",
     told("deviation", "gdn.alpha", at=(0.8, 0.3)), 0.3),
    ("GD10", "muP: exponent of the standard deviation of z_β",
     told("deviation", "gdn.beta", at=(0.8, 0.3)), 0.3),
    ("GD10b", "share of such heads", told("head_mean", "gdn.kept", 256, at=(0.001, 0.0)), 1.0),
    ("GD11", "one token − of two, width 64",
     told("unrelated_cosine", "gdn.q", 64, at=(0.17, 0.0)), -0.1),
    ("GD14", "exponent of the memory at the end",
     told("memory", "gdn.kept", STEPS, at=(6.0, 0.3)), 0.3),
    ("GM1", "learned scalars: exponent of the width", {"drifts": (("SP_SCALARS", 0.3),)}, 0.3),
]  # fmt: skip


@pytest.mark.parametrize(("claim", "name", "changes", "mean"), SIGNED)
def test_a_part_says_what_its_name_says(claim, name, changes, mean):
    found = part(claim, world("AdamW", **changes), name)
    assert found.interval.mean == pytest.approx(mean, abs=0.03)


def test_a_gate_may_be_too_small_too():
    closed = told("head_mean", "gdn.written", 64, at=(0.2, 0.0))
    assert judged("GD10", world("AdamW", **closed)).verdict != HOLDS


def test_a_minimum_is_a_parabolas():
    rates = pd.Index(RATES["AdamW"])
    values = 4 + 0.1 * np.log(rates / 1.3e-2) ** 2
    assert minimum(pd.Series(values, rates), 1.6e-2) == pytest.approx(1.3e-2)
    # What lies farther than a factor of four from the middle does not count.
    far = pd.Series(values, rates).where(np.abs(np.log(rates / 1.6e-2)) < 1.45, 99.0)
    assert minimum(far, 1.6e-2) == pytest.approx(1.3e-2)
    assert minimum(pd.Series(np.arange(9.0) ** 2, rates), 8e-3) == pytest.approx(rates[0])
    assert minimum(pd.Series(-np.arange(9.0), rates), 1.6e-2) == pytest.approx(rates[-1])
    assert math.isnan(minimum(pd.Series(values, rates), math.nan))
    beside = pd.Series([3.0, 2.0, 1.0, np.inf, np.inf, np.inf, np.inf, np.inf, np.inf], rates)
    assert minimum(beside, rates[2]) == rates[2]
    assert math.isnan(minimum(beside + np.inf, rates[2]))


def test_noise_moves_it_less_than_that_of_three_points():
    rates, draw = pd.Index(RATES["AdamW"]), np.random.default_rng(0)
    true = 0.1 * np.log(rates / 1.3e-2) ** 2
    found, plain = [], []
    for _ in range(200):
        values = pd.Series(true + draw.normal(0, 0.02, len(rates)), rates)
        found.append(math.log(minimum(values, 1.6e-2)))
        at = int(np.clip(values.to_numpy().argmin(), 1, len(rates) - 2))
        near = slice(at - 1, at + 2)
        steep, slope, _ = np.polyfit(np.log(rates[near] / rates[at]), values.iloc[near], 2)
        plain.append(math.log(rates[at]) - (slope / (2 * steep) if steep > 0 else 0.0))
    assert np.mean(found) == pytest.approx(math.log(1.3e-2), abs=0.02)
    assert np.std(found) < 0.5 * np.std(plain)


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


def test_a_run_without_any_validation_has_an_infinite_loss():
    """It diverged before the first one, and its losses of steps alone are there."""
    plain = world("AdamW")
    table = plain.scalars.copy()
    there = (table["arm"] == "MUP") & (table["width"] == 64) & (table["lr"] == RATES["AdamW"][-1])
    table.loc[there & (table["seed"] != table["seed"].min()), "stat"] = "train_loss"
    tables = Tables(plain.runs, table, pd.DataFrame())
    found = losses(tables, "MUP")
    assert np.isinf(found[64].iloc[1:, -1]).all() and np.isfinite(found[64].iloc[0, -1])
    assert typical_rate(tables, "MUP", 64) != RATES["AdamW"][-1]
