"""Criteria of layers, and of the updates of single steps, in a run that keeps all its weights."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from lrm import data
from lrm.plan.config import Execution
from lrm.plan.cost import Cost
from lrm.plan.run import TrainRun
from lrm.store.rundir import weights_file
from lrm.train import loop

STEPS = 6


@pytest.fixture
def run(settings, tmp_path):
    """A function from overrides to a run that keeps its weights after every step."""

    def make(**sections):
        config = settings(
            train={"steps": STEPS, "snapshots": STEPS, **sections.pop("train", {})},
            probes={"every": 3, "vectors_every": 3, "sequences": 2, "criteria": True},
            **sections,
        )
        corpus = data.prepare(config.data, config.model.vocab_size, tmp_path / "data")
        execution = Execution(precision="float32", compile="never")
        return TrainRun("test", "smoke", "A", {}, 0, config, execution, Cost(), corpus=corpus.hash)

    return make


def weights(folder, step):
    name = "weights.pt" if step == STEPS else weights_file(step)
    return {k: v.double().numpy() for k, v in torch.load(folder / name, weights_only=True).items()}


def expected(name, value):
    """By numpy, from the article's formulas."""
    if name == "embedding":
        return max(np.sqrt((row**2).mean()) for row in value)
    if name == "projector":
        apart = [np.sqrt(((a - b) ** 2).mean()) for a in value for b in value]
        return value.shape[1] * max(apart)
    if value.ndim == 1:
        return abs(value).max()
    return np.linalg.svd(value, compute_uv=False)[0] * (value.shape[1] / value.shape[0]) ** 0.5


def told(folder):
    rows = pd.read_parquet(folder / "scalars.parquet")
    return {stat: rows[rows["stat"] == stat].set_index(["step", "tensor"])["value"]
            for stat in ("criterion", "update_criterion")}  # fmt: skip


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_they_are_those_of_the_weights(run, tmp_path, implementation):
    rules = [{"match": "mlp.up", "multiplier": {"kind": "row_column", "lr": 0.1}}]
    job = run(rules=rules, model={"vocab_size": 300},
              train={"multiplier_implementation": implementation})  # fmt: skip
    loop.train(job, tmp_path / "run", tmp_path / "data")
    found = told(tmp_path / "run")
    # Convolutions, dt_bias, A_log and D have no criterion, and step 0 has no update.
    tensors = {tensor for _, tensor in found["criterion"].index}
    assert {"embedding", "projector", "norm.final", "ssm.dt@1", "mlp.up@0"} <= tensors
    assert not any("conv" in tensor or tensor.startswith("ssm.A") for tensor in tensors)
    assert {step for step, _ in found["criterion"].index} == {0, 3, 6} | ends(job)
    assert {step for step, _ in found["update_criterion"].index} == {3, 6} | ends(job)
    for step in (3, 6):
        now, before = (effective(weights(tmp_path / "run", s)) for s in (step, step - 1))
        for tensor in tensors:
            name, value = tensor.partition("@")[0], now[tensor]
            assert found["criterion"][step, tensor] == pytest.approx(
                expected(name, value), rel=1e-4
            ), tensor
            assert found["update_criterion"][step, tensor] == pytest.approx(
                expected(name, value - before[tensor]), rel=2e-3, abs=1e-6
            ), tensor


def ends(job):
    schedule = job.settings.schedule
    return {STEPS - schedule.decay_steps, STEPS}


def effective(kept):
    """W̄ = r W c of what has multipliers, and W of what has none."""
    found = {}
    for name, value in kept.items():
        row, column = kept.get(f"{name}.row"), kept.get(f"{name}.column")
        found[name] = value if row is None else row[:, None] * value * column
    return found


def test_without_the_setting_there_are_none(run, tmp_path):
    job = run()
    plain = job.settings.model_copy(
        update={"probes": job.settings.probes.model_copy(update={"criteria": False})}
    )
    other = dataclasses.replace(job, settings=plain)
    assert other.id != job.id
    loop.train(other, tmp_path / "run", tmp_path / "data")
    assert all(rows.empty for rows in told(tmp_path / "run").values())
