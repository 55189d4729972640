"""Runs that are trained at once: equal to runs by themselves, interrupted, resumed, swept."""

import dataclasses
import errno
import functools
import json
import shutil
import signal

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import TINY_DELTA

from lrm import data
from lrm.errors import Busy, UserError
from lrm.model.loss import linear_cross_entropy
from lrm.plan.config import Execution
from lrm.plan.run import Cost, TrainRun, execute_together
from lrm.store import checkpoint
from lrm.store.lock import Claim
from lrm.store.rundir import open_run
from lrm.sweep import scheduler, together
from lrm.train import compilation, loop
from lrm.train.batched import Batch
from lrm.train.device import equip
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
# A kind of optimizer for each of several tensors, slices of a merged matrix among them.
KINDS = [
    {"match": "embedding", "optimizer": "per_token", "rows": "seen"},
    {"match": "projector", "optimizer": "per_token"},
    {"match": "norm.mixer", "optimizer": "sign"},
    {"match": "ssm.[Bx]", "optimizer": "normalized"},
    {"match": "attention.*", "optimizer": "sgd"},
]
DESIGNS = {
    "adamw": {},
    "multipliers": {"rules": MULTIPLIERS},
    "muon": {"rules": MULTIPLIERS[:3], "optimizer": {"name": "muon"}},
    "steepest": {"rules": MULTIPLIERS[:4] + KINDS, "optimizer": {"name": "muon"}},
    "norms": {"model": PER_HEAD, "rules": [{"match": "embedding", "forward": 3.0}]},
    "gdn": {
        "model": TINY_DELTA,
        "rules": [
            {"match": "gdn.[qkv]", "multiplier": {"kind": "row"}, "forward": 1.5},
            {"match": "gdn.alpha", "forward": 0.5, "multiplier": {"kind": "scalar"}},
            {"match": "gdn.conv_v", "multiplier": {"kind": "row"}},
            {"match": "gdn.a_log", "weight": "frozen"},
        ],
    },
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
            "train": {"clip_norm": [0.3, 0.0, 1e9][number - 1], "data_order": number,
                      **design.get("train", {})},
        })
        for number in (1, 2, 3)
    ]  # fmt: skip


def steps_of(settings, dtype, count):
    """(what ``count`` steps measured, final parameters) of each run, by itself and in a batch."""
    draw = torch.Generator().manual_seed(0)
    batches = torch.randint(300, (count, len(settings), 4, 17), generator=draw)
    found = []
    for is_batch in (False, True):
        learners = [build(each, seed, dtype=dtype) for seed, each in enumerate(settings)]
        batch = Batch(learners, settings) if is_batch else None
        measured = []
        for step, rows in enumerate(batches):
            if is_batch:
                measured += batch.step(rows, step, len(settings) * [True])
            else:
                for learner, own, each in zip(learners, rows, settings, strict=True):
                    measured.append(train_step(learner, own, each, step))
        states = [learner.state() for learner in learners]
        found.append((measured, [dict(x.model.named_parameters()) for x in learners], states))
    return found


