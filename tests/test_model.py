"""The model against transformers, against its equations, and its initial values."""

from __future__ import annotations

import math
from operator import attrgetter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import parametrize

from lrm.errors import UserError
from lrm.model import ops
from lrm.model import transformers as hub
from lrm.model.config import ModelConfig
from lrm.model.falcon_h1 import FalconH1
from lrm.model.init import initialize
from lrm.model.tensors import addresses

SMALL = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "mamba_d_ssm": 48,
    "mamba_n_heads": 12,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
    "rope_theta": 1.0e4,
    "initializer_range": 0.2,
}
MULTIPLIERS = {
    "embedding_multiplier": 1.7,
    "lm_head_multiplier": 0.4,
    "key_multiplier": 0.7,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.8, 0.5, 1.4, 0.75, 1.1],
    "mlp_multipliers": [0.88, 0.58],
}


# Sizes of mixers that transformers' Falcon-H1 does not know.
SIZES = {"gdn": {"heads": 3, "key_dim": 4, "value_dim": 8, "chunk": 8}}
MIXERS = ["both", "attention", "ssm", "gdn"]


def small(**changes) -> ModelConfig:
    own = {name: sizes for name, sizes in SIZES.items() if name in changes.get("mixer", "")}
    return ModelConfig(**{**SMALL, "mixer_sizes": own, **changes})


def build(config: ModelConfig, factors=None, seed: int = 0) -> FalconH1:
    model = FalconH1(config, factors)
    initialize(model, config, seed)
    return model


def tokens_of(config: ModelConfig, length: int, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, (batch, length), generator=generator)


def distance(ours: Tensor, reference: Tensor) -> float:
    return ((ours - reference).norm() / reference.norm()).item()


def reference_model(config: ModelConfig, **multipliers):
    import transformers

    shape = config.model_dump(exclude={"mixer", "rope_theta", "initializer_range"})
    hf_config = transformers.FalconH1Config(
        **shape,
        **multipliers,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        pad_token_id=None,
        attn_implementation="eager",
        use_cache=False,
    )
    hf = transformers.FalconH1ForCausalLM(hf_config).float()
    hf.load_state_dict(build(config).state_dict())
    with torch.no_grad():
        generator = torch.Generator().manual_seed(2)
        for parameter in hf.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return hf


@pytest.mark.parametrize("length", [32, 29])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 4, "head_dim": 6},
        {"mamba_n_groups": 2},
        {"mamba_rms_norm": True},
        {"mamba_rms_norm": True, "mamba_norm_before_gate": True, "mamba_n_groups": 2},
    ],
    ids=["grouped_queries", "width_is_d", "two_groups", "norm_after_gate", "norm_before_gate"],
)
@pytest.mark.parametrize("multipliers", [{}, MULTIPLIERS], ids=["plain", "multipliers"])
def test_logits_and_gradients_equal_those_of_transformers(changes, multipliers, length):
    config = small(**changes)
    hf = reference_model(config, **multipliers)
    ours = hub.from_transformers(hf)
    assert ours.config.model_dump(exclude={"initializer_range"}) == config.model_dump(
        exclude={"initializer_range"}
    )
    tokens = tokens_of(config, length)
    logits = {}
    for name, model in (("hf", hf), ("ours", ours)):
        out = model(tokens)
        logits[name] = out.logits if name == "hf" else out
        F.cross_entropy(logits[name][:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    assert distance(logits["ours"], logits["hf"]) <= 1e-5
    gradients = {name: p.grad for name, p in hf.named_parameters()}
    mine = {name: p.grad for name, p in ours.named_parameters()}
    assert set(mine) == set(gradients)
    far = {name: distance(mine[name], gradients[name]) for name in mine}
    assert max(far.values()) <= 1e-5, max(far.items(), key=lambda item: item[1])


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("normed", [False, True])
def test_addresses_cover_every_parameter_entry_once(mixer, normed):
    config = small(mixer=mixer, mamba_n_groups=2, mamba_rms_norm=normed)
    model = FalconH1(config)
    found = {}
    for address in addresses(config):
        found.setdefault(address.parameter, []).append(address)
    parameters = dict(model.named_parameters())
    assert set(found) == set(parameters)
    for name, group in found.items():
        shape = tuple(parameters[name].shape)
        if group[0].rows is None:
            assert [a.shape for a in group] == [shape]
            continue
        edges = [a.rows for a in group]
        assert edges[0][0] == 0
        assert edges[-1][1] == shape[0]
        assert all(a[1] == b[0] for a, b in zip(edges, edges[1:], strict=False))
        assert all(a.shape == (a.rows[1] - a.rows[0], *shape[1:]) for a in group)


def test_default_model_has_the_published_size():
    with torch.device("meta"):
        model = FalconH1(ModelConfig())
    assert sum(p.numel() for p in model.parameters()) == 521_411_104
    assert sum(a.size for a in addresses(ModelConfig())) == 521_411_104
    tokens = torch.zeros(1, 8, dtype=torch.long, device="meta")
    assert model(tokens).shape == (1, 8, 32784)


def recurrence(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    share = x.shape[2] // B.shape[2]
    B, C = B.repeat_interleave(share, 2), C.repeat_interleave(share, 2)
    state = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], B.shape[3])
    out = []
    for t in range(x.shape[1]):
        decay = torch.exp(A * dt[:, t])[..., None, None]
        added = (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        state = decay * state + added
        out.append((state @ C[:, t, :, :, None]).squeeze(-1) + D[:, None] * x[:, t])
    return torch.stack(out, 1)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (7, 4), (16, 4), (33, 8), (40, 128)])
