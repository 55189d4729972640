"""The Gated Delta Network: its recurrence, its mixer and its parametrizations over width."""

import math

import pytest
import torch
import torch.nn.functional as F

from lrm.errors import UserError
from lrm.model import ops
from lrm.model.blocks.gdn_module import GatedDeltaNetModule
from lrm.model.config import ModelConfig
from lrm.model.falcon_h1 import FalconH1
from lrm.model.gpu.adapters import PLAIN
from lrm.model.init import initialize
from lrm.model.recurrences import gated_delta
from lrm.plan import rules
from lrm.plan.config import Settings, validate
from lrm.plan.cost import flops_per_token
from lrm.plan.experiment import load
from lrm.symmetry import derived as gauge
from lrm.symmetry import found as symmetry
from lrm.train.learner import build
from lrm.train.probes import activation_norms
from lrm.train.step import add_gradients


def inputs(length, batch=2, heads=3, key=16, value=32, dtype=torch.float64, seed=0):
    """q, k, v, g, beta of heads that remember for long and of heads that forget at once."""
    torch.manual_seed(seed)
    q, k = (F.normalize(torch.randn(batch, length, heads, key, dtype=dtype), dim=-1) for _ in "qk")
    v = torch.randn(batch, length, heads, value, dtype=dtype)
    rate = torch.tensor([1e-3, 0.3, 30.0], dtype=dtype)[:heads]
    g = -rate * torch.rand(batch, length, heads, dtype=dtype)
    return q, k, v, g, torch.rand(batch, length, heads, dtype=dtype)


def chunked(chunk):
    return lambda *tensors: ops.gated_delta(*tensors, chunk)


def outcome(function, tensors):
    """Output, final state and the gradient of every input for random gradients of both."""
    leaves = [each.detach().clone().requires_grad_() for each in tensors]
    found = function(*leaves)
    torch.manual_seed(1)
    weights = [torch.randn(each.shape, dtype=torch.float64).to(each) for each in found]
    grads = torch.autograd.grad(found, leaves, weights)
    return [*(each.detach() for each in found), *grads]


def distances(found, true):
    tiny = torch.finfo(torch.float64).tiny  # after one step the decay has no gradient
    pairs = zip(found, true, strict=True)
    return [((a - b).norm() / b.norm().clamp(min=tiny)).item() for a, b in pairs]


@pytest.mark.parametrize("length", [1, 5, 33, 128])
@pytest.mark.parametrize("chunk", [1, 16, 32, 64])
def test_chunks_equal_the_recurrence(length, chunk):
    """Output, final state and all gradients, also where a chunk is longer than the text."""
    tensors = inputs(length)
    true = outcome(gated_delta, tensors)
    assert max(distances(outcome(chunked(chunk), tensors), true)) < 2e-14
    low = [each.float() for each in tensors]
    assert max(distances(outcome(chunked(chunk), low), true)) < 1e-6


def test_gradients_are_those_of_differences():
    tensors = [each.requires_grad_() for each in inputs(11, 1, 2, 3, 4)]
    assert torch.autograd.gradcheck(chunked(4), tensors)
    lower = torch.randn(2, 16, 16, dtype=torch.float64).tril(-1).requires_grad_()
    assert torch.autograd.gradcheck(ops._unit_inverse, lower)


@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_nearly_equal_keys_lose_no_digits(chunk):
    """All keys alike, little forgotten, all taken back: sums of powers would overflow here.

    As exact as the recurrence itself, whose gradient of g cancels too.
    """
    q, k, v, g, beta = inputs(128)
    k = F.normalize(k[:, :1] + 1e-3 * k, dim=-1)
    tensors = [each.float() for each in (q, k, v, 1e-4 * g.clamp(min=-1), 1 - 1e-3 * beta)]
    true = outcome(gated_delta, [each.double() for each in tensors])
    found = distances(outcome(chunked(chunk), tensors), true)
    plain = distances(outcome(gated_delta, tensors), true)
    assert max(plain) < 1e-4
    assert all(ours < 20 * theirs for ours, theirs in zip(found, plain, strict=True))


def test_it_is_the_rule_of_transformers():
    """Their chunks of another size, in float32; they multiply queries by dk ** -0.5."""
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    tensors = [each.float() for each in inputs(141)]

    def theirs(q, k, v, g, beta):
        scale = q.shape[-1] ** 0.5
        o, state = qwen.torch_chunk_gated_delta_rule(
            q * scale, k, v, g, beta, chunk_size=64, output_final_state=True
        )
        return o, state.transpose(-1, -2)

    found, reference = outcome(chunked(32), tensors), outcome(theirs, tensors)
    assert max(distances(found, reference)) < 2e-6


