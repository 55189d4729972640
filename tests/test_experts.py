"""The mixture of experts: against a sum over all experts, transformers, and in the suite."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

from lrm.errors import UserError
from lrm.model import ops
from lrm.model.blocks.experts_module import ExpertsModule
from lrm.model.config import ExpertsConfig, ModelConfig
from lrm.model.falcon_h1 import FalconH1
from lrm.model.init import initialize
from lrm.model.tensors import addresses
from lrm.plan.config import Execution
from lrm.plan.cost import Cost, flops_per_token
from lrm.plan.run import TrainRun
from lrm.train.learner import build
from lrm.train.step import train_step

EXPERTS = {"count": 4, "active": 2, "size": 6, "balance": 0.01}


def dense(x, choice, weight, gate, up, down, norms):
    """By all experts of all tokens; ``norms`` are the weights behind gate and up, if any."""
    gated, inner = (torch.einsum("th,eih->tei", x, matrix) for matrix in (gate, up))
    if norms:
        gated, inner = (
            y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm
            for y, norm in zip((gated, inner), norms, strict=True)
        )
    out = torch.einsum("tei,ehi->teh", inner * F.silu(gated), down)
    return torch.einsum(
        "tk,tkh->th", weight, out.gather(1, choice[..., None].expand(-1, -1, x.shape[1]))
    )


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("used", [4, 2])
def test_experts_equal_the_sum_over_all(used, normed):
    """Values and gradients in float64; also where some experts get no token, and under vmap."""
    torch.manual_seed(0)
    x = torch.randn(10, 5, dtype=torch.float64, requires_grad=True)
    gate, up = torch.randn(2, 4, 7, 5, dtype=torch.float64).unbind()
    down = torch.randn(4, 5, 7, dtype=torch.float64)
    choice = torch.stack([torch.randperm(used)[:2] for _ in range(10)])
    weight = torch.rand(10, 2, dtype=torch.float64)
    norms = [torch.rand(4, 7, dtype=torch.float64) + 0.5 for _ in range(2)] if normed else []
    inputs = [each.requires_grad_() for each in (x, weight, gate, up, down, *norms)]
    wanted = dense(x, choice, *inputs[1:5], norms)
    behind = norms or [None, None]

    def routed(x):
        return ops.experts(
            x, choice, weight, (gate, behind[0]), (up, behind[1]), (down, None), 1e-5
        )

    found = routed(x)
    torch.testing.assert_close(vmap(routed)(torch.stack([x, 2 * x]))[0], wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    outer = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, outer), torch.autograd.grad(wanted, inputs, outer),
        rtol=1e-11, atol=1e-11,
    )  # fmt: skip


def test_the_router_and_its_imbalance():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0], [2.0, 1.0, 0.0, -1.0]], requires_grad=True)
    choice, weight, imbalance = ops.route(logits, 2)
    p = logits[0].softmax(0)
    assert choice.tolist() == [[0, 1], [0, 1]]
    torch.testing.assert_close(weight[0], p[:2] / p[:2].sum())
    torch.testing.assert_close(imbalance, 4 * (p[0] + p[1]) / 2)
    # Where all are alike it is 1, and its gradient evens the probabilities of what is chosen.
    assert ops.route(torch.zeros(3, 4), 2)[2].item() == pytest.approx(1.0)
    [gradient] = torch.autograd.grad(imbalance, logits)
    assert gradient[0, 0] > 0 > gradient[0, 3]


def test_as_transformers_routes_and_mixes():
    """The routed part, against Qwen3's block."""
    import transformers
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    config = transformers.Qwen3MoeConfig(
        hidden_size=8, moe_intermediate_size=6, num_experts=4, num_experts_per_tok=2,
        norm_topk_prob=True, hidden_act="silu",
    )  # fmt: skip
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    theirs = Qwen3MoeSparseMoeBlock(config).double()
    mine = ExpertsModule(ModelConfig(hidden_size=8, intermediate_size=5, experts=EXPERTS), 0, {})
    mine = mine.double()
    with torch.no_grad():
        for parameter in (*theirs.parameters(), *mine.parameters()):
            parameter.normal_()
        gate, up = (getattr(mine.experts, f"{n}_proj").view(4, 6, 8) for n in ("gate", "up"))
        theirs.experts.gate_up_proj.copy_(torch.cat([gate, up], 1))
        theirs.experts.down_proj.copy_(mine.experts.down_proj.view(4, 8, 6))
        theirs.gate.weight.copy_(mine.router.weight)
    u = torch.randn(2, 5, 8, dtype=torch.float64)
    wanted = theirs(u)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    nn.init.zeros_(mine.down_proj.weight)  # the expert that all share, which theirs has not
    # Their softmax is taken in float32.
    torch.testing.assert_close(mine(u)[0], wanted, rtol=1e-5, atol=1e-5)


