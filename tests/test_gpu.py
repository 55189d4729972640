"""The day on a GPU, as far as a CPU goes: every part at toy size; and what needs the device."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import warm

from analysis.explore import gpu as drawing
from analysis.explore import gpu_tables
from analysis.explore.gpu_tables import overheads
from lrm.bench.gpu import parity, session
from lrm.bench.gpu.__main__ import main
from lrm.bench.gpu.items import PARTS, Item, Part
from lrm.bench.gpu.plan import GpuPlan
from lrm.bench.gpu.record import Record, name_of
from lrm.bench.gpu.session import OutOfTime, Session, take
from lrm.bench.gpu.whole_logits import whole_logits
from lrm.bench.gpu.worker import Worker, _memory_error
from lrm.bench.trainers import BatchTrainer, SuiteTrainer
from lrm.errors import UserError
from lrm.model import ops
from lrm.model.loss import linear_cross_entropy
from lrm.plan.config import Execution
from lrm.plan.run import Cost, TrainRun
from lrm.store.digests import read_listed
from lrm.store.files import read_json
from lrm.train.device import equip
from lrm.train.learner import build
from lrm.train.step import train_step

ROOT = Path(__file__).parents[1]
MACHINE = {"started": "2026-01-01T00:00:00Z", "torch": "2.9"}
H100 = {"name": "NVIDIA H100 80GB HBM3", "kind": "cuda"}


def call(*arguments, code=0):
    """``python -m lrm.bench.gpu``; what it prints, and its progress."""
    command = [warm.python, "-m", "lrm.bench.gpu", *map(str, arguments)]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=hidden)
    assert found.returncode == code, found.stdout + found.stderr
    return found.stdout, found.stderr


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A toy day: begun, killed behind its first item, and then taken to its end.

    Returns the results, the items that it had when it was killed, and what the last call said.
    """
    results = tmp_path_factory.mktemp("gpu")
    Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).mkdir(exist_ok=True)
    (results / "compiled").symlink_to(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    options = ("--toy", "--results", results, "--name", "toy", "--minutes", "60")
    command = [warm.python, "-m", "lrm.bench.gpu", *map(str, options), "--part", "overhead"]
    path = results / "gpu" / "toy" / "record.json"
    begun = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for _ in begun.stderr:
        if path.exists():
            break
    begun.send_signal(signal.SIGKILL)
    begun.communicate()
    first = read_json(path)["parts"]["overhead"]
    return results, first, call(*options)


@pytest.mark.compiles
def test_a_toy_day_takes_every_part(toy):
    results, first, (printed, progress) = toy
    path = Path(printed.strip())
    assert path == results / "gpu" / "toy" / "record.json"
    record = read_json(path)
    assert record["toy"] is True and record["device"]["kind"] == "cpu"
    assert not (results / "reference").exists()
    plan = GpuPlan(toy=True)
    for part in PARTS:
        items = record["parts"][part]
        assert set(items) == {item.name for item in PARTS[part].items(plan)}
        assert not [item for item in items.values() if "failed" in item], part
        assert all(record["calls"][item["call"]]["torch"] for item in items.values())
    # What the killed call had taken was not taken again.
    assert 1 <= len(first) < len(record["parts"]["overhead"])
    for name, item in first.items():
        assert record["parts"]["overhead"][name] == item
        assert f"overhead: {name} (" not in progress
    assert len({item["call"] for item in record["parts"]["overhead"].values()}) == 2


@pytest.mark.compiles
def test_a_day_that_is_done_is_not_taken_again(toy):
    results, *_ = toy
    path = results / "gpu" / "toy" / "record.json"
    before = path.read_bytes()
    _, progress = call("--toy", "--results", results, "--name", "toy")
    assert path.read_bytes() == before
    assert progress.count("done before") == len(PARTS)


@pytest.mark.compiles
def test_what_a_toy_day_finds(toy):
    parts = read_json(toy[0] / "gpu" / "toy" / "record.json")["parts"]
    [tests] = parts["tests"].values()
    assert tests["result"]["passed"] == 0 and not tests["result"]["failed"]
    assert sum(tests["result"]["skipped"].values()) >= 20
    for name, item in parts["parity"].items():
        result = item["result"]
        for one in [result] if "gradient" in result else result.values():
            assert one.get("agrees") or "CUDA only" in one["left_out"], name
    speed = {name: item["result"] for name, item in parts["speed"].items()}
    assert [name for name, one in speed.items() if one["compiled"]] == ["compiled"]
    # The same weights and tokens: the same loss, however it is computed.
    losses = [one["loss"] for one in speed.values()]
    assert losses == pytest.approx([losses[0]] * len(losses), abs=0.02)
    for name, item in parts["shapes"].items():
        assert name == f"bfloat16, {item['result']['batch']} × {item['result']['length']}"
    [profile] = [item["result"] for item in parts["profile"].values()]
    assert {"attention", "ssm scan", "mlp", "optimizer"} <= {part for part, *_ in profile["parts"]}
    assert profile["kinds"]["matrix products"] > 0 and profile["busy"] > 0
    both = parts["together"]
    assert [item["result"]["runs"] for item in both.values()] == [1, 2]
    # The first of them is the run that the other item trains by itself.
    alone, first = (item["result"]["loss"] for item in both.values())
    assert first == pytest.approx(alone, abs=1e-5)
    assert set(gpu_tables.by_runs({n: item["result"] for n, item in both.items()})) == {"float32"}
    for item in parts["projector"].values():
        assert set(item["result"]["runs"]) == {"FPN", "SPN", "VPN"}
        for run in item["result"]["runs"].values():
            folder = toy[0] / "runs" / "projector" / run["id"]
            assert read_json(folder / "done.json")["validation_loss"] == run["validation_loss"]


@pytest.mark.compiles
def test_a_record_is_drawn(toy, tmp_path, capsys):
    path = tmp_path / "record.json"
    path.write_bytes((toy[0] / "gpu" / "toy" / "record.json").read_bytes())
    text = drawing.show(path)
    assert "A TOY RUN" in text and "No peak is known" in text
    assert [line[3:] for line in text.splitlines() if line[:3] == "## "] == list(PARTS)
    assert (tmp_path / "toy.png").stat().st_size > 10_000
    assert (tmp_path / "toy.pdf").stat().st_size > 5_000
    path.write_text(path.read_text().replace('"toy": true', '"toy": false'))
    with pytest.raises(SystemExit) as end:
        drawing.main([str(path)])
    assert end.value.code == 2 and "damaged" in capsys.readouterr().err


def test_a_record_that_holds_little_is_drawn_too(tmp_path):
    record = Record(tmp_path, "h100", toy=False)
    record.begin(H100, MACHINE, peak_flops=1e15, goal=0.4)
    speed = {"precision": "bfloat16", "compiled": False, "batch": 2, "length": 8, "loss": 1.0,
             "seconds_per_step": 0.1, "tokens_per_second": 160.0, "flops_per_second": 3e14,
             "peak_memory": 4e9}  # fmt: skip
    record.add("speed", "bfloat16", {"result": speed, "seconds": 1.0})
    record.add("speed", "float32", {"failed": "memory does not suffice", "seconds": 1.0})
    text = drawing.show(record.publish())
    assert "30.0%" in text and "The goal of 40% is not reached by these: 30.0%." in text
    assert "failed: float32: memory does not suffice" in text and "TOY" not in text
    assert (tmp_path / "reference" / "gpu" / "h100.png").exists()


def test_without_a_gpu_one_line_says_so(tmp_path):
    printed, progress = call("--results", tmp_path / "new", code=2)
    assert not printed and progress.count("\n") == 1
    assert "there is no GPU" in progress and "make gpu TOY=1" in progress
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("code", "drawn"), [(0, True), (3, True), (2, False)])
def test_make_draws_what_there_is(code, drawn, tmp_path):
    """Also of a day that time has ended, but not where there is no record."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        '#!/bin/sh\nline=; for word; do line="$line$word|"; done; echo "$line"\n'
        f'case "$2" in lrm.bench.gpu) exit {code};; esac\n'
    )
    python.chmod(0o755)
    for made in (".core", ".dev"):
        (tmp_path / made).touch()
        os.utime(tmp_path / made, (4e9, 4e9))
    own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = ["make", "gpu", f"VENV={tmp_path}", "TOY=1", "PART=speed", "MINUTES=2", "NAME=it"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=own)
    measured = "-m|lrm.bench.gpu|--results|results|--part|speed|--minutes|2|--name|it|--toy|"
    assert done.stdout == (f"-m|analysis.explore.gpu|{measured}|\n" if drawn else "")
    assert done.returncode == (0 if drawn else 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--name", "../x"], "--name '../x': write up to 80 letters"),
        (["--part", "none"], "invalid choice: 'none'"),
        (["--minutes", "0"], "'0' is no positive number"),
        (["--peak-flops", "much"], "'much' is no positive number"),
    ],
)
def test_bad_options(options, words, capsys, tmp_path):
    with pytest.raises(SystemExit) as end:
        main([*options, "--results", str(tmp_path)])
    assert end.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


# The plan.


def test_every_item_of_the_plan_can_be_planned():
    assert list(PARTS) == list(gpu_tables._TABLES)
    assert all(part.isidentifier() for part in PARTS)  # PART= of make is one word
    for toy in (False, True):
        plan = GpuPlan(toy)
        for name, part in PARTS.items():
            items = part.items(plan)
            assert len({item.name for item in items}) == len(items) > 0, name
            assert all(hasattr(Worker, item.method) for item in items)
            # One of those that differ in their sizes alone.
            variants = {(i.arguments["variant"], i.arguments.get("scale")): i.arguments
                        for i in items if "variant" in i.arguments}  # fmt: skip
            for (variant, scale), given in variants.items():
                run = plan.run(variant, scale, tuple(given.get("overrides", ())))
                assert run.execution.device == ("cpu" if toy else "cuda")
    big = GpuPlan(toy=False).run("bfloat16")
    assert sum(plan.address.size for plan in big.plans) > 0.5e9


def test_the_plan_has_every_file_with_tests_for_a_gpu():
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if "@pytest.mark.cuda\n" in path.read_text(encoding="utf-8")
    }
    assert set(GpuPlan(toy=False).measure.tests) == marked


def test_devices_have_names_of_files_and_peaks():
    plan = GpuPlan(toy=False)
    for device, name, peak in (
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3", 989.4e12),
        ("NVIDIA H100 PCIe", "nvidia-h100-pcie", 756e12),
        ("NVIDIA L40S", "nvidia-l40s", 362e12),
        ("A thing", "a-thing", None),
        ("///", "device", None),
    ):
        assert name_of(device, toy=False) == name and plan.peak(device) == peak
    assert name_of("AMD EPYC", toy=True) == "toy-amd-epyc"


# The record.


def test_what_is_published_is_never_replaced(tmp_path):
    record = Record(tmp_path, "h100", toy=False)
    record.begin(H100, MACHINE, goal=0.4)
    record.add("speed", "a", {"result": 1})
    path = record.publish()
    assert path == tmp_path / "reference" / "gpu" / "h100.json"
    assert json.loads(read_listed(path))["parts"]["speed"]["a"]["result"] == 1
    # A clone that has the published record alone, and one that has another of its own.
    record.path.unlink()
    again = Record(tmp_path, "h100", toy=False)
    assert again.items("speed") == record.items("speed")
    again.begin(H100, {**MACHINE, "started": "later"}, goal=0.4)
    again.content["parts"]["speed"]["a"] = {"result": 2, "call": "later"}
    again.add("speed", "b", {"result": 3})
    both = Record(tmp_path, "h100", toy=False)
    assert {name: item["result"] for name, item in both.items("speed").items()} == {"a": 1, "b": 3}
    assert set(both.content["calls"]) == {MACHINE["started"], "later"}
    # A failure is published too, until it is overcome.
    both.begin(H100, MACHINE)
    both.add("speed", "c", {"failed": "no"})
    both.publish()
    both.forget_failures("speed")
    assert set(both.items("speed")) == {"a", "b"}
    both.add("speed", "c", {"result": 4})
    assert Record(tmp_path, "h100", toy=False).items("speed")["c"]["result"] == 4


def test_records_are_not_mixed(tmp_path):
    for toy in (True, False):
        record = Record(tmp_path, f"toy-{toy}", toy)
        record.begin(H100, MACHINE)
        record.add("speed", "a", {"result": 1})
        with pytest.raises(UserError, match="choose another --name"):
            Record(tmp_path, f"toy-{toy}", not toy)
        with pytest.raises(UserError, match="is a record of NVIDIA H100 80GB HBM3, and this is L4"):
            Record(tmp_path, f"toy-{toy}", toy).begin({"name": "L4"}, MACHINE)
        assert toy == (record.publish() == record.path)
    record.path.write_text(record.path.read_text().replace('"result": 1', '"result": 2'))
    with pytest.raises(UserError, match="record.json is damaged: its digest .*; remove "):
        Record(tmp_path, "toy-False", toy=False)


# The limit of a part.


class Scripted:
    """A session that answers as its script says, by the names of items."""

    def __init__(self, script):
        self.script, self.asked = script, []

    def ask(self, method, seconds, item):
        self.asked.append(item)
        answer = self.script.get(item, "done")
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def part(monkeypatch, tmp_path):
    """A function that takes a part of the items a, b, c by a script, and its record."""
    record = Record(tmp_path, "it", toy=True)
    record.begin(H100, MACHINE)

    def run(script, goes_on=False, seconds=60.0):
        items = [Item(name, "any", {"item": name}, goes_on) for name in "abc"]
        monkeypatch.setitem(PARTS, "speed", Part("three items", lambda plan: items))
        said = []
        scripted = Scripted(script)
        complete = take("speed", GpuPlan(toy=True), record, scripted, seconds, said.append)
        return complete, scripted.asked, said

    return run, record


def test_what_variants_are_set_over_is_not_what_came_first():
    """The first may have failed, or be taken again at the end."""
    speeds = {"plain": 100.0, "forward": 50.0, "optimizer": 80.0}
    items = {f"AdamW, {name}, round 1": {"tokens_per_second": speed, "over": "plain"}
             for name, speed in speeds.items()}  # fmt: skip
    right = {"AdamW, forward": [0.5], "AdamW, optimizer": [0.8]}
    assert overheads(items) == overheads(dict(reversed(items.items()))) == right
    del items["AdamW, plain, round 1"]
    assert overheads(items) == {}
    plan = GpuPlan(toy=False)
    for item in PARTS["overhead"].items(plan):
        group, *_ = item.name.split(", ")
        assert item.noted == {"over": plan.measure.overhead.of[group][0]}


def test_what_fails_is_told_and_stops_nothing(part):
    run, record = part
    crash = RuntimeError("Traceback\n  File\nValueError: no\n")
    complete, asked, said = run({"a": UserError("no memory"), "b": crash})
    assert complete and asked == ["a", "b", "c"]
    found = record.items("speed")
    assert found["a"]["failed"] == "no memory" and found["b"]["failed"] == "ValueError: no"
    assert found["c"]["result"] == "done" and "failed, no memory" in said[0]
    assert run({})[1] == []
    record.forget_failures("speed")
    assert run({})[1] == ["a", "b"] and record.items("speed")["a"]["result"] == "done"


def test_an_item_that_time_ends_is_left_for_the_next_call(part):
    run, record = part
    complete, asked, said = run({"b": OutOfTime()})
    assert not complete and asked == ["a", "b"] and set(record.items("speed")) == {"a"}
    assert said[-1] == "speed: time is up, with 2 of 3 items left"
    # It is the first now, and has had the time of a whole part.
    complete, asked, _ = run({"b": OutOfTime()})
    assert complete and asked == ["b", "c"]
    assert record.items("speed")["b"]["failed"] == "it takes longer than 1 minutes"


def test_an_item_that_goes_on_is_never_given_up(part):
    run, record = part
    for _ in range(2):
        complete, asked, _ = run({"a": OutOfTime()}, goes_on=True)
        assert not complete and asked == ["a"] and not record.items("speed")


def test_a_part_begins_nothing_when_time_is_up(part, monkeypatch):
    run, record = part
    clock = iter(range(0, 10_000, 25))
    monkeypatch.setattr(session.time, "monotonic", lambda: float(next(clock)))
    complete, asked, _ = run({}, seconds=120.0)
    assert not complete and asked == ["a", "b"]


def test_a_worker_that_does_not_answer_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", warm.python)
    with Session(tmp_path, toy=True) as worker:
        machine = worker.ask("machine", 500.0)
        assert machine["device"]["kind"] == "cpu" and machine["torch"] == torch.__version__
        process = worker._process
        with pytest.raises(OutOfTime):
            worker.ask("profile", 0.0, variant="float32")
        assert process.wait() == -signal.SIGKILL
        # The next question starts another, and what it says of bad input is an error of ours.
        with pytest.raises(UserError, match="has no tests/none; call it in a clone"):
            worker.ask("tests", 500.0, path="tests/none")
        assert worker._process is None


def test_a_lack_of_memory_is_told_without_advice():
    told = "CUDA out of memory. Tried to allocate 1 GiB. GPU 0 has 79 GiB. See documentation"
    said = r"does not suffice \(CUDA out of memory. Tried to allocate 1 GiB\)$"
    with pytest.raises(UserError, match=said), _memory_error():
        raise torch.OutOfMemoryError(told)


# What is measured.


def test_whole_logits_are_the_fused_loss():
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 5, 8).double(), torch.randn(11, 8).double()
    targets = torch.randint(11, (2, 5))
    for z_loss, factor in ((0.0, 1.0), (0.01, 0.5)):
        found = []
        for function in (linear_cross_entropy, whole_logits):
            leaves = [t.clone().requires_grad_() for t in (hidden, weight)]
            loss, objective = function(*leaves, targets, z_loss, factor)
            found.append([loss, objective, *torch.autograd.grad(objective, leaves)])
        torch.testing.assert_close(*found)


def test_a_wrong_kernel_does_not_agree(smoke_runs, monkeypatch):
    config, cpu = smoke_runs("projector")[0].settings.model, torch.device("cpu")
    assert all(one["agrees"] for one in parity.of_kernel("norm", config, cpu).values())
    right = ops.rms_norm

    def wrong(x, weight, eps):
        """Its gradient is, in half precision alone; the output is right."""
        out = right(x, weight, eps)
        return out if x.dtype != torch.bfloat16 else 2 * out - out.detach()

    monkeypatch.setattr(ops, "rms_norm", wrong)
    found = parity.of_kernel("norm", config, cpu)
    assert found["torch float32"]["agrees"] and not found["torch bfloat16"]["agrees"]
    assert found["torch bfloat16"]["distances"]["output"] < 0.01

    def broken(*_):
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setattr(ops, "rms_norm", broken)
    for one in parity.of_kernel("norm", config, cpu).values():
        assert one == {"agrees": False, "fails": "RuntimeError: no kernel image"}


def test_layers_that_are_computed_again_give_the_same_step(smoke_runs):
    run = smoke_runs("projector")[0]
    batch = torch.randint(run.settings.model.vocab_size, (2, 9))
    losses = []
    for recompute in (False, True):
        execution = Execution(precision="float32", device="cpu", recompute=recompute)
        again = dataclasses.replace(run, execution=execution)
        trainer = SuiteTrainer(again, 0, equip(execution, run.settings.model))
        calls = []
        trainer.model.model.layers[0].feed_forward.register_forward_pre_hook(
            lambda *_, calls=calls: calls.append(1)
        )
        losses.append([trainer.step(batch, step)[0] for step in range(2)])
        assert len(calls) == (4 if recompute else 2)
    assert torch.equal(torch.stack(losses[0]), torch.stack(losses[1]))


# On a machine with a GPU.


@pytest.mark.cuda
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_training_on_a_gpu_follows_the_cpu(settings, optimizer, implementation):
    config = settings(
        train={"multiplier_implementation": implementation},
        rules=[{"match": "mlp.*", "multiplier": {"kind": "row_column"}}],
        optimizer={"name": optimizer, "newton_schulz_precision": "float32"},
    )
    batch = torch.from_numpy(np.random.default_rng(0).integers(0, 300, (4, 17)))
    losses = []
    for device in ("cpu", "cuda"):
        learner = build(config, 0, device)
        own = batch.to(device)
        losses.append([train_step(learner, own, config, step)[0].item() for step in range(12)])
    assert losses[1] == pytest.approx(losses[0], abs=5e-3)
    assert losses[0][-1] < losses[0][0] - 0.1


@pytest.mark.cuda
@pytest.mark.parametrize("at_once", [1, 3])
def test_cuda_graphs_change_no_loss(settings, at_once):
    """Layers replayed as CUDA graphs against the same layers compiled, over steps that update."""
    config = settings(rules=[{"match": "mlp.*", "multiplier": {"kind": "row_column"}}])
    shape = (4, 17) if at_once == 1 else (at_once, 4, 17)
    batch = torch.from_numpy(np.random.default_rng(0).integers(0, 300, shape)).cuda()
    losses = {}
    for choice in ("always", "graphs"):
        execution = Execution(
            device="cuda", precision="float32", compile=choice, batch_runs=at_once
        )
        run = TrainRun("test", "smoke", "A", {}, 0, config, execution, Cost())
        trainer = (SuiteTrainer if at_once == 1 else BatchTrainer)(
            run, 0, equip(execution, config.model)
        )
        assert trainer.is_compiled
        found = [trainer.step(batch, step) for step in range(12)]
        losses[choice] = [(one if at_once == 1 else one[-1])[0].item() for one in found]
    assert losses["graphs"] == pytest.approx(losses["always"], abs=1e-4)
    assert losses["graphs"][-1] < losses["graphs"][0] - 0.1