def assert_close(alone, batch, tolerance):
    for a, b in zip(alone[0], batch[0], strict=True):
        torch.testing.assert_close(torch.stack([x.double() for x in a]),
                                   torch.stack([x.double() for x in b]),
                                   rtol=tolerance, atol=tolerance)  # fmt: skip
    for a, b in zip(alone[1], batch[1], strict=True):
        assert a.keys() == b.keys()
        for name in a:
            torch.testing.assert_close(b[name], a[name], rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("name", DESIGNS)
def test_a_batch_is_its_runs_by_themselves(settings, name):
    """In float64, where nothing but a mistake could tell them apart, states included."""
    alone, batch = steps_of(vary(settings, DESIGNS[name]), torch.float64, 8)
    assert_close(alone, batch, 1e-10)
    for a, b in zip(alone[2], batch[2], strict=True):
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


def test_a_run_without_numbers_leaves_the_others_alone(settings):
    """And one that does not take part stays as it is."""
    every = vary(settings, {"rules": MULTIPLIERS})
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(300, (3, 4, 17), generator=draw)
    found = {}
    for spoiled in (False, True):
        learners = [build(each, seed) for seed, each in enumerate(every)]
        with torch.no_grad():
            if spoiled:
                learners[1].model.lm_head._parameters["weight"].fill_(torch.nan)
        batch = Batch(learners, every)
        untouched = {n: p.clone() for n, p in learners[2].model.named_parameters()}
        measured = [batch.step(rows, step, [True, True, False]) for step in range(3)][-1]
        assert measured[2] is None
        for name, parameter in learners[2].model.named_parameters():
            assert torch.equal(parameter, untouched[name]), name
        found[spoiled] = measured, dict(learners[0].model.named_parameters())
    assert torch.isnan(found[True][0][1][0])
    assert torch.equal(found[True][0][0][0], found[False][0][0][0])
    for name, parameter in found[False][1].items():
        assert torch.equal(parameter, found[True][1][name]), name


@pytest.fixture
def jobs(settings, tmp_path):
    """A function from a folder to three runs of one shape with their directories there."""

    def make(folder, count=3, checkpoint_every=3, compile="never", **sections):
        every = vary(settings, {"rules": MULTIPLIERS, **sections})[:count]
        corpus = data.prepare(every[0].data, every[0].model.vocab_size, tmp_path / "data")
        execution = Execution(precision="float32", checkpoint_every=checkpoint_every,
                              compile=compile, batch_runs=3)  # fmt: skip
        runs = [
            TrainRun("test", "smoke", f"A{seed}", {}, seed, each, execution, Cost(),
                     corpus=corpus.hash)
            for seed, each in enumerate(every)
        ]  # fmt: skip
        return [(run, tmp_path / folder / run.id) for run in runs]

    return make


def content(folder):
    weights = torch.load(folder / "weights.pt", weights_only=True)
    return weights, [pd.read_parquet(folder / f"{n}.parquet") for n in ("scalars", "vectors")]


def assert_same_bits(a, b):
    (weights_a, tables_a), (weights_b, tables_b) = content(a), content(b)
    assert weights_a.keys() == weights_b.keys()
    for name in weights_a:
        assert torch.equal(weights_a[name], weights_b[name]), name
    for one, other in zip(tables_a, tables_b, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_each_run_leaves_what_it_leaves_alone(jobs, tmp_path):
    """Its own directory with the same files, steps, statistics and tensors; equal to rounding."""
    probes = {"every": 4, "vectors_every": 8, "sequences": 2, "gradient_batches": 2}
    sections = {"probes": probes, "optimizer": {"eps": 1e-3}}
    batch, alone = jobs("together", **sections), jobs("alone", **sections)
    reported = []
    errors = execute_together(batch, tmp_path / "data", lambda step, loss: reported.append(step))
    assert errors == [None, None, None] and max(reported) == 12
    for (run, path), (_, other) in zip(batch, alone, strict=True):
        run.execute(other, tmp_path / "data")
        assert {p.name for p in path.iterdir()} == {p.name for p in other.iterdir()}
        (weights, tables), (weights_alone, tables_alone) = content(path), content(other)
        assert weights.keys() == weights_alone.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(weight, weights_alone[name], rtol=1e-3, atol=1e-4, msg=name)
        for one, two in zip(tables, tables_alone, strict=True):
            pd.testing.assert_frame_equal(one.drop(columns="value"), two.drop(columns="value"))
            for stat, rows in one.groupby("stat", observed=True):  # each has a size of its own
                found, wanted = (np.hstack(t.loc[rows.index, "value"]) for t in (one, two))
                size = np.abs(wanted).max()
                np.testing.assert_allclose(found, wanted, 1e-2, 1e-3 * size, err_msg=stat)
        described, described_alone = (
            json.loads((p / "run.json").read_text()) for p in (path, other)
        )
        assert described["environment"].pop("runs_at_once") == 3
        assert described_alone["environment"].pop("runs_at_once") == 1
        for record in (described, described_alone):
            record["environment"].pop("started")
        assert described == described_alone


class Killed(BaseException):
    """What no part of the suite may catch."""


@pytest.fixture
def interruptible():
    """A process whose parent ignores SIGINT does so too, as what a shell starts behind itself."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupted_runs_go_on_each_from_its_own_checkpoint(jobs, tmp_path, monkeypatch):
    """Killed between every two steps, once between two checkpoints of one batch: the same bits."""
    whole = jobs("whole")
    execute_together(whole, tmp_path / "data")
    broken = jobs("broken")
    real, save = Batch.step, loop._Loop.save
    for stop in range(2, 12, 2):

        def killed(self, batches, step, *rest, stop=stop):
            if step == stop and stop == 4:  # asked to stop: all save behind this step
                signal.raise_signal(signal.SIGINT)
            elif step == stop:
                raise Killed
            return real(self, batches, step, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(Batch, "step", killed)
            if stop == 8:  # the second run is killed while it saves, at step 6
                patch.setattr(loop._Loop, "save", lambda self, *now: (
                    save(self, *now) if self.run_.seed == 0 else die()))  # fmt: skip
            with pytest.raises((Killed, KeyboardInterrupt)):
                execute_together(broken, tmp_path / "data")
    lines = []
    assert execute_together(broken, tmp_path / "data", note=lines.append) == [None] * 3
    for (_, path), (_, other) in zip(whole, broken, strict=True):
        assert_same_bits(path, other)
    assert not [line for line in lines if "may differ" in line]


def die():
    raise Killed


def test_a_run_begun_in_a_batch_goes_on_by_itself(jobs, tmp_path, monkeypatch):
    """It says that bits may differ; and a batch goes on without what has finished."""
    begun = jobs("begun")
    finish = loop._Loop.finish

    def killed(self, steps, diverged=False):
        finish(self, steps, diverged)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop._Loop, "finish", killed)
        with pytest.raises(Killed):
            execute_together(begun, tmp_path / "data")
    assert [(path / "done.json").exists() for _, path in begun] == [True, False, False]
    lines = []
    assert execute_together(begun, tmp_path / "data", note=lines.append) == [None] * 3
    assert sum("runs_at_once (3, now 2)" in line for line in lines) == 2
    shutil.rmtree(begun[1][1])
    with monkeypatch.context() as patch:
        patch.setattr(loop._Loop, "finish", killed)
        with pytest.raises(Killed):
            begun[1][0].execute(begun[1][1], tmp_path / "data")


def test_what_stops_one_run_does_not_stop_the_others(jobs, tmp_path):
    every = jobs("some")
    spoiled = every[1][0].settings.model_copy(
        update={"optimizer": every[1][0].settings.optimizer.model_copy(update={"lr": 1e30})}
    )
    wrong = dataclasses.replace(every[0][0], corpus="another")
    every[0] = (wrong, every[0][1])
    every[1] = (dataclasses.replace(every[1][0], settings=spoiled), every[1][1])
    every += jobs("busy", count=1)
    with open_run(every[3][1]):
        errors = execute_together(every, tmp_path / "data")
    assert "has changed" in str(errors[0]) and "not finite" in str(errors[1])
    assert errors[2] is None and isinstance(errors[3], Busy)
    assert [(path / "done.json").exists() for _, path in every] == [False, False, True, False]


@pytest.mark.parametrize("error", [Busy("taken over"), OSError(errno.EDQUOT, "Quota", "there")])
def test_a_run_that_is_lost_while_it_is_saved_does_not_stop_the_others(
    jobs, tmp_path, monkeypatch, error
):
    """Nor does what it cannot write any more when it is closed."""
    every = jobs("lost")
    lost = every[1][1]

    def check(self):
        if self._entry.parents[1] == lost and (lost / "checkpoint.pt").exists():
            raise error

    monkeypatch.setattr(Claim, "check", check)
    errors = execute_together(every, tmp_path / "data")
    assert errors[0] is errors[2] is None and isinstance(errors[1], UserError)
    assert [(path / "done.json").exists() for _, path in every] == [True, False, True]


def test_a_checkpoint_holds_one_run_of_a_batch(jobs, tmp_path, monkeypatch):
    """Parameters are views of what all runs lie in, and torch would write all of that."""
    sizes = []
    write = checkpoint.write

    def noted(path, *rest):
        write(path, *rest)
        sizes.append(checkpoint.file(path).stat().st_size)

    monkeypatch.setattr(checkpoint, "write", noted)
    execute_together(jobs("batch"), tmp_path / "data")
    together = max(sizes)
    [(run, path)] = jobs("alone", count=1)
    run.execute(path, tmp_path / "data")
    assert together < 1.1 * sizes[-1]


@pytest.mark.compiles
def test_compiled_layers_of_a_batch(settings):
    """One forward and backward pass as uncompiled."""
    small = {"num_hidden_layers": 1, "mixer": "attention"}
    every = vary(settings, {"rules": MULTIPLIERS[1:2], "model": small})[:2]
    rows = torch.randint(300, (2, 4, 17), generator=torch.Generator().manual_seed(0))
    batches, losses = [], []
    for choice in ("never", "always"):
        batch = Batch([build(each, 0) for each in every], every)
        execution = Execution(compile=choice, precision="float32")
        runs = [TrainRun("test", "smoke", "A", {}, 0, each, execution, Cost()) for each in every]
        code = compilation.compile_stack(batch, runs, equip(execution, every[0].model))
        assert code.compiled is (choice == "always")
        losses.append(batch.add_gradients(rows))
        batches.append(batch)
    torch.testing.assert_close(*losses)
    one, other = (dict(batch.gradients()) for batch in batches)
    for name, gradient in one.items():
        torch.testing.assert_close(other[name], gradient, rtol=1e-3, atol=1e-6, msg=name)


def test_a_sweep_trains_runs_of_one_shape_at_once(jobs, tmp_path):
    """Those of another shape and those that cannot go by themselves, in the same sweep."""
    every = [*jobs("runs"), *jobs("runs", count=1, train={"steps": 13}),
             *jobs("runs", count=1, train={"multiplier_implementation": "optimizer"})]  # fmt: skip
    every = [(run, path.parent / str(n)) for n, (run, path) in enumerate(every)]
    scheduler.sweep(every, tmp_path / "data", 1)
    found = [json.loads((path / "run.json").read_text()) for _, path in every]
    assert [each["environment"]["runs_at_once"] for each in found] == [3, 3, 3, 1, 1]
    assert [each["id"] for each in found] == [run.id for run, _ in every]
    assert all((path / "done.json").exists() for _, path in every)


def test_which_runs_are_trained_at_once(jobs, monkeypatch):
    every = jobs("none")
    assert together.companions(every[0], every, 1) == every
    assert together.companions(every[0], every, 2) == every[:2]  # another worker gets the rest
    assert together.companions(every[1], every[1:], 1) == every[1:]
    others = [
        jobs("none", **sections)[0]
        for sections in (
            {"train": {"steps": 13}}, {"train": {"batch_size": 2}}, {"train": {"z_loss": 0.0}},
            {"model": {"rms_norm_eps": 1e-4}}, {"rules": MULTIPLIERS[:3]},
            {"rules": [*MULTIPLIERS, {"match": "mlp.up", "forward": 0.5}]},
        )
    ]  # fmt: skip
    for other in others:
        assert together.companions(every[0], [*every, other], 1) == every
    able = every[0][0]
    # Whether layers are compiled is decided alike for each that is trained at once, and alone.
    slow = able.cost.model_copy(update={"flops_per_second": able.estimate().flops / 60})
    assert together.companions(every[0], [*every, (dataclasses.replace(able, cost=slow), None)],
                               1) == every  # fmt: skip
    for name, value in (("micro_batch", 2), ("recompute", True)):
        execution = able.execution.model_copy(update={name: value})
        job = (dataclasses.replace(able, execution=execution), None)
        assert name in together.obstacle(job[0])
        assert together.companions(job, [job, job], 1) == [job]
    lines = together.told([able, able, job[0]])
    assert "up to 3 runs of one shape" in lines[0] and "1 runs; execution.recompute" in lines[1]
    # It is no part of what a run is; auto is for GPUs.
    auto = able.execution.model_copy(update={"batch_runs": "auto", "device": "auto"})
    unsaid = dataclasses.replace(able, execution=auto)
    assert unsaid.id == able.id
    monkeypatch.setattr(together, "gpus", list)
    assert together.most(unsaid) == 1 and together.told([unsaid]) == []
    monkeypatch.setattr(together, "gpus", lambda: ["0"])
    assert together.most(unsaid) == 16


def test_losses_of_a_stack_are_those_of_each(settings):
    """The form for GPUs, in one go, and that for CPUs."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 4, 16, 8, generator=draw, dtype=torch.float64)
    weight = torch.randn(3, 30, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(30, (3, 4, 16), generator=draw)
    form = functools.partial(linear_cross_entropy, z_loss=0.1, factor=0.5)
    at_once = torch.func.vmap(form)(hidden, weight, targets)
    each = [torch.stack(found) for found in zip(*map(form, hidden, weight, targets), strict=True)]
    torch.testing.assert_close(at_once, tuple(each))
    for one, other in zip(
        torch.autograd.grad(at_once[1].sum(), weight),
        torch.autograd.grad(each[1].sum(), weight), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other)