def settings_of(settings, **changes):
    changes["model"] = {"mixer": "attention", "experts": EXPERTS, **changes.get("model", {})}
    return settings(**changes)


def test_every_expert_is_a_matrix_of_its_own(settings):
    """Its initial values, address, multipliers, and what Muon orthogonalises."""
    found = settings_of(
        settings,
        optimizer={"name": "muon"},
        rules=[{"match": "mlp.*", "multiplier": {"kind": "row_column"}},
               {"match": "mlp.gate.3", "forward": 2.0}],
    )  # fmt: skip
    learner = build(found, 0)
    own = {plan.key: plan for plan in learner.plans if plan.address.name.startswith("mlp.")}
    layers = found.model.num_hidden_layers
    assert len(own) == layers * (3 + 1 + 3 * 4)
    assert own["mlp.gate.1@0"].matrix.name == "mlp.gate.1@0"
    assert own["mlp.gate.1@0"].matrix.rows == 6
    assert learner.multipliers.scalings["mlp.down.2@0"].row.shape == (found.model.hidden_size,)
    assert learner.multipliers.scalings["mlp.down.2@0"].column.shape == (6,)
    batch = torch.randint(found.model.vocab_size, (4, 17))
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    train_step(learner, batch, found, 3)
    moved = [name for name, p in learner.model.named_parameters() if not p.equal(before[name])]
    assert {name for name in before if "experts" in name or "router" in name} <= set(moved)


def test_adding_experts_shifts_no_initial_value(settings):
    plain = build(settings(model={"mixer": "attention"}), 0).model.state_dict()
    mixed = build(settings_of(settings), 0).model.state_dict()
    assert all(mixed[name].equal(value) for name, value in plain.items())


def test_a_fixed_factor_of_an_expert_is_that_of_its_matrix(settings):
    given = settings_of(settings)
    torch.manual_seed(0)
    tokens = torch.randint(given.model.vocab_size, (2, 9))
    model = FalconH1(given.model, {"mlp.down.1@0": 2.0, "mlp.router@1": 3.0}).double()
    plain = FalconH1(given.model).double()
    initialize(model, given.model, 0)
    initialize(plain, given.model, 0)
    with torch.no_grad():
        d = given.model.hidden_size
        plain.model.layers[0].feed_forward.experts.down_proj[d : 2 * d].mul_(2.0)
        plain.model.layers[1].feed_forward.router.weight.mul_(3.0)
    torch.testing.assert_close(model(tokens), plain(tokens))


def test_a_norm_behind_the_gate_is_behind_that_of_every_expert(settings):
    """Of a norm's scale behind it, its matrix may be of any."""
    rows = [{"match": "norms.output", "multiplier": {"kind": "row"}}]
    behind = {"mlp.gate": "full", "mlp.up": "full"}
    given = settings_of(settings, model={"norms_behind": behind}, rules=rows)
    learner = build(given, 0, dtype=torch.float64)
    assert learner.multipliers.scalings["norm.mlp.up.2@1"].row.shape == (6,)
    tokens = torch.randint(given.model.vocab_size, (2, 9))
    before = learner.model(tokens)
    with torch.no_grad():
        learner.model.model.layers[0].feed_forward.experts.gate_proj[6:12].mul_(100.0)
    torch.testing.assert_close(learner.model(tokens), before, rtol=1e-3, atol=1e-3)


