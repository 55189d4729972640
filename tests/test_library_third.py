"""What strangers met on a third reading of the library: each of these once failed in silence."""

import contextlib
import copy

import pytest
import torch
import transformers
from test_library_later import both, spread
from torch import nn

import lrm
from lrm.errors import UserError
from lrm.multipliers import classes
from lrm.multipliers.library import known_roles
from lrm.multipliers.roles import roles


class InputsFirst(nn.Module):
    """Two layers by hand, ``x @ W``, the first of them square, and a stack of two."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.W = nn.Parameter(torch.randn(4, 4))
        self.W_out = nn.Parameter(torch.randn(4, 6))
        self.experts = nn.Parameter(torch.randn(2, 6, 3))

    def forward(self, x):
        return (torch.tanh(x @ self.W) @ self.W_out) @ self.experts


TURNED = {"*": "transposed"}


@both
def test_matrices_with_inputs_first_have_rows_of_outputs(implementation):
    model, x = InputsFirst(), torch.randn(5, 4)
    plain = copy.deepcopy(model)
    handle = lrm.attach_multipliers(model, role=TURNED, implementation=implementation)
    sizes = {name: tuple(p.shape) for name, _, p in handle.named()}
    assert sizes == {"W.row": (4,), "W.column": (4,), "W_out.row": (6,), "W_out.column": (4,),
                     "experts.row": (2, 3), "experts.column": (2, 6)}  # fmt: skip
    assert "transposed" in repr(handle) and "outputs × inputs" not in repr(handle)
    spread(handle)
    for name in ("W", "W_out", "experts"):
        scaling = handle.scalings[name]
        wanted = getattr(plain, name) * scaling.row[..., None, :] * scaling.column[..., None]
        assert torch.allclose(getattr(model, name), wanted)
    kinds = {group["kind"] for group in lrm.build_param_groups(model, 1e-3, 0.1)}
    assert kinds == {"matrix", "multiplier"}
    expected = model(x)
    lrm.merge_multipliers(model)
    assert torch.allclose(model(x), expected)
    # Groups of a plain model too, and rows of a part of the outputs.
    [first, _] = lrm.build_param_groups(InputsFirst(), 1e-3, 0.1, role=TURNED)
    assert first["kind"] == "matrix" and len(first["params"]) == 2
    parts = {"W_out": [(0, 5, "row"), (5, 6, "scalar")]}
    assert "W_out[0:5]" in lrm.attach_multipliers(InputsFirst(), parts, role=TURNED).scalings


def test_checkpoints_know_which_matrices_have_inputs_first():
    saved = InputsFirst()
    spread(lrm.attach_multipliers(saved, role=TURNED))
    state, x = saved.state_dict(), torch.randn(5, 4)
    again = InputsFirst()
    lrm.attach_multipliers(again, **lrm.saved_placement(state))
    again.load_state_dict(state)
    assert torch.equal(again(x), saved(x))
    # Of the square one shapes tell nothing.
    for role, there, here in (
        ({"W_*": "transposed"}, "row_column, transposed,", "row_column"),
        ({"*": "matrix", "W": "transposed"}, "row_column, transposed,", "row_column"),
    ):
        other = InputsFirst()
        lrm.attach_multipliers(other, role=role)
        with pytest.raises(UserError, match=f"has {there} there and {here} here; attach by"):
            other.load_state_dict(state)


def test_the_role_transposed_is_for_matrices_of_ones_own():
    for model, role, message in (
        (nn.Linear(4, 3), "weight", "weight belongs to torch's own Linear, which says itself"),
        (nn.LayerNorm(4), "bias", "bias has fewer than two dimensions; name matrices alone"),
    ):
        with pytest.raises(UserError, match=message):
            roles(model, {role: "transposed"})
    assert "matrices as outputs × inputs" in repr(lrm.attach_multipliers(InputsFirst()))


class Conv1D(nn.Module):
    """A causal convolution by hand, under a name that transformers has too."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))


class MyExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj, self.is_transposed = nn.Parameter(torch.randn(2, 6, 4)), True


def test_names_of_transformers_classes_mean_nothing_elsewhere():
    for module, name in ((Conv1D(), "weight"), (MyExperts(), "gate_up_proj")):
        assert classes.kind(module, name) is None
        row = lrm.attach_multipliers(module).scalings[name].row
        assert row.shape == ((6,) if name == "weight" else (2, 6))

    class Derived(transformers.pytorch_utils.Conv1D):
        pass

    remote = type("Conv1D", (Conv1D,), {"__module__": "transformers_modules.someone.modeling"})
    for module in (Derived(8, 4), remote(), transformers.pytorch_utils.Conv1D(8, 4)):
        assert classes.kind(module, "weight") == "transposed"


def test_a_gain_with_dimensions_of_1_is_no_matrix():
    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            for name, shape in (("weight", (1, 1, 4)), ("w", (4, 1)), ("W", (4, 2))):
                self.register_parameter(name, nn.Parameter(torch.ones(shape)))
            self.last = nn.Linear(4, 1, bias=False)

    wanted = {"weight": "vector", "w": "vector", "W": "matrix", "last.weight": "matrix"}
    assert roles(Gain()) == wanted
    assert roles(Gain(), {"w": "matrix"}) == wanted | {"w": "matrix"}
    assert "1 whose role is told by their names" in repr(lrm.attach_multipliers(Gain()))


def test_no_decay_reaches_multipliers_by_that_word_alone():
    model = nn.ModuleDict({"emb": nn.Embedding(5, 4), "up": nn.Linear(4, 3)})
    lrm.attach_multipliers(model)

    def decays(pattern):
        groups = lrm.build_param_groups(model, 1e-3, 0.1, no_decay=pattern)
        names = {id(p): name for name, p in model.named_parameters()}
        return {names[id(p)]: g["weight_decay"] for g in groups for p in g["params"]}

    found = decays("*emb*")
    assert found["emb.weight"] == 0.0 and found["emb.multipliers.weight.all.row"] == 2e-3
    assert found["up.weight"] == 0.1
    found = decays("*emb.multipliers*")
    assert found["emb.weight"] == 0.1 and found["emb.multipliers.weight.all.row"] == 0.0
    with pytest.raises(UserError, match="matches multipliers alone; write 'multipliers' in the pa"):
        decays("*.row")


@both
def test_weights_that_change_within_the_block_are_told(implementation):
    """An average that is put in place for an evaluation, within the block and before it."""
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(6, 4)
    handle = lrm.attach_multipliers(model, implementation=implementation)
    for name, parameter in model.named_parameters():
        if name == "0.bias":
            continue
        with (
            pytest.raises(UserError, match="0.weight or its multipliers were changed within lrm.s"),
            torch.no_grad(),
            lrm.same_weights(model),
        ):
            model(x)
            parameter.mul_(2.0)
            model(x)
        expected = torch.nn.functional.linear(x, handle.effective_weights()["0.weight"])
        with torch.no_grad(), lrm.same_weights(model):
            model[0].bias.zero_()
            assert torch.allclose(model(x), expected)


def test_a_gradient_that_waits_is_not_given_to_other_weights():
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(6, 4)
    lrm.attach_multipliers(model, implementation="optimizer")
    weight = model[0]._parameters["weight"]
    with pytest.raises(UserError, match="were changed within lrm.same"), lrm.same_weights(model):
        model(x).sum().backward()
        with torch.no_grad():
            weight.mul_(2.0)
    with lrm.same_weights(model):  # nothing is left of it
        model(x).sum().backward()
    assert torch.allclose(weight.grad, x.sum(0).expand(3, 4))
    with torch.no_grad(), lrm.same_weights(model):  # nobody reads it after that
        model(x)
        weight.mul_(2.0)


