"""Runs as objects: each carries its plan, its cost and its performer; a new kind is one class."""

import ast
import dataclasses
import importlib
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
import warm

from analysis.tables import find, results
from lrm.errors import UserError
from lrm.optim.groups import entries
from lrm.plan.experiment import load
from lrm.plan.rules import resolve
from lrm.plan.run import BrownianRun, LayerRun, SeededLayerRun, TrainRun
from lrm.store.rundir import RunDirectory, is_complete, open_run, read_description, read_outcome
from lrm.sweep import command, twins
from lrm.train.learner import build
from lrm.train.step import train_step

ROOT = Path(__file__).parents[1]


@pytest.fixture
def experiment(tmp_path):
    """A function from YAML text to the experiment."""

    def make(text: str):
        path = tmp_path / "experiments" / "some_name" / "config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("title: a test\nuse: [scale/smoke]\n" + text)
        return load(path)

    return make


# A gradient flow dx/dt = -x from x = 1: no model, no data, no torch.
FLOW = """
from dataclasses import dataclass

from lrm.plan.cost import Estimate
from lrm.plan.run import Run
from lrm.store.rundir import open_run


class Flow(Run):
    kind = "flow"
    performed_by = "gradient_flow:flow"

    def estimate(self):
        return Estimate(0, 0, float(self.settings.train.steps), 1e-6, 0.0)


def flow(run, path, corpora, report):
    with open_run(path) as directory:
        if directory.complete:
            return
        directory.start({**run.describe(), "corpus": None, "execution": {"device": "cpu"}})
        x, dt = 1.0, run.settings.optimizer.lr
        for step in range(run.settings.train.steps):
            directory.append("metrics.jsonl", {"step": step, "x": x})
            x -= dt * x
            report(step + 1, x)
        directory.finish({"validation_loss": None}, None)
"""


def test_a_run_that_trains_no_model_is_one_more_class(experiment, tmp_path, monkeypatch, capsys):
    """Planned, carried out by a worker, finished, and loaded as a table."""
    (tmp_path / "gradient_flow.py").write_text(FLOW)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    flows = experiment(
        "run: gradient_flow:Flow\ngrid: {dt: [0.1, 0.5]}\noptimizer: {lr: $dt}\n"
        "train: {steps: 20}\n"
    )
    arguments = ["--scale", "smoke", "--results", str(tmp_path / "results"), "--seeds", "2"]
    script = str(flows.path.with_name("run.py"))
    command.main(script, [*arguments, "--dry-run"])
    assert "base dt=0.1 seed=1" in capsys.readouterr().out
    command.main(script, [*arguments, "--workers", "1"])
    assert "4 to train, 0 finished" in capsys.readouterr().out
    command.main(script, arguments)
    assert "0 to train, 4 finished" in capsys.readouterr().out
    monkeypatch.setattr(find, "EXPERIMENTS", flows.path.parents[1])
    frame = results.load("some_name", "smoke", "runs", tmp_path / "results")
    assert set(frame["kind"]) == {"flow"} and frame["corpus"].isna().all()
    ends = frame[(frame["stat"] == "x") & (frame["step"] == 19)]
    assert len(ends) == 4
    for row in ends.itertuples():
        assert row.value == pytest.approx((1 - row.dt) ** 19)
    assert not find.unfinished("some_name", "smoke", tmp_path / "results")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("nowhere:Flow", "run: 'nowhere:Flow' cannot be imported"),
        ("lrm.plan.run:Walk", "write package.module:Class"),
        ("lrm.plan.run", "cannot be imported"),
        ("lrm.plan.run:Brownian", "is no class of runs"),
    ],
)
def test_a_class_that_is_none_is_one_line(experiment, run, message):
    with pytest.raises(UserError, match=message) as caught:
        experiment(f"run: {run}\n").runs("smoke", [0])
    assert "\n" not in str(caught.value)


