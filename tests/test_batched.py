"""Runs that are trained at once: equal to runs by themselves, interrupted, resumed, swept."""

import dataclasses
import json
import shutil

import pandas as pd
import pytest
import torch
from conftest import needs_a_compiler

from lrm import data
from lrm.plan.config import Execution
from lrm.plan.run import Cost, TrainRun, execute_together
from lrm.plan.rules import resolve
from lrm.train import loop
from lrm.train.batched import Batch
from lrm.train.learner import build
from lrm.train.step import train_step

# Every kind and parametrization of multipliers; slices of a merged matrix with rates of their own,
# one of them frozen, and fixed factors.
MULTIPLIERS = [
    {"match": "embedding", "multiplier": {"kind": "row_column", "lr": 0.02}},
    {"match": "mlp.*", "multiplier": {"kind": "row_column"}, "forward": 0.7},
    {"match": "attention.*", "multiplier": {"kind": "scalar", "parametrization": "log"}},
    {"match": "ssm.x", "multiplier": {"kind": "row"}, "lr_scale": 0.5},
    {"match": "ssm.z", "weight": "frozen", "multiplier": {"kind": "column"}},
    {"match": "ssm.out", "multiplier": {"kind": "column", "parametrization": "or"}},
    {"match": "norm.mixer", "multiplier": {"kind": "row", "parametrization": "er"}},
    {"match": "norm.mlp", "weight": "scalar"},
    {"match": "projector", "multiplier": {"kind": "scalar"}, "forward": 0.5},
]
PER_HEAD = {"norms_behind": {"attention.q": "head", "mlp.down": "full"}, "mamba_rms_norm": True}
DESIGNS = {
    "adamw": {},
    "multipliers": {"rules": MULTIPLIERS},
    "muon": {"rules": MULTIPLIERS[:3], "optimizer": {"name": "muon"}},
    "norms": {"model": PER_HEAD, "rules": [{"match": "embedding", "forward": 3.0}]},
}


def vary(make, design):
    """Settings of three runs of one shape, which differ in everything that may."""
    optimizer = design.get("optimizer", {})
    return [
        make(**{
            **design,
            "optimizer": {**optimizer, "lr": 0.01 * number, "weight_decay": 0.1 / number,
                          "beta1": 0.9 - 0.1 * (number > 2)},
            "multipliers": {"lr": 0.003 * number},
            "schedule": {"warmup_steps": number},
            "train": {"clip_norm": [0.3, 0.0, 1e9][number - 1], "data_order": number},
        })
        for number in (1, 2, 3)
    ]  # fmt: skip


def steps_of(settings, dtype, count):
    """(what ``count`` steps measured, final parameters) of each run, by itself and in a batch."""
    draw = torch.Generator().manual_seed(0)
    batches = torch.randint(300, (count, len(settings), 4, 17), generator=draw)
    found = []
    for together in (False, True):
        learners = [build(each, seed, dtype=dtype) for seed, each in enumerate(settings)]
        batch = Batch(learners, settings) if together else None
        measured = []
        for step, rows in enumerate(batches):
            if together:
                measured += batch.step(rows, step, len(settings) * [True])
            else:
                for learner, own, each in zip(learners, rows, settings, strict=True):
                    measured.append(train_step(learner, own, each, step))
        states = [learner.state() for learner in learners]
        found.append((measured, [dict(x.model.named_parameters()) for x in learners], states))
    return found


def assert_close(alone, together, tolerance):
    for a, b in zip(alone[0], together[0], strict=True):
        torch.testing.assert_close(torch.stack([x.double() for x in a]),
                                   torch.stack([x.double() for x in b]),
                                   rtol=tolerance, atol=tolerance)  # fmt: skip
    for a, b in zip(alone[1], together[1], strict=True):
        assert a.keys() == b.keys()
        for name in a:
            torch.testing.assert_close(b[name], a[name], rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("name", DESIGNS)
def test_a_batch_is_its_runs_by_themselves(settings, name):
    """In float64, where nothing but a mistake could tell them apart, states included."""
    alone, together = steps_of(vary(settings, DESIGNS[name]), torch.float64, 8)
    assert_close(alone, together, 1e-10)
    for a, b in zip(alone[2], together[2], strict=True):
        assert a.keys() == b.keys()
        for part in a.keys() - {"model"}:
            assert a[part]["state"].keys() == b[part]["state"].keys()
            for number, values in a[part]["state"].items():
                for key, value in values.items():
                    other = b[part]["state"][number][key]
                    torch.testing.assert_close(other, value, rtol=1e-10, atol=1e-10)


def test_in_float32_they_differ_by_rounding(settings):
    """A step of Adam is as large as the LR whatever the gradient: rounding shows where that is 0.

    Hence a large eps here; without it single entries differ by the LR.
    """
    every = vary(settings, {"rules": MULTIPLIERS, "optimizer": {"eps": 1e-3}})
    assert_close(*steps_of(every, torch.float32, 8), 2e-5)