def test_settings_that_reach_nothing_are_told():
    def model(*layers):
        return nn.Sequential(nn.Linear(4, 3), *layers)

    for act, message in (
        (lambda: lrm.attach_multipliers(model(), "scalar", row={"lr": 5.0}),
         "row: this placement has no row multipliers; drop it"),
        (lambda: lrm.attach_multipliers(model(), {"0.weight": "row"}, column={"lr": 5.0}),
         "column: this placement has no column multipliers"),
        (lambda: lrm.attach_multipliers(model(), row={"magnitude_lr": 0.1}),
         "row: magnitude_lr is of a magnitude, and this parametrization has none; drop it, or"),
        (lambda: lrm.build_param_groups(model(), 1.0, 0.1, by_kind={"embedding": {"lr": 2.0}}),
         "by_kind: the model has nothing of the kind 'embedding'; drop it"),
        (lambda: lrm.build_param_groups(model(), 1.0, 0.1, by_kind={"multiplier": {"lr": 2.0}}),
         "by_kind: the model has nothing of the kind 'multiplier'; drop it"),
        (lambda: lrm.build_param_groups(model(), 1.0, 0.1, multiplier_lr=0.1),
         "multiplier_lr: the model has no multipliers; call lrm.attach_multipliers before this"),
        (lambda: lrm.build_param_groups(model(), 1.0, 0.1, multiplier_weight_decay=0.1),
         "multiplier_weight_decay: the model has no multipliers"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message) as caught:
            act()
        assert "\n" not in str(caught.value)
    plain = model()
    with pytest.raises(UserError, match="row: this placement"):
        lrm.attach_multipliers(plain, "scalar", row={"lr": 5.0})
    settings = {"parametrization": "or", "magnitude_lr": 0.1}
    lrm.attach_multipliers(plain, row=settings, column={})  # as it was, and nothing of columns
    lrm.attach_multipliers(model(), **lrm.saved_placement(plain.state_dict()))
    lrm.build_param_groups(plain, 1.0, 0.1, by_kind={"vector": {"lr": 2.0}}, multiplier_lr=0.1)


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), True, -1.0, "1", torch.tensor(True)])
def test_rates_and_norms_are_numbers(bad):
    model = nn.Linear(4, 3)
    for act in (
        lambda: lrm.attach_multipliers(model, lr=bad),
        lambda: lrm.attach_multipliers(model, row={"weight_decay": bad}),
        lambda: lrm.build_param_groups(model, bad, 0.1),
        lambda: lrm.build_param_groups(model, 0.1, 0.1, by_kind={"matrix": {"lr": bad}}),
    ):
        with pytest.raises(UserError, match="give a number that is not negative, and finite"):
            act()
    model(torch.ones(2, 4)).sum().backward()
    before = model.weight.grad.clone()
    for norm in (None, 0.0, *([] if bad == float("inf") else [bad])):
        with pytest.raises(UserError, match="max_norm is .*; give a positive number, or inf to me"):
            lrm.clip_grad_norm_(model, norm)
    assert lrm.clip_grad_norm_(model, float("inf")) > 1
    assert torch.equal(model.weight.grad, before)
    lrm.clip_grad_norm_(model, torch.tensor(0.5))
    assert torch.allclose(lrm.clip_grad_norm_(model, float("inf")), torch.tensor(0.5))


@both
def test_one_autocast_around_the_whole_loop(implementation):
    """Torch keeps the cast of a leaf until autocast is left; W̄ of a new step is another."""
    torch.manual_seed(0)
    # Casts of plain biases stay too, which torch does of itself.
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))
    apart = copy.deepcopy(model)
    x, y = torch.randn(32, 4), torch.randn(32, 3)
    losses: list[list[float]] = []
    for each, whole in ((model, True), (apart, False)):
        lrm.attach_multipliers(each, implementation=implementation)
        optimizer = torch.optim.AdamW(lrm.build_param_groups(each, 0.05, 0.0))
        losses.append([])
        with torch.autocast("cpu", torch.bfloat16) if whole else contextlib.nullcontext():
            for _ in range(6):
                optimizer.zero_grad()
                with lrm.same_weights(each), torch.autocast("cpu", torch.bfloat16):
                    loss = nn.functional.mse_loss(each(x).float(), y)
                    loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
    around, step_by_step = losses
    assert around == step_by_step and around[-1] < 0.9 * around[0]


