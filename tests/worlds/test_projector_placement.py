"""Planted worlds of what else could scale the projector: PR1, PR2 and their later entries."""

import functools
import math

import pandas as pd
import pytest

from analysis.claims.judging import BELOW, HOLDS, OPEN, PARTLY, REFUTED
from analysis.tables.results import Tables
from tests.worlds.planted import check_breaks, judged, noise, part

STEPS, STAGE_END = 2600, 2180
SEEDS = tuple(range(24))
# Nats above the arm with column multipliers.
ROWS = {0.001: 0.03, 0.006: 0.04, 0.03: 0.06}
FIXED = {0.25: 0.13, 0.5: 0.05, 1.0: 0.02, 2.0: 0.035, 4.0: 0.09}


@functools.cache
def world(rows=(), fixed=(), unstable=(), seeds=SEEDS, size=0.004, draw=0):
    """Rows do harm and no fixed scalar is a gain; ``rows`` and ``fixed`` change single gaps.

    ``unstable``: (arm, LR or scalar, seeds, what they lose). Losses have noise of this ``size``,
    another one for each ``draw``.
    """
    gaps = {("COLUMNS", math.nan): 0.0}
    gaps |= {("ROWS", lr): gap for lr, gap in (ROWS | dict(rows)).items()}
    gaps |= {("FIXED", s): gap for s, gap in (FIXED | dict(fixed)).items()}
    table = []
    for (arm, at), gap in gaps.items():
        lr, s = (at if arm == "ROWS" else math.nan), (at if arm == "FIXED" else math.nan)
        for seed in seeds:
            final = 3.5 + gap + noise(seed, draw, size=0.05)
            final += noise(arm, at, seed, draw, size=size)
            for name, where, members, lost in unstable:
                final += lost * (name == arm and where == at and seed in members)
            own = ("train", arm, seed, lr, s)
            # What is not final says the reverse.
            table.append((*own, STAGE_END, "validation_loss", 5.0 - gap))
            table.append((*own, STEPS, "validation_loss", final))
            table.append((*own, STEPS, "train_loss", 5.0 - gap))
    columns = ["kind", "arm", "seed", "row_lr", "s", "step", "stat", "value"]
    return Tables(None, pd.DataFrame(table, columns=columns))


BREAKS = {
    "PR1": {"rows (LR 0.006)": {"rows": ((0.006, -0.02),)}},
    "PR1.2": {f"rows (LR {lr:g})": {"rows": ((lr, -0.02),)} for lr in ROWS},
    "PR2": {
        "best fixed scalar": {"fixed": ((1.0, -0.04),)},
        "fixed s = 0.25": {"fixed": ((0.25, 0.02),)},
        "fixed s = 4": {"fixed": ((4.0, 0.02),)},
    },
    "PR2.2": {
        "fixed s = 0.5 − columns": {"fixed": ((0.5, -0.03),)},
        "fixed s = 1 − columns": {"fixed": ((1.0, -0.03),)},
        "fixed s = 2 − columns": {"fixed": ((2.0, -0.03),)},
        "fixed s = 0.25": {"fixed": ((0.25, 0.02),)},
        "fixed s = 4": {"fixed": ((4.0, 0.02),)},
    },
}
BREAKS["PR2.3"] = BREAKS["PR2.2"]


@pytest.mark.parametrize("claim", BREAKS)
def test_each_part_has_a_world_that_breaks_it_alone(claim):
    check_breaks(claim, world, BREAKS[claim])


@pytest.mark.parametrize(
    ("claim", "name", "value"),
    [
        ("PR1", "rows", 0.04),
        ("PR1.2", "LR 0.001", 0.03),
        ("PR1.2", "LR 0.006", 0.04),
        ("PR1.2", "LR 0.03", 0.06),
        ("PR2", "best fixed scalar (s = 1)", 0.02),
        ("PR2", "fixed s = 0.25", 0.11),
        ("PR2", "fixed s = 4", 0.07),
        ("PR2.3", "fixed s = 0.5", 0.05),
        ("PR2.3", "fixed s = 4", 0.07),
        ("PR2.2", "fixed s = 0.5", 0.05),
        ("PR2.2", "fixed s = 1 −", 0.02),
        ("PR2.2", "fixed s = 2", 0.035),
        ("PR2.2", "fixed s = 0.25", 0.11),
        ("PR2.2", "fixed s = 4", 0.07),
    ],
)
def test_what_is_planted_is_estimated(claim, name, value):
    assert part(claim, world(), name).interval.mean == pytest.approx(value, abs=0.006)


def test_the_lr_of_the_columns_comes_first():
    assert "(LR 0.006)" in judged("PR1.2", world()).parts[0].name
    assert judged("PR1", world(size=0.0)).note == (
        "by LR of the rows: 0.001: +0.0300, 0.006: +0.0400, 0.03: +0.0600"
    )


NO_HARM = {"rows": tuple((lr, 0.0) for lr in ROWS)}
HELP = {"rows": tuple((lr, -0.04) for lr in ROWS)}
FLAT = {"fixed": tuple((s, 0.02) for s in FIXED)}
GAIN = {"fixed": tuple((s, gap - 0.08) for s, gap in FIXED.items())}
JUMP = {"unstable": (("FIXED", 4.0, (3,), 2.0),)}


@pytest.mark.parametrize(
    ("claim", "changes", "verdict"),
    [
        ("PR1", NO_HARM, BELOW),
        ("PR1.2", NO_HARM, BELOW),
        ("PR1", {"rows": ((0.006, 0.004),)}, BELOW),
        ("PR1.2", {"rows": ((0.006, 0.004),)}, PARTLY),
        ("PR1", HELP, REFUTED),
        ("PR1.2", HELP, REFUTED),
        ("PR1", {**NO_HARM, "size": 0.05}, OPEN),
        ("PR2", FLAT, OPEN),
        ("PR2.2", FLAT, OPEN),
        ("PR2.3", FLAT, OPEN),
        ("PR2.3", GAIN, REFUTED),
        ("PR2.3", JUMP, HOLDS),
        ("PR2.3", {"unstable": (("FIXED", 1.0, (3,), 2.0),)}, OPEN),
        ("PR2", GAIN, REFUTED),
        ("PR2.2", GAIN, REFUTED),
        ("PR2", JUMP, OPEN),
        ("PR2.2", JUMP, HOLDS),
        ("PR1.2", {"seeds": tuple(range(15))}, OPEN),
        ("PR2.2", {"seeds": tuple(range(15))}, OPEN),
        ("PR1", {"seeds": tuple(range(7))}, OPEN),
        ("PR2", {"seeds": tuple(range(7))}, OPEN),
    ],
)
def test_verdicts_of_other_worlds(claim, changes, verdict):
    assert judged(claim, world(**changes)).verdict == verdict


def test_each_side_needs_its_own_end_of_the_sweep():
    judgement = judged("PR2.2", world(fixed=((4.0, 0.02),)))
    assert judgement.line == "Scalars up to the centre: yes. Scalars from the centre up: open."


def test_losses_without_an_effect_are_rarely_heard():
    """At the noise of the exploration seeds; 2.5% are expected."""
    null = tuple((lr, 0.0) for lr in ROWS)
    heard = [
        judged("PR1", world(rows=null, seeds=SEEDS[:8], size=0.02, draw=draw)).verdict == HOLDS
        for draw in range(40)
    ]
    assert sum(heard) <= 4
