"""Planted worlds of multipliers' drift in float16: S6.3."""

import functools

import numpy as np
import pytest

from analysis.claims.judging import HOLDS, OPEN, REFUTED
from analysis.tables.results import Tables
from tests.worlds.planted import check_breaks, frame, judged, noise, part, runs_of

SEEDS = range(200, 208)
STEPS, DECAY, EVERY = 400, 100, 10
SETTINGS = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY},
            "probes": {"every": EVERY}}  # fmt: skip
ARMS = ("FASTER", "FASTER_LIGHT")


@functools.cache
def world(drifting=8, held=0, end=150, rises=(), seeds=SEEDS):
    """Of each arm so many seeds end at step ``end`` with a loss that is no number.

    ``rises``: arms whose loss rises by 2 nats in the seeds that train to the end; before the first
    tenth of the steps all have such a leap.
    """
    rows = []
    for arm, ended in zip(ARMS, (drifting, held), strict=True):
        for number, seed in enumerate(seeds):
            last = end if number < ended else STEPS
            for step in range(EVERY, last + 1, EVERY):
                loss = 6.0 - step / 200 + noise(arm, seed, step, size=0.01)
                loss += 3.0 * (step == 3 * EVERY) + 2.0 * (arm in rises and step > STEPS / 2)
                if last < STEPS and step == last:
                    loss = np.nan
                rows.append({"arm": arm, "seed": seed, "step": step, "tensor": "model",
                             "stat": "train_loss", "value": loss})  # fmt: skip
            if last == STEPS:
                at = {"arm": arm, "seed": seed, "step": STEPS, "tensor": "model"}
                rows.append({**at, "stat": "validation_loss", "value": 4.0})
    return Tables(runs_of(ARMS, seeds, SETTINGS), frame(rows))


def test_each_part_has_a_world_that_breaks_it_alone():
    breaks = {"share of drifting": {"drifting": 0}, "although they are held": {"held": 7}}
    check_breaks("S6.3", world, breaks)


@pytest.mark.parametrize(
    ("changes", "drifting", "held", "verdict"),
    [
        ({}, 1.0, 0.0, HOLDS),
        ({"drifting": 6}, 0.75, 0.0, OPEN),
        ({"drifting": 0}, 0.0, 0.0, REFUTED),
        ({"held": 8}, 1.0, 1.0, OPEN),
        # A loss that rises is a divergence too, and one that ends before the first tenth.
        ({"drifting": 0, "rises": ("FASTER",)}, 1.0, 0.0, HOLDS),
        ({"drifting": 4, "rises": ("FASTER",)}, 1.0, 0.0, HOLDS),
        ({"end": 20}, 1.0, 0.0, HOLDS),
        ({"drifting": 3, "end": 20}, 0.375, 0.0, OPEN),
        ({"seeds": SEEDS[:7], "drifting": 7}, 1.0, 0.0, OPEN),
    ],
)
def test_shares_and_verdicts(changes, drifting, held, verdict):
    judgement = judged("S6.3", world(**changes))
    assert judgement.verdict == verdict
    assert part("S6.3", world(**changes), "share of drifting").interval.mean == drifting
    assert part("S6.3", world(**changes), "are held").interval.mean == held


def test_the_note_says_when():
    assert judged("S6.3", world(held=0)).note == (
        "losses that are no number: FASTER 8 of 8 runs (steps up to 150 to 150), "
        "FASTER_LIGHT 0 of 8 runs"
    )
