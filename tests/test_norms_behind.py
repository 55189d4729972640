"""RMSNorms behind matrices: DNP, QK-norm, output norms of sublayers (scale vectors, 3.2)."""

import numpy as np
import pytest
import torch

from lrm.errors import UserError
from lrm.model.tensors import addresses, matches
from lrm.plan.config import Settings, validate
from lrm.plan.rules import resolve
from lrm.plan.yaml import preset_rules
from lrm.symmetry import derived
from lrm.symmetry.found import SMALL, find
from lrm.train import probes
from lrm.train.learner import build
from lrm.train.step import measure_norms, train_step

DNP = {f"attention.{name}": "head" for name in "qkv"} | {"mlp.gate": "full", "mlp.up": "full"}
GEMMA = {"attention.q": "head", "attention.k": "head", "attention.out": "full",
         "ssm.out": "full", "mlp.down": "full"}  # fmt: skip


@pytest.fixture
def built(settings):
    def make(norms_behind, key_value_heads=1, **sections):
        model = {"norms_behind": norms_behind, "rms_norm_eps": 0.0,
                 "num_key_value_heads": key_value_heads}  # fmt: skip
        config = settings(model=model, **sections)
        return config, build(config, seed=0, dtype=torch.float64)

    return make


@pytest.fixture
def tokens():
    return torch.randint(0, 300, (3, 17), generator=torch.Generator().manual_seed(1))


def test_each_part_of_the_output_has_a_norm_of_one(built, tokens):
    """Per head of q, k and v, over the whole of gate and up, until their weights have learned."""
    _, learner = built(DNP)
    activations = {}
    learner.model(tokens, activations=activations)
    for name, parts in (("attention.q", 2), ("attention.k", 1), ("mlp.up", 1)):
        found = activations[f"norm.{name}@0"].unflatten(-1, (parts, -1))
        square = found.square().mean(-1)
        torch.testing.assert_close(square, torch.ones_like(square), rtol=1e-12, atol=0)
        assert not torch.allclose(activations[f"{name}@0"], activations[f"norm.{name}@0"])


