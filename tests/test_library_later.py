"""What happens to an attached model later: layers that go, weights that part, tools that come."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

import lrm
from lrm.errors import UserError

both = pytest.mark.parametrize("implementation", ["forward", "optimizer"])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def spread(handle):
    """Multipliers that are not 1."""
    torch.manual_seed(1)
    for _, _, parameter in handle.named():
        parameter.data.uniform_(0.5, 2.0)
    return handle


def chain(*sizes):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(*pair) for pair in zip(sizes, sizes[1:], strict=False)))


@both
def test_weights_that_came_apart_are_merged_each(implementation):
    """``to_empty`` and loading by assignment give each owner of a tied weight its own."""
    saved = Tied()
    spread(lrm.attach_multipliers(saved, implementation=implementation))
    state, tokens = saved.state_dict(), torch.arange(6)
    with torch.device("meta"):
        model = Tied()
    lrm.attach_multipliers(
        model, implementation=implementation, **lrm.saved_placement(saved.state_dict())
    )
    model.to_empty(device="cpu")
    model.load_state_dict(state)
    expected = saved(tokens)
    assert model._modules["head"]._parameters["weight"] is not model.embedding._parameters["weight"]
    assert torch.allclose(model(tokens), expected)
    lrm.merge_multipliers(model)
    assert torch.allclose(model(tokens), expected, rtol=1e-5)


def test_a_weight_that_two_parts_share_is_multiplied_once():
    model = nn.Sequential(chain(4, 4), chain(4, 4))
    model[1][0].weight = model[0][0].weight
    lrm.attach_multipliers(model[0], "hidden")
    with pytest.raises(UserError, match="0.weight is a weight of another part too"):
        lrm.attach_multipliers(model[1], "hidden")


@both
def test_parts_that_are_attached_apart_train_together(implementation):
    parts = nn.ModuleDict({name: chain(4, 4) for name in "ab"})
    for part in parts.values():
        lrm.attach_multipliers(part, "hidden", implementation=implementation)
    optimizer = torch.optim.AdamW(lrm.build_param_groups(parts, 1e-3, 0.1))
    parts["b"](parts["a"](torch.randn(3, 4))).sum().backward()
    before = [p.detach().clone() for p in parts.parameters()]
    optimizer.step()
    assert all((p != old).any() for p, old in zip(parts.parameters(), before, strict=True))


def test_layers_that_left_the_model_are_told():
    model = chain(4, 4, 4, 3)
    spread(lrm.attach_multipliers(model, "hidden"))
    model[2] = nn.Linear(4, 7)
    for call in (
        lambda: lrm.effective_weights(model),
        lambda: lrm.build_param_groups(model, 1e-3, 0.1),
    ):
        with pytest.raises(UserError, match="2.weight has multipliers, and its layer is no part"):
            call()
    placement = lrm.saved_placement(model.state_dict())["placement"]
    assert set(placement) == {"0.weight", "1.weight"}
    other = chain(4, 4, 4, 7)
    lrm.attach_multipliers(other, **lrm.saved_placement(model.state_dict()))
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 4)
    expected = model(x)
    assert torch.equal(other(x), expected)
    lrm.merge_multipliers(model)
    assert torch.allclose(model(x), expected, rtol=1e-5)
    lrm.attach_multipliers(model, "hidden")


def test_inputs_of_another_width_fail_as_in_the_plain_model():
    model = nn.Sequential(nn.Linear(4, 3))
    lrm.attach_multipliers(model)
    for x in (torch.randn(2, 1), torch.tensor(1.0), torch.randn(3)):
        with pytest.raises(RuntimeError):
            model(x)


def test_clipping_waits_for_the_gradients():
    model = chain(4, 3)
    lrm.attach_multipliers(model, implementation="optimizer")
    with lrm.same_weights(model):
        model(torch.randn(8, 4)).square().mean().backward()
        with pytest.raises(UserError, match="clip_grad_norm_ within lrm.same_weights"):
            lrm.clip_grad_norm_(model, 1.0)
    assert lrm.clip_grad_norm_(model, 1.0) > 0


def train(model, optimizer):
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(9, 4)).square().mean().backward()
        optimizer.step()


@both
def test_what_changes_behind_the_first_step_is_checked_again(implementation):
    def made():
        model = chain(4, 4, 3)
        return model, lrm.attach_multipliers(model, "hidden", implementation=implementation)

    model, _ = made()
    optimizer = torch.optim.SGD(lrm.build_param_groups(model, 0.1, 0.0))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    with pytest.raises(UserError, match="weights that the model had before"):
        train(model, optimizer)
    train(model, torch.optim.SGD(lrm.build_param_groups(model, 0.1, 0.0)))

    model, _ = made()  # layers that thaw, in a group of their own
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(lrm.build_param_groups(model, 0.1, 0.0))
    train(model, optimizer)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 1e-4})
    with pytest.raises(UserError, match="multipliers and weights in one group"):
        train(model, optimizer)

    model, handle = made()  # multipliers that begin to learn
    for _, _, parameter in handle.named():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(lrm.build_param_groups(model, 0.1, 0.0))
    train(model, optimizer)
    for _, _, parameter in handle.named():
        parameter.requires_grad_(True)
    with pytest.raises(UserError, match="lacks 4 of 6 weights and multipliers"):
        train(model, optimizer)


def test_a_copy_made_within_the_block_trains():
    model = chain(4, 3)
    lrm.attach_multipliers(model, "hidden", implementation="optimizer")
    with lrm.same_weights(model):
        copied = copy.deepcopy(model)
        model(torch.randn(2, 4)).sum().backward()
    train(copied, torch.optim.SGD(lrm.build_param_groups(copied, 0.1, 0.0)))
    with pytest.raises(UserError, match="shallow copy of the model"):
        lrm.build_param_groups(copy.copy(model), 0.1, 0.0)


def test_tools_that_change_a_layer():
    pruned = chain(4, 6)
    prune.l1_unstructured(pruned[0], "weight", 0.5)
    lrm.attach_multipliers(pruned, {"0.weight_orig": "row_column"})
    prune.remove(pruned[0], "weight")
    plain = nn.Linear(4, 3)
    train(plain, torch.optim.SGD(plain.parameters(), 0.1))  # it has never met the other model
    with pytest.raises(
        UserError, match="0.weight_orig has multipliers, and its module has no such"
    ):
        lrm.merge_multipliers(pruned)

    pruned = chain(4, 6, 3)
    prune.l1_unstructured(pruned[0], "weight", 0.5)
    lrm.attach_multipliers(pruned, {"0.weight_orig": "row", "1.weight": "row"})
    optimizer = torch.optim.SGD(lrm.build_param_groups(pruned, 0.1, 0.0))
    train(pruned, optimizer)
    prune.remove(pruned[0], "weight")
    with pytest.raises(UserError, match="0.weight_orig has multipliers, and its module has no"):
        train(pruned, optimizer)  # its multipliers would learn nothing any more

    class Doubled(nn.Module):
        def forward(self, x):
            return 2 * x

    model = chain(4, 3)
    spread(lrm.attach_multipliers(model))
    parametrize.register_parametrization(model[0], "bias", Doubled())
    x = torch.randn(2, 4)
    expected = model(x)
    with pytest.raises(UserError, match="was parametrized after lrm.attach_multipliers"):
        lrm.merge_multipliers(model)
    assert torch.equal(model(x), expected)
    parametrize.remove_parametrizations(model[0], "bias")
    lrm.merge_multipliers(model)
    assert torch.allclose(model(x), expected, rtol=1e-5)


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("merged_first", [False, True])
def test_a_bias_that_was_parametrized_before_may_be_freed_again(merged_first, copied):
    class Doubled(nn.Module):
        def forward(self, x):
            return 2 * x

    model = chain(4, 3)
    parametrize.register_parametrization(model[0], "bias", Doubled())
    spread(lrm.attach_multipliers(model))
    model = copy.deepcopy(model) if copied else model
    x = torch.randn(2, 4)
    expected = model(x)
    steps = [
        lambda: parametrize.remove_parametrizations(model[0], "bias"),
        lambda: lrm.merge_multipliers(model),
    ]
    for step in reversed(steps) if merged_first else steps:
        step()
        assert torch.allclose(model(x), expected, rtol=1e-5)
    assert type(model[0]) is nn.Linear
    assert list(model.state_dict()) == list(chain(4, 3).state_dict())


def test_arrays_of_the_weight_cannot_be_written():
    model = chain(4, 3)
    lrm.attach_multipliers(model)
    for array in (np.asarray(model[0].weight.data), model[0].weight.detach().numpy()):
        assert not array.flags.writeable


def test_arguments_that_slip():
    model = chain(4, 3)
    with pytest.raises(UserError, match=r"0.weight: \['row'\] is no list of"):
        lrm.attach_multipliers(model, {"0.weight": ["row"]})
    with pytest.raises(UserError, match="unknown parametrization"):
        lrm.attach_multipliers(model, parametrization=["log"])
    with pytest.raises(UserError, match="saved_placement takes a state_dict, not Sequential"):
        lrm.saved_placement(model)
    with pytest.raises(UserError, match="takes the model, not generator"):
        lrm.attach_scale_vectors(model.parameters(), lr=1e-3)
    lrm.attach_multipliers(model, lr=np.float32(0.1))
    lrm.build_param_groups(model, np.float32(0.1), 0.0, no_decay=None)


class Block(nn.Module):
    """A norm, and a linear map that reads it."""

    def __init__(self, output=None):
        super().__init__()
        self.norm, self.query, self.output = nn.RMSNorm(4), nn.Linear(4, 4), output

    def forward(self, x):
        found = self.query(self.norm(x))
        return self.output(found) if self.output else found


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor


@pytest.mark.parametrize("parametrization", ["direct", "or", "product"])
def test_scale_vectors_take_over_weights_of_0(parametrization):
    model, x = Block(), torch.randn(3, 4)
    model.norm.weight.data.copy_(torch.tensor([0.5, 0.0, -1.0, 2.0]))
    expected = model(x)
    lrm.attach_scale_vectors(
        model, "hg", lr=1e-3, parametrization=parametrization, example={"x": x}
    )
    assert torch.allclose(model(x), expected, rtol=1e-5, atol=1e-6)


def test_scale_vectors_that_cannot_be_placed_are_refused():
    x = torch.randn(3, 4)
    model = Block()
    model.norm.weight.data.zero_()
    with pytest.raises(UserError, match="weights of 0 alone"):
        lrm.attach_scale_vectors(model, "hg", lr=1e-3, parametrization="or", example={"x": x})
    with pytest.raises(UserError, match="gives nothing in which tensors are found"):
        lrm.attach_scale_vectors(Block(Output), "hg", lr=1e-3, example={"x": x})
    for shared in ("norm", "query"):
        model = nn.Sequential(Block(), Block())
        setattr(model[1], shared, copy.copy(getattr(model[0], shared)))
        with pytest.raises(UserError, match=rf"0.{shared}.weight is the weight of 2 modules"):
            lrm.attach_scale_vectors(model, "hg", lr=1e-3, example={"input": x})
        model(x)
        lrm.attach_multipliers(model, "hidden")
