"""Shapes of the decay, and the ramp of the batch: LR, data by position, resumption, counts."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch

from lrm import data
from lrm.data import Batches
from lrm.errors import UserError
from lrm.noise.tensor import Walker, simulate
from lrm.plan.config import BatchStage, Execution, ScheduleConfig
from lrm.plan.experiment import load
from lrm.plan.rules import resolve
from lrm.plan.run import Cost, TrainRun
from lrm.plan.schedule import (
    batch_size_at,
    constant_end,
    lr_factors,
    sequences_before,
    snapshot_steps,
)
from lrm.plan.timescales import products
from lrm.store.files import read_json
from lrm.store.rundir import open_run, read_file, weights_file
from lrm.train import loop
from lrm.train.step import train_step

RAMP = (BatchStage(until_step=3, fraction=0.25), BatchStage(until_step=7, fraction=0.5))
SIZES = [2] * 3 + [4] * 4 + [8] * 5  # of batch_size 8 in 12 steps


@pytest.mark.parametrize("shape", ["exponential", "linear", "cosine"])
def test_every_shape_ends_at_its_factor(shape):
    schedule = ScheduleConfig(shape=shape, warmup_steps=4, decay_steps=6, decay_factor=8.0)
    factors = lr_factors(schedule, 20)
    np.testing.assert_allclose(factors[:4], [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(factors[4:14], 1.0)
    assert factors[-1] == pytest.approx(1 / 8) and (np.diff(factors[13:]) < 0).all()
    assert constant_end(schedule, 20) == 14
    middle = {"exponential": 8**-0.5, "linear": (1 + 1 / 8) / 2, "cosine": (1 + 1 / 8) / 2}
    assert factors[16] == pytest.approx(middle[shape])


def test_linear_and_cosine_equal_torch():
    """A decay over all steps after the warmup against torch's schedulers."""
    steps, floor = 25, 0.1
    parameter = torch.nn.Parameter(torch.zeros(1))
    for shape, build in {
        "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, floor, steps),
        "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, steps, floor),
    }.items():
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        scheduler = build(optimizer)
        expected = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
            expected.append(optimizer.param_groups[0]["lr"])
        schedule = ScheduleConfig(
            shape=shape, warmup_steps=5, decay_steps=steps, decay_factor=1 / floor
        )
        np.testing.assert_allclose(lr_factors(schedule, steps + 5)[5:], expected, rtol=1e-12)
        # No constant stage: it ends with the warmup.
        assert constant_end(schedule, steps + 5) == 5


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_a_decay_to_zero_wastes_no_step(shape):
    schedule = ScheduleConfig(shape=shape, decay_steps=9, decay_factor=None)
    factors = lr_factors(schedule, 12)
    assert (factors > 0).all()
    last = 0.1 if shape == "linear" else (1 + math.cos(0.9 * math.pi)) / 2
    assert factors[-1] == pytest.approx(last)


def test_impossible_schedules(settings):
    with pytest.raises(UserError, match="an exponential never reaches zero; use linear"):
        settings(schedule={"decay_factor": None})
    with pytest.raises(UserError, match="minimum_steps = 4 are the last of decay_steps = 4"):
        settings(schedule={"minimum_steps": 4})
    with pytest.raises(UserError, match="at an LR of zero minimum_steps would be idle"):
        settings(schedule={"minimum_steps": 1, "shape": "linear", "decay_factor": None})
    with pytest.raises(UserError, match="snapshots = 4 are more than the steps after"):
        settings(train={"snapshots": 4, "snapshots_after": 9})
    bad = [
        ([{"until_step": 5, "fraction": 0.5}, {"until_step": 5, "fraction": 0.75}], "until_step"),
        ([{"until_step": 5, "fraction": 0.5}, {"until_step": 6, "fraction": 0.25}], "fraction"),
        ([{"until_step": 5, "fraction": 0.3}], "no whole number of sequences"),
        ([{"until_step": 12, "fraction": 0.5}], "must be below train.steps = 12"),
        ([{"until_step": 3, "fraction": 1.0}], "less than 1"),
        ([{"until_step": 3, "size": 1}], "unknown key schedule.batch_ramp.0.size"),
    ]
    for ramp, message in bad:
        with pytest.raises(UserError, match=message):
            settings(schedule={"batch_ramp": ramp})


