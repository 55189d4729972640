"""Writes through ``module.weight`` reach W, so that W̄ is what was written, or fail in one line."""

import copy
import warnings

import pytest
import torch
import torch.nn.utils.prune
import transformers
from torch import nn

import lrm
from lrm.errors import UserError

both = pytest.mark.parametrize("implementation", ["forward", "optimizer"])


def layer(implementation, placement=None) -> nn.Linear:
    torch.manual_seed(0)
    found = nn.Linear(4, 3).double()
    placement = placement or {"weight": "row_column"}
    handle = lrm.attach_multipliers(found, placement, implementation=implementation)
    with torch.no_grad():
        for _, _, parameter in handle.named():
            parameter.uniform_(0.5, 2.0)
    return found


def add(module):
    with torch.no_grad():
        module.weight.add_(1.0)


def add_to_data(module):
    module.weight.data += 1.0


def set_data(module):
    module.weight.data = module.weight.detach() + 1.0


def copy_to_data(module):
    module.weight.data.copy_(module.weight.detach() + 1.0)


def add_transposed(module):
    with torch.no_grad():
        module.weight.T.add_(1.0)


def out(module):
    with torch.no_grad():
        torch.add(module.weight, 1.0, out=module.weight)


def row_by_row(module):
    with torch.no_grad():
        for row in module.weight.unbind(0):
            row += 1.0


def by_index(module):
    with torch.no_grad():
        module.weight[:] = module.weight + 1.0


@both
@pytest.mark.parametrize("placement", [None, {"weight": [(0, 2, "row_column")]}])
@pytest.mark.parametrize(
    "write", [add, add_to_data, set_data, copy_to_data, add_transposed, out, row_by_row, by_index]
)
def test_a_write_reaches_the_weight(write, placement, implementation):
    """As after merging a LoRA update: W̄ is what was written, and the multipliers stay."""
    module = layer(implementation, placement)
    before, raw = module.weight.detach().clone(), module._parameters["weight"]
    multipliers = copy.deepcopy(module.multipliers.state_dict())
    write(module)
    torch.testing.assert_close(module.weight, before + 1.0)
    assert module._parameters["weight"] is raw and raw.requires_grad
    for name, value in module.multipliers.state_dict().items():
        assert torch.equal(value, multipliers[name])
    lrm.merge_multipliers(module)
    torch.testing.assert_close(module.weight.detach(), before + 1.0)


@both
def test_initialisation_and_what_a_write_leaves_as_it_was(implementation):
    module = layer(implementation)
    nn.init.orthogonal_(module.weight)
    torch.testing.assert_close(module.weight @ module.weight.T, torch.eye(3).double())
    nn.init.constant_(module.weight, 0.25)
    torch.testing.assert_close(module.weight, torch.full((3, 4), 0.25).double())
    nn.init.trunc_normal_(module.weight, std=0.02)
    assert 0 < module.weight.abs().max() < 0.2
    raw = module._parameters["weight"].clone()
    module.weight.data[1].zero_()
    found = module._parameters["weight"]
    assert torch.equal(found[[0, 2]], raw[[0, 2]]) and not found[1].any()
    other = nn.Linear(4, 3).double()
    with torch.no_grad():  # a read is no write
        other.weight.copy_(module.weight)
    torch.testing.assert_close(other.weight, module.weight + 0)
    assert torch.equal(module._parameters["weight"], found)


@both
def test_freezing_and_gradients_mean_the_weight(implementation):
    module = layer(implementation)
    raw = module._parameters["weight"]
    module.weight.requires_grad_(False)
    assert not raw.requires_grad and not module.weight.requires_grad
    module.weight.requires_grad = True
    assert raw.requires_grad
    with torch.no_grad():
        assert module.weight.requires_grad
    module(torch.randn(5, 4).double()).sum().backward()
    assert module.weight.grad is raw.grad is not None
    module.weight.grad = None
    assert raw.grad is None


@both
def test_what_cannot_be_passed_on_fails_in_one_line(implementation):
    module = layer(implementation)
    new = torch.zeros(3, 4).double()

    def replace():
        module.weight = nn.Parameter(new)

    def reshape():
        module.weight.data = new[:2]

    def cast():
        module.weight.data = new.float()

    def older_weight_norm():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            nn.utils.weight_norm(module)

    parameters = dict(module.named_parameters())
    for act, message in [
        (lambda: module.weight.mul_(2), "learns; write to it under torch.no_grad"),
        (replace, "Linear.weight has multipliers and cannot be replaced; copy into it under"),
        (lambda: delattr(module, "weight"), "parametrize or prune before lrm.attach"),
        (lambda: setattr(nn.Linear(4, 3), "weight", module.weight), "tie, parametrize or prune"),
        (reshape, r"cannot become \(2, 4\) in torch.float64; merge the multipliers first"),
        (cast, r"cannot become \(3, 4\) in torch.float32; merge .* or convert by model.to"),
        (lambda: module.weight.data.resize_(2, 2), "has multipliers for its shape; merge"),
        (
            lambda: nn.utils.parametrize.register_parametrization(module, "weight", nn.Tanh()),
            "parametrize or prune before lrm.attach_multipliers",
        ),
        (lambda: nn.utils.prune.l1_unstructured(module, "weight", 0.5), "parametrize or prune"),
        (older_weight_norm, "parametrize or prune before lrm.attach_multipliers"),
    ]:
        with pytest.raises(UserError, match=message):
            act()
        found = dict(module.named_parameters())
        assert found.keys() == parameters.keys()
        assert all(found[name] is parameter for name, parameter in parameters.items())
    with torch.no_grad():
        module.multipliers["weight"].scalings()[0].row[1] = 0.0
    with pytest.raises(UserError, match="was written, but a multiplier of it is 0; merge"):
        module.weight.data.fill_(1.0)


