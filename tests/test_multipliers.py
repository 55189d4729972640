"""Multipliers: the paper's gradient relations, both implementations, merging."""

import copy

import pytest
import torch
from torch import nn

from lrm import optim, train
from lrm.errors import UserError
from lrm.multipliers import Factors, Multipliers, Target, attach
from lrm.rules import Factor

KINDS = [("scalar",), ("row",), ("column",), ("row", "column")]


def factors(axes, shape, parametrization="direct", init=1.3):
    sizes = {"scalar": 1, "row": shape[0], "column": shape[-1]}
    return tuple(Factor(a, sizes[a], 0.1, 0.0, init, parametrization) for a in axes)


@pytest.mark.parametrize("parametrization", ["direct", "log"])
@pytest.mark.parametrize("axes", KINDS)
def test_gradient_relations_equal_autograd(axes, parametrization):
    """Equation (4) in float64, with values away from 1."""
    torch.manual_seed(0)
    weight = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    part = Factors(weight.shape, factors(axes, weight.shape, parametrization), weight)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    effective = part(weight)
    effective.retain_grad()
    (effective.sin() * torch.arange(35.0).view(5, 7)).sum().backward()
    found = part.gradients(weight.detach(), effective.grad)
    torch.testing.assert_close(found.pop("weight"), weight.grad, rtol=1e-13, atol=1e-13)
    assert set(found) == set(axes)
    for axis, gradient in found.items():
        expected = part.get_parameter(axis).grad
        torch.testing.assert_close(gradient, expected, rtol=1e-13, atol=1e-12)


def test_the_relations_as_written_in_the_paper():
    torch.manual_seed(0)
    weight, outer = torch.randn(2, 3, 4, dtype=torch.float64)
    part = Factors((3, 4), factors(("row", "column"), (3, 4)), weight)
    r, c = part.row.detach(), part.column.detach()
    found = part.gradients(weight, outer)
    torch.testing.assert_close(found["weight"], torch.einsum("i,j,ij->ij", r, c, outer))
    torch.testing.assert_close(found["row"], torch.einsum("ij,j,ij->i", weight, c, outer))
    torch.testing.assert_close(found["column"], torch.einsum("i,ij,ij->j", r, weight, outer))
    scalar = Factors((3, 4), factors(("scalar",), (3, 4)), weight)
    torch.testing.assert_close(
        scalar.gradients(weight, outer)["scalar"], (weight * outer).sum().view(1)
    )