def test_every_kind_has_its_class_and_its_performer(experiment):
    noise = "brownian: {match: [mlp.up], arms: [A]%s}\narms: {A: {}, B: {}}\n"
    found = experiment(noise % "").runs("smoke", [0])
    assert [type(run) for run in found] == [TrainRun, BrownianRun, TrainRun]
    assert [run.label for run in found] == ["A seed=0", "ABM A seed=0", "B seed=0"]
    layers = experiment(noise % ", linear_layers: true").runs("smoke", [0])
    assert [type(run) for run in layers] == [LayerRun, TrainRun]
    assert found[1].id != layers[0].id
    seeded = experiment(noise % ", linear_layers: true, seeded: true").runs("smoke", [0, 3])
    assert [(type(run), run.seed) for run in seeded[:2]] == [(SeededLayerRun, s) for s in (0, 3)]
    assert len({run.id for run in (layers[0], *seeded[:2])}) == 3
    for run in (*found, *layers, *seeded):
        assert run.estimate().flops > 0 and run.summary()
        module, _, function = run.performed_by.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
    assert [p.key for p in found[1].matched] == ["mlp.up@0", "mlp.up@1"]
    with pytest.raises(UserError, match="seeded is for linear layers"):
        experiment(noise % ", seeded: true")


def test_plans_are_resolved_when_a_run_is_made_and_travel_with_it(experiment):
    first, second = experiment("arms: {A: {}}\n").runs("smoke", [0, 1])
    assert first.plans is second.plans  # seeds share one
    assert first.plans == resolve(first.settings)
    assert dataclasses.replace(first, corpus="abc").plans is first.plans
    assert pickle.loads(pickle.dumps(first)).plans == first.plans
    assert build(first.settings, 0, device="meta", plans=first.plans).plans is first.plans


def test_resolved_in_three_places_only():
    """By a run when it is made, by ``build`` for settings without a run, and by the finder of
    symmetries, which changes plans before a model is built."""
    places = set()
    for path in (ROOT / "lrm").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "resolve":
                places.add(path.relative_to(ROOT / "lrm").as_posix())
    assert places == {"plan/run.py", "train/learner.py", "symmetry/found.py"}


HIDDEN = ({"match": "attention.*"}, {"match": "ssm.[zxBC]"}, {"match": "ssm.dt"},
          {"match": "ssm.out"}, {"match": "mlp.*"})  # fmt: skip


def test_a_rule_chooses_the_optimizer(settings):
    muon = settings(optimizer={"name": "muon"})
    by_rules = settings(rules=[{**rule, "optimizer": "muon"} for rule in HIDDEN])
    assert resolve(by_rules) == resolve(muon)
    rules = [{"match": "projector", "optimizer": "muon"}, {"match": "ssm.z", "optimizer": "adamw"}]
    config = settings(optimizer={"name": "muon"}, rules=rules)
    plans = {plan.key: plan for plan in resolve(config)}
    assert plans["projector"].optimizer == "muon"
    # Rows that AdamW moves are no part of the matrix that is orthogonalised.
    whole = {plan.key: plan for plan in resolve(muon)}["ssm.x@0"].matrix
    assert plans["ssm.x@0"].matrix.rows == whole.rows - plans["ssm.z@0"].address.shape[0]
    assert plans["ssm.z@0"].matrix is None and plans["mlp.up@1"].matrix
    learner = build(config, 0)
    found = {k: e.optimizer for e in entries(learner.model, learner.plans, learner.multipliers)
             for k in e.keys}  # fmt: skip
    assert (found["projector"], found["ssm.z@0"], found["ssm.x@0"]) == ("muon", "adamw", "muon")
    before = {plan.key: learner.model.state_dict()[plan.address.parameter].clone()
              for plan in plans.values()}  # fmt: skip
    batch = torch.arange(68).view(4, 17) % 300
    train_step(learner, batch, config, 3)
    for plan in plans.values():
        assert not learner.model.state_dict()[plan.address.parameter].equal(before[plan.key])


