"""Claims C0 to C2 on synthetic runs, and gradient norms put together by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.claims import grad_clipping
from analysis.claims.judging import NOT, OPEN, REPRODUCED
from analysis.quantities.grad_clipping import gradient_norms
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

CRITERIA = criteria_of("grad_clipping")
STEPS, SEEDS = 100, range(100, 108)
ARMS = ("NONE", "EXCLUDED", "INCLUDED")
COLUMNS = ["kind", "arm", "seed", "step", "tensor", "layer", "stat", "value"]


def world(multipliers, losses):
    """One tensor of 4 entries, one scalar multiplier; the threshold is 1.

    ``multipliers`` is the norm of the multiplier's gradient, ``losses`` the final loss by arm.
    """
    rows = []
    generator = np.random.default_rng(0)
    for arm in ARMS:
        for seed in SEEDS:
            for step in range(1, STEPS + 1):
                own = 0.0 if arm == "NONE" else multipliers
                norm = math.hypot(0.2, own if arm == "INCLUDED" else 0.0)
                factor = min(1.0, 1.0 / norm)
                add = ("train", arm, seed, step)
                rows.append((*add, "model", pd.NA, "global_gradient_norm", norm))
                rows.append((*add, "model", pd.NA, "clipped_fraction", float(norm > 1)))
                rows.append((*add, "mlp.up", 1, "gradient_norm", 0.1 * factor))
                if own:
                    clipped = own * (factor if arm == "INCLUDED" else 1.0)
                    stat = "scalar_multiplier_gradient_norm"
                    rows.append((*add, "mlp.up", 1, stat, clipped))
            loss = losses[arm] + 0.003 * generator.standard_normal()
            rows.append(("train", arm, seed, STEPS, "model", pd.NA, "validation_loss", loss))
    rules = [{"tensor": "mlp.up@1", "multiplier": None, "shape": [2, 2]},
             {"tensor": "mlp.up@1", "multiplier": "scalar", "shape": [1]}]  # fmt: skip
    runs = pd.DataFrame([{"kind": "train", "arm": arm, "description": {"rules": rules}}
                         for arm in ARMS])  # fmt: skip
    return Tables(runs, pd.DataFrame(rows, columns=COLUMNS))


def verdicts(multipliers, losses):
    tables = world(multipliers, dict(zip(ARMS, losses, strict=True)))
    judges = {"C0": grad_clipping.c0, "C1": grad_clipping.c1, "C2": grad_clipping.c2}
    return {claim: judge(tables, CRITERIA[claim]).verdict for claim, judge in judges.items()}


def test_norms_before_clipping_by_hand():
    found = gradient_norms(world(3.0, dict.fromkeys(ARMS, 3.0)))
    table = found.groupby(["arm", "quantity"])["value"].mean().unstack()
    assert table.loc["NONE"].tolist() == pytest.approx([0.2, 0.0, 0.2])  # all, multipliers, rest
    for arm in ("EXCLUDED", "INCLUDED"):
        assert table.loc[arm].tolist() == pytest.approx([math.hypot(0.2, 3.0), 3.0, 0.2])


def test_the_papers_effects_are_heard():
    assert set(verdicts(3.0, (3.3, 3.25, 3.32)).values()) == {REPRODUCED}


def test_and_the_reverse():
    found = verdicts(3.0, (3.3, 3.25, 3.2))
    assert (found["C0"], found["C2"]) == (NOT, NOT)


def test_losses_are_open_where_nothing_is_clipped():
    found = verdicts(0.1, (3.3, 3.25, 3.32))
    assert found == {"C0": OPEN, "C1": NOT, "C2": OPEN}