def test_half_precision_is_computed_in_float32():
    tensors = inputs(40)
    low = [each.bfloat16() if n < 3 else each.float() for n, each in enumerate(tensors)]
    with torch.autocast("cpu", torch.bfloat16):
        o, state = ops.gated_delta(*low, 16)
    exact, last = gated_delta(*(each.double() for each in low))
    assert o.dtype == torch.bfloat16 and state.dtype == torch.float32
    assert max(distances([o.double(), state.double()], [exact, last])) < 3e-3
    assert distances([state.double()], [last])[0] < 1e-6


def test_runs_at_once_are_computed_alike():
    """Under ``vmap``, which knows no hand-written backward, torch differentiates it itself."""
    tensors = inputs(21, batch=4)
    stacks = [each.unflatten(0, (2, 2)) for each in tensors]
    together = [each.flatten(0, 1) for each in outcome(torch.vmap(chunked(8)), stacks)]
    assert max(distances(together, outcome(chunked(8), tensors))) < 2e-14


# The mixer.


OWN = {"heads": 3, "key_dim": 4, "value_dim": 6, "chunk": 8}
SMALL = {
    "mixer": "gdn",
    "mixer_sizes": {"gdn": OWN},
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "initializer_range": 0.3,
}


def model_of(config, seed=0):
    model = FalconH1(config)
    initialize(model, config, seed)
    return model


def tokens_of(config, length=20, batch=2):
    draw = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, (batch, length), generator=draw)