@pytest.mark.parametrize("match", ["norms", "norm.final", "ssm.conv", "*"])
def test_muon_needs_a_matrix(settings, match):
    with pytest.raises(UserError, match="optimizer = muon needs a matrix") as caught:
        resolve(settings(rules=[{"match": match, "optimizer": "muon"}]))
    assert "\n" not in str(caught.value)


def test_tokens_and_muon_do_not_go_together(experiment):
    text = ("rules: [{match: embedding, optimizer: muon}]\n"
            "brownian: {match: [embedding], arms: [base], occurrences: true}\n")  # fmt: skip
    with pytest.raises(UserError, match="give the embedding optimizer: adamw"):
        experiment(text).runs("smoke", [0])


TWINS = """
arms: {ONE: {}, OTHER: {}, LONGER: {train: {steps: 14}}}
train: {steps: 12}
schedule: {warmup_steps: 2, decay_steps: 4}
"""


def test_runs_that_compute_the_same_are_trained_once(experiment, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", warm.python)  # of the workers
    runs = [dataclasses.replace(r, corpus="c") for r in experiment(TWINS).runs("smoke", [0])]
    one, other, longer = runs
    assert one.computation == other.computation != longer.computation
    assert len({one.id, other.id, longer.id}) == 3
    folder = tmp_path / "experiments" / "some_name"
    (folder / "run.py").write_text("")

    def call(*options):
        arguments = ["--scale", "smoke", "--results", str(tmp_path), *options]
        command.main(str(folder / "run.py"), arguments)
        found = {}
        for path in (tmp_path / "runs" / "some_name").glob("*/done.json"):
            said = json.loads((path.parent / "run.json").read_text())
            found[said["arm"], said["seed"]] = path.parent, said
        return found, capsys.readouterr().out

    runs, _ = call()
    assert {arm for arm, _ in runs} == {"ONE", "OTHER", "LONGER"}
    (first, said), (copy, copied) = runs["ONE", 0], runs["OTHER", 0]
    assert copied["computed_as"] == said["id"] == first.name and copied["id"] == copy.name
    assert "computed_as" not in said | runs["LONGER", 0][1]
    for name in ("scalars.parquet", "vectors.parquet", "weights.pt"):
        assert (first / name).read_bytes() == (copy / name).read_bytes()
    assert read_outcome(first) == read_outcome(copy)
    assert read_description(copy)["label"] == "OTHER seed=0"
    scalars = results.load("some_name", "smoke", "runs", tmp_path, "all")
    assert set(scalars["arm"]) == {"ONE", "OTHER", "LONGER"}

    # A finished one serves those that are asked for later.
    call("--only", "ONE*", "--seeds", "1,")
    runs, out = call("--seeds", "1,")
    assert "2 finished (1 copied from others that compute the same)" in out
    assert runs["OTHER", 1][1]["computed_as"] == runs["ONE", 1][0].name


def test_a_twin_that_others_come_after_is_trained(experiment):
    runs = [dataclasses.replace(r, corpus="c") for r in experiment(TWINS).runs("smoke", [0])]
    jobs = [(run, Path(run.id)) for run in runs]
    assert [run.arm for run, _ in twins.firsts(jobs)] == ["ONE", "LONGER"]
    later = dataclasses.replace(runs[2], after=runs[1])
    jobs[2] = (later, Path(later.id))
    assert [run.arm for run, _ in twins.firsts(jobs)] == ["ONE", "OTHER", "LONGER"]


def test_twins_of_two_experiments_with_one_id(experiment, tmp_path):
    """Arms of one name and settings: their directories tell them apart."""
    [run, *_] = [dataclasses.replace(r, corpus="c") for r in experiment(TWINS).runs("smoke", [0])]
    jobs = [(dataclasses.replace(run, experiment=name), tmp_path / name / run.id) for name in "ab"]
    assert jobs[0][0].id == jobs[1][0].id
    assert twins.firsts(jobs) == jobs[:1]
    later = dataclasses.replace(run, experiment="b", arm="LATER", after=jobs[1][0])
    assert twins.firsts([*jobs, (later, tmp_path / "b" / later.id)])[:2] == jobs


def test_a_judging_run_is_no_twin_of_another_experiments(experiment, tmp_path, capsys):
    """That one may have run before the criteria of this one were fixed: a copy would hide it."""
    [run, other, _] = [
        dataclasses.replace(r, corpus="c", criteria={"X1": "hash"})
        for r in experiment(TWINS).runs("smoke", [100])
    ]
    elsewhere = dataclasses.replace(run, experiment="other")
    jobs = [(one, tmp_path / one.experiment / one.id) for one in (run, elsewhere)]
    assert twins.firsts(jobs) == jobs
    jobs.append((other, tmp_path / run.experiment / other.id))
    assert twins.firsts(jobs) == jobs[:2]
    explores = [(dataclasses.replace(one, seed=0), path) for one, path in jobs[:2]]
    assert twins.firsts(explores) == explores[:1]

    # A twin keeps the criteria with which it was trained; one that is damaged finishes none.
    with open_run(jobs[0][1]) as directory:
        directory.start({**run.describe(), "criteria": {"X1": "older"}})
        directory.finish({"validation_loss": 1.0}, None)
    assert twins.copy_finished(jobs) == 1
    copied = read_description(jobs[2][1])
    assert copied["criteria"] == {"X1": "older"} and copied["computed_as"] == run.id
    assert not jobs[1][1].exists()
    shutil.rmtree(jobs[2][1])
    (jobs[0][1] / "scalars.parquet").write_bytes(b"damaged")
    assert twins.copy_finished(jobs) == 0 and not jobs[2][1].exists()
    assert "scalars.parquet" in capsys.readouterr().err


def test_a_twin_that_was_begun_goes_on_by_itself(experiment, tmp_path):
    runs = [dataclasses.replace(r, corpus="c") for r in experiment(TWINS).runs("smoke", [0])]
    jobs = [(run, tmp_path / run.id) for run in runs]
    jobs[1][1].mkdir()
    (jobs[1][1] / "metrics.jsonl").touch()
    assert [run.arm for run, _ in twins.firsts(jobs)] == ["ONE", "OTHER", "LONGER"]


def test_a_copy_that_was_interrupted_is_made_again(experiment, tmp_path, monkeypatch):
    """It has nothing to go on from, and training it would begin at step 0."""
    runs = [dataclasses.replace(r, corpus="c") for r in experiment(TWINS).runs("smoke", [0])]
    jobs = [(run, tmp_path / run.id) for run in runs]
    with open_run(jobs[0][1]) as directory:
        directory.start(runs[0].describe())
        directory.finish({"validation_loss": 1.0}, {"w": torch.ones(2)})

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "_mark_done", interrupt)
        with pytest.raises(KeyboardInterrupt):
            twins.copy_finished(jobs)
    assert (jobs[1][1] / "run.json").exists() and not is_complete(jobs[1][1])
    assert twins.copy_finished(jobs) == 1 and is_complete(jobs[1][1])
    # While a process works on it, it is that one's.
    shutil.rmtree(jobs[1][1])
    with open_run(jobs[1][1]):
        assert twins.copy_finished(jobs) == 0


def test_a_twin_whose_snapshot_is_damaged_is_told(experiment, tmp_path, capsys):
    runs = [dataclasses.replace(r, corpus="c") for r in experiment(TWINS).runs("smoke", [0])]
    jobs = [(run, tmp_path / run.id) for run in runs]
    with open_run(jobs[0][1]) as directory:
        directory.start(runs[0].describe())
        directory.save_weights({"w": torch.ones(2)}, 3)
        directory.finish({"validation_loss": 1.0}, None)
    (jobs[0][1] / "weights-3.pt").write_bytes(b"damaged")
    assert twins.copy_finished(jobs) == 0 and not jobs[1][1].exists()
    assert "weights-3.pt" in capsys.readouterr().err
