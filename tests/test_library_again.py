"""What strangers met on a second reading of the library: each of these once failed."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from test_library_later import Tied, both, chain, spread
from torch import nn

import lrm
from lrm.errors import UserError
from lrm.optim import mup_param_groups, mup_rescale_


class Decoder(nn.Module):
    """Token embedding, a stack of layers, and a head under ``name``."""

    def __init__(self, name="readout", width=8, vocabulary=50):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.add_module(name, nn.Linear(width, vocabulary, bias=False))
        self.name = name

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return getattr(self, self.name)(x)


@both
def test_a_tied_weight_that_was_assigned_is_merged_once(implementation):
    """Loading by assignment leaves two parameters over one memory."""
    saved, tokens = Tied(), torch.arange(6)
    spread(lrm.attach_multipliers(saved, "scalar", implementation=implementation))
    model = Tied()
    lrm.attach_multipliers(model, "scalar", implementation=implementation)
    model.load_state_dict(copy.deepcopy(saved.state_dict()), assign=True)
    expected = model(tokens).detach()
    lrm.merge_multipliers(model)
    assert torch.allclose(model(tokens), expected, rtol=1e-5)


@both
def test_merging_leaves_a_state_dict_as_it_was(implementation):
    model = chain(4, 5, 3)
    spread(lrm.attach_multipliers(model, implementation=implementation))
    x = torch.randn(2, 4)
    state, expected = model.state_dict(), model(x).detach()
    lrm.merge_multipliers(model)
    other = chain(4, 5, 3)
    lrm.attach_multipliers(other, implementation=implementation)
    other.load_state_dict(state)
    for each in (model, other):
        assert torch.allclose(each(x), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["readout", "unembedding", "output_layer", "generator", "proj"])
def test_a_head_of_any_name_is_a_head(name):
    model = Decoder(name)
    handle = lrm.attach_multipliers(model)
    assert handle.roles[f"{name}.weight"] == "head"
    assert f"{name}.weight" not in handle.effective and "layers.0.weight" in handle.effective
    wrapped = Decoder()
    wrapped.readout = nn.Sequential(nn.RMSNorm(8), wrapped.readout)
    assert lrm.attach_multipliers(wrapped).roles["readout.1.weight"] == "head"


def test_a_layer_of_a_stack_with_the_shape_of_a_head_is_a_matrix():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 4)))
    assert lrm.attach_multipliers(model).roles["1.0.weight"] == "matrix"


def test_roles_for_mup_can_be_said():
    base, model = Decoder("top"), Decoder("top", width=32)
    base.top, model.top = nn.Linear(8, 3), nn.Linear(32, 3)  # of a shape that tells nothing
    groups = mup_param_groups(model, base, 1e-3, 0.0, role={"top.weight": "head"})
    by_id = {id(p): group for group in groups for p in group["params"]}
    assert by_id[id(model.top.weight)]["kind"] == "head"
    before = base.top.weight.square().mean().sqrt()
    mup_rescale_(model, base, role={"top.*": "head"})
    assert torch.isclose(model.top.weight.square().mean().sqrt(), before / 4)
    compiled = torch.compile(model)
    assert len(mup_param_groups(compiled, torch.compile(base), 1e-3, 0.0)) > 1


def test_any_name_of_a_tied_weight_will_do():
    model = Tied()
    handle = lrm.attach_multipliers(model, role={"head.weight": "matrix"})
    assert handle.roles["embedding.weight"] == "matrix"
    [group] = [g for g in lrm.build_param_groups(model, 1e-3, 0.1, no_decay=["head.weight"])
               if g["kind"] == "matrix"]  # fmt: skip
    assert group["weight_decay"] == 0.0


def test_float16_does_not_overflow_where_the_multiplier_is_small():
    model = nn.Sequential(nn.Linear(512, 512, bias=False))
    handle = lrm.attach_multipliers(model, "scalar")
    with torch.no_grad():
        model[0].weight.fill_(500.0)
        for _, _, parameter in handle.named():
            parameter.fill_(1e-3)
    x = torch.ones(8, 512)
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.allclose(model(x).float(), torch.full((8, 512), 256.0), rtol=1e-2)


@pytest.mark.parametrize("placement", ["scalar", "row", "column", "row_column"])
@pytest.mark.parametrize("padding", [None, 3])
def test_an_embedding_scales_what_it_looks_up(placement, padding):
    """Fewer tokens than rows: the same values and gradients as by all of W̄."""
    torch.manual_seed(0)
    table = nn.Embedding(40, 6, padding_idx=padding).double()
    nn.init.normal_(table.weight)
    model = nn.Sequential(table)
    spread(handle := lrm.attach_multipliers(model, {"0.weight": placement}))
    tokens, outer = torch.tensor([[1, 3, 5], [5, 39, 3]]), torch.randn(2, 3, 6).double()

    def grown(found):
        model.zero_grad()
        found.backward(outer)
        return [
            p.grad.clone() for p in (table._parameters["weight"], *(p for *_, p in handle.named()))
        ]

    looked_up = model(tokens)
    whole = F.embedding(tokens, table.weight, padding)
    assert torch.allclose(looked_up, whole, rtol=1e-12)
    for own, other in zip(grown(looked_up), grown(whole), strict=True):
        assert torch.allclose(own, other, rtol=1e-12)
    every = torch.arange(40)
    assert torch.allclose(model(every), table.weight)


def test_what_is_exported_takes_any_number_of_tokens():
    model = Decoder("head", width=16)
    spread(lrm.attach_multipliers(model))
    batch = torch.export.Dim("batch", min=2, max=4096)
    exported = torch.export.export(
        model, (torch.zeros(2, 3, dtype=torch.long),), dynamic_shapes=({0: batch},)
    )
    tokens = torch.randint(50, (700, 3))
    assert torch.allclose(exported.module()(tokens), model(tokens), atol=1e-5)


def test_clipping_where_multipliers_alone_learn():
    model = chain(4, 4)
    lrm.attach_multipliers(model)
    for parameter in model[0]._parameters.values():
        parameter.requires_grad_(False)
    model(torch.randn(2, 4)).sum().backward()
    assert lrm.clip_grad_norm_(model, 1.0) == 0
    other = chain(4, 4)
    other(torch.full((2, 4), torch.inf)).sum().backward()
    with pytest.raises(RuntimeError, match="non-finite"):
        lrm.clip_grad_norm_(other, 1.0, error_if_nonfinite=True)


def test_an_optimizer_that_is_gone_moves_nothing():
    model = chain(4, 4)
    handle = lrm.attach_multipliers(model)
    first = torch.optim.AdamW(lrm.build_param_groups(model, 1e-3, 0.1))
    model(torch.randn(2, 4)).sum().backward()
    first.step()
    del first
    gc.collect()
    multipliers = {id(parameter) for _, _, parameter in handle.named()}
    rest = [p for p in model.parameters() if id(p) not in multipliers]
    second = torch.optim.AdamW(rest, 1e-3)
    with pytest.raises(UserError, match="the optimizer lacks 2 of 3|the optimizer lacks 2 of"):
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
            second.step()


def test_parameters_may_be_swapped():
    """Conversions of ``fully_shard`` swap tensors, which refuse weak references."""
    model = chain(4, 4)
    lrm.attach_multipliers(model)
    groups = lrm.build_param_groups(model, 1e-3, 0.1)
    model(torch.randn(2, 4))
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert model[0]._parameters["weight"].dtype == torch.float64
    torch.optim.AdamW(groups)


def test_a_compiled_model_takes_scale_vectors():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24,
                                      num_hidden_layers=1, num_attention_heads=2)  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    handle = lrm.attach_scale_vectors(torch.compile(model), "hg", lr=1e-3)
    assert handle.model is model


def test_heads_that_nobody_tells_of():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.RMSNorm(8)
            self.wq, self.wk, self.wo = (nn.Linear(8, 8, bias=False) for _ in range(3))

        def forward(self, x):
            x = self.norm(x)
            return self.wq(x) * self.wk(x)

    example = {"x": torch.randn(2, 8)}
    with pytest.raises(UserError, match="wq has 8 outputs, .* give attach_scale_vectors the head_"):
        lrm.attach_scale_vectors(Attention(), "dnp", lr=1e-3, example=example)
    model = Attention()
    lrm.attach_scale_vectors(model, "dnp", lr=1e-3, example=example, head_size=4)
    assert model.wq.norm_behind.size == 4


def test_one_line_where_it_cannot_be():
    lazy = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(UserError, match="no shape yet; pass a batch"):
        lrm.attach_multipliers(lazy, "scalar")
    with torch.inference_mode(), pytest.raises(UserError, match="inference_mode"):
        lrm.attach_multipliers(chain(4, 4))

    class Registered(nn.Linear):
        def __init_subclass__(cls, /, key, **rest):
            super().__init_subclass__(**rest)

    with pytest.raises(UserError, match="Registered cannot have a subclass that reads"):
        lrm.attach_multipliers(nn.Sequential(Registered(4, 4)))
    sparse = nn.Sequential(nn.Linear(4, 4))
    sparse[0].weight = nn.Parameter(torch.eye(4).to_sparse())
    with pytest.raises(UserError, match="0.weight is sparse"):
        lrm.attach_multipliers(sparse)
    with torch.device("meta"):
        away = chain(4, 4)
    with pytest.raises(UserError, match="meta device"):
        lrm.attach_multipliers(away).norms()
    model = chain(4, 4)
    for slip in ({"by_kind": ["matrix"]}, {"no_decay": 3}, {"no_decay": [3]}, {"role": 3}):
        with pytest.raises(UserError, match=next(iter(slip))):
            lrm.build_param_groups(model, 1e-3, 0.1, **slip)


def test_a_copy_of_a_weight_that_is_read():
    model = chain(4, 4)
    spread(lrm.attach_multipliers(model))
    copied = copy.deepcopy(model[0].weight)
    assert copied.is_leaf and copied.requires_grad and torch.equal(copied, model[0].weight)


def test_a_replica_of_data_parallel_says_what_it_is():
    model = chain(4, 4)
    lrm.attach_multipliers(model)
    replica = model[0]._replicate_for_data_parallel()
    with pytest.raises(UserError, match="nn.DataParallel copies modules"):
        replica.weight = torch.ones(4, 4)
