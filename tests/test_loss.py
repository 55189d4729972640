"""The fused projection, cross-entropy and z-loss against the plain formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lrm.model import loss as module
from lrm.model.loss import linear_cross_entropy
from lrm.train.learner import build
from lrm.train.step import validation_loss


def plain(hidden, weight, targets, z_loss=0.0, factor=1.0):
    logits = (hidden @ weight.T * factor).flatten(0, -2)
    log_partition = logits.logsumexp(-1)
    loss = F.cross_entropy(logits, targets.flatten())
    return loss, loss + z_loss * log_partition.square().mean()


def sample(dtype=torch.float64, tokens=(3, 7), vocabulary=50, width=9):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(*tokens, width, dtype=dtype, generator=generator, requires_grad=True)
    weight = torch.randn(vocabulary, width, dtype=dtype, generator=generator, requires_grad=True)
    return hidden, weight, torch.randint(vocabulary, tokens, generator=generator)


def test_by_hand():
    hidden = torch.ones(1, 1, 1, dtype=torch.float64)
    weight = torch.tensor([[0.0], [math.log(3.0)]], dtype=torch.float64)
    loss, objective = linear_cross_entropy(hidden, weight, torch.tensor([[1]]), 0.1)
    assert loss.item() == pytest.approx(math.log(4 / 3))
    assert objective.item() == pytest.approx(math.log(4 / 3) + 0.1 * math.log(4) ** 2)


@pytest.mark.parametrize("rows", [1, 4, 21, 1000])
@pytest.mark.parametrize(("z_loss", "factor"), [(0.0, 1.0), (0.3, 0.7)])
@pytest.mark.parametrize("width", [9, 90])
def test_equals_the_plain_formula(monkeypatch, rows, z_loss, factor, width):
    """Whatever the size of the pieces, and on whichever side the factor is applied."""
    monkeypatch.setattr(module, "_rows", lambda hidden, vocabulary: min(rows, len(hidden)))
    hidden, weight, targets = sample(width=width)
    outcome = []
    for function in (plain, linear_cross_entropy):
        loss, objective = function(hidden, weight, targets, z_loss, factor)
        outcome.append((loss, objective, *torch.autograd.grad(2 * objective, (hidden, weight))))
    for ours, theirs in zip(outcome[1], outcome[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_extreme_logits_stay_finite():
    hidden, weight, targets = sample(torch.float32)
    loss, objective = linear_cross_entropy(hidden, weight, targets, 1e-4, 1e4)
    expected, _ = plain(hidden, weight, targets, 1e-4, 1e4)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert all(g.isfinite().all() for g in torch.autograd.grad(objective, (hidden, weight)))


def test_frozen_sides_and_no_gradients():
    hidden, weight, targets = sample()
    with torch.no_grad():
        expected = linear_cross_entropy(hidden, weight, targets)[0]
    for one, other in ((hidden, weight.detach()), (hidden.detach(), weight)):
        loss, objective = linear_cross_entropy(one, other, targets)
        assert torch.equal(loss, expected) and not loss.requires_grad
        objective.backward()
    assert hidden.grad is not None and weight.grad is not None


def test_half_precision_keeps_the_loss_wide():
    """Under autocast the products are bfloat16, as in the plain version under autocast."""
    hidden, weight, targets = sample(torch.float32, (8, 32), 200, 64)
    found = {}
    for name, function in (("plain", plain), ("fused", linear_cross_entropy)):
        with torch.autocast("cpu", torch.bfloat16):
            loss, objective = function(hidden, weight / 8, targets, 1e-4)
        assert loss.dtype == torch.float32
        found[name] = (loss, *torch.autograd.grad(objective, (hidden, weight)))
    exact, objective = plain(hidden, weight / 8, targets, 1e-4)
    exact = (exact, *torch.autograd.grad(objective, (hidden, weight)))

    def error(name, i):
        return ((found[name][i] - exact[i]).norm() / exact[i].norm()).item()

    for i in range(3):
        assert error("fused", i) < max(1.5 * error("plain", i), 1e-3)


@pytest.mark.parametrize("lot", [1, 3, 5, 7, 8])
@pytest.mark.parametrize("counting", [False, True])
def test_a_validation_in_lots_is_the_mean_over_all_tokens(settings, lot, counting):
    """Also where the last lot is shorter, and where one counts no token."""
    config = settings()
    learner = build(config, 0, dtype=torch.float64)
    draw = np.random.default_rng(0)
    sequences = draw.integers(config.model.vocab_size, size=(7, 17))
    counted = draw.random((7, 16)) < 0.3 if counting else None
    if counting:
        counted[3:6] = False  # the second lot of three
    with torch.no_grad():
        each = [
            F.cross_entropy(
                learner.model(batch[:, :-1]).flatten(0, 1), batch[0, 1:], reduction="none"
            )
            for batch in torch.from_numpy(sequences)[:, None]
        ]
    wanted = torch.stack(each)[torch.from_numpy(counted) if counting else ...].mean().item()
    found = validation_loss(learner, sequences, lot, None, counted)
    assert found == pytest.approx(wanted, rel=1e-10)