@pytest.mark.parametrize("shape", ["exponential", "linear", "cosine"])
def test_the_last_steps_stay_at_the_minimum(shape):
    """The decay is that of a run without them, and ends earlier; the constant stage is as long."""
    longer = ScheduleConfig(shape=shape, warmup_steps=2, decay_steps=9, minimum_steps=4,
                            decay_factor=32.0)  # fmt: skip
    plain = longer.model_copy(update={"decay_steps": 5, "minimum_steps": 0})
    np.testing.assert_array_equal(lr_factors(longer, 24)[:20], lr_factors(plain, 20))
    np.testing.assert_allclose(lr_factors(longer, 24)[19:], 1 / 32)
    assert constant_end(longer, 24) == constant_end(plain, 20) == 15


def test_snapshots_are_evenly_spaced(settings):
    """The last is the end; those of the long run meet the ends of its stages."""
    train = settings(train={"steps": 12, "snapshots": 3, "snapshots_after": 3}).train
    assert snapshot_steps(train) == (6, 9, 12)
    assert snapshot_steps(settings().train) == ()
    long = settings(train={"steps": 17500, "snapshots": 21, "snapshots_after": 7700}).train
    assert {11900, 14700, 17500} <= set(snapshot_steps(long)) and len(snapshot_steps(long)) == 21


def test_a_ramp_and_its_learning_rate():
    schedule = ScheduleConfig(warmup_steps=2, decay_steps=2, batch_ramp=RAMP)
    assert [batch_size_at(schedule, 8, step) for step in range(12)] == SIZES
    counted = [sequences_before(schedule, 8, step) for step in range(13)]
    assert counted == [0, *np.cumsum(SIZES)]
    plain = lr_factors(ScheduleConfig(warmup_steps=2, decay_steps=2), 12)
    np.testing.assert_allclose(lr_factors(schedule, 12), plain * np.sqrt(np.array(SIZES) / 8))


def test_batches_of_a_ramp_leave_no_gap():
    """The rows of all steps are those of a constant batch, in any order of asking."""
    tokens = np.arange(401)
    schedule = ScheduleConfig(batch_ramp=RAMP)
    ramped, plain = Batches(tokens, 8, 10, 3, schedule), Batches(tokens, 1, 10, 3)
    steps = {step: ramped.batch(step) for step in (11, 2, 7, 0, 1, 3, 4, 5, 6, 8, 9, 10)}
    assert [len(steps[step]) for step in range(12)] == SIZES
    rows = np.concatenate([steps[step] for step in range(12)])
    expected = np.concatenate([plain.batch(step) for step in range(sum(SIZES))])
    np.testing.assert_array_equal(rows, expected)
    split = np.concatenate([ramped.batch(5, rank, 2) for rank in range(2)])
    np.testing.assert_array_equal(split, steps[5])
    with pytest.raises(UserError, match="a batch of 2 sequences .* make it a multiple of 4"):
        ramped.batch(0, 0, 4)


@pytest.fixture
def run(settings, tmp_path):
    """A run with a ramp, Muon and a built corpus."""
    ramp = [stage.model_dump() for stage in RAMP]
    config = settings(
        train={"batch_size": 8},
        schedule={"batch_ramp": ramp, "shape": "cosine"},
        optimizer={"name": "muon"},
        rules=[{"match": "mlp.*", "multiplier": {"kind": "row_column"}}],
    )
    corpus = data.prepare(config.data, config.model.vocab_size, tmp_path / "data")
    execution = Execution(precision="float32", checkpoint_every=2)
    return TrainRun("test", "smoke", "A", {}, 0, config, execution, Cost(), corpus=corpus.hash)


class Killed(BaseException):
    """What no part of the suite may catch."""