def test_ssd_is_the_recurrence(length, chunk, groups):
    torch.manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    dt = F.softplus(3 * draw(2, length, 4))
    state = draw(2, length, groups, 5), draw(2, length, groups, 5)
    inputs = [draw(2, length, 4, 3), dt, -torch.exp(draw(4)), *state, draw(4)]
    inputs = [t.detach().requires_grad_() for t in inputs]
    x, dt, A, B, C, D = inputs
    ours = ops.ssd(x, dt, A, B, C, chunk, D)
    expected = recurrence(*inputs)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
    weight = draw(*ours.shape)
    grads = torch.autograd.grad((ours * weight).sum(), inputs)
    truth = torch.autograd.grad((expected * weight).sum(), inputs)
    for grad, true in zip(grads, truth, strict=True):
        torch.testing.assert_close(grad, true, rtol=1e-9, atol=1e-9)


def test_ssd_neither_overflows_nor_divides_by_zero():
    x = torch.ones(1, 64, 2, 4, requires_grad=True)
    dt = torch.tensor([0.0, 300.0]).repeat(1, 64, 1).requires_grad_()
    A = torch.tensor([-16.0, -16.0], requires_grad=True)
    B = torch.ones(1, 64, 1, 4)
    y = ops.ssd(x, dt, A, B, B, 16)
    y.sum().backward()
    assert all(t.isfinite().all() for t in (y, x.grad, dt.grad, A.grad))
    torch.testing.assert_close(y[:, :, 1], torch.full((1, 64, 4), 1200.0))


def conv_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    padding = weight.shape[2] - 1
    out = F.conv1d(x.transpose(1, 2), weight, bias, padding=padding, groups=x.shape[2])
    return F.silu(out[..., : x.shape[1]]).transpose(1, 2)


def attention_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)


def turned_reference(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    power = torch.arange(half, dtype=x.dtype) / half
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] / 1.0e4**power
    pair = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angle), angle
    ).unsqueeze(1)
    return torch.cat((pair.real, pair.imag), -1).transpose(1, 2)


