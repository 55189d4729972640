"""The ``paper`` configurations: built whole on the meta device, trained in miniature."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import of_second_paper

from lrm.plan import rules
from lrm.plan.experiment import load
from lrm.plan.yaml import PRESETS
from lrm.train.learner import build
from lrm.train.step import train_step

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 128,
    "head_dim": 4, "mamba_d_ssm": 48, "mamba_n_heads": 24, "mamba_d_state": 8,
}  # fmt: skip


def paper_runs():
    """Each arm at the first and the last point of its grid."""
    for path in sorted(EXPERIMENTS.glob("*/config.yaml")):
        if "tuned/$scale" in path.read_text() and not (PRESETS / "tuned" / "paper").exists():
            continue  # no search has run at this scale; the arms that it starts from are here
        experiment = load(path)
        if "paper" not in experiment.header.at:
            continue
        by_arm = {}
        for run in experiment.runs("paper", [0]):
            if run.kind == "train":
                by_arm.setdefault(run.arm, []).append(run)
        for runs in by_arm.values():
            for run in {run.label: run for run in (runs[0], runs[-1])}.values():
                yield pytest.param(run, id=f"{run.experiment} {run.label}")


RUNS = [*paper_runs()]


@pytest.mark.parametrize("run", RUNS)
def test_paper_configuration(run):
    learner = build(run.settings, 0, device="meta")
    total = sum(plan.address.size for plan in learner.plans)
    if run.experiment.startswith("sv_"):
        assert total == pytest.approx(of_second_paper(run)[0], rel=0.01)
    elif run.experiment not in ("mlp_scale_design", "width_scaling", "table1"):  # of other shapes
        assert total == 521_411_104
    # Every entry of every parameter belongs to one address, every learnable one to one group.
    by_parameter = Counter()
    for plan in learner.plans:
        by_parameter[plan.address.parameter] += plan.address.size
    attached = learner.multipliers.weights
    sizes = {n: p.numel() for n, p in learner.model.named_parameters() if ".multipliers." not in n}
    sizes |= {name: weight.numel() for name, weight in attached.items()}
    assert sizes == dict(by_parameter)
    groups = [t for group in learner.optimizer.table() for t in group["tensors"]]
    expected = [
        r["tensor"] + (f".{r['multiplier'].partition(' (')[0]}" if r["multiplier"] else "")
        for r in rules.table(learner.plans, run.settings)
        if r["trainable"]
    ]
    assert sorted(groups) == sorted(expected)


@pytest.mark.parametrize("run", RUNS)
def test_three_steps_with_only_size_and_batch_made_small(run):
    model = run.settings.model.model_copy(update=SMALL)
    settings = run.settings.model_copy(update={"model": model})
    learner = build(settings, 0)
    losses = []
    for step in range(3):
        batch = torch.randint(0, 128, (2, 20), generator=torch.Generator().manual_seed(0))
        losses.append(train_step(learner, batch, settings, step)[0].item())
    assert all(0 < loss < 20 for loss in losses)
    assert losses[2] < losses[0]