@pytest.mark.parametrize("log", [False, True])
def test_both_implementations_train_alike(settings, log):
    """Slices, vectors, conv, norms, logs, clipping and decay: the same run in float64."""
    rules = [
        {"match": "*.[qvzxCod]*", "multiplier": {"kind": "row_column"}, "optional": True},
        {"match": "attention.*", "multiplier": {"kind": "row_column", "weight_decay": 0.1}},
        {"match": "ssm.dt", "multiplier": {"kind": "scalar", "lr": 0.05}},
        {"match": "ssm.conv", "multiplier": {"kind": "row"}},
        {"match": "ssm.conv_bias", "multiplier": {"kind": "none"}},
        {"match": "ssm.dt_bias", "multiplier": {"kind": "none"}},
        {"match": "ssm.D", "multiplier": {"kind": "scalar"}},
        {"match": "embedding", "multiplier": {"kind": "row_column"}},
        {"match": "norm.final", "weight": "scalar"},
        {"match": "norm.mlp", "weight": "frozen"},
        {"match": "mlp.up", "multiplier": {"kind": "scalar"}, "relative_scale": 4.0},
    ]
    rules[0] = {"match": "ssm.[zx]", "multiplier": {"kind": "row_column"}}
    losses = {}
    for implementation in ("forward", "optimizer"):
        config = settings(
            rules=rules,
            train={"multiplier_implementation": implementation, "clip_norm": 0.3},
            multipliers={"parametrization": "log" if log else "direct", "lr": 0.03},
        )
        learner = train.build(config, seed=0, dtype=torch.float64)
        generator = torch.Generator().manual_seed(1)
        losses[implementation] = [
            train.train_step(
                learner,
                torch.randint(0, 300, (3, 17), generator=generator),
                config,
                step,
            )[0].item()
            for step in range(8)
        ]
    torch.testing.assert_close(losses["forward"], losses["optimizer"], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_merging_leaves_the_effective_weight(settings, implementation):
    rules = [{"match": "ssm.[zxBC]", "multiplier": {"kind": "row_column", "init": 1.7}},
             {"match": "attention.q", "multiplier": {"kind": "scalar", "init": 0.4}}]  # fmt: skip
    config = settings(rules=rules, train={"multiplier_implementation": implementation})
    learner = train.build(config, seed=0)
    tokens = torch.randint(0, 300, (2, 9))
    before = learner.model(tokens)
    plain = train.build(settings(), seed=0).model
    names = {name for name, _ in plain.named_parameters()}
    merged = learner.multipliers.merge()
    torch.testing.assert_close(merged(tokens), before)
    assert {name for name, _ in merged.named_parameters()} == names
    assert not torch.allclose(plain(tokens), before)


def test_adding_multipliers_shifts_no_initial_value(settings):
    plain = train.build(settings(), seed=3)
    rules = [{"match": "mlp.*", "multiplier": {"kind": "row_column"}}]
    with_multipliers = train.build(settings(rules=rules), seed=3)
    tokens = torch.randint(0, 300, (2, 9))
    torch.testing.assert_close(plain.model(tokens), with_multipliers.model(tokens))


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_any_model_can_have_multipliers(implementation):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    reference = copy.deepcopy(model)
    found = attach(model, {"*.weight": "row_column"}, lr=0.05, implementation=implementation)
    inputs = torch.randn(16, 4)
    torch.testing.assert_close(model(inputs), reference(inputs))
    optimizer = torch.optim.AdamW(found.groups(lr=1e-2, weight_decay=0.1))
    assert sum(p.numel() for g in optimizer.param_groups for p in g["params"]) == 58 + 12 + 10
    target = torch.randn(16, 2)
    losses = []
    for _ in range(30):
        model.zero_grad()
        loss = (model(inputs) - target).square().mean()
        loss.backward()
        found.pull_gradients()
        optimizer.step()
        found.push_weights()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert not torch.allclose(found.factors["0.weight"].row, torch.ones(8))
    output = model(inputs)
    torch.testing.assert_close(found.merge()(inputs), output)


def test_a_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(UserError, match="matches no parameter that can be row"):
        attach(nn.Linear(2, 2), {"head.*": "row"})
    with pytest.raises(UserError, match="unknown kind"):
        attach(nn.Linear(2, 2), {"weight": "rows"})
    with pytest.raises(UserError, match="needs a matrix"):
        attach(nn.Linear(2, 2), {"bias": "column"})
    with pytest.raises(UserError, match="unknown implementation"):
        Multipliers(nn.Linear(2, 2), [Target("w", "weight", None, ())], "magic")


def test_slices_have_multipliers_of_their_own(settings):
    rules = [{"match": "ssm.x", "multiplier": {"kind": "scalar", "init": 2.0}},
             {"match": "ssm.C", "multiplier": {"kind": "row", "init": 3.0}}]  # fmt: skip
    learner = train.build(settings(rules=rules), seed=0)
    plain = train.build(settings(), seed=0)
    ratio = (
        learner.model.model.layers[0].mamba.in_proj.weight
        / plain.model.model.layers[0].mamba.in_proj.weight
    )
    expected = {"ssm.z": 1.0, "ssm.x": 2.0, "ssm.B": 1.0, "ssm.C": 3.0, "ssm.dt": 1.0}
    for plan in learner.plans:
        if plan.address.layer == 0 and plan.address.name in expected:
            part = ratio[slice(*plan.address.rows)]
            torch.testing.assert_close(part, torch.full_like(part, expected[plan.address.name]))


def test_every_tensor_is_in_one_group(settings):
    rules = [{"match": "ssm.x", "lr_scale": 0.5}, {"match": "ssm.dt", "weight": "frozen"},
             {"match": "*.out", "multiplier": {"kind": "row_column"}}]  # fmt: skip
    learner = train.build(settings(rules=rules), seed=0)
    found = optim.entries(learner.model, learner.plans, learner.multipliers)
    total = sum(p.numel() for p in learner.model.parameters())
    frozen = 2 * sum(p.address.size for p in learner.plans if p.key == "ssm.dt@0")
    assert sum(entry.leaf.numel() for entry in found) == total - frozen
    assert sum(r["parameters"] for r in learner.optimizer.table()) == total - frozen


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_a_frozen_slice_may_have_a_multiplier(settings, implementation):
    """Only that slice of the merged matrix stands still; its multiplier learns."""
    rules = [{"match": "ssm.x", "weight": "frozen", "multiplier": {"kind": "scalar"}}]
    config = settings(rules=rules, train={"multiplier_implementation": implementation})
    learner = train.build(config, 0)
    name = "model.layers.0.mamba.in_proj.weight"
    before = learner.multipliers.weights[name].detach().clone()
    for step in range(3):
        train.train_step(learner, torch.randint(0, 300, (2, 9)), config, step)
    moved = (learner.multipliers.weights[name] - before).abs().amax(1)
    assert (moved[:16] > 0).all() and (moved[32:] > 0).all()
    assert (moved[16:32] == 0).all()
    assert learner.multipliers.factors["ssm.x@0"].scalar.item() != 1.0


def test_multipliers_on_a_transformer():
    """The README's snippet, on a model with norms and biases between its matrices."""
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    inputs = torch.randn(2, 5, 16)
    before = model(inputs)
    multipliers = attach(model, {"*.weight": "row_column"}, lr=1e-2)
    assert set(multipliers.factors) == {
        "self_attn.out_proj.weight",
        "linear1.weight",
        "linear2.weight",
    }
    torch.testing.assert_close(model(inputs), before)
    optimizer = torch.optim.AdamW(multipliers.groups(lr=1e-3, weight_decay=0.1))
    model(inputs).square().mean().backward()
    optimizer.step()
    after = model(inputs)
    torch.testing.assert_close(multipliers.merge()(inputs), after)
