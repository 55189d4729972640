"""What strangers met on a fourth reading of the library: each of these once failed."""

import copy
import io

import pytest
import torch
from test_library_later import both, spread
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jvp, vmap

import lrm
from lrm.errors import UserError
from lrm.multipliers.roles import roles
from lrm.optim import SteepestDescent


class ByHand(nn.Module):
    """A weight that is not the second argument of a linear map."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.W = nn.Parameter(torch.randn(6, 8, dtype=torch.float64))

    def forward(self, x):
        return torch.tanh(x @ self.W.T) + self.W[0, 0] * (self.W @ x.mean(0))


@both
def test_transforms_of_models_that_use_their_weight_in_other_ways(implementation):
    """Views of W̄ have no storage to ask for under a transform."""
    model = ByHand()
    spread(lrm.attach_multipliers(model, implementation=implementation))
    plain = lrm.merge_multipliers(copy.deepcopy(model))
    x = torch.randn(5, 8, dtype=torch.float64)

    def results(asked):
        weight = asked.W  # read outside of the transform
        return (
            grad(lambda z: asked(z).sum())(x),
            *jvp(asked, (x,), (x.cos(),)),
            jacfwd(asked)(x),
            hessian(lambda z: asked(z).square().sum())(x[:1]),
            vmap(lambda v: asked.W @ v)(x),
            vmap(lambda v: weight @ v)(x),
            vmap(lambda v: weight[0] * v)(x),
        )

    for found, expected in zip(results(model), results(plain), strict=True):
        torch.testing.assert_close(found, expected)


@both
def test_functional_call_with_multipliers_alone(implementation):
    model = ByHand()
    spread(lrm.attach_multipliers(model, implementation=implementation))
    x = torch.randn(5, 8, dtype=torch.float64)
    own = {n: p.detach() for n, p in model.named_parameters() if "multipliers" in n}
    found = grad(lambda given: functional_call(model, given, (x,)).square().sum())(own)
    model(x).square().sum().backward()
    assert len(found) == 2
    for name, value in found.items():
        torch.testing.assert_close(value, model.get_parameter(name).grad)


@both
def test_a_rollback_by_assign_is_told_at_any_step(implementation):
    """The optimizer would go on moving what the model does not have any more."""
    model = nn.Sequential(nn.Linear(8, 4))
    lrm.attach_multipliers(model, "scalar", implementation=implementation)
    optimizer = torch.optim.AdamW(lrm.build_param_groups(model, lr=1e-2, weight_decay=0.1))

    def step():
        model(torch.randn(5, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    state = copy.deepcopy(model.state_dict())
    for _ in range(3):
        step()
    model.load_state_dict(state, assign=True)
    with pytest.raises(UserError, match="before others took their place"):
        step()


def test_the_older_norms_of_weights_leave_nothing_to_multiply():
    """A multiplier of what is divided by its norm is divided out."""
    torch.manual_seed(0)
    model = nn.Sequential(
        torch.nn.utils.spectral_norm(nn.Linear(8, 8)),
        nn.Linear(8, 8),
        nn.Bilinear(3, 3, 3),
    )
    with pytest.warns(FutureWarning):
        model.append(torch.nn.utils.weight_norm(nn.Linear(8, 8)))
    with pytest.raises(UserError, match="0.weight_orig has a norm divided out"):
        lrm.attach_multipliers(model, {"0.weight_orig": "scalar"})
    handle = lrm.attach_multipliers(model, "scalar")
    assert list(handle.effective) == ["1.weight"]
    assert "3 of several rows and columns in bilinear forms or under parametriza" in str(handle)
    kinds = {name: role for name, role in handle.roles.items() if "bias" not in name}
    assert kinds == {"0.weight_orig": "vector", "1.weight": "matrix", "2.weight": "vector",
                     "3.weight_g": "vector", "3.weight_v": "vector"}  # fmt: skip


class Embedding(nn.Module):
    def __init__(self, tokens=50, width=16):
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)


class Head(nn.Module):
    def __init__(self, tokens=50, width=16):
        super().__init__()
        self.proj = nn.Linear(width, tokens, bias=False)


class Model(nn.Module):
    """Its feed-forward layers have the shape of the embedding too."""

    def __init__(self, tokens=50, width=16):
        super().__init__()
        self.before = nn.Linear(width, width)
        self.embedding = Embedding(tokens, width)
        layers = [nn.Sequential(nn.Linear(width, tokens), nn.Linear(tokens, width))] * 2
        self.layers = nn.ModuleList(copy.deepcopy(layers))
        self.out = nn.Linear(width, tokens)


def heads(model):
    return [name for name, role in roles(model).items() if role == "head"]


def test_heads_in_numbered_containers():
    """A number in the path is that of a layer where its neighbours are of the same class."""
    assert heads(nn.Sequential(Embedding(), Head())) == ["1.proj.weight"]
    assert heads(nn.Sequential(Embedding(), nn.Linear(16, 16), nn.Linear(16, 50))) == ["2.weight"]
    assert heads(Model()) == ["out.weight"]
    assert heads(nn.ModuleList([Model(), Model()])) == ["0.out.weight", "1.out.weight"]


def test_one_head_where_the_width_is_the_number_of_tokens():
    """Every square map has the embedding's shape then: the last one is the head, and is told."""
    model = Model(16, 16)
    assert heads(model) == ["out.weight"]
    told = "1 taken for LM heads by their shape alone"
    assert told in str(lrm.attach_multipliers(model))
    model = Model(16, 16)
    model.lm_head, model.last = nn.Linear(16, 16), nn.Linear(16, 16)
    assert heads(model) == ["lm_head.weight"]
    assert told not in str(lrm.attach_multipliers(model))


