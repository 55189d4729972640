"""Planted worlds of criteria and learning rates over the width: BM1, BM4, BM7 and BM8."""

import functools
import math

import pandas as pd
import pytest

from analysis.claims.judging import HOLDS, OPEN, REFUTED
from analysis.quantities import steepest_width as found
from analysis.tables.results import Tables
from lrm.cli import parse_seeds
from tests.worlds.planted import CRITERIA, check_breaks, frame, judged, noise, runs_of

WIDTHS = (32, 64, 128, 256)
STEPS, PROBES = 300, (0, 50, 100, 150, 200, 300)
SETTINGS = {"train": {"steps": STEPS}}
SEEDS = range(200, 208)
FACTORS = tuple(2.0**step for step in range(-4, 3))
# The exponent of the width in the best factor.
DRIFTS = {"STEEPEST": -0.05, "HEAD_FIXED": -0.4, "ADAMW": -0.6, "ADAMW_MUP": 0.02,
          "ADAMW_SCALARS": 0.05, "ADAMW_DECAY": -0.7}  # fmt: skip
# By arm, layers or updates, and kind: the exponent of the width at every step.
POWERS = {("ADAMW", "layers", "linear layers"): 0.4, ("ADAMW", "layers", "head"): 0.5}
TENSORS = {
    "embedding": ("embedding",), "linear layers": ("attention.q", "mlp.down"),
    "head": ("projector",), "gains": ("norm.mlp", "norm.final"),
}  # fmt: skip


def rows(seed, drifts, powers, curvature, growth, inputs, levels):
    for arm, exponent in (DRIFTS | dict(drifts)).items():
        for width in WIDTHS:
            m = width / 64
            best = m ** (exponent + noise(seed, arm, size=0.02))
            level = 4 - 0.1 * math.log(m) + noise(seed, arm, width, size=0.002)
            level += dict(levels).get((arm, width), 0.0)
            for u in FACTORS:
                place = {"arm": arm, "seed": seed, "width": width, "u": u}
                loss = level + curvature * math.log(u / best) ** 2
                yield place | {"step": STEPS, "tensor": "model", "stat": "validation_loss",
                               "value": loss}  # fmt: skip
                if u == 1.0:
                    yield from of_criteria(place, m, dict(powers), growth, inputs)


def of_criteria(place, m, powers, growth, inputs):
    arm, seed, width = place["arm"], place["seed"], place["width"]
    for step in PROBES:
        for of, stat in found.STATS.items():
            for kind, tensors in TENSORS.items():
                power = powers.get((arm, of, kind, step))
                power = POWERS.get((arm, of, kind), 0.0) if power is None else power
                value = m ** (power + noise(seed, arm, of, kind, step, size=0.01))
                if kind == "head" and of == "layers" and step == STEPS:
                    value *= dict(growth).get((arm, width), 20.0)
                for n, tensor in enumerate(tensors):
                    if of == "layers" or step:
                        yield place | {"step": step, "tensor": tensor, "stat": stat,
                                       "layer": 0.0, "value": value * (1 + n)}  # fmt: skip
        norm = dict(inputs).get((arm, width), 0.5) if step == STEPS else 1.0
        yield place | {"step": step, "tensor": "norm.final", "stat": "activation_norm",
                       "value": norm * (1 + noise(seed, arm, step, size=0.01))}  # fmt: skip


@functools.cache
def world(seeds=SEEDS, drifts=(), powers=(), curvature=0.1, growth=(), inputs=(), levels=()):
    """Parabolas in ln u whose minima lie at powers of the width, and criteria at u = 1."""
    changes = drifts, powers, curvature, growth, inputs, levels
    table = frame(row for seed in seeds for row in rows(seed, *changes))
    return Tables(runs_of(list(DRIFTS), list(seeds), SETTINGS), table, pd.DataFrame())


