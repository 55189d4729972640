"""``lrm.attach_scale_vectors`` on transformers' decoders: what it places, changes and merges."""

import copy
import types

import pytest
import torch
import transformers
from torch import nn

import lrm
from lrm.errors import UserError

SIZES = {
    "vocab_size": 48, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "pad_token_id": 0,
}  # fmt: skip
BRANCHES = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj",
            "mlp.up_proj"]  # fmt: skip


def decoder(family="Llama", tied=False):
    """A small decoder whose norms have learned something."""
    config = getattr(transformers, f"{family}Config")(**SIZES, tie_word_embeddings=tied)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.rand_like(parameter))
    return model


@pytest.fixture
def tokens():
    return torch.randint(0, 48, (2, 9), generator=torch.Generator().manual_seed(1))


def axes_of(handle):
    return {key: tuple(scaling.multipliers) for key, scaling in handle.scalings.items()}


FAMILIES = ["Llama", "Qwen3", "Gemma2"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("design", ["hg", "ap", "dp"])
@pytest.mark.parametrize("parametrization", ["direct", "or", "er"])
def test_what_is_no_norm_leaves_the_output_and_merges(family, design, parametrization, tokens):
    model = decoder(family)
    before = model(tokens).logits
    handle = lrm.attach_scale_vectors(model, design, lr=1e-3, parametrization=parametrization)
    torch.testing.assert_close(model(tokens).logits, before, rtol=1e-6, atol=1e-7)
    kinds = {"hg": {"column"}, "ap": {"row"}, "dp": {"row", "column"}}[design]
    for layer in range(2):
        for name in BRANCHES:
            axes = set(axes_of(handle)[f"model.layers.{layer}.{name}.weight"])
            assert {axis for axis in axes if "magnitude" not in axis} == kinds
    assert len(handle.scalings) == 11 and "column" in axes_of(handle)["lm_head.weight"]
    _train(model, tokens)
    trained = model(tokens).logits
    assert not torch.allclose(trained, before, rtol=1e-3)
    names = [name for name, _ in decoder(family).named_parameters()]
    merged = lrm.merge_multipliers(model)
    torch.testing.assert_close(merged(tokens).logits, trained, rtol=1e-6, atol=1e-7)
    assert [name for name, _ in merged.named_parameters()] == names


def _train(model, tokens, steps=4):
    optimizer = torch.optim.AdamW(lrm.build_param_groups(model, lr=3e-3, weight_decay=0.1))
    for _ in range(steps):
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()


def decay_by_side(model, groups):
    """Weight decay of the vectors in front of matrices (and of the final norm's) and behind."""
    names = {id(p): name for name, p in model.named_parameters()}
    found: dict[str, set] = {}
    for group in groups:
        for parameter in group["params"] if group["kind"] == "multiplier" else ():
            name = names[id(parameter)]
            behind = "norm_behind" in name or ".row" in name and "norm" not in name
            found.setdefault("output" if behind else "input", set()).add(group["weight_decay"])
    return found


@pytest.mark.parametrize("design", ["hg", "dp", "unified"])
def test_decay_of_either_side_can_be_said(design):
    model = decoder()
    said = {} if design == "hg" else {"output_decay": 0.2}
    if not said:
        with pytest.raises(UserError, match="'hg' has no vectors on outputs; leave it out"):
            lrm.attach_scale_vectors(model, design, lr=1e-3, output_decay=0.2)
    lrm.attach_scale_vectors(model, design, lr=1e-3, input_decay=0.3, **said)
    decays = decay_by_side(model, lrm.build_param_groups(model, lr=1e-3, weight_decay=0.1))
    assert decays == {"input": {0.3}} | ({} if design == "hg" else {"output": {0.2}})


def test_unified(tokens):
    """HG, norms behind the matrices, OR, and decay on input vectors alone."""
    model = decoder()
    handle = lrm.attach_scale_vectors(model, lr=1e-3)
    vector, magnitude = ("column_magnitude", "column"), ("row_magnitude", "row")
    for layer in range(2):
        for name in BRANCHES:
            key = f"model.layers.{layer}.{name}"
            assert axes_of(handle)[f"{key}.weight"] == vector
            assert axes_of(handle)[f"{key}.norm_behind.weight"] == magnitude
    groups = lrm.build_param_groups(model, lr=1e-3, weight_decay=0.1)
    decays = decay_by_side(model, groups)
    assert decays == {"input": {0.1}, "output": {0.0}}
    assert {g["lr"] for g in groups if g["kind"] == "multiplier"} == {1e-3}
    learning = {id(p) for g in groups for p in g["params"]}
    still = [n for n, p in model.named_parameters() if id(p) not in learning]
    assert all("norm" in name for name in still) and len(still) == 5 + 10
    # Per head of q, k and v, over the whole of gate and up.
    layer = model.model.layers[0]
    x = torch.randn(3, 24, dtype=torch.float64)
    for linear, parts in ((layer.self_attn.q_proj, 4), (layer.self_attn.k_proj, 2),
                          (layer.mlp.up_proj, 1)):  # fmt: skip
        square = linear(x).unflatten(-1, (parts, -1)).square().mean(-1)
        torch.testing.assert_close(square, torch.ones_like(square), rtol=1e-2, atol=0)
    before = model(tokens).logits
    assert before.isfinite().all()
    with torch.no_grad():
        handle.parameter("model.layers.0.mlp.up_proj.weight").mul_(3.0)
    torch.testing.assert_close(model(tokens).logits, before, rtol=1e-3, atol=1e-4)
    _train(model, tokens)
    with pytest.raises(UserError, match="'unified' has norms behind matrices"):
        lrm.merge_multipliers(model)
    trained = model(tokens).logits
    torch.testing.assert_close(copy.deepcopy(model)(tokens).logits, trained)
    again = decoder()
    lrm.attach_scale_vectors(again, lr=1e-3)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(tokens).logits, trained)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("design", ["dnp", "unified"])
