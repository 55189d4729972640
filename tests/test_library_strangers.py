"""Uses of ``lrm`` that a stranger tried and found wrong: each is right now, or one line says so."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.nn.utils import prune

import lrm
from lrm.errors import UserError
from lrm.exchange import measure_checkpoint
from lrm.optim import SteepestDescent


def llama(**more) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
            num_attention_heads=2, **more,
        )
    ).eval()  # fmt: skip


def linear(kind: str = "row") -> nn.Linear:
    torch.manual_seed(0)
    module = nn.Linear(4, 3)
    lrm.attach_multipliers(module, {"weight": kind})
    return module


def raw(module: nn.Module) -> nn.Parameter:
    """W, where ``module.weight`` gives W̄."""
    return module._parameters["weight"]


def test_a_backward_pass_behind_the_block_is_told():
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    lrm.attach_multipliers(model, "hidden", implementation="optimizer")
    optimizer = torch.optim.SGD(lrm.build_param_groups(model, 0.1, 0.0))
    x = torch.randn(9, 4)
    for late in (True, False, True):
        with lrm.same_weights(model):
            loss = model(x).square().mean()
            if not late:
                loss.backward()
        if not late:
            optimizer.step()
            optimizer.zero_grad()
            continue
        loss.backward()
        with (
            pytest.raises(UserError, match=r"backward\(\) ran behind lrm.same_weights"),
            lrm.same_weights(model),
        ):
            pass
        model.zero_grad()
    # At the first step of an optimizer too, without another block.
    other = torch.optim.SGD(lrm.build_param_groups(model, 0.1, 0.0))
    with lrm.same_weights(model):
        loss = model(x).square().mean()
    loss.backward()
    with pytest.raises(UserError, match=r"backward\(\) ran behind lrm.same_weights"):
        other.step()


def test_validation_in_inference_mode_leaves_training_as_it_was():
    model = nn.Sequential(nn.Linear(4, 3))
    lrm.attach_multipliers(model, "hidden", implementation="optimizer")
    optimizer = torch.optim.SGD(lrm.build_param_groups(model, 0.1, 0.0))
    x = torch.randn(8, 4)
    with torch.inference_mode(), lrm.same_weights(model):
        model(x)
    for _ in range(2):
        before = raw(model[0]).detach().clone()
        with lrm.same_weights(model):
            model(x).sum().backward()
        optimizer.step()
        assert not torch.equal(raw(model[0]), before)
    with torch.inference_mode(), lrm.same_weights(model):
        assert torch.equal(model(x), F.linear(x, model[0].weight, model[0].bias))


def test_hooks_on_the_weight_see_the_gradient_of_w():
    module = nn.Embedding(5, 4)
    lrm.attach_multipliers(module, {"weight": "row_column"})
    seen, mask = [], torch.tensor([[0.0], [0], [0], [1], [1]])

    def masked(gradient):
        seen.append(1)
        return gradient * mask

    module.weight.register_hook(masked)
    module(torch.arange(5)).sum().backward()
    assert len(seen) == 1 and not raw(module).grad[:3].any() and raw(module).grad[3:].any()
    module.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p))
    module(torch.arange(5)).sum().backward()
    assert seen[-1] is raw(module)


def test_copies_of_the_values_do_not_touch_the_parameter():
    module = linear()
    kept = module.weight.detach()
    kept.requires_grad_()
    assert kept.requires_grad and raw(module).requires_grad
    module.weight.requires_grad_(False)
    assert not raw(module).requires_grad
    fresh = module.weight.detach().requires_grad_()
    assert fresh.requires_grad and not raw(module).requires_grad
    for use in (
        lambda: nn.Parameter(module.weight.detach()),
        lambda: nn.Embedding.from_pretrained(module.weight),
    ):
        with pytest.raises(UserError, match=r"no parameter for another module; give it a copy"):
            use()
    new = nn.Parameter(module.weight.detach().clone())
    assert type(new) is nn.Parameter and new.requires_grad


def test_every_write_reaches_w_or_is_refused():
    first, second = linear(), linear()
    before = second.weight.detach().clone()
    with torch.no_grad():
        torch._foreach_mul_([first.weight, second.weight], 0.5)
        assert torch.equal(first.weight, 0.5 * before) and torch.equal(second.weight, 0.5 * before)
        F.relu(first.weight, inplace=True)
        assert first.weight.min() == 0
    with pytest.raises(ValueError, match="read-only"):
        first.weight.data.numpy()[...] = 0
    with pytest.raises(UserError, match="is written while it is read"):
        lrm.attach_multipliers(nn.Embedding(3, 4, max_norm=1.0), {"weight": "row"})


def test_values_that_were_read_before_a_step_are_not_written_over_it():
    module = linear("scalar")
    kept = module.weight.data
    kept.mul_(0.5).add_(1.0)  # several writes to what was read once
    assert torch.allclose(module.weight, kept)
    optimizer = torch.optim.SGD(lrm.build_param_groups(module, 0.1, 0.0))
    module(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    with pytest.raises(UserError, match="was read before its weight or multipliers changed"):
        kept.clamp_(-0.1, 0.1)
    module.weight.data.clamp_(-0.1, 0.1)
    assert module.weight.abs().max() <= 0.1 + 1e-6


def test_a_weight_that_others_share_is_multiplied_for_all_or_not_at_all():
    model = llama(tie_word_embeddings=True)
    lrm.attach_multipliers(model.model)
    for call in (
        lambda: lrm.build_param_groups(model, 1e-3, 0.1),
        lambda: lrm.merge_multipliers(model),
        lambda: lrm.same_weights(model).__enter__(),
        lambda: lrm.effective_weights(model),
    ):
        with pytest.raises(UserError, match="lm_head.weight is the weight .* attach to the whole"):
            call()


def test_copies_are_watched_too():
    base = nn.Sequential(nn.Linear(4, 3))
    lrm.attach_multipliers(base, "hidden")
    for model in (copy.deepcopy(base), pickle.loads(pickle.dumps(base))):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model(torch.randn(2, 4)).sum().backward()
        with pytest.raises(UserError, match="multipliers and weights in one group"):
            optimizer.step()


def test_layers_that_were_copied_and_parts_of_a_model_are_told():
    model = nn.ModuleDict({"net": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))})
    lrm.attach_multipliers(model, "hidden")
    model["net"](torch.randn(2, 4)).sum().backward()
    for call in (
        lambda part: lrm.clip_grad_norm_(part, 1.0),
        lrm.effective_weights,
        lambda part: lrm.build_param_groups(part, 1e-3, 0.1),
    ):
        with pytest.raises(UserError, match="Sequential is part of the model that has the mult"):
            call(model["net"])
    model["net"].append(copy.deepcopy(model["net"][1]))
    for call in (lrm.merge_multipliers, lambda m: lrm.build_param_groups(m, 1e-3, 0.1)):
        with pytest.raises(UserError, match="net.2 is a copy of a layer that has multipliers"):
            call(model)
    assert len(lrm.effective_weights(nn.ModuleDict({"a": attached(), "b": attached()}))) == 2


def attached() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3))
    lrm.attach_multipliers(model, "hidden")
    return model


def test_patterns_of_no_decay_reach_multipliers():
    model = attached()
    decays = {
        (group["kind"], group["weight_decay"])
        for group in lrm.build_param_groups(model, 1e-3, 0.1, no_decay="*multipliers*")
    }
    assert decays == {("multiplier", 0.0), ("matrix", 0.1), ("vector", 0.0)}


def test_meta_models_get_their_multipliers_with_their_memory():
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(5, 4))
    handle = lrm.attach_multipliers(model)
    model.to_empty(device="cpu")
    assert all((parameter == 1).all() for _, _, parameter in handle.named())


def test_models_on_the_meta_device_run_and_have_gradients():
    with torch.device("meta"):
        model, x = nn.Sequential(nn.Linear(4, 6)), torch.randn(5, 4)
    lrm.attach_multipliers(model)
    model(x).sum().backward()
    assert raw(model[0]).grad.shape == (6, 4)


def test_merging_in_inference_mode_is_refused():
    model = linear()
    with torch.inference_mode(), pytest.raises(UserError, match="merge_multipliers within torch.i"):
        lrm.merge_multipliers(model)
    assert lrm.effective_weights(model)
    lrm.merge_multipliers(model)(torch.randn(2, 4)).sum().backward()
    with torch.inference_mode():
        assert lrm.merge_multipliers(model) is model


def test_roles_of_two_models_and_of_shared_embeddings():
    pair = nn.ModuleDict({"student": llama(), "teacher": llama()})
    found = lrm.attach_multipliers(pair).roles
    assert found["student.lm_head.weight"] == found["teacher.lm_head.weight"] == "head"
    shared = nn.ModuleDict({"enc": nn.Embedding(9, 4), "dec": nn.Embedding(9, 4)})
    shared["dec"].weight = shared["enc"].weight
    shared["lm_head"] = nn.Linear(4, 9)
    assert lrm.attach_multipliers(shared).roles["enc.weight"] == "embedding"
    pruned = nn.Sequential(nn.Linear(4, 6))
    prune.l1_unstructured(pruned[0], "weight", 0.5)
    assert lrm.attach_multipliers(pruned, "hidden").roles["0.weight_orig"] == "matrix"


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.q = nn.RMSNorm(4), nn.Linear(4, 4)
        self.m, self.k = nn.RMSNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.n(x)
        return x + self.q(x) + self.k(input=self.m(x))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.m, self.q = nn.RMSNorm(4), nn.RMSNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        return self.q(self.m(x + self.q(self.n(x))))


def test_scale_vectors_leave_the_output_as_it_was():
    model, x = Residual(), torch.randn(3, 4)
    with torch.no_grad():
        model.n.weight.uniform_(0.5, 2)
        model.m.weight.uniform_(0.5, 2)
    model.k.eval()
    before = model(x)
    with pytest.warns(UserWarning, match="1 norms keep their vector.*; the first is n"):
        handle = lrm.attach_scale_vectors(model, "hg", lr=1e-3, example={"x": x})
    assert list(handle.effective) == ["k.weight"] and not model.k.training and model.q.training
    assert torch.allclose(model(x), before, atol=1e-6)
    with pytest.raises(UserError, match="q reads two norms"):
        lrm.attach_scale_vectors(Twice(), "hg", lr=1e-3, example={"x": x})
    for call in (
        lambda: lrm.attach_scale_vectors(model, "hg", lr=1e-3, example={"x": x}),
        lambda: lrm.attach_multipliers(model),
    ):
        with pytest.raises(UserError, match="has multipliers already"):
            call()


def test_experts_keep_the_vector_of_their_norm():
    torch.manual_seed(0)
    config = transformers.Qwen2MoeConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
    )  # fmt: skip
    model, ids = transformers.Qwen2MoeForCausalLM(config).eval(), torch.arange(10).view(2, 5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.uniform_(0.5, 2) if "norm" in name else parameter.mul_(5)
        before = model(ids).logits
        with pytest.warns(UserWarning, match="the first is model.layers.0.post_attention_layern"):
            lrm.attach_scale_vectors(model, "hg", lr=1e-3)
        assert torch.allclose(model(ids).logits, before, rtol=1e-4, atol=1e-5)


def test_merging_scale_vectors_lets_norms_learn_again():
    model = llama()
    lrm.attach_scale_vectors(model, "hg", lr=1e-3)
    with pytest.raises(UserError, match=r"made by lrm.attach_scale_vectors\(model, 'hg', lr"):
        lrm.saved_placement(model.state_dict())
    lrm.merge_multipliers(model)
    assert all(parameter.requires_grad for parameter in model.parameters())
    with torch.device("meta"), pytest.raises(UserError, match="on the meta device"):
        lrm.attach_scale_vectors(llama(), "hg", lr=1e-3)


def test_models_that_were_compiled_before():
    inner = nn.Sequential(nn.Linear(4, 4))
    model = torch.compile(inner, backend="eager")
    lrm.attach_multipliers(model, "hidden")
    groups = lrm.build_param_groups(model, 1e-3, 0.1)
    assert "multiplier" in {group["kind"] for group in groups}
    assert any("multipliers" in name for name in model.state_dict())
    lrm.merge_multipliers(model)
    lrm.attach_multipliers(model, "hidden")


def test_a_wrapper_that_passes_attributes_on_is_attached_whole():
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.top = inner, nn.Linear(4, 2)

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner"), name)

    inner = nn.Sequential(nn.Linear(4, 4))
    handle = lrm.attach_multipliers(Wrapper(torch.compile(inner, backend="eager")), "hidden")
    assert set(handle.effective) == {"inner._orig_mod.0.weight", "top.weight"}


def test_weights_may_be_tied_again_after_loading_by_assignment():
    source = llama(tie_word_embeddings=True)
    lrm.attach_multipliers(source)
    state = source.state_dict()
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(source.config)
    lrm.attach_multipliers(model, **lrm.saved_placement(state))
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    inner = model.model.embed_tokens
    assert raw(inner) is model.lm_head._parameters["weight"] and not raw(inner).is_meta


def test_steepest_descent_is_copied_scheduled_and_not_grown():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    optimizer = SteepestDescent(model, 0.1)
    for again, own in (
        copy.deepcopy((model, optimizer)),
        pickle.loads(pickle.dumps((model, optimizer))),
    ):
        before = again[0].weight.detach().clone()
        again(torch.randn(2, 4)).square().sum().backward()
        own.step()
        assert not torch.equal(again[0].weight, before)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    with pytest.raises(UserError, match="this group has no direction"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3, 3))]})


def test_arguments_of_another_type_are_named():
    def attach(**settings):
        lrm.attach_multipliers(nn.Linear(4, 3), **{"placement": {"weight": "row"}, **settings})

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.logit_scale = nn.Parameter(torch.tensor(2.0))

    class Counted(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(4, 3))
            self.weight = nn.Parameter(torch.ones(3, 3))

    for match, call in {
        "row is 'log'; give a mapping": lambda: attach(row="log"),
        "column is 0.003; give a mapping": lambda: attach(column=3e-3),
        "role is 'matrix'; give a mapping": lambda: attach(role="matrix"),
        r"is no list of \(start, stop, kind\)": lambda: attach(placement={"weight": [(0, 2)]}),
        "weight: .* is no list of": lambda: attach(placement={"weight": [0, 2, "row"]}),
        "by_kind: 'embedding' may be one of": lambda: lrm.build_param_groups(
            nn.Linear(4, 3), 1e-3, 0.1, by_kind={"embedding": 3e-3}
        ),
        "has no dimensions": lambda: lrm.attach_multipliers(Scale(), {"logit_scale": "scalar"}),
        "counts its children": lambda: lrm.attach_multipliers(Counted(), {"weight": "row"}),
        "is complex": lambda: lrm.attach_multipliers(
            nn.Linear(4, 3, dtype=torch.complex64), {"weight": "row"}
        ),
    }.items():
        with pytest.raises(UserError, match=match):
            call()
    empty = nn.Linear(0, 3)
    lrm.attach_multipliers(empty, {"weight": "row"})
    assert torch.equal(empty(torch.randn(2, 0)), empty.bias.expand(2, 3))


def test_checkpoints_are_probed_by_what_they_compute(tmp_path):
    model = llama()
    lrm.attach_multipliers(model, "scalar")
    model.save_pretrained(tmp_path / "with")
    with pytest.raises(UserError, match="holds multipliers beside its weights; merge them"):
        measure_checkpoint.norms(tmp_path / "with")
    config = transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    table = measure_checkpoint.norms(tmp_path / "gpt2")
    found = table[table["tensor"].str.contains("c_attn")]
    assert {row["stat"]: len(row["value"]) for _, row in found.iterrows()} == {
        "row_norms": 48, "column_norms": 16,
    }  # fmt: skip