def of_criteria_that_grow():
    said = {
        "layers": {"at the start": 0, "halfway": 150, "at the end": 300},
        "updates": {"after 50 steps": 50, "halfway": 150, "at the end": 300},
    }
    for of, moments in said.items():
        for moment, step in moments.items():
            for kind in TENSORS:
                grows = {"powers": ((("STEEPEST", of, kind, step), 0.3),)}
                yield f"steepest descent, {of} {moment}: exponent of {kind}", grows
    for kind in ("linear layers", "head"):
        still = {"powers": ((("ADAMW", "layers", kind, 300), 0.05),)}
        yield f"AdamW at one LR, layers at the end: exponent of {kind}", still


def of_transfer():
    moved = {"drifts": (("STEEPEST", 0.4),)}
    yield "steepest descent: exponent of the width", moved
    yield "AdamW at one LR: exponent", {"drifts": (("ADAMW", 0.0),)}
    yield "AdamW with muP: exponent", {"drifts": (("ADAMW_MUP", -0.5),)}
    yield "steepest descent − with a head", {"drifts": (("HEAD_FIXED", 0.2),)}
    for width in (32, 256):
        yield f"− at it, width {width}", {"curvature": 0.03, "also": ("loss at twice",)}


def of_growth():
    for arm, name in (("STEEPEST", "steepest descent"), ("ADAMW", "AdamW")):
        for width in WIDTHS:
            place = f"{name}, width {width}: growth of D"
            still = {"growth": (((arm, width), 2.0),), "inputs": (((arm, width), 4.0),)}
            yield f"{place} (ln)", still
            yield f"{place} ‖x‖ (ln)", {"inputs": (((arm, width), 0.05),)}


def of_answers():
    for arm, name in (("ADAMW_SCALARS", "learned scalars"), ("STEEPEST", "steepest descent")):
        carried = (f"{name}: what the best factor",)
        yield f"{name}: exponent", {"drifts": ((arm, 0.5),), "also": carried}
        # The grid's best of the smallest width is another one than that of the largest.
        yield f"{name}: what the best factor", {"drifts": ((arm, -0.5),), "also": (
            f"{name}: exponent",)}  # fmt: skip
        yield f"{name} − muP", {"levels": (((arm, 256), 0.1),)}
    yield "AdamW at one LR", {"drifts": (("ADAMW", 0.0),)}
    yield (
        "exponent in the direction of its mean: with the same",
        {"drifts": (("ADAMW_DECAY", 0.0),)},
    )


BREAKS = {"BM1": dict(of_criteria_that_grow()), "BM4": dict(of_transfer()),
          "BM7": dict(of_growth()), "BM8": dict(of_answers())}  # fmt: skip


@pytest.mark.parametrize("claim", BREAKS)
def test_each_part_is_broken_by_a_world(claim):
    check_breaks(claim, world, BREAKS[claim])


@pytest.mark.parametrize("claim", BREAKS)
def test_fewer_seeds_leave_it_open(claim):
    seeds = tuple(parse_seeds(CRITERIA[claim]["seeds"]["judge"]))
    assert judged(claim, world(seeds=seeds)).verdict == HOLDS
    assert judged(claim, world(seeds=seeds[:-1])).verdict == OPEN


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_best_factor_may_move_either_way(sign):
    assert judged("BM4", world(drifts=(("STEEPEST", 0.5 * sign),))).verdict == REFUTED


def test_moments_are_those_that_were_measured():
    assert found.moments(world(), "layers") == {
        "at the start": 0, "halfway": 150, "at the end": 300
    }  # fmt: skip
    assert list(found.moments(world(), "updates").values()) == [50, 150, 300]


def test_a_criterion_is_a_geometric_mean_over_tensors():
    rows = found.course(world(), "layers", "linear layers", "STEEPEST", 1.0)
    value = rows[(rows["seed"] == 200) & (rows["width"] == 64) & (rows["step"] == 0)]["value"]
    assert value.item() == pytest.approx(math.sqrt(2))
