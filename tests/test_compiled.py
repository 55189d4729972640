"""Compiled layers against the same layers uncompiled, and what happens without a compiler."""

import contextlib
import dataclasses
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lrm import data
from lrm.errors import UserError
from lrm.plan.config import Execution
from lrm.plan.cost import COMPILED_FROM
from lrm.plan.rules import resolve
from lrm.plan.run import Cost, TrainRun
from lrm.store.cache import checked
from lrm.store.files import read_json
from lrm.sweep.process import encode
from lrm.train import compilation, compiled, loop
from lrm.train.step import add_gradients

RULES = [
    {"match": "mlp.*", "multiplier": {"kind": "row_column"}},
    {"match": "ssm.x", "multiplier": {"kind": "scalar"}, "lr_scale": 0.5},
    {"match": "attention.k", "forward": 0.5},
]


@pytest.fixture
def job(settings, tmp_path):
    """A function from compile's value to a run whose corpus is built."""

    def make(choice, **train) -> TrainRun:
        config = settings(rules=RULES, train=train)
        corpus = data.prepare(config.data, config.model.vocab_size, tmp_path / "data")
        execution = Execution(precision="float32", compile=choice, checkpoint_every=5)
        return TrainRun("test", "smoke", "A", {}, 0, config, execution, Cost(), corpus=corpus.hash)

    return make


def test_long_runs_are_compiled(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/c++" if name == "g++" else None)
    long, short = COMPILED_FROM, COMPILED_FROM / 2
    assert compiled.wanted("auto", long, cpu)
    assert not compiled.wanted("auto", short, cpu)
    assert not compiled.wanted("auto", long, gpu)
    assert compiled.wanted("always", 0.0, gpu) and not compiled.wanted("never", long, cpu)
    assert compiled.wanted("graphs", 0.0, gpu)
    with pytest.raises(UserError, match="= graphs needs CUDA, and the device is cpu; write always"):
        compiled.wanted("graphs", long, cpu)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert not compiled.wanted("auto", long, cpu)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/c++")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert not compiled.wanted("auto", long, cpu)


def test_cuda_graphs_are_asked_for_and_told_of_steps(monkeypatch):
    """What a CPU can show of it: the compiler's options, and a mark at the start of each step."""
    marks, given = [], []
    monkeypatch.setattr(compiled, "_replaying", False)
    monkeypatch.setattr(compiled, "_missed", int)
    monkeypatch.setattr(compiled, "checked", lambda folder: contextlib.nullcontext([]))
    monkeypatch.setattr(compiled, "_behind_the_first", lambda name: contextlib.nullcontext())
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    monkeypatch.setattr(layers[0], "compile", lambda **said: given.append(said["options"]))
    for choice, wanted in (("graphs", True), ("always", None)):
        assert compiled.compile_layers(layers, lambda: None, choice).compiled
        assert given[-1].get("triton.cudagraphs") is wanted
        compiled.begin_step()
    assert len(marks) == 1

    def fails():
        raise torch._dynamo.exc.TorchDynamoException("no")

    with pytest.raises(UserError, match="execution.compile = graphs, but the compiler does not "):
        compiled.compile_layers(layers, fails, "graphs")
    compiled.begin_step()
    assert len(marks) == 1


@pytest.mark.compiles
def test_compiled_layers_give_the_uncompiled_ones_losses(job, tmp_path):
    """Within rounding over a run; and killed and resumed, the same bits."""
    # Longer than one block of attention's queries.
    on, off = (job(choice, sequence_length=140, batch_size=2) for choice in ("always", "never"))
    losses = {}
    for name, run in (("never", off), ("always", on)):
        loop.train(run, tmp_path / name, tmp_path / "data")
        learner_weights = torch.load(tmp_path / name / "weights.pt", weights_only=True)
        losses[name] = (read_json(tmp_path / name / "done.json"), learner_weights)
        assert read_json(tmp_path / name / "run.json")["execution"]["compiled"] is (
            name == "always"
        )
    assert losses["always"][0]["validation_loss"] == pytest.approx(
        losses["never"][0]["validation_loss"], rel=1e-4
    )
    for name, weight in losses["never"][1].items():
        torch.testing.assert_close(
            losses["always"][1][name], weight, rtol=1e-2, atol=2e-3, msg=name
        )

    stopped = tmp_path / "stopped"

    def stop(step, loss):
        if (stopped / "checkpoint.pt").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.train(_often(on), stopped, tmp_path / "data", stop)
    loop.train(_often(on), stopped, tmp_path / "data")
    again = torch.load(stopped / "weights.pt", weights_only=True)
    for name, weight in losses["always"][1].items():
        assert torch.equal(again[name], weight), name


def _often(run: TrainRun) -> TrainRun:
    return dataclasses.replace(
        run, execution=run.execution.model_copy(update={"checkpoint_every": 4})
    )


def test_runs_with_the_same_layers_have_one_name(settings):
    """What is outside of the layers, and how large values are, makes no other code."""

    def name(rules, rows=2, **options):
        config = settings(rules=rules, train=options)
        return compilation.code_name(config, resolve(config), rows, "float32")

    mlp = {"match": "mlp.*", "multiplier": {"kind": "scalar", "lr": 1e-2}}
    plain, scalar = name([]), name([mlp])
    assert plain != scalar
    assert scalar == name([{**mlp, "lr_scale": 0.5, "multiplier": {"kind": "scalar", "lr": 1e-3}}])
    assert plain == name([{"match": "projector", "forward": 4.5, "multiplier": {"kind": "column"}}])
    assert plain != name([{"match": "mlp.down", "forward": 0.2}])
    assert plain != name([{"match": "mlp.down", "weight": "frozen"}])
    assert plain != name([], rows=4) and plain != name([], sequence_length=12)
    whole = {"multiplier_implementation": "optimizer"}
    assert name([], **whole) == name([mlp], **whole)


def test_a_folder_of_code_without_locks(tmp_path, monkeypatch):
    """It is used as it lies: nobody can tell whether others are about to load what it holds."""

    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(2):
        with compiled._behind_the_first("a"), checked(tmp_path) as damaged:
            (tmp_path / "code").write_bytes(b"1")
        assert damaged == [] and not (tmp_path / "digests.json").exists()


@pytest.mark.compiles
def test_a_compiler_that_fails(job, tmp_path):
    """With "always" one clear line; the worker lives on."""
    lines = encode((job("always"), str(tmp_path / "always"), str(tmp_path / "data"))) + "\n\n"
    broken = tmp_path / "bin" / "g++"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "lrm.sweep.process", "lrm.sweep.worker"],
        input=lines,
        capture_output=True,
        text=True,
        timeout=600,
        env={
            **os.environ,
            "PATH": f"{broken.parent}:{os.environ['PATH']}",
            "CXX": str(broken),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
    )
    assert "execution.compile = always, but the compiler does not work here" in done.stdout
    assert '"crash"' not in done.stdout