def test_a_layer_is_what_the_paper_writes():
    """Token by token, without what the suite's operations do at once, forward multipliers too."""
    config = ModelConfig(**SMALL)
    names = ("q", "k", "v", "gate", "alpha", "beta", "out")
    factors = {f"gdn.{name}@1": 0.5 + 0.25 * n for n, name in enumerate(names)}
    of = GatedDeltaNetModule(config, 1, factors, PLAIN).double()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in of.parameters():
            parameter.normal_(std=0.5)
    u = torch.randn(2, 20, 16, dtype=torch.float64)
    maps = (of.q_proj, of.k_proj, of.v_proj, of.g_proj, of.a_proj, of.b_proj)
    q, k, v, gate, alpha, beta = (
        factors[f"gdn.{name}@1"] * u @ each.weight.T
        for name, each in zip(names, maps, strict=False)
    )

    def convolved(x, filters):
        past = F.pad(x, (0, 0, 3, 0)).unfold(1, 4, 1)
        found = torch.einsum("btcj,cj->btc", past, filters.weight[:, 0])
        return (found * torch.sigmoid(found)).unflatten(-1, (3, -1))

    q, k, v = convolved(q, of.q_conv1d), convolved(k, of.k_conv1d), convolved(v, of.v_conv1d)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    g = -of.A_log.exp() * torch.log1p((alpha + of.dt_bias).exp())
    o, _ = gated_delta(q, k, v, g, torch.sigmoid(beta))
    read = o / (o.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * of.o_norm.weight
    y = read.flatten(-2) * gate * torch.sigmoid(gate)
    out = factors["gdn.out@1"] * y @ of.o_proj.weight.T
    # Lengths of q and k have an eps of 1e-6 in the suite.
    torch.testing.assert_close(of(u), out, rtol=1e-4, atol=1e-5)


def test_widths_begin_with_the_same_heads():
    """a_log and dt_bias are drawn by seed, layer and number of heads, whatever else grows."""
    found = {}
    for d in (16, 64):
        own = {**OWN, "key_dim": d // 4, "value_dim": d // 2}
        config = ModelConfig(**{**SMALL, "hidden_size": d, "mixer_sizes": {"gdn": own}})
        found[d] = [layer.linear_attn for layer in model_of(config).model.layers]
    for narrow, wide in zip(*found.values(), strict=True):
        assert torch.equal(narrow.A_log, wide.A_log)
        assert torch.equal(narrow.dt_bias, wide.dt_bias)
    first, second = found[16]
    assert not torch.equal(first.A_log, second.A_log)
    other = model_of(ModelConfig(**SMALL), seed=1).model.layers[0].linear_attn
    assert not torch.equal(first.A_log, other.A_log)


def test_initial_values_have_their_distributions():
    own = {"heads": 800, "key_dim": 1, "value_dim": 1}
    config = ModelConfig(**{**SMALL, "num_hidden_layers": 1, "mixer_sizes": {"gdn": own}})
    [layer] = model_of(config).model.layers
    of = layer.linear_attn
    A, dt = of.A_log.exp(), F.softplus(of.dt_bias)
    assert A.min() < 0.2 and 15.8 < A.max() <= 16 and A.mean().item() == pytest.approx(8, abs=0.7)
    assert dt.min() >= 0.999e-3 and dt.max() <= 0.1001
    assert dt.log().mean().item() == pytest.approx(math.log(1e-2), abs=0.2)
    for each in (of.q_conv1d, of.k_conv1d, of.v_conv1d):
        assert each.weight.abs().max() <= 0.5
        assert each.weight.std().item() == pytest.approx(0.5 / 3**0.5, rel=0.05)
    assert of.a_proj.weight.std().item() == pytest.approx(0.3, rel=0.05)
    assert (of.o_norm.weight == 1).all()


def test_what_decays_and_what_moves_how():
    settings = Settings(model=ModelConfig(**SMALL))
    plans = {plan.address.name: plan for plan in rules.resolve(settings)}
    own = [name for name in plans if "gdn" in name]
    assert own == [
        "gdn.q", "gdn.k", "gdn.v", "gdn.conv_q", "gdn.conv_k", "gdn.conv_v", "gdn.gate",
        "gdn.alpha", "gdn.beta", "gdn.a_log", "gdn.dt_bias", "norm.gdn", "gdn.out",
    ]  # fmt: skip
    matrices = {name for name in own if plans[name].address.role == "matrix"}
    assert {name for name in own if plans[name].weight_decay > 0} == matrices
    assert own[:3] + own[6:9] + own[-1:] == [name for name in own if name in matrices]
    muon = settings.optimizer.model_copy(update={"name": "muon"})
    moved = rules.resolve(settings.model_copy(update={"optimizer": muon}))
    hidden = {p.address.name for p in moved if p.optimizer == "muon" and "gdn" in p.address.name}
    assert hidden == matrices


def test_parameters_and_products_are_counted():
    config = ModelConfig(**SMALL)
    matrices = [p for p in model_of(config).parameters() if p.dim() == 2]
    inside = 8 * (3 * 4 + 2 * 6 + 8 / 3) + 3 * 4 * 6
    linear = 6 * (sum(p.numel() for p in matrices) - 61 * 16)
    assert flops_per_token(config, 128) == pytest.approx(linear + 2 * 6 * 3 * inside)
    assert flops_per_token(config, 4) < flops_per_token(config, 8)


@pytest.mark.parametrize(("kind", "layers"), [("row_column", 1), ("scalar", 2)])
def test_symmetries_are_derived_and_found(kind, layers):
    """q, k, v against their filters, the read's norm against columns of out, and the usual ones."""
    placed = [
        {"match": "gdn.[qkvgob]*", "multiplier": {"kind": kind}},
        {"match": "gdn.alpha", "multiplier": {"kind": kind}},
        {"match": "gdn.conv_*", "multiplier": {"kind": "row"}},
        {"match": "embedding", "multiplier": {"kind": kind}},
    ]
    placed.insert(1, placed.pop(2))
    model = symmetry.small("gdn").model_dump() | {"num_hidden_layers": layers}
    settings = validate(Settings, {"model": model, "rules": placed}, "the test")
    plans = rules.resolve(settings)
    derived, found = gauge.symmetries(plans, settings.model), symmetry.find(settings)
    assert len(found.basis) == len(derived)
    assert symmetry.distance(found.basis, derived) < 1e-5
    freed = gauge.count(plans, settings.model)
    assert sum(freed.values()) == len(derived)
    # Each filter has a row multiplier; one scalar goes against all of a matrix's filters.
    assert freed["short_convolution"] == layers * (30 if kind == "row_column" else 3)
    assert freed["read_norm"] == layers * (4 if kind == "row_column" else 1)


def test_what_lies_between_tensors_is_measured():
    config = ModelConfig(**SMALL)
    model, tokens = model_of(config), tokens_of(config)
    values = {}
    model(tokens, activations=values)
    assert values["gdn.state@0"].shape == (2, 3, 6, 4)
    assert values["gdn.read@1"].shape == values["norm.gdn@1"].shape == (2, 20, 3, 6)
    for name in ("kept", "written"):
        part = values[f"gdn.{name}@0"]
        assert part.shape == (2, 20, 3) and part.min() >= 0 and part.max() <= 1
    norms = activation_norms(model, tokens)["activation_norm"]
    read = values["gdn.read@1"].square().mean(-1).sqrt().mean().item()
    assert norms["gdn.read@1"] == pytest.approx(read)


def test_half_precision_costs_what_rounding_costs():
    """What is read from an early state may be near 0, and its norm undoes that: rounding shows.

    Weights that are rounded once in a model in float32 move gradients nearly as far.
    """
    own = {"heads": 3, "key_dim": 16, "value_dim": 32}
    config = ModelConfig(**{**SMALL, "hidden_size": 64, "initializer_range": "fan_in",
                            "mixer_sizes": {"gdn": own}})  # fmt: skip
    tokens, found = tokens_of(config, 64, 4), {}
    for name in ("exact", "rounded", "half"):
        model = model_of(config)
        if name == "rounded":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(parameter.bfloat16())
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "half"):
            logits = model(tokens)
        assert logits.dtype == (torch.bfloat16 if name == "half" else torch.float32)
        F.cross_entropy(logits.float().flatten(0, 1), tokens.roll(-1, 1).flatten()).backward()
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())
        grads = torch.cat([p.grad.flatten() for p in model.parameters()])
        found[name] = [logits.detach().float(), grads]
    far, least = (distances(found[name], found["exact"]) for name in ("half", "rounded"))
    assert far[0] < 0.04 and far[1] < 4 * least[1] < 0.8