@pytest.mark.parametrize("kind", ["scalar", "column"])
def test_autocast_around_the_loop_sees_weights_that_learn_where_inputs_are_scaled(kind):
    """Few tokens, and no ``same_weights``: W itself goes into the product."""
    layer, x = nn.Linear(64, 64, bias=False), torch.randn(1, 64)
    lrm.attach_multipliers(layer, {"weight": kind})
    with torch.autocast("cpu", torch.bfloat16):
        before = layer(x)
        with torch.no_grad():
            layer.weight.mul_(2)
        assert torch.equal(layer(x), 2 * before)


def test_measuring_leaves_gradients_that_are_infinite():
    model = nn.Linear(4, 3)
    model(torch.randn(2, 4)).sum().backward()
    model.weight.grad[0, 0] = torch.inf
    before = model.weight.grad.clone()
    assert lrm.clip_grad_norm_(model, float("inf")) == torch.inf
    assert torch.equal(model.weight.grad, before)


def test_roles_are_known_after_layers_were_compiled():
    """Compiling a layer gives its parameters other names."""
    model = nn.ModuleList([InputsFirst(), InputsFirst()])
    lrm.attach_multipliers(model, role={"*.W": "transposed", "*.W_out": "vector"})
    before = known_roles(model)
    model[0] = torch.compile(model[0], backend="eager")
    after = known_roles(model)
    assert after["0._orig_mod.W"] == after["1.W"] == "transposed"
    assert after["0._orig_mod.W_out"] == after["1.W_out"] == "vector"
    assert list(after.values()) == list(before.values())


def test_groups_of_a_compiled_model_know_the_names_that_it_had():
    model = torch.compile(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), backend="eager")
    lrm.attach_multipliers(model)
    groups = lrm.build_param_groups(model, 1e-3, 0.1, no_decay=["0.weight"])
    decays = sorted((g["weight_decay"], len(g["params"])) for g in groups if g["kind"] == "matrix")
    assert decays == [(0.0, 1), (0.1, 1)]


@pytest.mark.cuda
def test_norms_of_a_model_on_several_devices():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    handle = lrm.attach_multipliers(model)
    expected = handle.norms()
    model[0].cuda()
    assert handle.norms() == pytest.approx(expected) and list(handle.norms()) == list(expected)


def test_two_optimizers_go_on_with_the_same_bits():
    """As the recipe for checkpoints says: built anew by the same code, each with its own state."""
    x = torch.randn(16, 4)

    def built():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        lrm.attach_multipliers(model)
        groups = lrm.build_param_groups(model, 1e-2, 0.1)
        flat = [group for group in groups if group["kind"] == "matrix"]
        rest = [group for group in groups if group["kind"] != "matrix"]
        return model, torch.optim.Muon(flat), torch.optim.AdamW(rest)

    ends = []
    for resumed in (False, True):
        parts = built()
        for step in range(4):
            if resumed and step == 2:
                states = [copy.deepcopy(each.state_dict()) for each in parts]
                parts = built()
                for each, state in zip(parts, states, strict=True):
                    each.load_state_dict(state)
            model, *optimizers = parts
            model.zero_grad()
            model(x).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
        ends.append(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_real_positions_of_an_encoder_agree_and_padded_ones_need_not():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 16)
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    found = []
    for _ in range(2):
        with torch.no_grad():
            found.append(encoder(x, src_key_padding_mask=padded))
        if not hasattr(encoder, "_learnable_multipliers"):
            lrm.attach_multipliers(encoder)
    assert torch.allclose(found[0][~padded], found[1][~padded], atol=1e-5)
    assert (found[0][padded] == 0).all() and (found[1][padded] != 0).any()
    with pytest.raises(ValueError, match="can't optimize a non-leaf Tensor"):
        torch.optim.AdamW([encoder.layers[0].linear1.weight])