@pytest.mark.parametrize(
    ("ours", "reference", "shapes"),
    [
        (ops.causal_conv1d, conv_reference, [(2, 9, 6), (6, 1, 4), (6,)]),
        (ops.causal_conv1d, conv_reference, [(2, 2, 6), (6, 1, 4), (6,)]),
        (
            lambda x, w: ops.causal_conv1d(x, w, None),
            lambda x, w: conv_reference(x, w, None),
            [(2, 9, 6), (6, 1, 4)],
        ),
        (
            lambda x, w: ops.rms_norm(x, w, 1e-5),
            lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5),
            [(2, 5, 6), (6,)],
        ),
        # One vector alone, as large as the weight.
        (
            lambda x, w: ops.rms_norm(x, w, 1e-5),
            lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5),
            [(6,), (6,)],
        ),
        (
            lambda q, k, v: ops.attention(q, k, v, 0.3),
            attention_reference,
            [(2, 4, 7, 6), (2, 2, 7, 6), (2, 2, 7, 6)],
        ),
        # In blocks, the last of them shorter.
        (
            lambda q, k, v: ops.attention(q, k, v, 0.3),
            attention_reference,
            [(1, 4, 300, 6), (1, 2, 300, 6), (1, 2, 300, 6)],
        ),
        (lambda x: ops.rope(x, 1.0e4), turned_reference, [(2, 5, 3, 8)]),
    ],
    ids=["conv", "conv_shorter_than_kernel", "conv_without_bias", "norm", "norm_of_one",
         "attention", "long_attention", "rope"],
)  # fmt: skip
def test_kernels_equal_plain_torch(ours, reference, shapes):
    torch.manual_seed(0)
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    mine, theirs = ours(*inputs), reference(*inputs)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(theirs)
    torch.testing.assert_close(
        torch.autograd.grad((mine * weight).sum(), inputs),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize("mixer", MIXERS)
def test_later_tokens_do_not_change_earlier_logits(mixer):
    config = small(mixer=mixer)
    model = build(config).double()
    tokens = tokens_of(config, 21)
    changed = tokens.clone()
    changed[:, 13] = (changed[:, 13] + 1) % config.vocab_size
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :13], before[:, :13], rtol=1e-12, atol=1e-12)
    assert (after[:, 13:] - before[:, 13:]).abs().amax(-1).min() > 1e-6


def by_address(model: FalconH1) -> dict[str, Tensor]:
    state = dict(model.named_parameters())
    return {
        a.key: state[a.parameter][slice(*a.rows) if a.rows else slice(None)].detach()
        for a in addresses(model.config)
    }


def test_initial_values_are_deterministic_and_independent_of_other_tensors():
    full = by_address(build(small()))
    for other in (small(), small(mixer="attention"), small(mixer="ssm", num_hidden_layers=3),
                  small(mixer="gdn+attention")):  # fmt: skip
        values = by_address(build(other))
        shared = full.keys() & values.keys()
        assert len(shared) > 10
        assert all(torch.equal(full[key], values[key]) for key in shared)
    # A wider state moves the rows of C and dt in in_proj and leaves dt's values alone.
    assert torch.equal(by_address(build(small(mamba_d_state=4)))["ssm.dt@1"], full["ssm.dt@1"])
    again = by_address(build(small(), seed=1))
    drawn = {key for key, value in full.items() if not torch.equal(value, again[key])}
    assert {key for key in full if not key.startswith(("norm", "ssm.D"))} == drawn
    assert not torch.equal(full["mlp.gate@0"], full["mlp.gate@1"])
    assert not torch.equal(full["ssm.z@0"], full["ssm.x@0"])
    double = FalconH1(small()).double()
    initialize(double, double.config, 0)
    assert all(torch.equal(v.float(), full[key]) for key, v in by_address(double).items())


def test_a_tensor_may_be_drawn_by_another_number():
    config, plain = small(mixer="gdn"), by_address(build(small(mixer="gdn"), seed=1))
    other, changed = by_address(build(config, seed=7)), FalconH1(config)
    initialize(changed, config, 1, {"mlp.up@1": 2.0}, {"gdn.a_log@0": 7, "mlp.up@1": 7})
    found = by_address(changed)
    assert torch.equal(found.pop("gdn.a_log@0"), other["gdn.a_log@0"])
    torch.testing.assert_close(found.pop("mlp.up@1"), 2 * other["mlp.up@1"])
    assert all(torch.equal(value, plain[key]) for key, value in found.items())


