"""The placement is saved with a checkpoint, and one of another placement is not loaded."""

import copy

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.optim.swa_utils import AveragedModel

import lrm
from lrm.errors import UserError

both = pytest.mark.parametrize("implementation", ["forward", "optimizer"])
# Twelve layers, whose names have another order in the alphabet.
PLACEMENTS = {
    "preset": {"placement": "all"},
    "log": {"placement": "all", "row": {"parametrization": "log"}, "column": {"lr": 0.5}},
    "scalar_log": {"placement": "scalar", "parametrization": "log"},
    "backwards": {"placement": {f"{n}.weight": "row" for n in range(12, 0, -1)}},
    "slices": {"placement": {"3.weight": [(4, 6, "column"), (0, 3, "row_column")],
                             "2.weight": [(1, 6, "scalar")], "4.bias": "row"}},
    "function": {"placement": lambda name, module, p: "column" if p.dim() == 2 else None},
}  # fmt: skip


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(9, 6), *(nn.Linear(6, 6) for _ in range(12))).double()


def attached(seed: int = 0, **options) -> nn.Module:
    model = network(seed)
    lrm.attach_multipliers(model, **options)
    return model


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(lrm.build_param_groups(model, 0.01, 0.1))


def losses(model: nn.Module, optimizer: torch.optim.Optimizer, start: int = 0) -> list[float]:
    """Of three steps."""
    found = []
    for step in range(start, start + 3):
        tokens = torch.randint(9, (16,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (model(tokens) - 1).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@both
@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_checkpoint_tells_how_to_attach(name, implementation, tmp_path):
    """Through safetensors, which sort names; then on with the same bits, optimizer and all."""
    model = attached(implementation=implementation, **PLACEMENTS[name])
    optimizer = adamw(model)
    losses(model, optimizer)
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file(model.state_dict(), file)
    state = safetensors.torch.load_file(file)
    again = attached(seed=1, implementation=implementation, **lrm.saved_placement(state))
    again.load_state_dict(state)
    resumed = adamw(again)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert losses(again, resumed, 3) == losses(model, optimizer, 3)
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


OTHERS = [
    ({"placement": "hidden"}, {"placement": "all"}, "0.weight has row_column there and none here"),
    ({"placement": "all"}, {"placement": "hidden"}, "0.weight has none there and row_column here"),
    ({"placement": "hidden"}, {"placement": {"3.weight": [(0, 2, "row")]}},
     r"1.weight has none there and row_column here"),
    ({"placement": {"1.weight": "row"}}, {"placement": {"1.weight": [(0, 2, "row")]}},
     r"1.weight has \[\[0, 2, 'row'\]\] there and row here"),
    ({}, {"row": {"parametrization": "log"}}, "every row has log there and direct here"),
]  # fmt: skip


@pytest.mark.parametrize(("here", "there", "message"), OTHERS)
def test_another_placement_is_refused_before_anything_is_loaded(here, there, message, tmp_path):
    saved = attached(seed=1, **there)
    model = attached(**here)
    before = copy.deepcopy(model.state_dict())
    remedy = r"attach by lrm.attach_multipliers\(model, \*\*lrm.saved_placement\(state_dict\)\)"
    state = saved.state_dict()
    wrapped = {f"inner.module.{key}": value for key, value in state.items()}
    outer = nn.ModuleDict({"inner": AveragedModel(model)})
    half = {key: value.bfloat16() for key, value in state.items()}
    for load in (
        lambda: model.load_state_dict(state),
        lambda: model.load_state_dict(state, strict=False),
        lambda: model.load_state_dict(state, assign=True),
        lambda: model.load_state_dict(half),
        lambda: outer.load_state_dict(wrapped, strict=False),
        lambda: set_model_state_dict(model, get_model_state_dict(saved)),
    ):
        with pytest.raises((UserError, RuntimeError)) as raised:
            load()
        if isinstance(raised.value, UserError):  # set_model_state_dict has an error of its own
            raised.match(f"{message}; {remedy}")
            assert "\n" not in str(raised.value)
        else:
            assert "Missing key in state_dict" in str(raised.value)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_multipliers_that_a_sharded_checkpoint_has_in_excess(tmp_path):
    """DCP reads what the model asks for; that there is more shows in the placement."""
    dcp.save({"model": attached(placement="all").state_dict()}, checkpoint_id=tmp_path)
    model = attached(placement="hidden")
    with pytest.raises(dcp.api.CheckpointException, match="_extra_state"):
        dcp.load({"model": model.state_dict()}, checkpoint_id=tmp_path)


def test_a_sharded_checkpoint_of_other_rates_is_loaded(tmp_path):
    """DCP compares sizes; how multipliers learned is none of the model's shape."""
    saved = attached(seed=1, lr=3e-3, row={"weight_decay": 0.0})
    dcp.save({"model": saved.state_dict()}, checkpoint_id=tmp_path)
    state = attached(lr=0.1).state_dict()
    dcp.load({"model": state}, checkpoint_id=tmp_path)
    again = attached(**lrm.saved_placement(state))
    again.load_state_dict(state)
    assert lrm.saved_placement(state)["column"]["lr"] == 3e-3
    for key, value in saved.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


def test_what_the_user_said_of_roles_is_saved():
    """Else the groups, and with them an optimizer's state, would have another order."""
    role = {"*.weight": "matrix", "3.weight": "vector", "0.weight": "embedding"}
    model = attached(role=role)
    again = attached(**lrm.saved_placement(model.state_dict()))
    names = [
        [[name for name, p in each.named_parameters() if any(p is q for q in group["params"])]
         for group in lrm.build_param_groups(each, 0.01, 0.1)]
        for each in (model, again)
    ]  # fmt: skip
    assert names[0] == names[1] and "3.weight" in names[0][2]
    assert again.__dict__["_learnable_multipliers"].roles["3.weight"] == "vector"
    assert "role" not in lrm.saved_placement(attached().state_dict())


def test_settings_may_be_tensors_and_numbers_of_numpy():
    rows = np.array([0, 4])
    model = attached(
        placement={"1.weight": [(rows[0], rows[1], "row")]},
        lr=torch.tensor(0.5),
        weight_decay=np.float64(0.25),
    )
    assert lrm.saved_placement(model.state_dict()) == {
        "placement": {"1.weight": [[0, 4, "row"]]},
        "row": {"lr": 0.5, "weight_decay": 0.25, "parametrization": "direct"},
    }


def test_a_scheduler_that_changes_a_tensor_leaves_other_rates_as_they_were():
    rate = torch.tensor(0.5)
    model = attached(lr=rate, row={"lr": rate})
    groups = lrm.build_param_groups(model, rate, 0.1)
    assert len({id(group["lr"]) for group in groups}) == len(groups) > 2
    optimizer = torch.optim.SGD(groups)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    optimizer.step()
    schedule.step()
    assert all(float(group["lr"]) == pytest.approx(0.05) for group in optimizer.param_groups)
    assert rate == 0.5 and lrm.saved_placement(model.state_dict())["row"]["lr"] == 0.5
    fresh = lrm.build_param_groups(model, 0.1, 0.1)
    assert {group["lr"] for group in fresh if group["kind"] == "multiplier"} == {0.5}


def test_a_checkpoint_of_scale_vectors_names_the_call_that_made_it():
    models = [nn.Sequential(nn.RMSNorm(4), nn.Linear(4, 3)) for _ in range(2)]
    example = {"input": torch.randn(2, 4)}
    for model, design in zip(models, ("hg", "ap"), strict=True):
        lrm.attach_scale_vectors(model, design, lr=1e-3, example=example)
    with pytest.raises(UserError, match=r"attach by lrm.attach_scale_vectors\(model, 'hg', lr="):
        models[1].load_state_dict(models[0].state_dict())


def test_checkpoints_without_a_placement():
    """Of a plain model, of earlier versions, and of a part of the model."""
    model = attached()
    with pytest.raises(UserError, match="0.weight has none there and row_column here; load the "
                       "weights of a plain model before lrm.attach_multipliers"):  # fmt: skip
        model.load_state_dict(network().state_dict(), strict=False)
    old = attached(seed=1).state_dict()
    with pytest.raises(UserError, match="the state_dict holds 2 placements; give that of the"):
        lrm.saved_placement({**old, "inner._extra_state": old["_extra_state"]})
    del old["_extra_state"]
    with pytest.raises(UserError, match="the state_dict holds 0 placements"):
        lrm.saved_placement(old)
    model.load_state_dict(old)
    assert torch.equal(model[3].weight, attached(seed=1)[3].weight)
    key = "5.multipliers.weight.all.row"
    lacking = {name: value for name, value in old.items() if name != key}
    with pytest.raises(
        UserError, match="5.weight has none there and row_column here; attach with the"
    ):
        model.load_state_dict(lacking, strict=False)
    with pytest.raises(UserError, match="0.multipliers.weight.all.column has multipliers there"):
        attached(placement="hidden").load_state_dict(old, strict=False)
    part = {name: value for name, value in old.items() if name.startswith("7.")}
    assert len(model.load_state_dict(part, strict=False).missing_keys) == 3 + 12 * 4 - 4
    assert not model.load_state_dict({"7.bias": torch.ones(6)}, strict=False).unexpected_keys


@both
def test_an_average_made_by_hand_and_a_copy_keep_the_placement(implementation):
    model = attached(implementation=implementation, row={"parametrization": "log"})
    average = copy.deepcopy(model.state_dict())
    optimizer = adamw(model)
    for step in range(4):
        losses(model, optimizer, step)
        for key, value in model.state_dict().items():
            average[key].mul_(0.9).add_(value, alpha=0.1)
    for other in (copy.deepcopy(model), attached(**lrm.saved_placement(average))):
        other.load_state_dict(average)
        assert lrm.saved_placement(other.state_dict()) == lrm.saved_placement(model.state_dict())
        with pytest.raises(UserError):
            other.load_state_dict(attached().state_dict())
        lrm.merge_multipliers(other)
        assert list(other.state_dict()) == list(network().state_dict())
        other.load_state_dict(network().state_dict())


class Counted(nn.Linear):
    """A layer with an extra state of its own."""

    def get_extra_state(self):
        return torch.ones(2, 2)

    def set_extra_state(self, state):
        assert state.sum() == 4


def test_extra_states_of_other_modules_are_left_alone():
    with pytest.raises(UserError, match="Counted saves an extra state, .*; attach to a module th"):
        lrm.attach_multipliers(Counted(4, 4))
    model = nn.Sequential(Counted(4, 4), nn.Linear(4, 2))
    lrm.attach_multipliers(model)
    state = model.state_dict()
    assert {"_extra_state", "0._extra_state"} <= set(state)
    assert set(lrm.saved_placement(state)["placement"]) == {"0.weight", "1.weight"}
    assert not model.load_state_dict(state).unexpected_keys


def test_extra_states_of_any_form_are_not_the_placement():
    state = attached().state_dict()
    want = lrm.saved_placement(state)
    for other in (torch.tensor(2**40), torch.ones(2, device="meta"), torch.ones(3), b"{}", None,
                  torch.tensor(list(b"[1]")), torch.tensor([float("nan")])):  # fmt: skip
        assert lrm.saved_placement({"0._extra_state": other, **state}) == want


def test_a_handle_that_merges_leaves_a_plain_model():
    model = network()
    handle = lrm.attach_multipliers(model)
    assert handle.merge() is model
    assert list(model.state_dict()) == list(network().state_dict())
    model.load_state_dict(network(seed=1).state_dict())
    other = lrm.attach_multipliers(model)
    handle.merge()
    assert other.effective and "_extra_state" in model.state_dict()
    lrm.merge_multipliers(model).load_state_dict(network().state_dict())


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_nothing_is_loaded_while_weights_stay(implementation):
    """W̄ would be of the old weights, and biases of the new."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
    lrm.attach_multipliers(model, "scalar", implementation=implementation)
    state = copy.deepcopy(model.state_dict())
    with (
        lrm.same_weights(model),
        pytest.raises(UserError, match="weights are built already, and stay until the block"),
    ):
        model.load_state_dict(state)
    model.load_state_dict(state)