def test_a_layer_is_compiled_whole():
    """One graph forward and one backward, which is all that the code's generator needs of it."""
    settings = validate(Settings, {"model": {**SMALL, "num_hidden_layers": 1}}, "the test")
    batch, found = tokens_of(settings.model, 21), []
    for is_compiled in (False, True):
        model = build(settings, 0).model
        if is_compiled:
            model.model.layers[0].compile(dynamic=False, fullgraph=True, backend="aot_eager")
        add_gradients(model, batch, settings)
        found.append([parameter.grad for parameter in model.parameters()])
    assert max(distances(*found)) < 1e-5


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"chunk": 24}, "mixer_sizes.gdn.chunk = 24 must be a power of two"),
        ({"head": 2}, "mixer_sizes.gdn.head = 2: the sizes are heads, key_dim, value_dim, kernel"),
        ({"heads": 0}, "write a size from 1 to"),
    ],
)
def test_impossible_sizes_are_one_line(sizes, said):
    model = {"mixer": "gdn", "mixer_sizes": {"gdn": sizes}}
    with pytest.raises(UserError) as raised:
        validate(Settings, {"model": model}, "the test")
    assert said in str(raised.value) and "\n" not in str(raised.value)


# Parametrizations over width, as recipes.

# By the tensors that a recipe tells apart: (init, forward, LR) at four times the base width. Init
# is the standard deviation's, and the head is not tied to the embedding.
FOUR = {
    "gdn_sp": {},
    "gdn_mup_adamw": {
        "hidden": (0.5, 1, 0.25), "gates": (0.5, 1, 0.25), "projector": (1, 0.25, 1),
        "read": (1, 2, 1),
    },
    "gdn_mup_sgd_original": {
        "hidden": (0.5, 1, 1), "gates": (0.5, 1, 1), "projector": (1, 0.25, 4),
        "embedding": (1, 1, 4), "vectors": (1, 1, 4),
    },
    "gdn_mup_sgd": {
        "hidden": (0.5, 1, 1), "gates": (0.5, 1, 0.5), "projector": (1, 0.25, 4),
        "embedding": (1, 1, 4), "vectors": (1, 1, 4), "heads": (1, 1, 2), "read": (1, 2, 1),
    },
}  # fmt: skip
TOLD_APART = {
    "hidden": ("gdn.q", "gdn.k", "gdn.v", "gdn.gate", "gdn.out", "mlp.gate", "mlp.up", "mlp.down"),
    "gates": ("gdn.alpha", "gdn.beta"),
    "heads": ("gdn.a_log", "gdn.dt_bias"),
    "vectors": ("norm.mixer", "norm.gdn", "norm.mlp", "norm.final",
                "gdn.conv_q", "gdn.conv_k", "gdn.conv_v"),
    "embedding": ("embedding",),
    "projector": ("projector",),
}  # fmt: skip


TEXT = """
title: a test
at: [smoke, tiny]
use: [scale/$scale, gdn/$scale, width/{recipe}]
width: {{hidden_size: {width}}}
"""


@pytest.fixture
def run_of(tmp_path):
    """A function from a recipe and a width to the run at a scale."""

    def make(recipe, width=1, scale="tiny"):
        path = tmp_path / f"{recipe}{width}" / "config.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(TEXT.format(recipe=recipe, width=32 * width))
        [run] = load(path).runs(scale, [0])
        return run

    return make