def test_initial_values_have_their_distributions():
    config = small(hidden_size=400, mamba_d_ssm=1200, mamba_n_heads=300, initializer_range="fan_in")
    model = FalconH1(config)
    initialize(model, config, 0, {"mlp.up@0": 3.0, "ssm.B@1": 0.0})
    values = by_address(model)
    for key in ("mlp.gate@0", "embedding", "ssm.z@1", "projector"):
        assert values[key].std().item() == pytest.approx(400**-0.5, rel=0.03)
    assert values["mlp.up@0"].std().item() == pytest.approx(3 * 400**-0.5, rel=0.03)
    assert values["mlp.down@0"].std().item() == pytest.approx(40**-0.5, rel=0.03)
    assert not values["ssm.B@1"].any()
    A, dt = values["ssm.A_log@0"].exp(), F.softplus(values["ssm.dt_bias@0"])
    assert 1 <= A.min() < 1.5 and 15.5 < A.max() <= 16.001
    assert A.mean().item() == pytest.approx(8.5, abs=1)
    assert dt.min() >= 0.999e-3 and dt.max() <= 0.1001
    assert dt.log().mean().item() == pytest.approx(math.log(1e-2), abs=0.3)
    conv = values["ssm.conv@0"]
    assert conv.abs().max() <= 0.5
    assert conv.std().item() == pytest.approx(0.5 / 3**0.5, rel=0.05)
    assert (values["norm.final"] == 1).all() and (values["ssm.D@0"] == 1).all()
    with pytest.raises(UserError, match=r"norm\.final"):
        initialize(model, config, 0, {"norm.final": 2.0})