def test_designs_with_norms_train(family, design, tokens):
    """Every vector and magnitude moves, but those whose gradient a norm behind them takes."""
    model = decoder(family)
    handle = lrm.attach_scale_vectors(model, design, lr=1e-3)
    starts = {name: parameter.detach().clone() for name, _, parameter in handle.named()}
    before = model(tokens, labels=tokens).loss.item()
    _train(model, tokens, steps=8)
    assert model(tokens, labels=tokens).loss.item() < before - 0.05
    for name, _, now in handle.named():
        assert now.isfinite().all()
        still = name.endswith("column_magnitude") and "lm_head" not in name
        assert still or not torch.equal(now, starts[name]), name


def test_norms_that_are_there_stay():
    """Qwen3 normalises q and k itself; Gemma2's norms of sublayers' outputs are left alone."""
    handle = lrm.attach_scale_vectors(decoder("Qwen3"), "dnp", lr=1e-3)
    behind = [key for key in handle.scalings if "norm_behind" in key]
    assert len(behind) == 2 * 3 and not any("q_proj" in key or "k_proj" in key for key in behind)
    model = decoder("Gemma2")
    outputs = [n for n, _ in model.named_parameters()
               if "post_attention_layernorm" in n or "post_feedforward_layernorm" in n]  # fmt: skip
    lrm.attach_scale_vectors(model, "hg", lr=1e-3)
    parameters = dict(model.named_parameters())
    assert len(outputs) == 4 and all(parameters[name].requires_grad for name in outputs)
    frozen = {n for n, p in parameters.items() if not p.requires_grad}
    assert frozen == {"model.norm.weight"} | {
        f"model.layers.{layer}.{name}.weight" for layer in (0, 1)
        for name in ("input_layernorm", "pre_feedforward_layernorm")
    }  # fmt: skip


def test_a_tied_head_leaves_the_last_vector_in_its_norm(tokens):
    model = decoder(tied=True)
    before = model(tokens).logits
    handle = lrm.attach_scale_vectors(model, "hg", lr=1e-3)
    assert model.model.norm.weight.requires_grad and len(handle.scalings) == 10
    torch.testing.assert_close(model(tokens).logits, before, rtol=1e-6, atol=1e-7)


def test_what_cannot_be_is_told_and_leaves_the_model(tokens):
    model = decoder()
    before = {name: p.clone() for name, p in model.named_parameters()}
    negative = copy.deepcopy(model)
    with torch.no_grad():
        negative.model.layers[0].input_layernorm.weight[0] = -1.0
    merged = transformers.Phi3ForCausalLM(transformers.Phi3Config(**SIZES))
    plain = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
    x = {"input": torch.randn(2, 4)}
    for given, design, options, message in [
        (model, "best", {}, "unknown design 'best'; use one of hg, ap, dp, dnp, unified"),
        (model, "hg", {"parametrization": "lag"}, "unknown parametrization 'lag'"),
        (model, "dnp", {"lr": -1.0}, "lr is -1.0"),
        (negative, "hg", {"parametrization": "er"}, "weights of 0 or less, which er cannot hold"),
        (merged, "hg", {}, "merges several matrices"),
        (plain, "hg", {}, "give an example of its arguments"),
        (plain, "hg", {"example": x}, "LayerNorm has a bias"),
        (nn.Sequential(nn.Linear(4, 4)), "hg", {"example": x}, "no norm of Sequential is read"),
    ]:
        with pytest.raises(UserError, match=message):
            lrm.attach_scale_vectors(given, design, **{"lr": 1e-3, **options})
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) and parameter.requires_grad
    assert before.keys() == dict(model.named_parameters()).keys()
    assert not any(module._forward_hooks for module in model.modules())


class Own(nn.Module):
    """An embedding, a norm, and what ``read`` makes of the two with the linear maps."""

    def __init__(self, read, padding=None):
        super().__init__()
        torch.manual_seed(0)
        self.read, self.table = read, nn.Embedding(20, 8, padding_idx=padding)
        self.norm, self.norm_2 = nn.RMSNorm(8), nn.RMSNorm(8)
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)
        self.key, self.value = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.lm_head = nn.Linear(8, 20, bias=False)
        with torch.no_grad():
            self.norm.weight.copy_(torch.linspace(-1.0, 2.0, 8))

    def forward(self, input_ids):
        x = self.table(input_ids)
        return self.lm_head(self.read(self, x, self.norm(x)))