@pytest.mark.parametrize("recipe", FOUR)
def test_recipes_are_those_of_the_papers_tables(recipe, run_of):
    run, plain = run_of(recipe, 4), run_of("gdn_sp", 4)
    base = {plan.key: plan for plan in run_of("gdn_sp").plans}
    names = {name: group for group, found in TOLD_APART.items() for name in found}
    assert {plan.address.name for plan in run.plans} == set(names)
    for plan in run.plans:
        wanted = FOUR[recipe].get(names[plan.address.name], (1, 1, 1))
        lr = plan.lr / base[plan.key].lr
        assert (plan.init_scale, plan.forward, lr) == pytest.approx(wanted), plan.key
        assert plan.weight_decay == base[plan.key].weight_decay
    read = FOUR[recipe].get("read", (1, 1, 1))[1]
    wanted = {f"gdn.read@{layer}": read for layer in (0, 1)} if read != 1 else {}
    assert rules.point_factors(run.settings) == wanted
    assert run.settings.model == plain.settings.model
    sizes = run.settings.model.mixer_sizes["gdn"]
    assert (sizes["heads"], sizes["key_dim"], sizes["value_dim"]) == (3, 32, 64)


@pytest.mark.parametrize("scale", ["smoke", "tiny"])
def test_recipes_are_one_at_the_base_width(run_of, scale):
    runs = [run_of(recipe, scale=scale) for recipe in FOUR]
    tables = [rules.table(run.plans, run.settings) for run in runs]
    assert all(table == tables[0] for table in tables)
    one, two = (build(run.settings, 0) for run in (runs[0], runs[-1]))
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_wide_model_begins_with_the_heads_of_the_narrow_one(run_of):
    narrow, wide = (build(run_of("gdn_mup_adamw", width).settings, 0) for width in (1, 4))
    for a, b in zip(narrow.model.model.layers, wide.model.model.layers, strict=True):
        assert torch.equal(a.linear_attn.A_log, b.linear_attn.A_log)
        assert torch.equal(a.linear_attn.dt_bias, b.linear_attn.dt_bias)


@pytest.mark.parametrize(("eps", "is_same"), [(0.0, True), (1e-3, False)])
def test_a_factor_before_the_norm_acts_through_eps_alone(eps, is_same):
    """Loss and gradients: RMSNorm(c o) = RMSNorm(o), and the chain rule cancels c."""
    found = []
    for factor in (1.0, 3.0):
        model = FalconH1(ModelConfig(**SMALL, rms_norm_eps=eps), {"gdn.read@1": factor}).double()
        initialize(model, model.config, 0)
        loss = model(tokens_of(model.config)).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        found.append([loss.detach(), *grads])
    far = max(distances(*found))
    assert far < 1e-10 if is_same else far > 1e-5


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"match": "gdn.read", "lr": 0.1}, "rule 'gdn.read': lr is for tensors, and this is an"),
        ({"match": "gdn.read@0", "width_exponent": {"init": 1}}, "init is for tensors"),
        ({"match": "gdn.read", "multiplier": {"kind": "scalar"}}, "kind is for tensors"),
        ({"match": "gdn.read@2", "forward": 2.0}, "'gdn.read@2' matches nothing in this model"),
    ],
)
def test_what_a_point_does_not_take(rule, said):
    settings = validate(Settings, {"model": SMALL, "rules": [rule]}, "the test")
    with pytest.raises(UserError) as raised:
        rules.resolve(settings)
    assert said in str(raised.value) and "\n" not in str(raised.value)
    other = validate(Settings, {"rules": [{"match": "gdn.read", "forward": 2.0}]}, "the test")
    with pytest.raises(UserError, match="its activations that take a factor are none"):
        rules.resolve(other)


def test_a_point_has_its_layers_and_its_row():
    given = [{"match": "gdn.*", "lr_scale": 0.5}, {"match": "gdn.read", "forward": 2.0},
             {"match": "gdn.read@1", "forward_scale": 3.0}]  # fmt: skip
    settings = validate(Settings, {"model": SMALL, "rules": given, "base_width": 16}, "the test")
    plans = rules.resolve(settings)
    assert rules.point_factors(settings) == {"gdn.read@0": 2.0, "gdn.read@1": 6.0}
    rows = rules.table(plans, settings)[-2:]
    assert [(row["tensor"], row["forward"]) for row in rows] == [
        ("gdn.read@0", 2.0), ("gdn.read@1", 6.0)
    ]  # fmt: skip
    model = build(settings, 0).model
    assert model.model.layers[1].linear_attn.factors["gdn.read"] == 6.0