@pytest.mark.parametrize("name", ["pos_emb", "pe", "posEmbed", "position_embedding"])
def test_positions_in_a_module_of_their_own(name):
    model = Model()
    model.add_module(name, nn.ModuleDict({"emb": nn.Embedding(64, 16)}))
    model.add_module("pose", nn.ModuleDict({"emb": nn.Embedding(64, 16)}))
    assert roles(model)[f"{name}.emb.weight"] == "vector"
    assert roles(model)["pose.emb.weight"] == "embedding"


def test_registering_another_parameter_is_refused():
    model = nn.Sequential(nn.Linear(8, 16))
    lrm.attach_multipliers(model, "scalar")
    with pytest.raises(UserError, match="Linear.weight has multipliers and cannot be replaced"):
        model[0].register_parameter("weight", nn.Parameter(torch.ones(16, 8)))


@both
def test_the_handle_of_a_copy(implementation):
    model = nn.Sequential(nn.Linear(8, 16))
    with pytest.raises(UserError, match="Sequential has no multipliers; attach some"):
        lrm.attached_multipliers(model)
    handle = lrm.attach_multipliers(model, "scalar", implementation=implementation)
    assert lrm.attached_multipliers(model) is handle
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        own = lrm.attached_multipliers(other)
        assert own is not handle and own.model is other and own.norms() == handle.norms()
    lrm.merge_multipliers(model)
    with pytest.raises(UserError, match="has no multipliers"):
        lrm.attached_multipliers(model)
    two = nn.ModuleList([copy.deepcopy(other), other])
    with pytest.raises(UserError, match="2 parts of this model have multipliers each"):
        lrm.attached_multipliers(two)
    with pytest.raises(UserError, match=r"part of the model .* call lrm.attached_multipliers on"):
        lrm.attached_multipliers(other[0])


def test_a_frozen_model_builds_no_graph_with_same_weights():
    model = nn.Sequential(nn.Linear(8, 4))
    lrm.attach_multipliers(model, implementation="optimizer")
    for learns in (False, True, False):
        model.requires_grad_(learns)
        with lrm.same_weights(model):
            assert model(torch.randn(2, 8)).requires_grad == learns


def test_steepest_descent_names_what_fits_a_convolution():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 4))
    with pytest.raises(UserError, match=r"such as kind=\{'0.weight': 'none'\}; 'none' leaves"):
        SteepestDescent(model, lr=0.02)


class Layer(nn.Module):
    """Its first map has the shape of the embedding, as in models of bytes."""

    def __init__(self, tokens=50, width=16):
        super().__init__()
        self.up, self.down = nn.Linear(width, tokens), nn.Linear(tokens, width)


class Other(Layer):
    """A second class in a stack."""


class WithTable(Layer):
    """A layer with values for each token."""

    def __init__(self):
        super().__init__()
        self.values = nn.Embedding(50, 16)


STACKS = {
    "named by numbers": lambda: nn.ModuleDict({"0": Layer(), "1": Layer()}),
    "two classes": lambda: nn.ModuleList([Layer(), Other()]),
    "one of a class first": lambda: nn.ModuleList([Other(), Layer(), Layer()]),
    "in order, two classes": lambda: nn.Sequential(nn.Dropout(), Layer()),
    "with a table before it": lambda: nn.Sequential(Embedding(), Layer()),
    "with tables in layers": lambda: nn.ModuleList([WithTable(), WithTable()]),
    "a layer compiled": lambda: nn.ModuleList([torch.compile(Layer()), Layer()]),
    "one": lambda: nn.ModuleList([Layer()]),
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_layers_of_any_stack_hold_no_heads(stack):
    model = Model()
    model.layers = stack()
    assert heads(model) == ["out.weight"]


def test_several_heads_in_a_list():
    model = Model()
    model.out = nn.ModuleList([nn.Linear(16, 50), nn.Linear(16, 50)])
    assert heads(model) == ["out.0.weight", "out.1.weight"]


def test_a_tied_head_leaves_no_other_of_its_shape():
    model = Model(16, 16)
    model.out.weight = model.embedding.tokens.weight
    model.pooler = nn.Linear(16, 16)
    assert heads(model) == [] and roles(model)["embedding.tokens.weight"] == "tied"


def test_presets_leave_a_normed_embedding_out():
    model = nn.ModuleDict({"l": nn.Linear(8, 8)})
    model["y"] = torch.nn.utils.spectral_norm(nn.Embedding(10, 8))
    assert list(lrm.attach_multipliers(model, "scalar").effective) == ["l.weight"]


@both
def test_what_thaws_within_same_weights_learns(implementation):
    """As a critic between the generator's loss and its own; what was frozen adds nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 1))
    lrm.attach_multipliers(model, implementation=implementation)
    alone = copy.deepcopy(model)
    x = torch.randn(5, 8)
    with lrm.same_weights(model):
        model.requires_grad_(False)
        model(x.clone().requires_grad_()).sum().backward()
        model.requires_grad_(True)
        model(x).square().sum().backward()
    alone(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, alone.get_parameter(name).grad)


def test_writes_within_a_transform_are_refused():
    model = nn.Sequential(nn.Linear(8, 4))
    lrm.attach_multipliers(model)
    with (
        torch.autograd.forward_ad.dual_level(),
        torch.no_grad(),
        pytest.raises(UserError, match="cannot be written within a transform"),
    ):
        model[0].weight.zero_()
    shallow = copy.copy(model)
    with pytest.raises(UserError, match="shallow copy"):
        lrm.attached_multipliers(shallow)
