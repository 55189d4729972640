"""Groups, AdamW, schedule, clipping and loss against torch and against hand-computed values."""

import copy
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lrm.multipliers.groups import Entry
from lrm.optim.optimizer import Optimizer
from lrm.plan.config import OptimizerConfig, OptimizerKind, ScheduleConfig, TrainConfig
from lrm.plan.schedule import constant_end, lr_factor, lr_factors
from lrm.train.learner import build
from lrm.train.step import train_step


def entry(leaf, lr=0.1, decay=0.0, clipped=True, key="w"):
    return Entry((key,), leaf, leaf, None, lr, decay, clipped)


def test_first_step_by_hand():
    """Adam's first step is lr·sign(g); decay shrinks by lr·λ before it."""
    leaf = nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
    optimizer = Optimizer(
        [entry(leaf, lr=0.1, decay=0.5)], OptimizerConfig(eps=1e-40), TrainConfig(clip_norm=0.0)
    )
    leaf.grad = torch.tensor([3.0, -4.0], dtype=torch.float64)
    optimizer.step(0.5)
    shrunk = 1 - 0.5 * 0.1 * 0.5
    expected = torch.tensor([2.0 * shrunk - 0.05, -1.0 * shrunk + 0.05], dtype=torch.float64)
    torch.testing.assert_close(leaf.detach(), expected)


def test_equals_torch_adamw_over_a_run(settings):
    """The whole run against torch's unfused AdamW with a scheduler, in float64."""
    config = settings(train={"clip_norm": 0.5, "steps": 10})
    ours = build(config, 0, dtype=torch.float64)
    model = copy.deepcopy(ours.model)
    decayed = [p for n, p in model.named_parameters() if p.dim() == 2]
    others = [p for n, p in model.named_parameters() if p.dim() != 2]
    reference = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=0.01, betas=(0.9, 0.95), eps=1e-8, foreach=False, fused=False,
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        reference, lambda step: lr_factor(config.schedule, 10, step)
    )
    for step in range(10):
        batch = torch.randint(0, 300, (3, 17), generator=torch.Generator().manual_seed(step))
        train_step(ours, batch, config, step)
        reference.zero_grad()
        logits = model(batch[:, :-1]).flatten(0, 1)
        objective = F.cross_entropy(logits, batch[:, 1:].flatten())
        objective = objective + config.train.z_loss * logits.logsumexp(-1).square().mean()
        objective.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        reference.step()
        scheduler.step()
    for (name, a), (_, b) in zip(
        ours.model.named_parameters(), model.named_parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", get_args(OptimizerKind))
def test_a_step_leaves_gradients_as_they_were(settings, kind, momentum):
    """Probes read them behind the step, as ∂L/∂W after clipping."""
    rules = [{"match": "matrices", "optimizer": kind}]
    own = {"lr": 0.01, "momentum": momentum, "nesterov": momentum > 0}
    config = settings(optimizer=own, rules=rules)
    learner = build(config, 0)
    batch = torch.randint(0, 300, (3, 17), generator=torch.Generator().manual_seed(0))
    for _ in range(2):  # the second has momentum
        learner.model(batch[:, :-1]).logsumexp(-1).mean().backward()
        leaves = [p for p in learner.model.parameters() if p.grad is not None]
        before = [leaf.grad.clone() for leaf in leaves]
        learner.optimizer.step(1.0)
        assert leaves and all(torch.equal(p.grad, g) for p, g in zip(leaves, before, strict=True))
        learner.zero_grad()


def test_multipliers_stay_out_of_the_clipping_norm(settings):
    """Section 4.3: neither counted nor shrunk; with the switch both."""
    leaf, multiplier = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    for counted in (False, True):
        optimizer = Optimizer(
            [entry(leaf), entry(multiplier, clipped=counted, key="s")],
            OptimizerConfig(),
            TrainConfig(clip_norm=1.0),
        )
        leaf.grad, multiplier.grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
        norm, clipped = optimizer.step(0.0)
        assert norm.item() == pytest.approx(13.0 if counted else 5.0)
        assert clipped.item()
        assert multiplier.grad.item() == pytest.approx(12 / 13 if counted else 12.0, rel=1e-5)
        assert leaf.grad[0].item() == pytest.approx(3 / (13 if counted else 5), rel=1e-5)


def test_schedule():
    schedule = ScheduleConfig(warmup_steps=4, decay_steps=6, decay_factor=8.0)
    factors = lr_factors(schedule, 20)
    np.testing.assert_allclose(factors[:4], [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(factors[4:14], 1.0)
    np.testing.assert_allclose(factors[14:], 8.0 ** (-np.arange(1, 7) / 6))
    assert constant_end(schedule, 20) == 14
    assert lr_factors(ScheduleConfig(), 3).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("pattern", ["projector", "mlp.*", "ssm.x"])
@pytest.mark.parametrize("scale", [1 / 16, 4.0])
def test_compensated_sweep_reproduces_s_equal_one(settings, pattern, scale):
    """W' = S·W from S·W₀ with output factor 1/S is the S = 1 run, step by step (float64)."""
    # Not 0: rows of the embedding that have not been seen yet would be 0 / 0.
    exact = {"optimizer": {"eps": 1e-40}, "train": {"clip_norm": 0.0}}
    rule = {"match": pattern, "relative_scale": scale, "compensate": True}
    base = build(settings(**exact), 0, dtype=torch.float64)
    scaled = build(settings(**exact, rules=[rule]), 0, dtype=torch.float64)
    for step in range(12):
        batch = torch.randint(0, 300, (3, 17), generator=torch.Generator().manual_seed(step))
        a = train_step(base, batch, settings(**exact), step)[0]
        b = train_step(scaled, batch, settings(**exact, rules=[rule]), step)[0]
        assert abs(a.item() - b.item()) < 1e-9
    plain = dict(base.model.named_parameters())
    for plan in scaled.plans:
        theirs = dict(scaled.model.named_parameters())[plan.address.parameter]
        rows = slice(*plan.address.rows) if plan.address.rows else slice(None)
        factor = plan.init_scale
        torch.testing.assert_close(
            theirs[rows], factor * plain[plan.address.parameter][rows], rtol=1e-7, atol=1e-10
        )
