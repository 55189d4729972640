"""Planted worlds of multipliers in or out of the norm that clips: C0, C1, C2 and C2.2."""

import functools
import math

import pandas as pd
import pytest

from analysis.claims.judging import BELOW, HOLDS, OPEN, PARTLY, REFUTED
from analysis.tables.results import Tables
from tests.worlds.planted import COLUMNS, check_breaks, judged, noise, part, runs_of

SEEDS = range(200, 216)
ARMS = ("NONE", "EXCLUDED", "INCLUDED")
# The first five are early.
STEPS = (1, 2, 3, 4, 5, 10, 25, 50)
MULTIPLIER = "scalar_multiplier_gradient_norm"
SHAPES = {None: [2, 2], "scalar": [1]}
IN_NORM = "included: share of steps clipped"


@functools.cache
def world(
    none=3.40,
    excluded=3.33,
    included=3.41,
    share=0.9,
    clipped=0.8,
    largest=0.3,
    free=0.02,
    seeds=16,
    unstable=None,
    swapped=False,
):
    """Final losses of the arms, and what is true of early steps; later all is otherwise.

    ``share``: multipliers' part of the squared norm; ``clipped`` and ``free``: how often a step is
    clipped with multipliers in and out of the norm; ``largest``: the largest norm without them.
    ``unstable``: a seed that loses 5 nats with multipliers in the norm. ``swapped``: INCLUDED and
    EXCLUDED have each other's names.
    """
    rows = []
    exchanged = {"EXCLUDED": "INCLUDED", "INCLUDED": "EXCLUDED"} if swapped else {}
    losses = {"NONE": none, "EXCLUDED": excluded, "INCLUDED": included}
    for arm in ARMS:
        called = exchanged.get(arm, arm)
        for seed in SEEDS[:seeds]:
            for step in STEPS:
                early = step <= 5
                own = {"INCLUDED": clipped, "EXCLUDED": free, "NONE": 0.5}[arm]
                of_multipliers = share if early else 1 - share
                whole = 4.0
                if arm == "EXCLUDED":
                    whole = largest * math.exp(noise(seed, size=0.02)) if step == 3 else 0.1
                    whole = whole if early else 0.9 - largest
                tensors = whole * math.sqrt(1 - of_multipliers if arm == "INCLUDED" else 1)
                at = ("train", called, seed, step)
                rows.append((*at, "model", math.nan, "global_gradient_norm", whole))
                fraction = (own if early else 1 - own) + noise(seed, step, size=0.005)
                rows.append((*at, "model", math.nan, "clipped_fraction", fraction))
                # Root mean squares over the entries: four of the tensor, one of the multiplier.
                rows.append((*at, "mlp.up", 1, "gradient_norm", tensors / 2))
                if arm != "NONE":
                    rows.append((*at, "mlp.up", 1, MULTIPLIER, 4.0 * math.sqrt(of_multipliers)))
            loss = losses[arm] + noise(seed, size=0.02) + noise(arm, seed, size=0.004)
            if seed == unstable and arm == "INCLUDED":
                loss += 5.0
            rows.append((*at, "model", math.nan, "validation_loss", loss))
            early_loss = ("train", called, seed, 10, "model", math.nan, "validation_loss")
            rows.append((*early_loss, 9.0 - loss))
    rules = [{"tensor": "mlp.up@1", "multiplier": kind, "shape": shape}
             for kind, shape in SHAPES.items()]  # fmt: skip
    runs = runs_of(ARMS, SEEDS[:seeds], {"train": {"steps": 50}}, rules=rules)
    return Tables(runs, pd.DataFrame(rows, columns=COLUMNS))


BREAKS = {
    "C0": {
        "included − no multipliers": {"included": 3.38},
        "early steps clipped": {"clipped": 0.4},
    },
    "C1": {
        "multipliers' share": {"share": 0.3},
        IN_NORM: {"clipped": 0.3},
        "excluded: largest": {"largest": 0.8},
        "excluded: share": {"free": 0.2},
    },
    "C2": {
        "included − excluded": {"included": 3.334},
        "early steps clipped": {"clipped": 0.4},
    },
    "C2.2": {
        "included − excluded": {"included": 3.32},
        "early steps clipped": {"clipped": 0.4},
    },
}


@pytest.mark.parametrize("claim", BREAKS)
def test_each_part_has_a_world_that_breaks_it_alone(claim):
    check_breaks(claim, world, BREAKS[claim])


@pytest.mark.parametrize(
    ("claim", "piece", "value"),
    [
        ("C0", "included − no multipliers", 0.01),
        ("C0", "early steps clipped", 0.8),
        ("C1", "multipliers' share", 0.9),
        ("C1", IN_NORM, 0.8),
        ("C1", "excluded: largest", 0.3),
        ("C1", "excluded: share", 0.02),
        ("C2", "included − excluded", 0.08),
        ("C2.2", "included − excluded", 0.08),
        ("C2.2", "early steps clipped", 0.8),
    ],
)
def test_what_was_planted_is_measured(claim, piece, value):
    assert part(claim, world(), piece).interval.mean == pytest.approx(value, abs=0.005)


def test_the_note_has_both_arms_beside_none():
    note = judged("C2.2", world()).note
    assert note.startswith("minus no multipliers: excluded -0.068") and "included +0.00" in note


def test_a_gain_that_is_too_small_to_matter():
    small = world(included=3.332)
    assert judged("C2.2", small).verdict == BELOW
    assert judged("C2", small).verdict == REFUTED


def test_a_gain_that_is_smaller_than_asked_for_but_there():
    """The interval lies above 0 and has 0.01 in it: C2 is open and C2.2 holds."""
    some = world(included=3.341)
    assert judged("C2", some).verdict == OPEN
    assert judged("C2.2", some).verdict == HOLDS


def test_no_effect():
    same = world(none=3.3, excluded=3.3, included=3.3)
    assert judged("C0", same).verdict == HOLDS
    assert judged("C2", same).verdict == REFUTED
    assert judged("C2.2", same).verdict == BELOW


def test_the_reverse():
    reverse = world(none=3.4, excluded=3.33, included=3.25)
    for claim in ("C0", "C2", "C2.2"):
        assert judged(claim, reverse).verdict == REFUTED


def test_arms_that_are_swapped():
    exchanged = world(swapped=True)
    for claim in ("C1", "C2", "C2.2"):
        assert judged(claim, exchanged).verdict != HOLDS
    assert judged("C1", exchanged).groups["the norm without them is small"] == REFUTED


def test_losses_are_open_where_nothing_is_clipped():
    unclipped = world(share=0.1, clipped=0.01)
    for claim in ("C0", "C2", "C2.2"):
        assert judged(claim, unclipped).verdict == OPEN
    groups = judged("C1", unclipped).groups
    assert groups == {
        "multipliers dominate the norm": REFUTED,
        "the norm without them is small": HOLDS,
    }
    assert judged("C1", unclipped).verdict == PARTLY


def test_one_unstable_seed_leaves_a_mean_open():
    for claim in ("C2", "C2.2"):
        assert judged(claim, world(unstable=203)).verdict == OPEN


@pytest.mark.parametrize(("claim", "few"), [("C0", 7), ("C1", 2), ("C2", 7), ("C2.2", 15)])
def test_too_few_seeds(claim, few):
    assert judged(claim, world(seeds=few)).verdict == OPEN