@pytest.mark.parametrize("error", ["TorchDynamoException", "FailOnRecompileLimitHit"])
def test_a_failing_compiler_leaves_the_layers_as_they_were(job, tmp_path, monkeypatch, error):
    """With "auto" the run goes on uncompiled, and says so."""
    monkeypatch.setattr(compiled, "wanted", lambda *_: True)

    def fail(*_, **__):
        raise getattr(torch._dynamo.exc, error)("no")

    monkeypatch.setattr("lrm.train.compilation.add_gradients", _first(fail, add_gradients))
    loop.train(job("auto"), tmp_path / "auto", tmp_path / "data")
    monkeypatch.undo()
    loop.train(job("never"), tmp_path / "never", tmp_path / "data")
    assert read_json(tmp_path / "auto" / "run.json")["execution"]["compiled"] is False
    a, b = (torch.load(tmp_path / n / "weights.pt", weights_only=True) for n in ("auto", "never"))
    assert all(torch.equal(a[name], b[name]) for name in b)


def test_code_that_was_made_anew_is_told_and_recorded(job, tmp_path, monkeypatch):
    """On resume: before it says nothing, since no step was taken with other code."""
    run, told = _often(job("never")), []
    made = compiled.Code(made=True, problem="the library is cut short", damaged="a/b.so")
    monkeypatch.setattr(loop, "compile_layers", lambda *_: made)

    def stop(step, loss):
        if (tmp_path / "a" / "checkpoint.pt").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.train(run, tmp_path / "a", tmp_path / "data", stop, note=told.append)
    problem = [line for line in told if line.startswith("layers are not compiled: the library is")]
    assert "a/b.so was damaged; it was removed, and compiled anew" in told
    assert len(problem) == 1 and f"remove {compiled.folder()}, and the next run" in problem[0]
    assert not any("compiled anew; its bits" in line for line in told)
    loop.train(run, tmp_path / "a", tmp_path / "data", note=told.append)
    (line,) = (line for line in told if "compiled anew; its bits" in line)
    assert str(compiled.folder()) in line
    assert read_json(tmp_path / "a" / "run.json")["resumed"][0]["compiled_anew"] is True


def _first(once, then):
    calls = []

    def call(*arguments, **named):
        calls.append(1)
        return (once if len(calls) == 1 else then)(*arguments, **named)

    return call