def residual_of_the_norm(self, x, y):
    return y + self.down(torch.tanh(self.up(y)))


def queries_that_are_the_norm(self, x, y):
    return x + torch.softmax(y @ self.key(y).mT, -1) @ self.value(y)


def relu_in_place(self, x, y):
    return x + self.down(torch.tanh(self.up(y.relu_())))


@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize(
    "read", [residual_of_the_norm, queries_that_are_the_norm, relu_in_place]
)  # fmt: skip
def test_tokens_that_differ_and_are_no_padding_show_what_reads_a_norm(read, padding):
    for example in (None, {"input_ids": torch.arange(20).view(4, 5)}):
        model = Own(read, padding)
        refused = pytest.raises(UserError, match="more than linear maps read each norm of Own")
        with refused as told, pytest.warns(UserWarning, match="1 norms keep their vector"):
            lrm.attach_scale_vectors(model, "hg", lr=1e-3, example=example)
        assert "example" not in str(told.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_experts_behind_padding_keep_the_vector_of_their_norm(dtype):
    sizes = {name: n for name, n in SIZES.items() if name != "head_dim"}
    torch.manual_seed(0)
    model = transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
        **sizes, moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=4,
        num_experts_per_tok=2,
    )).eval()  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2.0)
    tokens = torch.arange(1, 33).view(2, 16)
    before = model(tokens).logits
    with pytest.warns(UserWarning, match="2 norms keep their vector"):
        lrm.attach_scale_vectors(model, "hg", lr=1e-3)
    torch.testing.assert_close(model(tokens).logits, before, rtol=1e-4, atol=1e-5)


def test_a_norm_that_gets_zeros_alone_shows_nothing():
    model = Own(residual_of_the_norm, padding=3)
    with pytest.raises(UserError, match="the input of norm is all zeros, .*; give an example"):
        lrm.attach_scale_vectors(model, "hg", lr=1e-3, example={"input_ids": torch.full((2, 2), 3)})


@pytest.mark.parametrize("design", ["hg", "ap", "dp"])
def test_a_weight_that_code_reads_by_itself_leaves_the_model_as_it_was(design):
    def by_hand(self, x, y):
        return x + self.down(torch.tanh(self.up(y)) + nn.functional.linear(x, self.up.weight))

    model, plain = Own(by_hand), Own(by_hand)
    with pytest.raises(UserError, match=f"design '{design}' would change the output of Own"):
        lrm.attach_scale_vectors(model, design, lr=1e-3)
    now, before = dict(model.named_parameters()), dict(plain.named_parameters())
    assert list(model.state_dict()) == list(plain.state_dict())
    assert all(torch.equal(now[name], p) and now[name].requires_grad for name, p in before.items())
    assert type(model.up) is nn.Linear and not model._state_dict_hooks
    assert len(lrm.attach_multipliers(model, "hidden").effective) == 4


@pytest.mark.parametrize("in_place", [False, True])
def test_a_norm_behind_a_residual_is_none_of_the_matrix(in_place):
    def read(self, x, y):
        out = self.value(y)
        if in_place:
            out += x
        else:
            out = out + x
        return out + self.down(self.up(self.norm_2(out)))

    handle = lrm.attach_scale_vectors(Own(read), "dnp", lr=1e-3, head_size=4)
    assert {key for key in handle.scalings if "behind" in key} == {
        "value.norm_behind.weight", "up.norm_behind.weight"
    }  # fmt: skip


def test_a_width_by_another_name_needs_the_size_of_heads():
    model = Own(lambda self, x, y: x + self.down(self.up(y)) + self.key(y))
    model.config = types.SimpleNamespace(num_attention_heads=2)
    with pytest.raises(UserError, match="give attach_scale_vectors the head_size"):
        lrm.attach_scale_vectors(model, "dnp", lr=1e-3)


def test_arguments_that_slip_get_one_line():
    x = torch.randn(2, 4)
    model = nn.Sequential(nn.RMSNorm(4), nn.Linear(4, 4))
    for options, message in [
        ({"design": ["hg"]}, r"unknown design \['hg'\]; use one of"),
        ({"example": x}, "example is tensor.*; give the model's arguments by name"),
        ({"example": [x]}, r"example is \[tensor.*; give the model's arguments by name"),
        ({"example": {"y": x}}, "does not take y .*; have the example name its arguments"),
    ]:
        with pytest.raises(UserError, match=message):
            lrm.attach_scale_vectors(model, **{"design": "hg", "lr": 1e-3, **options})


def test_norms_learn_again_after_loading_others_and_merging(tokens):
    """``assign`` puts other parameters in place of those that were frozen."""
    model, other = decoder("Llama"), decoder("Llama")
    for each in (model, other):
        lrm.attach_scale_vectors(each, "hg", lr=1e-3)
    model.load_state_dict(other.state_dict(), assign=True)
    merged = lrm.merge_multipliers(model)
    assert all(parameter.requires_grad for parameter in merged.parameters())
