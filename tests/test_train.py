"""The loop: killed and resumed bit for bit, logs, probes, and what stops it."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import warm
from conftest import TINY_DELTA

from lrm import data
from lrm.errors import Stopped, UserError
from lrm.plan.config import Execution
from lrm.plan.run import Cost, TrainRun
from lrm.plan.schedule import lr_factors
from lrm.store import checkpoint
from lrm.store.files import read_json
from lrm.store.rundir import LOGS, read_description
from lrm.sweep.process import encode
from lrm.train import loop
from lrm.train.distributed import Group
from lrm.train.log import ProbeLog
from lrm.train.step import train_step


@pytest.fixture
def run(settings, tmp_path):
    """A function from overrides to a run whose corpus is built."""

    def make(checkpoint_every=3, **sections) -> TrainRun:
        config = settings(**sections)
        corpus = data.prepare(config.data, config.model.vocab_size, tmp_path / "data")
        execution = Execution(precision="float32", checkpoint_every=checkpoint_every)
        return TrainRun("test", "smoke", "A", {"S": 2.0}, 0, config, execution, Cost(),
                   corpus=corpus.hash)  # fmt: skip

    return make


MULTIPLIERS = [{"match": "mlp.*", "multiplier": {"kind": "row_column"}},
               {"match": "ssm.x", "multiplier": {"kind": "scalar"}, "lr_scale": 0.5}]  # fmt: skip


def content(folder):
    """Everything that must be the same bits."""
    weights = torch.load(folder / "weights.pt", weights_only=True)
    tables = {n: pd.read_parquet(folder / f"{n}.parquet") for n in ("scalars", "vectors")}
    return weights, tables


def assert_same_bits(a, b):
    (weights_a, tables_a), (weights_b, tables_b) = content(a), content(b)
    assert weights_a.keys() == weights_b.keys()
    for name in weights_a:
        assert torch.equal(weights_a[name], weights_b[name]), name
    for name in tables_a:
        pd.testing.assert_frame_equal(tables_a[name], tables_b[name], check_exact=True)


def test_killed_ten_times_at_random_moments(run, tmp_path):
    """kill -9 in the middle of training, then the same command: the same bits."""
    # Long enough for ten kills, with checkpoints and probes that do not coincide.
    job = run(
        checkpoint_every=7,
        rules=MULTIPLIERS,
        train={"steps": 2000},
        schedule={"decay_steps": 30},
        probes={"every": 5, "vectors_every": 20},
    )
    loop.train(job, tmp_path / "whole", tmp_path / "data")
    broken = tmp_path / "broken"
    checkpoint = broken / "checkpoint.pt"
    line = encode((job, str(broken), str(tmp_path / "data"))) + "\n\n"  # and then finish
    generator = random.Random(0)

    def begin():
        worker = subprocess.Popen(
            [warm.python, "-m", "lrm.sweep.process", "lrm.sweep.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        worker.stdin.write(line)
        worker.stdin.flush()
        return worker

    for _ in range(10):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
        worker = begin()
        while not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before:
            assert worker.poll() is None
            time.sleep(0.002)
        time.sleep(generator.uniform(0.0, 0.15))
        os.kill(worker.pid, signal.SIGKILL)
        worker.communicate()
        assert checkpoint.exists() and not (broken / "done.json").exists()
    reports = begin().communicate()[0].splitlines()
    assert json.loads(reports[-1]) == {"done": None}, reports[-1]
    assert_same_bits(tmp_path / "whole", broken)
    assert not [path for path in broken.iterdir() if path.name not in FILES]


FILES = {".claim", "done.json", "run.json", "scalars.parquet", "vectors.parquet", "weights.pt"}


class Killed(BaseException):
    """What no part of the suite may catch."""


@pytest.mark.parametrize(
    ("implementation", "precision", "model"),
    [("forward", "float32", {}), ("optimizer", "float32", {}), ("forward", "float16", {}),
     ("forward", "float32", TINY_DELTA)],
)  # fmt: skip
def test_killed_between_every_step(run, tmp_path, monkeypatch, implementation, precision, model):
    """An interruption at each step in turn: the same bits."""
    rules = [MULTIPLIERS[0]] if model else MULTIPLIERS
    job = run(rules=rules, model=model, probes={"criteria": True},
              train={"multiplier_implementation": implementation})  # fmt: skip
    execution = job.execution.model_copy(update={"precision": precision})
    job = dataclasses.replace(job, execution=execution)
    loop.train(job, tmp_path / "whole", tmp_path / "data")
    real = train_step

    def killed_at(stop):
        def step(learner, batch, config, number, *rest):
            if number == stop:
                raise Killed
            return real(learner, batch, config, number, *rest)

        return step

    for stop in range(1, 12):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "train_step", killed_at(stop))
            with pytest.raises(Killed):
                loop.train(job, tmp_path / "broken", tmp_path / "data")
    loop.train(job, tmp_path / "broken", tmp_path / "data")
    assert_same_bits(tmp_path / "whole", tmp_path / "broken")


def test_killed_inside_every_write(run, tmp_path, monkeypatch):
    """Between writing a file and its renaming, for every file in turn: the same bits."""
    job = run(rules=MULTIPLIERS)
    loop.train(job, tmp_path / "whole", tmp_path / "data")
    real, stopped = os.replace, set()

    def replace(source, target):
        name = f"{Path(target).name} {len(stopped)}"
        if Path(target).parent == tmp_path / "broken" and Path(target).name not in stopped:
            stopped.add(Path(target).name)
            raise Killed(name)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    # A run that goes on writes the counted part of each log anew.
    files = {*FILES - {".claim"}, "checkpoint.pt", *LOGS}
    for _ in files:
        with pytest.raises(Killed):
            loop.train(job, tmp_path / "broken", tmp_path / "data")
    loop.train(job, tmp_path / "broken", tmp_path / "data")
    assert stopped == files
    assert_same_bits(tmp_path / "whole", tmp_path / "broken")
    assert not [path for path in (tmp_path / "broken").iterdir() if path.name not in FILES]


@pytest.mark.parametrize("step", [0, 4, 10])
def test_told_to_stop_in_a_step(run, tmp_path, monkeypatch, step):
    """It is saved behind that step, wherever it saves otherwise, and ends with the same bits."""
    job = run(rules=MULTIPLIERS)
    loop.train(job, tmp_path / "whole", tmp_path / "data")
    real = loop.train_step

    def told(*arguments):
        if arguments[3] == step:
            signal.raise_signal(signal.SIGTERM)
        return real(*arguments)

    def stop(number, _):
        raise Stopped(number)

    before = signal.signal(signal.SIGTERM, stop)
    monkeypatch.setattr(loop, "train_step", told)
    try:
        with pytest.raises(Stopped):
            loop.train(job, tmp_path / "broken", tmp_path / "data")
        assert signal.getsignal(signal.SIGTERM) == stop
    finally:
        signal.signal(signal.SIGTERM, before)
    monkeypatch.setattr(loop, "train_step", real)
    loop.train(job, tmp_path / "broken", tmp_path / "data")
    resumed = read_description(tmp_path / "broken")["resumed"]
    assert [each["step"] for each in resumed] == [step + 1]
    assert_same_bits(tmp_path / "whole", tmp_path / "broken")


def test_a_stop_whose_checkpoint_cannot_be_written_is_told(run, tmp_path, monkeypatch):
    """Else the run would be taken for one that is saved."""
    job = run(checkpoint_every=100)
    real, told = loop.train_step, []

    def stopping(*arguments):
        if arguments[3] == 4:
            signal.raise_signal(signal.SIGTERM)
        return real(*arguments)

    def full(*_):
        raise UserError("no space is left")

    def stop(number, _):
        raise Stopped(number)

    monkeypatch.setattr(loop, "train_step", stopping)
    monkeypatch.setattr(loop._Loop, "save", full)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(Stopped):
            loop.train(job, tmp_path / "run", tmp_path / "data", note=told.append)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert any("is not saved (no space is left); it goes on from" in line for line in told)


def test_processes_that_compute_with_other_kernels_are_told(run, tmp_path):
    """The first one has them in bfloat16, as where machines differ."""
    job = run()

    class Other(Group):
        world, rank = 2, 1

        def first(self, value):
            return (value[0], "bfloat16", *value[2:]) if isinstance(value, tuple) else value

    with ExitStack() as stack, pytest.raises(UserError, match="process 1 computes with .*float32"):
        loop._Loop.opened(stack, job, tmp_path / "run", tmp_path / "data", None, print, Other())


def test_a_finished_run_is_not_touched(run, tmp_path):
    job = run()
    loop.train(job, tmp_path / "run", tmp_path / "data")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    loop.train(job, tmp_path / "run", tmp_path / "data")
    assert {p: p.stat().st_mtime_ns for p in before if p.name != ".claim"} == {
        p: t for p, t in before.items() if p.name != ".claim"
    }


def test_micro_batches_add_up(run, tmp_path):
    job = run(train={"batch_size": 6})
    for name, micro_batch in (("a", 0), ("b", 4)):
        execution = Execution(precision="float32", micro_batch=micro_batch)
        job = dataclasses.replace(job, execution=execution)
        loop.train(job, tmp_path / name, tmp_path / "data")
    a, b = (read_json(tmp_path / n / "done.json")["validation_loss"] for n in "ab")
    assert a == pytest.approx(b, abs=1e-4)


def test_a_run_explains_itself(run, tmp_path):
    job = run(rules=[{"match": "norm.final", "weight": "scalar", "lr": 0.3}, *MULTIPLIERS])
    folder = tmp_path / "run"
    loop.train(job, folder, tmp_path / "data")
    assert {path.name for path in folder.iterdir()} == FILES
    description = read_json(folder / "run.json")
    assert description["id"] == job.id and description["grid"] == {"S": 2.0}
    assert description["corpus"]["hash"] == job.corpus
    assert description["settings"]["train"]["steps"] == 12
    assert description["execution"]["precision"] == "float32"
    tensors = [t for group in description["groups"] for t in group["tensors"]]
    assert "norm.final.scalar" in tensors and "mlp.up@0.row" in tensors
    assert len(tensors) == len(set(tensors))
    scalars = pd.read_parquet(folder / "scalars.parquet")
    assert set(scalars.loc[scalars["stat"] == "train_loss", "step"]) == set(range(1, 13))
    validation = scalars[scalars["stat"] == "validation_loss"]
    assert list(validation["step"]) == [8, 12]  # the end of either stage
    final = torch.load(folder / "weights.pt", weights_only=True)
    last = scalars[scalars["step"] == 12].set_index(["tensor", "stat"])["value"]
    for key in ("embedding", "ssm.x@1", "mlp.up@0"):
        assert last[key, "weight_norm"] == pytest.approx(final[key].square().mean().sqrt().item())
    effective = final["mlp.up@0"] * final["mlp.up@0.row"][:, None] * final["mlp.up@0.column"]
    rms = effective.square().mean().sqrt().item()
    assert last["mlp.up@0", "effective_norm"] == pytest.approx(rms, rel=1e-5)
    assert last["norm.final", "effective_norm"] == pytest.approx(
        abs(final["norm.final.scalar"].item())
    )
    assert ("projector", "centred_norm") in last.index and ("mlp.down@1", "activation_norm") in last
    vectors = pd.read_parquet(folder / "vectors.parquet").set_index(["step", "tensor", "stat"])
    rows = torch.tensor(vectors.loc[(12, "ssm.x@0", "row_norms"), "value"].copy())
    torch.testing.assert_close(rows, final["ssm.x@0"].square().mean(1).sqrt())


def test_logs_tell_what_the_steps_returned(run, tmp_path, monkeypatch):
    """Losses, norms before clipping, the share of steps clipped since the last probe, the factor.

    The clipping norm is the median of those of the first run, so that some steps are clipped.
    """
    real, steps = loop.train_step, []

    def step(*arguments):
        steps.append(real(*arguments))
        return steps[-1]

    monkeypatch.setattr(loop, "train_step", step)
    loop.train(run(train={"clip_norm": 0.0}), tmp_path / "free", tmp_path / "data")
    border = float(torch.stack([norm for _, norm, _ in steps]).median())
    steps.clear()
    job = run(train={"clip_norm": border}, probes={"every": 3, "vectors_every": 9})
    loop.train(job, tmp_path / "run", tmp_path / "data")
    losses, norms, _ = torch.tensor(steps).double().T.numpy()
    assert 0 < (norms > border).sum() < len(norms) == 12
    scalars = pd.read_parquet(tmp_path / "run" / "scalars.parquet").set_index(["stat", "step"])
    told = scalars["value"].sort_index()
    np.testing.assert_allclose(told["train_loss"], losses)
    np.testing.assert_allclose(told["global_gradient_norm"], norms)
    factors = lr_factors(job.settings.schedule, 12)
    last = 0
    for done in sorted(told["clipped_fraction"].index):
        expected = (norms[last:done] > border).mean() if done else 0.0
        assert told["clipped_fraction", done] == pytest.approx(expected), done
        assert told["lr_factor", done] == pytest.approx(factors[max(done - 1, 0)]), done
        last = done
    assert last == 12


def test_noise_of_gradients_is_read_from_the_batches_that_follow(run, tmp_path, monkeypatch):
    """The next ones, in which the model as it is has not been trained."""
    real, read = ProbeLog._gradients, {}

    def gradients(self, done):
        asked = read.setdefault(done, [])
        with monkeypatch.context() as patch:
            batch = self._batches.batch
            patch.setattr(self._batches, "batch", lambda step: (asked.append(step), batch(step))[1])
            return real(self, done)

    monkeypatch.setattr(ProbeLog, "_gradients", gradients)
    loop.train(run(probes={"gradient_batches": 3}), tmp_path / "run", tmp_path / "data")
    assert read == {done: [done, done + 1, done + 2] for done in (0, 8, 12)}


def test_seeds_and_data_order(run, tmp_path):
    """Another seed is another run; the same seed in another directory the same bits."""
    loop.train(run(), tmp_path / "a", tmp_path / "data")
    loop.train(run(), tmp_path / "b", tmp_path / "data")
    assert_same_bits(tmp_path / "a", tmp_path / "b")
    loop.train(dataclasses.replace(run(), seed=1), tmp_path / "c", tmp_path / "data")
    a, c = content(tmp_path / "a")[0], content(tmp_path / "c")[0]
    assert not torch.equal(a["projector"], c["projector"])


def interrupted(job, folder, corpora, monkeypatch):
    """Leave a run with a checkpoint but not finished."""

    def stop(self, steps):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop._Loop, "finish", stop)
        with pytest.raises(KeyboardInterrupt):
            loop.train(job, folder, corpora)
    assert (folder / "checkpoint.pt").exists()


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign"])
def test_a_damaged_checkpoint_is_told(run, tmp_path, monkeypatch, damage):
    job, folder = run(), tmp_path / "run"
    interrupted(job, folder, tmp_path / "data", monkeypatch)
    file = folder / "checkpoint.pt"
    content = bytearray(file.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[len(content) // 2] ^= 1
    else:
        content = b"not a checkpoint"
    file.write_bytes(content)
    with pytest.raises(UserError, match="is damaged; remove it and this run starts again"):
        loop.train(job, folder, tmp_path / "data")
    file.unlink()
    loop.train(job, folder, tmp_path / "data")
    loop.train(job, tmp_path / "other", tmp_path / "data")
    assert_same_bits(folder, tmp_path / "other")


def test_resuming_with_another_precision_is_refused(run, tmp_path, monkeypatch):
    job, folder = run(), tmp_path / "run"
    interrupted(job, folder, tmp_path / "data", monkeypatch)
    other = dataclasses.replace(job, execution=Execution(precision="bfloat16"))
    with pytest.raises(UserError, match="was begun with precision = float32"):
        loop.train(other, folder, tmp_path / "data")


def test_a_loss_that_is_not_finite_stops_the_run(run, tmp_path):
    job = run(optimizer={"lr": 1e30}, train={"clip_norm": 0.0})
    with pytest.raises(UserError, match="not finite at step .* lower optimizer.lr"):
        loop.train(job, tmp_path / "run", tmp_path / "data")
    assert (tmp_path / "run" / "run.json").exists()
    assert not (tmp_path / "run" / "done.json").exists()


def test_a_last_update_that_explodes_is_told_by_the_validation(run, tmp_path):
    """No step follows whose loss would tell."""
    only = {"schedule": {"warmup_steps": 0, "decay_steps": 0}, "optimizer": {"lr": 1e20}}
    with pytest.raises(UserError, match=r"the validation loss is not finite at step 1 \(loss nan"):
        loop.train(run(train={"steps": 1}, **only), tmp_path / "a", tmp_path / "data")
    assert not (tmp_path / "a" / "done.json").exists()
    result = run(train={"steps": 1, "divergence": "result"}, **only)
    loop.train(result, tmp_path / "b", tmp_path / "data")
    outcome = read_json(tmp_path / "b" / "done.json")
    assert outcome["diverged"] == 1 and outcome["validation_loss"] is None


@pytest.mark.parametrize(("compiled", "word"), [(True, "always"), (False, "never")])
def test_what_was_compiled_goes_on_by_the_words_that_are_told(tmp_path, compiled, word):
    said = {"id": "a", "execution": {"compiled": not compiled}}
    begun = {"id": "a", "execution": {"compiled": compiled}}
    with pytest.raises(UserError, match=f"add --set execution.compile={word}, or remove"):
        checkpoint.continued(tmp_path, said, 1, begun, print)
    Execution(compile=word)


# The first MLP's output exceeds 65504, the largest number of float16, as soon as a multiplier does.
OVERFLOW = [{"match": "mlp.*", "multiplier": {"kind": "scalar", "init": 400.0}}]


def test_an_overflow_of_float16_is_a_result_where_it_may_be(run, tmp_path):
    """A finished run whose last loss is no number, the same bits each time; float32 trains on."""
    job = run(rules=OVERFLOW, train={"divergence": "result"})
    assert run().id != job.id
    half = dataclasses.replace(job, execution=Execution(precision="float16"))
    notes = []
    for name in "ab":
        loop.train(half, tmp_path / name, tmp_path / "data", note=notes.append)
    assert notes[-1].endswith(": diverged at step 1, which is its result")
    outcome = read_json(tmp_path / "a" / "done.json")
    assert outcome["diverged"] == 1 and outcome["validation_loss"] is None
    assert outcome["seconds"] > 0
    first, second = (pd.read_parquet(tmp_path / name / "scalars.parquet") for name in "ab")
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    losses = first[first["stat"] == "train_loss"]
    assert list(losses["step"]) == [1] and losses["value"].isna().all()
    last = first[first["stat"] == "validation_loss"].nlargest(1, "step")
    assert list(last["step"]) == [1] and last["value"].isna().all()
    assert not (tmp_path / "a" / "weights.pt").exists()
    loop.train(job, tmp_path / "c", tmp_path / "data")
    assert read_json(tmp_path / "c" / "done.json")["validation_loss"] < 20


def test_a_gradient_that_is_not_finite_is_judged_by_the_loss_that_follows(
    run, tmp_path, monkeypatch
):
    """As an error it stops the run at once; as a result the next loss tells what it did."""
    real = train_step

    def spoiled(learner, batch, settings, step, *rest):
        loss, norm, clipped = real(learner, batch, settings, step, *rest)
        return (torch.full_like(loss, torch.nan) if step == 6 else loss,
                norm * torch.inf if step == 5 else norm, clipped)  # fmt: skip

    monkeypatch.setattr(loop, "train_step", spoiled)
    with pytest.raises(UserError, match="not finite at step 6 "):
        loop.train(run(), tmp_path / "a", tmp_path / "data")
    loop.train(run(train={"divergence": "result"}), tmp_path / "b", tmp_path / "data")
    assert read_json(tmp_path / "b" / "done.json")["diverged"] == 7
    scalars = pd.read_parquet(tmp_path / "b" / "scalars.parquet")
    losses = scalars[scalars["stat"] == "train_loss"].set_index("step")["value"]
    assert list(losses.index[losses.isna()]) == [7] == [losses.index[-1]]


@pytest.mark.parametrize("step", [4, 12])
def test_criteria_of_a_model_that_is_not_finite_end_as_diverged(run, step, tmp_path, monkeypatch):
    """At a probe whose step made it so, and at the last one."""
    real = train_step

    def spoiled(learner, batch, settings, at, *rest):
        found = real(learner, batch, settings, at, *rest)
        if at == step - 1:
            with torch.no_grad():
                learner.model.lm_head.weight.fill_(torch.nan)
                learner.model.model.layers[0].feed_forward.down_proj.weight.fill_(torch.nan)
        return found

    monkeypatch.setattr(loop, "train_step", spoiled)
    probes = {"every": 4, "vectors_every": 4, "sequences": 2, "criteria": True}
    job = run(train={"divergence": "result"}, probes=probes)
    loop.train(job, tmp_path / "a", tmp_path / "data")
    assert read_json(tmp_path / "a" / "done.json")["diverged"] >= step


def test_two_processes_do_not_train_one_run(run, tmp_path):
    from lrm.store.rundir import open_run

    with (
        open_run(tmp_path / "run"),
        pytest.raises(UserError, match="is in use by another process"),
    ):
        loop.train(run(), tmp_path / "run", tmp_path / "data")


def test_a_changed_corpus_is_told(run, tmp_path):
    job = dataclasses.replace(run(), corpus="another")
    with pytest.raises(UserError, match="has changed since this run was planned"):
        loop.train(job, tmp_path / "run", tmp_path / "data")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_close_to_float32(run, tmp_path, precision):
    job = run(train={"steps": 40}, schedule={"decay_steps": 5})
    loop.train(job, tmp_path / "a", tmp_path / "data")
    low = dataclasses.replace(job, execution=Execution(precision=precision))
    loop.train(low, tmp_path / "b", tmp_path / "data")
    a, b = (read_json(tmp_path / n / "done.json")["validation_loss"] for n in "ab")
    assert a == pytest.approx(b, abs=0.02) and a != b