@pytest.mark.parametrize("norms_behind", [DNP, GEMMA], ids=["dnp", "gemma"])
def test_the_function_is_free_of_the_norm_of_what_is_normalised(built, tokens, norms_behind):
    """Head by head for q, k and v, as a whole for the others."""
    _, learner = built(norms_behind, key_value_heads=2)
    before = learner.model(tokens)
    parameters = dict(learner.model.named_parameters())
    sizes = {"attention.q": [0.3, 5.0], "attention.k": [7.0, 0.6], "attention.v": [0.2, 3.0]}
    with torch.no_grad():
        for address in addresses(learner.model.config):
            if address.name in norms_behind:
                scale = torch.tensor(sizes.get(address.name, [2.5]), dtype=torch.float64)
                weight = parameters[address.parameter]
                weight.unflatten(0, (len(scale), -1)).mul_(scale[:, None, None])
    torch.testing.assert_close(learner.model(tokens), before, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("parametrization", ["or", "er"])
def test_magnitude_of_an_input_vector_is_a_null_direction(built, tokens, parametrization):
    """Norm(W(βq ⊙ z)) holds no β (SV15b): its gradient is 0 but for rounding."""
    rule = {"kind": "column", "parametrization": parametrization}
    rules = [{"match": name, "multiplier": rule} for name in ("attention.[qkv]", "mlp.[gu]*")]
    config, learner = built(DNP, rules=rules)
    before = learner.model(tokens)
    _, objective = learner.model(tokens[:, :-1], tokens[:, 1:])
    for name, _, parameter in learner.multipliers.named():
        [gradient] = torch.autograd.grad(objective, parameter, retain_graph=True)
        if name.endswith("column_magnitude"):
            assert abs(gradient.item()) < 1e-15
        else:
            assert gradient.norm() > 1e-6
    assert len(resolve(config)) == len(addresses(config.model))
    with torch.no_grad():
        for name, _, parameter in learner.multipliers.named():
            if name.endswith("column_magnitude"):
                parameter.add_(0.7)
    torch.testing.assert_close(learner.model(tokens), before, rtol=1e-10, atol=1e-11)


def test_rules_and_probes_know_them(built, tokens):
    """By address, as norms, and by the side of the matrix on which they stand."""
    rules = [{"match": "norms.input", "weight_decay": 0.3}, {"match": "norms.output", "lr": 0.07},
             {"match": "norm.mlp.down@1", "weight": "frozen"}]  # fmt: skip
    config, learner = built(GEMMA, rules=rules)
    plans = {plan.key: plan for plan in resolve(config)}
    outputs = {key for key, plan in plans.items() if plan.address.side == "output"}
    assert outputs == {f"norm.{name}@{layer}" for name in GEMMA for layer in (0, 1)}
    inputs = {f"norm.{name}@{layer}" for name in ("mixer", "mlp") for layer in (0, 1)}
    for key, plan in plans.items():
        if plan.address.role != "norm":
            assert plan.address.side is None
        elif key in outputs:
            assert (plan.lr, plan.weight_decay) == (0.07, 0.0)
        else:
            assert key in inputs | {"norm.final"} and plan.weight_decay == 0.3
    assert not plans["norm.mlp.down@1"].trainable and plans["norm.mlp.down@0"].trainable
    train_step(learner, tokens, config, 0)
    views = probes.Views(learner.model, learner.plans, learner.multipliers)
    found = measure_norms(learner, views, tokens, None)
    assert outputs <= found["effective_norm"].keys() & found["activation_norm"].keys()
    assert found["effective_norm"]["norm.mlp.down@1"] == 1.0 != found["effective_norm"][
        "norm.mlp.down@0"
    ]  # fmt: skip


@pytest.mark.parametrize("norms_behind", [DNP, GEMMA], ids=["dnp", "gemma"])
@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_gradients_are_those_of_plain_operations(built, tokens, norms_behind, implementation):
    """Against finite differences of the loss, in float64, at weights of norms away from 1."""
    config, learner = built(norms_behind, train={"multiplier_implementation": implementation})
    names = [f"norm.{name}@1" for name in norms_behind] + ["attention.q@1"]
    parameters = dict(learner.model.named_parameters())
    own = {a.key: parameters[a.parameter] for a in addresses(config.model) if a.key in names}
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for each in own.values():
            each.mul_(1 + 0.3 * torch.rand(each.shape, generator=generator, dtype=each.dtype))

    def objective():
        return learner.model(tokens[:, :-1], tokens[:, 1:])[1]

    gradients = torch.autograd.grad(objective(), list(own.values()))
    for key, parameter, gradient in zip(own, own.values(), gradients, strict=True):
        step = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 1e-5
        values = []
        with torch.no_grad():
            for sign in (1, -2):
                parameter.add_(sign * step)
                values.append(objective().item())
            parameter.add_(step)
        slope = (values[0] - values[1]) / 2
        assert slope == pytest.approx((gradient * step).sum().item(), rel=1e-5, abs=1e-14), key


@pytest.mark.parametrize("norms_behind", [DNP, GEMMA, {"attention.v": "full", "ssm.out": "full"}])
def test_symmetries_as_derived(norms_behind):
    """What a norm takes in may change its scale; its weights take the matrix's place."""
    model = SMALL.model_copy(update={"num_hidden_layers": 1, "norms_behind": norms_behind})
    config = validate(Settings, {"model": model.model_dump(),
                                 "rules": preset_rules("placement/all")}, "the test")  # fmt: skip
    found, plans = find(config), resolve(config)
    basis = derived.symmetries(plans, model)
    assert found.null < 1e-10 < 1e-6 < found.other
    assert len(found.basis) == len(basis)
    np.testing.assert_allclose(found.basis.T @ found.basis, basis.T @ basis, atol=1e-7)
    assert derived.count(plans, model)["normalised"] > 0


@pytest.mark.parametrize(
    ("norms_behind", "message"),
    [
        ({"ssm.dt": "full"}, "norms_behind.ssm.dt: an RMSNorm may stand behind attention.q, "),
        ({"mlp.up": "head"}, "norms_behind.mlp.up = head: its output has no heads; write full"),
        ({"mlp.up": "half"}, "norms_behind.mlp.up"),
    ],
)
def test_what_cannot_be_is_one_line(settings, norms_behind, message):
    with pytest.raises(UserError, match=message) as error:
        settings(model={"norms_behind": norms_behind})
    assert "\n" not in str(error.value)


def test_a_model_without_them_is_what_it_was(settings):
    config = settings()
    assert not any(matches("norm.*.*", address) for address in addresses(config.model))
    with pytest.raises(UserError, match="'norms.output' matches nothing in this model"):
        resolve(settings(rules=[{"match": "norms.output", "lr": 1.0}]))


LLAMA = {"mixer": "attention", "hidden_size": 24, "intermediate_size": 64, "rope_theta": 1.0e4,
         "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8}  # fmt: skip


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma2"])
def test_transformers_blocks_compute_the_same(settings, family):
    """A Llama block is attention alone; Qwen3 adds QK-norm, Gemma2 norms of sublayers' outputs.

    Logits and gradients are those of transformers.

    Gemma2 has other constants and activations too: of it the two norms of outputs are compared.
    """
    import transformers

    behind = {"Qwen3": {"attention.q": "head", "attention.k": "head"}}.get(family, {})
    config = settings(model=LLAMA | {"norms_behind": behind}).model
    learner = build(settings(model=LLAMA | {"norms_behind": behind}), seed=0, dtype=torch.float64)
    if family == "Gemma2":
        norm = transformers.models.gemma2.modeling_gemma2.Gemma2RMSNorm(24, config.rms_norm_eps)
        ours = build(settings(model=LLAMA | {"norms_behind": {"mlp.down": "full"}}), 0)
        own = ours.model.model.layers[0].feed_forward.down_norm
        x = torch.randn(5, 24)
        with torch.no_grad():
            own.weight.copy_(1 + norm.weight.normal_(0.0, 0.3))
        torch.testing.assert_close(own(x), norm(x))
        return
    theirs = getattr(transformers, f"{family}Config")(
        vocab_size=config.vocab_size, hidden_size=24, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=3, head_dim=8, rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": 1.0e4}, tie_word_embeddings=False,
        attention_dropout=0.0, attn_implementation="eager",
    )  # fmt: skip
    model = getattr(transformers, f"{family}ForCausalLM")(theirs).double()
    names = {"feed_forward": "mlp", "pre_ff_layernorm": "post_attention_layernorm",
             "final_layernorm": "norm"}  # fmt: skip
    generator, state = torch.Generator().manual_seed(0), {}
    with torch.no_grad():
        for name, parameter in learner.model.named_parameters():
            if parameter.dim() == 1:
                rows = 8 if "q_norm" in name or "k_norm" in name else len(parameter)
                drawn = 1 + 0.3 * torch.rand(rows, generator=generator, dtype=torch.float64)
                # Theirs is one weight for all heads, ours has one for every channel.
                parameter.copy_(drawn.repeat(len(parameter) // rows))
                state[_renamed(name, names)] = drawn
            else:
                state[_renamed(name, names)] = parameter.detach().clone()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("inv_freq" in name for name in missing)
    tokens = torch.randint(0, 300, (2, 13), generator=generator)
    ours, logits = learner.model(tokens), model(tokens).logits
    torch.testing.assert_close(ours, logits, rtol=1e-6, atol=1e-6)

    pulled = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    ours.backward(pulled)
    logits.backward(pulled)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert len(gradients) == len(list(learner.model.parameters()))
    for name, parameter in learner.model.named_parameters():
        gradient = gradients[_renamed(name, names)]
        # Over heads gradients of one weight add up.
        own = parameter.grad.view(-1, *gradient.shape).sum(0)
        # Transformers' norms compute in float32.
        assert (own - gradient).norm() < 1e-5 * gradient.norm(), name


def _renamed(name, names):
    return ".".join(names.get(part, part) for part in name.split("."))