@both
def test_a_subclass_of_parameter_is_written_too(implementation):
    class Own(nn.Parameter):
        pass

    module = nn.Linear(4, 3)
    module.weight = Own(module.weight.detach().clone())
    handle = lrm.attach_multipliers(module, {"weight": "row"}, implementation=implementation)
    with torch.no_grad():
        handle.scalings["weight"].row.uniform_(0.5, 2.0)
        wanted = module.weight + 1.0
        module.weight.add_(1.0)
    torch.testing.assert_close(module.weight.detach(), wanted.detach())
    assert type(module._parameters["weight"]) is Own


@both
def test_a_norm_that_is_bounded_while_a_table_is_read_is_refused(implementation):
    module = nn.Embedding(10, 4)
    lrm.attach_multipliers(module, {"weight": "row"}, implementation=implementation)
    indices = torch.arange(3)
    for act in (
        lambda: nn.functional.embedding(indices, module.weight, max_norm=0.1),
        lambda: nn.functional.embedding_bag(indices[None], module.weight, max_norm=0.1),
    ):
        with pytest.raises(UserError, match="Embedding.weight has multipliers, and max_norm"):
            act()
    assert nn.functional.embedding(indices, module.weight).shape == (3, 4)


def test_other_kinds_of_tensors_go_through():
    class Own(torch.Tensor):
        pass

    model = nn.Sequential(nn.Conv1d(4, 4, 3), nn.Conv1d(4, 2, 3))
    lrm.attach_multipliers(model, "convolutions")
    x = torch.randn(2, 4, 9)
    found = model(x.as_subclass(Own))
    assert type(found) is Own and torch.equal(found.as_subclass(torch.Tensor), model(x))


@both
def test_recurrent_layers_compute_with_multipliers(implementation):
    torch.manual_seed(0)
    module = nn.LSTM(4, 5, num_layers=2).double()
    x = torch.randn(7, 2, 4).double()
    before = module(x)[0]
    handle = lrm.attach_multipliers(module, "hidden", implementation=implementation)
    assert torch.equal(module(x)[0], before)
    with torch.no_grad():
        handle.scalings["weight_hh_l1"].row.mul_(2.0)
    after = module(x)[0]
    assert not torch.allclose(after, before)
    after.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    copied = copy.deepcopy(module)
    assert torch.equal(copied(x)[0], after)
    lrm.merge_multipliers(copied)
    torch.testing.assert_close(copied(x)[0], after)
    assert type(copied) is nn.LSTM


class Product(torch.autograd.Function):
    """A kernel of somebody else's, which takes the weight."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, outer):
        x, weight = ctx.saved_tensors
        return outer @ weight, outer.T @ x


@both
def test_kernels_and_compiled_functions_take_the_effective_weight(implementation):
    module, x = layer(implementation), torch.randn(5, 4).double()
    compiled = torch.compile(lambda a, w: a @ w.T, backend="aot_eager", fullgraph=True)
    want = None
    for product in (lambda a, w: a @ w.T, Product.apply, compiled):
        module.zero_grad()
        found = product(x, module.weight)
        found.square().sum().backward()
        assert type(found) is torch.Tensor
        results = [found.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]
        want = want or results
        assert len(results) == 4
        torch.testing.assert_close(results, want)


@both
def test_models_of_transformers_tie_and_resize(implementation):
    """What is tied may be tied again; another vocabulary is refused before anything changes."""
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    lrm.attach_multipliers(model, implementation=implementation)
    before = model(torch.arange(5)[None]).logits
    model.tie_weights()
    assert isinstance(model.get_parameter("lm_head.weight"), nn.Parameter)
    with pytest.raises(UserError, match=r"Embedding.weight .* cannot become \(40, 16\)"):
        model.resize_token_embeddings(40, mean_resizing=False)
    assert torch.equal(model(torch.arange(5)[None]).logits, before)
    model.gradient_checkpointing_enable()
    model.train()(input_ids=torch.arange(5)[None], labels=torch.arange(5)[None]).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