def test_hub_round_trip_folds_all_multipliers(tmp_path):
    import transformers

    config = small(mamba_n_groups=2, mamba_rms_norm=True)
    model = build(config, {"attention.k@1": 0.5, "ssm.B@0": 2.0, "embedding": 3.0, "mlp.up@0": 0.7})

    class Doubled(torch.nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    parametrize.register_parametrization(model.model.layers[0].mamba.in_proj, "weight", Doubled())
    tokens = tokens_of(config, 19)
    with torch.no_grad():
        expected = model(tokens)
        exported = hub.to_transformers(model)
        assert distance(exported(tokens, use_cache=False).logits, expected) <= 1e-5
        assert distance(hub.from_transformers(exported)(tokens), expected) <= 1e-5
        hub.save_transformers(model, tmp_path)
        loaded = transformers.FalconH1ForCausalLM.from_pretrained(tmp_path).float()
        assert distance(loaded(tokens, use_cache=False).logits, expected) <= 1e-5
    with pytest.raises(UserError, match="mixer: both"):
        hub.to_transformers(build(small(mixer="ssm")))


def test_hub_refuses_what_it_would_change():
    hf = reference_model(small())
    hf.config.time_step_limit = (0.0, 0.1)
    with pytest.raises(UserError, match="time_step_limit"):
        hub.from_transformers(hf)


def test_hub_names_the_missing_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'lrm-suite\[evaluation\]'"):
        hub.to_transformers(build(small()))


@pytest.mark.parametrize("normed", [False, True])
def test_bfloat16_autocast_is_close_to_float32(normed):
    config = small(hidden_size=64, initializer_range="fan_in", mamba_rms_norm=normed)
    model = build(config)
    tokens = tokens_of(config, 64, batch=4)
    grads, outs = [], []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = model(tokens)
        outs.append(logits.float())
        F.cross_entropy(outs[-1].flatten(0, 1), tokens.roll(-1, 1).flatten()).backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    assert logits.dtype == torch.bfloat16
    assert distance(outs[1], outs[0]) < 0.03
    assert distance(grads[1], grads[0]) < 0.05


@pytest.mark.parametrize(
    ("changes", "module", "factors"),
    [
        ({"mamba_n_groups": 2, "mamba_rms_norm": True}, "mamba.in_proj",
         {"ssm.z@0": 0.3, "projector": 0.7, "attention.out@1": 1.1}),
        ({"mixer": "gdn"}, "linear_attn.k_proj", {"gdn.v@0": 0.3, "gdn.alpha@1": 1.1}),
    ],
)  # fmt: skip
def test_float64_is_float64_throughout(changes, module, factors):
    config = small(**changes)
    single, double = build(config, factors), build(config, factors).double()
    tokens = tokens_of(config, 21)
    activations: dict[str, Tensor] = {}
    out = double(tokens, activations=activations)
    assert {t.dtype for t in activations.values()} == {torch.float64}
    assert 0 < distance(single(tokens).double(), out) < 1e-4
    # A float32 anywhere would leave steps in the loss of the size of its rounding.
    weight = double.model.layers[0].get_submodule(module).weight
    draw = torch.Generator().manual_seed(2)
    direction = torch.randn(weight.shape, generator=draw, dtype=weight.dtype)
    (grad,) = torch.autograd.grad(out.square().mean(), weight)
    losses = []
    with torch.no_grad():
        for step in (1e-6, -1e-6):
            weight += step * direction
            losses.append(double(tokens).square().mean())
            weight -= step * direction
    slope = (losses[0] - losses[1]) / 2e-6
    assert slope.item() == pytest.approx((grad * direction).sum().item(), rel=1e-7)


@pytest.mark.parametrize("mixer", MIXERS)
def test_taps_hold_the_output_of_every_linear_map(mixer):
    config = small(mixer=mixer)
    plain, factored = build(config), build(config, {"embedding": 1.0, "mlp.gate@0": 0.25})
    tokens = tokens_of(config, 11)
    activations: dict[str, Tensor] = {}
    logits = plain(tokens, activations=activations)
    expected = {a.key for a in addresses(config) if a.role != "vector"}
    between = ("kept", "written", "state", "read") if mixer == "gdn" else ()
    points = {f"gdn.{name}@{layer}" for name in between for layer in (0, 1)}
    assert set(activations) == expected | points | {"residual@0", "residual@1"}
    assert not any(t.requires_grad for t in activations.values())
    assert torch.equal(activations["projector"], logits)
    assert torch.equal(plain.logits(plain.hidden(tokens)[0]), logits)
    u = activations["norm.mixer@1"]
    for address in addresses(config):
        if address.layer == 1 and address.name in (
            "attention.k", "ssm.B", "ssm.dt", "gdn.k", "gdn.beta", "gdn.gate"
        ):  # fmt: skip
            weight = attrgetter(address.parameter)(plain)
            weight = weight[slice(*address.rows)] if address.rows else weight
            torch.testing.assert_close(activations[address.key], u @ weight.T)
    other: dict[str, Tensor] = {}
    factored(tokens, activations=other)
    torch.testing.assert_close(other["mlp.gate@0"], 0.25 * activations["mlp.gate@0"])


@pytest.mark.parametrize("shape", [(3, 50), (50, 3), (50, 60)])
def test_a_factor_scales_the_output_wherever_it_is_applied(shape):
    torch.manual_seed(0)
    weight = torch.randn(shape, dtype=torch.float64)
    for tokens in (1, 2, 40, 1000):
        x = torch.randn(tokens, shape[1], dtype=torch.float64)
        torch.testing.assert_close(ops.linear(x, weight, 0.3), 0.3 * (x @ weight.T))
        ids = torch.randint(shape[0], (tokens, 2))
        torch.testing.assert_close(ops.embedding(ids, weight, 0.3), 0.3 * weight[ids])


@pytest.mark.parametrize(
    "key", ["norm.final", "ssm.conv@0", "mlp.gate", "mlp.gate@2", "ffn.gate@0"]
)
def test_unknown_forward_multipliers_are_refused_in_one_line(key):
    with pytest.raises(UserError) as error:
        FalconH1(small(), {key: 2.0})
    assert key in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mixer", ["both", "gdn"])
def test_every_weight_may_be_parametrized(mixer):
    config = small(mixer=mixer, mamba_rms_norm=True)
    model = build(config)
    tokens = tokens_of(config, 9)

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, weight: Tensor) -> Tensor:
            return self.factor * weight

    expected = model(tokens)
    names = list(dict.fromkeys(a.parameter for a in addresses(config)))
    for name in names:
        owner, _, leaf = name.rpartition(".")
        parametrize.register_parametrization(model.get_submodule(owner), leaf, Scaled())
    logits = model(tokens)
    torch.testing.assert_close(logits, expected)
    logits.square().mean().backward()
    factors = [p for n, p in model.named_parameters() if n.endswith(".factor")]
    assert len(factors) == len(names)
    assert all(p.grad is not None and p.grad.isfinite() for p in factors)


def test_inference_first_leaves_training_possible():
    config = small(rope_theta=12345.0)
    model = build(config)
    tokens = tokens_of(config, 17)
    with torch.inference_mode():
        before = model(tokens)
    after = model(tokens)
    after.mean().backward()
    assert torch.equal(before, after.detach())


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_fused_attention_with_shared_keys_is_ours(kv_heads):
    """What GPUs compute, here by torch on the CPU, in float32 with keys that are repeated."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 9, 8, generator=generator)
    k, v = (torch.randn(2, kv_heads, 9, 8, generator=generator) for _ in range(2))
    torch.testing.assert_close(ops._fused(q, k, v, 0.3), ops.attention(q, k, v, 0.3))
