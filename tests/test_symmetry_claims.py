"""Judging functions on planted worlds: stress of the symmetries (S6, LOG1)."""

import zlib

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judges import judge_of
from analysis.claims.judging import NOT, PARTLY, REPRODUCED
from analysis.tables.criteria import every_criterion
from analysis.tables.results import Tables

SEEDS = range(100, 106)
STEPS, DECAY = 400, 100
END = STEPS - DECAY
COLUMNS = ["run", "kind", "arm", "seed", "step", "tensor", "layer", "stat", "value"]


CRITERIA = every_criterion()


def judged(claim, *tables):
    """``tables``: runs, scalars and vectors."""
    criterion = CRITERIA[claim]
    return judge_of(criterion["experiment"], claim)(Tables(*tables), criterion)


def normal(*key, size=()):
    generator = np.random.default_rng(zlib.crc32(repr(key).encode()))
    return generator.standard_normal(size)


def table_of_runs(**grid):
    settings = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY},
                "probes": {"every": 10}}  # fmt: skip
    description = {"settings": settings}
    return {"kind": "train", "description": description, **grid}


STRESS = {"FREE": 3.4, "FREE_BF16": 3.4, "FASTER": 3.8, "FASTER_BF16": 4.2, "FASTER_LIGHT": 3.7,
          "FASTER_LIGHT_BF16": 3.75, "LOG": 3.4, "FAST": 3.6, "LOG_FAST": 3.8}  # fmt: skip


def stress_world(losses, bump):
    """Final losses by arm; the training loss of LOG rises by ``bump`` on its way down."""
    rows, runs = [], [table_of_runs(run=arm, arm=arm) for arm in losses]
    for arm, loss in losses.items():
        for seed in SEEDS:
            own, jitter = (f"{arm} {seed}", "train", arm, seed), 0.01 * normal(arm, seed)
            rows.append((*own, STEPS, "", 0, "validation_loss", loss + jitter))
            rows.append((*own, END, "residual", 3, "activation_norm", 2.0))
            for step in range(10, STEPS + 1, 10):
                course = 7 - step / 200 + (bump if arm == "LOG" and step > STEPS / 2 else 0.0)
                rows.append((*own, step, "", 0, "train_loss", course))
    return pd.DataFrame(runs), pd.DataFrame(rows, columns=COLUMNS)


@pytest.mark.parametrize(
    ("claim", "losses", "bump", "expected"),
    [
        ("S6", {}, 0.0, REPRODUCED),
        ("S6", {"FASTER_LIGHT_BF16": 4.1}, 0.0, NOT),  # it is the LR, not the drift
        ("LOG1", {}, 0.5, REPRODUCED),
        ("LOG1", {}, 0.0, PARTLY),
        ("LOG1", {"LOG": 3.3, "LOG_FAST": 3.6}, 0.0, NOT),
    ],
)
def test_stress(claim, losses, bump, expected):
    assert judged(claim, *stress_world(STRESS | losses, bump)).verdict == expected
