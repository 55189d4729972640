"""Multipliers: the paper's gradient relations, both implementations, merging."""

import itertools

import pytest
import torch
from torch import nn

from lrm.multipliers import equations
from lrm.multipliers.effective import Scaling
from lrm.multipliers.equations import Product
from lrm.multipliers.layout import Layout, layout
from lrm.multipliers.multiplier import of_kind
from lrm.multipliers.parametrization import PARAMETRIZATIONS
from lrm.optim import groups
from lrm.train.learner import build
from lrm.train.step import train_step

KINDS = [("scalar",), ("row",), ("column",), ("row", "column")]


def multipliers(axes, weight, parametrization="direct", init=1.3, arranged=None):
    """Those of ``axes``; a scalar, which has no direction, by its logarithm instead."""
    settings = {"lr": 0.1, "weight_decay": 0.0, "init": init, "parametrization": parametrization}
    if axes == ("scalar",) and PARAMETRIZATIONS[parametrization].magnitude:
        settings["parametrization"] = "log"
    sizes = dict.fromkeys(axes + ("scalar",), 1)
    of_axes = of_kind("_".join(axes), weight.shape, sizes, [settings], "the test")
    return Scaling(weight.shape, of_axes, weight, arranged or layout(nn.Module(), "weight", weight))


def gradients(part, weight, outer):
    """Equation (4), by name, in the shapes of the parameters."""
    inner, values = torch.empty_like(outer), part.values()
    found = equations.gradients(weight, outer, [part.part()], list(values.values()), inner)
    by_axis = {"weight": inner}
    for (axis, value), gradient in zip(values.items(), found, strict=True):
        [by_axis[axis]] = torch.autograd.grad(value, part.get_parameter(axis), gradient)
    return by_axis


SHAPES = [(5, 7), (700, 101), (3, 5, 7), (6,), (1, 4), (4, 1), (5, 5)]
# A vector has no columns, and lies in one way.
ARRANGED = [
    (axes, shape, transposed)
    for axes, shape, transposed in itertools.product(KINDS, SHAPES, [False, True])
    if len(shape) > 1 or not ("column" in axes or transposed)
]


