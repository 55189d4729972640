"""Arms whose multipliers begin where another arm's, or its Brownian motion, ended."""

import json
import subprocess

import pandas as pd
import pytest
import torch
import warm

from lrm.errors import UserError
from lrm.plan.experiment import load
from lrm.train.learner import begin_with, build

CONFIG = """
title: frozen multipliers
use: [scale/$scale, optimizer/adamw]
train: {steps: 12}
schedule: {warmup_steps: 2, decay_steps: 4}
grid: {factor: [1.0, 2.0]}
rules: [{match: mlp.down, forward: $factor, multiplier: {kind: row}}]
arms:
  LEARNED: {rules: [{match: norm.final, weight: frozen}]}
  FROZEN:
    after: {arm: LEARNED}
    rules: [{match: mlp.down, multiplier: {lr: 0.0}}]
  NOISE:
    after: {arm: LEARNED, noise: true}
    rules: [{match: mlp.down, multiplier: {lr: 0.0}}]
brownian: {match: [mlp.down], arms: [LEARNED], draws: 4}
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("after") / "experiments" / "frozen"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "run.py").write_text("from lrm.sweep.command import main\nmain(__file__)\n")
    return folder


def call(experiment, *options, code=0):
    results = experiment.parents[1] / "results"
    command = [warm.python, experiment / "run.py", "--scale", "smoke", "--results", results]
    found = subprocess.run([*map(str, command), *options], capture_output=True, text=True)
    assert found.returncode == code, found.stdout + found.stderr
    return found.stdout + found.stderr


def test_multipliers_begin_where_the_other_ended(experiment):
    said = call(experiment, "--only", "FROZEN*", code=2)
    assert "add --only 'LEARNED factor=1 *'" in said and "or leave out --only 'FROZEN*'" in said
    call(experiment, "--workers", "2")
    runs = {}
    for path in (experiment.parents[1] / "results/runs/frozen").glob("*/done.json"):
        said = json.loads((path.parent / "run.json").read_text())
        runs[said["kind"], said["arm"], said["grid"]["factor"]] = path.parent, said
    assert len(runs) == 8
    for factor in (1.0, 2.0):
        path, said = runs["train", "LEARNED", factor]
        learned = torch.load(path / "weights.pt", weights_only=True)
        frozen, of_frozen = runs["train", "FROZEN", factor]
        kept = torch.load(frozen / "weights.pt", weights_only=True)
        noisy = torch.load(runs["train", "NOISE", factor][0] / "weights.pt", weights_only=True)
        vectors = pd.read_parquet(runs["brownian", "LEARNED", factor][0] / "vectors.parquet")
        assert of_frozen["after"] == said["id"] and said["after"] is None
        for layer in range(2):
            key = f"mlp.down@{layer}.row"
            assert torch.equal(learned[key], kept[key])
            assert not torch.equal(learned[key], torch.ones_like(learned[key]))
            rows = vectors[(vectors["tensor"] == key) & (vectors["stat"] == "values")]
            draw = torch.tensor(rows.loc[rows["step"].idxmax(), "value"])
            draw = draw / draw.square().mean().sqrt()  # noise has no say in the level
            assert torch.equal(noisy[key], draw[: len(kept[key])])
            matrix = f"mlp.down@{layer}"
            assert not torch.equal(learned[matrix], kept[matrix])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{arm: LEARNED}", "{arm: NOBODY}", "no arm 'NOBODY'"),
        ("{arm: LEARNED, noise: true}", "{arm: FROZEN, noise: true}", "no Brownian motion of arm"),
        ("{arm: LEARNED}", "{arms: LEARNED}", "unknown key"),
        ("{arm: LEARNED}", "{arm: FROZEN}", "'FROZEN' itself comes after another arm"),
    ],
)
def test_errors_name_the_arm(tmp_path, old, new, message):
    path = tmp_path / "frozen" / "config.yaml"
    path.parent.mkdir()
    path.write_text(CONFIG.replace(old, new))
    with pytest.raises(UserError, match=message):
        load(path).runs("smoke", [0])


def test_noise_of_few_entries_is_drawn_again_from_them(experiment):
    runs = load(experiment / "config.yaml").runs("smoke", [0])
    run = next(run for run in runs if run.arm == "NOISE")
    multipliers = build(run.settings, 0).multipliers
    kept = torch.tensor([0.5, -1.0, 2.0])
    values = {name: kept for name, _, _ in multipliers.named()}
    begin_with(multipliers, values, noise=True)
    for _, _, parameter in multipliers.named():
        found = sorted(set((parameter * kept.square().mean().sqrt()).tolist()))
        assert found == pytest.approx([-1.0, 0.5, 2.0]) and parameter.numel() > 3
    with pytest.raises(UserError, match="has 3 row multipliers of mlp.down@0, not"):
        begin_with(multipliers, values, noise=False)