def test_killed_anywhere_on_a_ramp(run, tmp_path, monkeypatch):
    """With Muon's momentum in the checkpoint: the same bits."""
    loop.train(run, tmp_path / "whole", tmp_path / "data")
    real = train_step
    for stop in (2, 3, 4, 7, 9):

        def step(learner, batch, settings, number, *rest, stop=stop):
            assert len(batch) == SIZES[number]
            if number == stop:
                raise Killed
            return real(learner, batch, settings, number, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "train_step", step)
            with pytest.raises(Killed):
                loop.train(run, tmp_path / "broken", tmp_path / "data")
    loop.train(run, tmp_path / "broken", tmp_path / "data")
    a, b = (torch.load(tmp_path / n / "weights.pt") for n in ("whole", "broken"))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_snapshots_of_a_run_that_was_killed(run, tmp_path, monkeypatch):
    """The same weights as without; validated; and listed, so that a damaged one is noticed."""
    config = run.settings.model_copy(
        update={"train": run.settings.train.model_copy(update={"snapshots": 4})}
    )
    kept = dataclasses.replace(run, settings=config)
    assert kept.id != run.id and kept.estimate().disk == 4 * run.estimate().disk
    loop.train(run, tmp_path / "plain", tmp_path / "data")
    loop.train(kept, tmp_path / "whole", tmp_path / "data")
    real = train_step
    for stop in (4, 7, 10):

        def step(learner, batch, settings, number, *rest, stop=stop):
            if number == stop:
                raise Killed
            return real(learner, batch, settings, number, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "train_step", step)
            with pytest.raises(Killed):
                loop.train(kept, tmp_path / "broken", tmp_path / "data")
    loop.train(kept, tmp_path / "broken", tmp_path / "data")
    names = [weights_file(step) for step in (3, 6, 9)]
    for name in [*names, "weights.pt"]:
        assert read_file(tmp_path / "whole", name) == read_file(tmp_path / "broken", name), name
    plain, last = (torch.load(tmp_path / n / "weights.pt") for n in ("plain", "whole"))
    assert all(torch.equal(plain[name], last[name]) for name in plain)
    scalars = pd.read_parquet(tmp_path / "broken" / "scalars.parquet")
    validated = scalars[scalars["stat"] == "validation_loss"]
    assert {3, 6, 9, 12} <= set(validated["step"])
    with open_run(tmp_path / "copy") as directory:  # as twins are
        directory.take_over(tmp_path / "whole", kept.describe())
    assert read_file(tmp_path / "copy", names[0]) == read_file(tmp_path / "whole", names[0])
    (tmp_path / "broken" / names[1]).write_bytes(b"nonsense")
    with pytest.raises(UserError, match="weights-6.pt .*; remove .*broken and run again"):
        read_file(tmp_path / "broken", names[1])


def test_a_ramp_is_counted_right(run, tmp_path):
    """Tokens, tokens per second, Ση and Σηλ."""
    tokens = sum(SIZES) * 16
    assert run.estimate().tokens == tokens
    loop.train(run, tmp_path / "run", tmp_path / "data")
    outcome = read_json(tmp_path / "run" / "done.json")
    assert outcome["tokens_per_second"] * outcome["seconds"] == pytest.approx(tokens)
    total = lr_factors(run.settings.schedule, 12).sum()
    records = {r["tensor"]: r for r in products(resolve(run.settings), run.settings)}
    assert records["projector"]["lr_wd_t"] == pytest.approx(0.01 * 0.1 * total)
    assert records["mlp.up@0.row"]["travel"] == pytest.approx(0.01 * total)


def test_micro_batches_add_up_on_a_ramp(run, tmp_path):
    other = dataclasses.replace(run, execution=Execution(precision="float32", micro_batch=3))
    losses = []
    for name, job in (("a", run), ("b", other)):
        loop.train(job, tmp_path / name, tmp_path / "data")
        losses.append(read_json(tmp_path / name / "done.json")["validation_loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


def test_brownian_motion_follows_the_ramp(settings):
    """Weight decay alone moves a tensor by Σηλ, which the ramp shortens."""
    ramp = [stage.model_dump() for stage in RAMP]
    config = settings(schedule={"batch_ramp": ramp})
    ends = []
    for schedule in (config.schedule, settings().schedule):
        chosen = config.model_copy(update={"schedule": schedule})
        walker = Walker("w", 4096, 0.01, 0.0, 0.0, constant=True)
        ends.append(simulate(walker, chosen, draws=8, seed=0)[1][-1].mean())
    assert ends[0] < 0.9 * ends[1]


CONFIG = """
title: a ramp
use: [scale/$scale]
schedule:
  shape: cosine
  batch_ramp:
    - {until_step: 6, fraction: 0.25}
    - {until_step: 12, fraction: 0.5}
"""


def test_fewer_steps_shorten_the_ramp(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    experiment = load(tmp_path / "config.yaml")

    def schedule(*overrides):
        [run] = experiment.runs("smoke", [0], list(overrides))
        return run.settings.schedule

    def ends(*overrides):
        return [stage.until_step for stage in schedule(*overrides).batch_ramp]

    assert ends() == [6, 12]
    assert ends("train.steps=30") == [3, 6]
    assert ends("train.steps=600") == [60, 120]
    # Six steps leave one of the two stages, one step none.
    assert ends("train.steps=6") == [1] and ends("train.steps=1") == []
    assert schedule("train.steps=6").batch_ramp[0].fraction == 0.25
    # Another shape leaves the stages their shares; another length of a stage does not.
    assert ends("train.steps=30", "schedule.shape=linear") == [3, 6]
    assert schedule("train.steps=30", "schedule.shape=linear").decay_steps == 5
    assert ends("train.steps=30", "schedule.decay_steps=7") == [6, 12]