@pytest.mark.parametrize(("axes", "shape", "transposed"), ARRANGED)
@pytest.mark.parametrize("parametrization", ["direct", "log", "or", "er", "product"])
def test_gradient_relations_equal_autograd(axes, parametrization, shape, transposed):
    """Equation (4) in float64, with values away from 1; in blocks, and in stacks of matrices."""
    last = len(shape) - 1
    torch.manual_seed(0)
    weight = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    arranged = Layout(last, last - 1) if transposed else None
    part = multipliers(axes, weight, parametrization, arranged=arranged)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    product = part(weight)  # by autograd alone
    outer = torch.randn_like(product)
    wanted = torch.autograd.grad(product, [weight, *part.parameters()], outer)
    values = list(part.values().values())
    function = equations.effective(weight, [part.part()], values)
    torch.testing.assert_close(function, product, rtol=1e-14, atol=1e-14)
    given = torch.autograd.grad(function, [weight, *part.parameters()], outer)
    torch.testing.assert_close(given, wanted, rtol=1e-12, atol=1e-11)
    found = gradients(part, weight.detach(), outer.clone())
    torch.testing.assert_close([*found.values()], list(wanted), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("frozen", [False, True])
def test_all_gradients_of_a_step_are_passed_on_at_once(frozen):
    """As those of each weight alone, added to what there is; W's takes the memory of W̄'s."""
    torch.manual_seed(0)
    products, wanted, outers = [], [], []
    for axes, shape in itertools.product(KINDS, [(5, 7), (400, 300)]):
        weight = nn.Parameter(torch.randn(shape, dtype=torch.float64))
        weight.requires_grad_(not (frozen and shape == (5, 7)))
        scaling = multipliers(axes, weight)
        outers.append(torch.randn_like(weight))
        inner = torch.empty_like(weight)
        values = list(scaling.values().values())
        sums = equations.gradients(weight, outers[-1], [scaling.part()], values, inner)
        wanted.append([inner if weight.requires_grad else None, *sums])
        products.append(Product(weight, (scaling.part(),), values))
    places = [outer.data_ptr() for outer in outers]
    torch.autograd.backward([equations.pulling(products, outers)])
    assert not outers
    for (weight, _, values), place, gradients in zip(products, places, wanted, strict=True):
        torch.testing.assert_close([weight.grad, *(v.grad for v in values)], gradients)
        assert weight.grad is None or weight.grad.data_ptr() == place


def test_the_relations_as_written_in_the_paper():
    torch.manual_seed(0)
    weight, outer = torch.randn(2, 3, 4, dtype=torch.float64)
    part = multipliers(("row", "column"), weight)
    r, c = part.row.detach(), part.column.detach()
    found = gradients(part, weight, outer)
    torch.testing.assert_close(found["weight"], torch.einsum("i,j,ij->ij", r, c, outer))
    torch.testing.assert_close(found["row"], torch.einsum("ij,j,ij->i", weight, c, outer))
    torch.testing.assert_close(found["column"], torch.einsum("i,ij,ij->j", r, weight, outer))
    scalar = multipliers(("scalar",), weight)
    torch.testing.assert_close(
        gradients(scalar, weight, outer)["scalar"], (weight * outer).sum().view(1)
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
        learner = build(config, seed=0, dtype=torch.float64)
        generator = torch.Generator().manual_seed(1)
        losses[implementation] = [
            train_step(
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
    learner = build(config, seed=0)
    tokens = torch.randint(0, 300, (2, 9))
    before = learner.model(tokens)
    plain = build(settings(), seed=0).model
    names = {name for name, _ in plain.named_parameters()}
    merged = learner.multipliers.merge()
    torch.testing.assert_close(merged(tokens), before)
    assert {name for name, _ in merged.named_parameters()} == names
    assert not torch.allclose(plain(tokens), before)


def test_adding_multipliers_shifts_no_initial_value(settings):
    plain = build(settings(), seed=3)
    rules = [{"match": "mlp.*", "multiplier": {"kind": "row_column"}}]
    with_multipliers = build(settings(rules=rules), seed=3)
    tokens = torch.randint(0, 300, (2, 9))
    torch.testing.assert_close(plain.model(tokens), with_multipliers.model(tokens))


def test_slices_have_multipliers_of_their_own(settings):
    rules = [{"match": "ssm.x", "multiplier": {"kind": "scalar", "init": 2.0}},
             {"match": "ssm.C", "multiplier": {"kind": "row", "init": 3.0}}]  # fmt: skip
    learner = build(settings(rules=rules), seed=0)
    plain = build(settings(), seed=0)
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
    learner = build(settings(rules=rules), seed=0)
    found = groups.entries(learner.model, learner.plans, learner.multipliers)
    total = sum(p.numel() for p in learner.model.parameters())
    frozen = 2 * sum(p.address.size for p in learner.plans if p.key == "ssm.dt@0")
    assert sum(entry.leaf.numel() for entry in found) == total - frozen
    assert sum(r["parameters"] for r in learner.optimizer.table()) == total - frozen


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_a_frozen_slice_may_have_a_multiplier(settings, implementation):
    """Only that slice of the merged matrix stands still; its multiplier learns."""
    rules = [{"match": "ssm.x", "weight": "frozen", "multiplier": {"kind": "scalar"}}]
    config = settings(rules=rules, train={"multiplier_implementation": implementation})
    learner = build(config, 0)
    name = "model.layers.0.mamba.in_proj.weight"
    before = learner.multipliers.weights[name].detach().clone()
    for step in range(3):
        train_step(learner, torch.randint(0, 300, (2, 9)), config, step)
    moved = (learner.multipliers.weights[name] - before).abs().amax(1)
    assert (moved[:16] > 0).all() and (moved[32:] > 0).all()
    assert (moved[16:32] == 0).all()
    assert learner.multipliers.scalings["ssm.x@0"].scalar.item() != 1.0