def test_the_objective_has_the_imbalance(settings):
    given = settings_of(settings)
    model = build(given, 0, dtype=torch.float64).model
    batch = torch.randint(given.model.vocab_size, (2, 9))
    recorded = {}
    loss, objective = model(batch[:, :-1], batch[:, 1:], 0.0, recorded)
    wanted = [
        ops.route(recorded[f"mlp.router@{layer}"].flatten(0, 1), 2)[2]
        for layer in range(given.model.num_hidden_layers)
    ]
    torch.testing.assert_close(objective - loss, 0.01 * torch.stack(wanted).mean())


def test_parts_of_a_batch_balance_their_own_experts(settings):
    """So their size is a part of what the run is; without experts it is not."""

    def ids(given):
        runs = (TrainRun("x", "smoke", "A", {}, 0, given, Execution(micro_batch=size), Cost(),
                         corpus="c") for size in (0, 2, 4))  # fmt: skip
        return len({run.id for run in runs})

    assert ids(settings_of(settings)) == 3 and ids(settings()) == 1


def test_a_token_passes_through_its_experts_alone():
    """FLOPs count the active experts, parameters all."""
    plain = ModelConfig(mixer="attention", hidden_size=64, intermediate_size=128)
    mixed = plain.model_copy(update={"experts": ExpertsConfig(count=32, active=4, size=42)})
    more = flops_per_token(mixed, 128) - flops_per_token(plain, 128)
    layers = plain.num_hidden_layers
    assert more == pytest.approx(6 * layers * (32 * 64 + 4 * 3 * 64 * 42))
    size = sum(a.size for a in addresses(mixed)) - sum(a.size for a in addresses(plain))
    assert size == layers * (32 * 64 + 32 * 3 * 64 * 42)


def test_what_cannot_be_ends_in_one_line(settings):
    with pytest.raises(UserError, match="active = 5 must not exceed count = 4"):
        settings_of(settings, model={"experts": {**EXPERTS, "active": 5}})
    from lrm.model.transformers import to_transformers

    both = settings(model={"experts": EXPERTS})
    with pytest.raises(UserError, match="mixture of experts"):
        to_transformers(build(both, 0).model)


@pytest.mark.parametrize("size", [24, 42])
def test_one_grouped_product_takes_any_size(size):
    """torch's own wants strides of 16 bytes, forward and backward. An expert has no token."""
    torch.manual_seed(0)
    x = torch.randn(50, 20).bfloat16().requires_grad_()
    weights = torch.randn(5, size, 20).bfloat16().requires_grad_()
    ends = torch.tensor([10, 10, 30, 44, 50])
    found = []
    for product in (ops._at_once, ops._one_by_one):
        y = product(x, weights, ends)
        outer = torch.ones_like(y)
        found.append([y, *torch.autograd.grad(y, (x, weights), outer)])
    torch.testing.assert_close(*found, rtol=0.02, atol=0.02)


@pytest.mark.cuda
@pytest.mark.parametrize("size", [24, 42])
def test_one_grouped_product_computes_all_experts(size):
    """On a GPU in bfloat16, against float64; some experts get no token; 42 is no multiple of 8."""
    torch.manual_seed(0)
    x = torch.randn(50, 20)
    gate, up = (torch.randn(2, 6, size, 20) / 20**0.5).unbind()
    down = torch.randn(6, 20, size) / size**0.5
    choice = torch.stack([torch.randperm(4)[:2] for _ in range(50)]).cuda()
    found, leaves = [], (x, torch.rand(50, 2), gate, up, down)
    outer = torch.randn(50, 20)
    for dtype in (torch.float64, torch.bfloat16):
        x, weight, gate, up, down = own = [
            leaf.to("cuda", torch.bfloat16).to(dtype).requires_grad_() for leaf in leaves
        ]
        stacks = ((matrix, None) for matrix in (gate, up, down))
        y = ops.experts(x, choice, weight, *stacks, 1e-5)
        found.append([y, *torch.autograd.grad(y, own, outer.to(y))])
    for exact, half in zip(*found, strict=True):
        assert (half.double() - exact).norm() < 0.02 * exact.norm()
