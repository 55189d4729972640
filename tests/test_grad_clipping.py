"""Gradient norms put together by hand."""

import math

import pandas as pd
import pytest

from analysis.quantities.grad_clipping import gradient_norms
from analysis.tables.results import Tables

ARMS = ("NONE", "EXCLUDED", "INCLUDED")
COLUMNS = ["kind", "arm", "seed", "step", "tensor", "layer", "stat", "value"]


def world(multipliers):
    """One tensor of 4 entries and a scalar multiplier, whose gradient has this norm."""
    rows = []
    for arm in ARMS:
        for step in range(1, 5):
            own = 0.0 if arm == "NONE" else multipliers
            norm = math.hypot(0.2, own if arm == "INCLUDED" else 0.0)
            factor = min(1.0, 1.0 / norm)
            add = ("train", arm, 0, step)
            rows.append((*add, "model", pd.NA, "global_gradient_norm", norm))
            rows.append((*add, "mlp.up", 1, "gradient_norm", 0.1 * factor))
            if own:
                clipped = own * (factor if arm == "INCLUDED" else 1.0)
                rows.append((*add, "mlp.up", 1, "scalar_multiplier_gradient_norm", clipped))
    rules = [{"tensor": "mlp.up@1", "multiplier": None, "shape": [2, 2]},
             {"tensor": "mlp.up@1", "multiplier": "scalar", "shape": [1]}]  # fmt: skip
    runs = pd.DataFrame([{"kind": "train", "arm": arm, "description": {"rules": rules}}
                         for arm in ARMS])  # fmt: skip
    return Tables(runs, pd.DataFrame(rows, columns=COLUMNS))


def test_norms_before_clipping_by_hand():
    norms = gradient_norms(world(3.0))
    table = norms.groupby(["arm", "quantity"])["value"].mean().unstack()
    assert table.loc["NONE"].tolist() == pytest.approx([0.2, 0.0, 0.2])  # all, multipliers, rest
    for arm in ("EXCLUDED", "INCLUDED"):
        assert table.loc[arm].tolist() == pytest.approx([math.hypot(0.2, 3.0), 3.0, 0.2])
