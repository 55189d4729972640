"""Training loops that people write every day: right without a word about multipliers in them."""

import copy

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import lrm
from lrm.errors import UserError
from lrm.multipliers import effective

both = pytest.mark.parametrize("implementation", ["forward", "optimizer"])


def network(implementation=None, **options) -> nn.Module:
    torch.manual_seed(0)
    found = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    if implementation is not None:
        lrm.attach_multipliers(found, "hidden", implementation=implementation, **options)
    return found


def adamw(model, lr=0.05):
    own = {"multiplier_lr": lr} if any("multipliers" in n for n in model.state_dict()) else {}
    return torch.optim.AdamW(lrm.build_param_groups(model, lr, 0.1, **own))


def objective(model, step):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step)).double()
    return (model(x.to(next(model.parameters()).dtype)) - x[:, :3]).square().mean()


def test_an_optimizer_whose_step_a_scaler_skips_is_waited_for():
    """Gradients that are not finite stop one optimizer, and the other goes on."""
    model = network("forward")
    groups = lrm.build_param_groups(model, 0.05, 0.1)
    kinds = ("matrix", "vector", "multiplier")
    of_each = [[group for group in groups if group["kind"] == kind] for kind in kinds]
    assert all(of_each)
    *others, skipped = map(torch.optim.AdamW, of_each)
    for overflows in (True, True, False):
        objective(model, 0).backward()
        if overflows:
            next(iter(skipped.param_groups[0]["params"])).grad.fill_(torch.inf)
        for optimizer in others if overflows else (*others, skipped):
            optimizer.step()
        model.zero_grad()

    # One that never steps is told, when gradients have been finite twice.
    model = network("forward")
    groups = lrm.build_param_groups(model, 0.05, 0.1)
    first = torch.optim.AdamW([group for group in groups if group["kind"] != "multiplier"])
    for last in (False, True):
        objective(model, 0).backward()
        if last:
            with pytest.raises(UserError, match="the optimizer lacks"):
                first.step()
        else:
            first.step()


def steps(model, optimizer, count=5, start=0, zero_grad=None):
    """The losses of a plain loop."""
    losses = []
    for step in range(start, start + count):
        (zero_grad or optimizer.zero_grad)()
        loss = objective(model, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def scaled(weight, scaling):
    """W̄ by equation (3), with nothing of this package."""
    return weight * scaling.row[:, None] * scaling.column


def step_in_two_parts(model, optimizer, step: int):
    """A step over the same batch twice, with weights built once; the loss of the second part."""
    optimizer.zero_grad()
    with lrm.same_weights(model):
        for _ in range(2):
            loss = objective(model, step)
            (loss / 2).backward()
    optimizer.step()
    return loss


@both
def test_whoever_walks_the_parameters_sees_weights_and_multipliers(implementation):
    model = network(implementation)
    names = [name for name, _ in model.named_parameters()]
    assert [name for name in names if ".multipliers." not in name] == [
        name for name, _ in network().named_parameters()
    ]
    assert sum(".multipliers." in name for name in names) == 4
    assert set(model.state_dict()) == {*names, "_extra_state"}
    objective(model, 0).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    for clear in (model.zero_grad, adamw(model).zero_grad):
        objective(model, 0).backward()
        clear()
        assert all(parameter.grad is None for parameter in model.parameters())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert norm == 0
    model.float()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model[0].weight.dtype == torch.float32
    assert model.to("meta")[0].weight.device.type == "meta"


@both
def test_loops_make_the_steps_of_a_plain_one(implementation):
    """zero_grad of the model, a gradient scaler, micro-batches, autograd.grad, copies."""
    model = network(implementation)
    wanted = steps(model, adamw(model), 6)
    assert wanted[-1] < wanted[0]

    model = network(implementation)
    assert steps(model, adamw(model), 6, zero_grad=model.zero_grad) == wanted

    model = network(implementation)
    optimizer, scaler, losses = adamw(model), torch.amp.GradScaler("cpu"), []
    for step in range(6):
        model.zero_grad()
        loss = objective(model, step)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses == pytest.approx(wanted, rel=1e-12)

    model = network(implementation)
    optimizer, losses = adamw(model), []
    for step in range(6):
        loss = step_in_two_parts(model, optimizer, step)
        losses.append(loss.item())
    assert losses == pytest.approx(wanted, rel=1e-12)

    model = network(implementation)
    optimizer, losses = adamw(model), []
    parameters = list(model.parameters())
    for step in range(6):
        loss = objective(model, step)
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = gradient
        optimizer.step()
        losses.append(loss.item())
    assert losses == wanted

    model = network(implementation)
    pair = copy.deepcopy((model, adamw(model)))
    assert steps(*pair, 3) + steps(*copy.deepcopy(pair), 3, start=3) == wanted


@both
def test_averages_are_of_weights_and_of_multipliers(implementation):
    """torch's EMA, and one by hand through ``data``: W̄ of the average is made of averages."""
    model = network(implementation)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    by_hand, optimizer = copy.deepcopy(model), adamw(model)
    objective(by_hand, 0).backward()
    for step in range(4):
        steps(model, optimizer, 1, step)
        ema.update_parameters(model)
        for mine, new in zip(by_hand.parameters(), model.parameters(), strict=True):
            if step:
                mine.data.mul_(0.5).add_(new.data, alpha=0.5)
            else:
                mine.data.copy_(new.data)
    want = dict(by_hand.named_parameters())
    torch.testing.assert_close(dict(ema.module.named_parameters()), want)
    for average in (ema.module, by_hand):
        scaling = average[2].multipliers["weight"].scalings()[0]
        expected = scaled(average[2]._parameters["weight"], scaling)
        assert torch.equal(average[2].weight, expected)
        with torch.no_grad():
            before = average(torch.ones(1, 4).double())
            merged = lrm.merge_multipliers(average)
            torch.testing.assert_close(merged(torch.ones(1, 4).double()), before)
    with torch.no_grad():
        assert objective(ema.module, 9) < objective(network(), 9)


@both
def test_checkpoints_of_other_tools(implementation, tmp_path):
    """torch.distributed.checkpoint and safetensors, and on with the same losses."""
    model = network(implementation)
    optimizer = adamw(model)
    steps(model, optimizer, 3)
    state = get_model_state_dict(model)
    assert set(state) == set(model.state_dict())
    assert get_optimizer_state_dict(model, optimizer)["state"].keys() == state.keys() - {
        "_extra_state"
    }
    dcp.save({"model": state}, checkpoint_id=tmp_path / "dcp")
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    probe = torch.ones(1, 4).double()
    want = model(probe)

    other = network("forward" if implementation == "optimizer" else "optimizer")
    given = {"model": get_model_state_dict(other)}
    dcp.load(given, checkpoint_id=tmp_path / "dcp")
    set_model_state_dict(other, given["model"])
    torch.testing.assert_close(other(probe), want, rtol=1e-12, atol=1e-12)
    other = network(implementation)
    safetensors.torch.load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(other(probe), want)
    other = network(implementation)
    other.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(other(probe), want)
    other = network(implementation)
    other.load_state_dict(model.state_dict())
    second = adamw(other)
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert steps(other, second, 3, 3) == steps(model, optimizer, 3, 3)


class Shared(nn.Module):
    """One matrix used twice in a forward, and a second one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x):
        return self.second(self.first(self.first(x).tanh()).tanh())


@both
def test_checkpointing_and_two_losses_of_two_forwards(implementation):
    """Recomputed activations, and backward passes behind several forwards."""
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(7, 5, dtype=torch.float64)

    def gradients(make):
        torch.manual_seed(0)
        model = Shared().double()
        lrm.attach_multipliers(model, "hidden", implementation=implementation)
        for loss in make(model):
            loss.backward()
        return [p.grad for p in model.parameters()]

    want = gradients(lambda model: [model(x).square().sum() + model(2 * x).square().sum()])
    found = gradients(lambda model: [model(x).square().sum(), model(2 * x).square().sum()])
    torch.testing.assert_close(found, want)
    leaf = x.clone().requires_grad_()
    for reentrant in (False, True):
        found = gradients(
            lambda model, how=reentrant: [
                checkpoint(model, scale * leaf, use_reentrant=how).square().sum()
                for scale in (1, 2)
            ]
        )
        torch.testing.assert_close(found, want)


@both
def test_gradients_of_gradients_and_function_transforms(implementation):
    """Against the product written out, with multipliers away from 1."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3).double()
    lrm.attach_multipliers(layer, "hidden", implementation=implementation)
    [scaling] = layer.multipliers["weight"].scalings()
    with torch.no_grad():
        for parameter in scaling.parameters():
            parameter.uniform_(0.5, 2.0)
    weight = layer._parameters["weight"]
    parameters = [weight, scaling.row, scaling.column]
    for tokens in (40, 1):  # W̄ built, and the cheaper side scaled
        x = torch.randn(tokens, 4, dtype=torch.float64)

        def loss(weight_of, x=x):
            return (nn.functional.linear(x, weight_of(), layer.bias).tanh() ** 2).mean()

        def second(value):
            first = torch.autograd.grad(value, parameters, create_graph=True)
            return torch.autograd.grad(sum(g.square().sum() for g in first), parameters)

        want = second(loss(lambda: scaled(weight, scaling)))
        found = second((layer(x).tanh() ** 2).mean())
        torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-12)

        def called(values, x=x):
            return (torch.func.functional_call(layer, values, (x,)).tanh() ** 2).mean()

        values = {name: p.detach() for name, p in layer.named_parameters()}
        plain = torch.autograd.grad(loss(lambda: scaled(weight, scaling)), parameters)
        by_name = torch.func.grad(called)(values)
        names = ["weight", "multipliers.weight.all.row", "multipliers.weight.all.column"]
        torch.testing.assert_close([by_name[name] for name in names], list(plain))
        _, slope = torch.func.jvp(called, (values,), (values,))
        torch.testing.assert_close(slope, sum((by_name[n] * values[n]).sum() for n in values))
        each = torch.func.vmap(lambda row, v=values, f=called: f(v, row[None]))(x)
        torch.testing.assert_close(each.mean(), called(values))


@both
@pytest.mark.parametrize("placement", ["hidden", "scalar", {"weight": [(1, 3, "row_column")]}])
def test_several_gradients_at_once(placement, implementation):
    torch.manual_seed(0)
    layer = nn.Linear(6, 4).double()
    lrm.attach_multipliers(layer, placement, implementation=implementation)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "multipliers" in name:
                parameter.uniform_(0.5, 2.0)
    parameters, x = list(layer.parameters()), torch.randn(50, 6, dtype=torch.float64)
    several = torch.eye(4, dtype=torch.float64)
    for further in (False, True):
        found = torch.autograd.grad(
            layer(x)[0], parameters, several, is_grads_batched=True, create_graph=further
        )
        want = [torch.autograd.grad(layer(x)[0], parameters, one) for one in several]
        for each, one in zip(found, zip(*want, strict=True), strict=True):
            torch.testing.assert_close(each, torch.stack(one))
        assert found[0].requires_grad is further


@both
def test_function_transforms_within_same_weights_take_the_values_they_are_given(implementation):
    """What is built once there is W̄ of the module's own parameters, and of no others."""
    model = network(implementation)
    x = torch.randn(40, 4, dtype=torch.float64)
    own = dict(model.named_parameters())
    others = {name: 2.0 * value.detach() for name, value in own.items()}
    only = {name: value for name, value in others.items() if ".multipliers." in name}

    def called(values, x=x):
        return (torch.func.functional_call(model, values, (x,)) ** 2).mean()

    def found():
        with torch.no_grad():
            values = [called(others), called(only), called(own), called(others)]
        slopes = torch.func.grad(called)(others)
        each = torch.func.vmap(lambda row: called(others, row[None]))(x)
        return [*values, *slopes.values(), each]

    want = found()
    assert not torch.equal(want[0], want[1]) and not torch.equal(want[1], want[2])
    with lrm.same_weights(model):
        plain = called({})
        within = found()
        again = called({})
    torch.testing.assert_close(within, want, rtol=1e-12, atol=1e-14)
    assert torch.equal(plain, again) and torch.equal(plain, want[2])


@both
def test_an_optimizer_that_does_not_move_everything_is_told_at_its_first_step(implementation):
    plain = network()
    early = torch.optim.AdamW(plain.parameters())
    lrm.attach_multipliers(plain, "hidden", implementation=implementation)
    with pytest.raises(UserError, match=r"lacks 4 of 6 .*the first is 0.weight.row.; build it"):
        steps(plain, early, 1)

    model = network(implementation)
    mixed = "moves multipliers and weights in one group, .* lrm.build_param_groups"
    for optimizer in (torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters())):
        with pytest.raises(UserError, match=mixed):
            steps(model, optimizer, 1)

    groups = lrm.build_param_groups(model, 1e-3, 0.1)
    with pytest.raises(UserError, match="lacks 4 of 6"):  # at the second step at the latest
        steps(model, torch.optim.AdamW([g for g in groups if g["kind"] != "multiplier"]), 2)

    groups = lrm.build_param_groups(model, 1e-3, 0.1)
    parts = [torch.optim.AdamW([group]) for group in groups]
    for step in range(3):
        objective(model, step).backward()
        for part in parts:
            part.step()
    for _, _, parameter in model.__dict__["_learnable_multipliers"].named():
        parameter.requires_grad_(False)
    learning = [p for p in model.parameters() if p.requires_grad]
    steps(model, torch.optim.AdamW(learning), 3)
    other = torch.optim.AdamW(network().parameters())  # of another model
    other.step()
    model = network(implementation)
    groups = [lrm.build_param_groups(model, 1e-3, 0.1) for _ in range(2)]
    late = {id(p) for p in model[2].parameters()}
    critic, rest = (
        torch.optim.AdamW(
            [{**g, "params": [p for p in g["params"] if (id(p) in late) is own]} for g in part]
        )
        for part, own in zip(groups, (True, False), strict=True)
    )
    for step in range(8):  # three steps of the critic for one of the rest
        model.zero_grad()
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step)).double()
        (objective(model, step) if step % 4 == 3 else model[2](x).square().mean()).backward()
        (rest if step % 4 == 3 else critic).step()
    steps(model, adamw(model), 2)
    with pytest.raises(UserError, match=mixed):  # also behind one that was right
        steps(model, torch.optim.AdamW(model.parameters()), 1)
    model = network(implementation)
    optimizer = adamw(model)
    with pytest.raises(UserError, match="within lrm.same_weights"), lrm.same_weights(model):
        steps(model, optimizer, 1)
    steps(model, optimizer, 1)


@both
def test_an_optimizer_of_vectors_alone_or_of_replaced_parameters_is_told(implementation):
    model = network(implementation)
    biases = torch.optim.SGD([model[0].bias, model[2].bias], lr=0.1)
    with pytest.raises(UserError, match="lacks 6 of 6 weights and multipliers"):
        steps(model, biases, 2)
    model = network(implementation)
    biases = torch.optim.SGD([model[0].bias, model[2].bias], lr=0.1)
    with pytest.raises(UserError, match="within lrm.same_weights"), lrm.same_weights(model):
        steps(model, biases, 1)
    groups = lrm.build_param_groups(model, 1e-3, 0.1)
    rest = torch.optim.AdamW([group for group in groups if group["kind"] != "vector"])
    for step in range(3):  # beside one that moves the rest
        objective(model, step).backward()
        biases.step(), rest.step()

    model = network(implementation)
    with_groups = adamw(model)
    by_hand = torch.optim.AdamW([p for p in model.parameters() if p.dim() == 2])
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    for optimizer in (with_groups, by_hand):
        with pytest.raises(UserError, match="weights that the model had before others took their"):
            steps(model, optimizer, 1)
    steps(model, adamw(model), 3)


def test_compiled_layers_compute_with_a_plain_tensor_within_a_step():
    """The code that a compiler makes then knows nothing of multipliers."""

    def losses(model):
        optimizer, found = adamw(model), []
        for step in range(4):
            loss = step_in_two_parts(model, optimizer, step)
            found.append(loss.item())
        return found

    want, model, graphs = losses(network("optimizer")), network("optimizer"), []

    def record(module, inputs):
        graphs.append([str(n.target) for n in module.graph.nodes if n.op.startswith("call")])
        return module.forward

    for layer in model:
        layer.compile(backend=record)
    assert losses(model) == pytest.approx(want, rel=1e-12)
    assert graphs == [["<built-in function linear>"]] * 2


class Sum(nn.Module):
    """Adds views of two weights, which have one gradient between them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.delta = nn.Parameter(torch.zeros(6, 6))

    def forward(self, x):
        return x @ (self.a.weight.T + self.b.weight.T + self.delta.T)


def test_a_gradient_that_parameters_share_is_passed_on_to_each():
    found = {}
    for implementation in ("forward", "optimizer"):
        torch.manual_seed(0)
        model, x = Sum(), torch.randn(16, 6)
        handle = lrm.attach_multipliers(model, "hidden", implementation=implementation)
        with torch.no_grad():
            for _, _, parameter in handle.named():
                parameter.fill_(2.0)
        with lrm.same_weights(model):
            model(x).square().mean().backward()
        found[implementation] = {name: p.grad for name, p in model.named_parameters()}
    for name, want in found["forward"].items():
        torch.testing.assert_close(found["optimizer"][name], want)


def test_a_gradient_that_nobody_else_has_is_passed_on_without_a_copy(monkeypatch):
    told = []
    plain = effective.is_unshared
    monkeypatch.setattr(effective, "is_unshared", lambda t: told.append(plain(t)) or told[-1])
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    lrm.attach_multipliers(model, "hidden", implementation="optimizer")
    with lrm.same_weights(model):
        model(torch.randn(5, 4)).square().mean().backward()
    assert told == [True, True]


@both
def test_a_look_without_gradients_comes_first(implementation):
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    handle = lrm.attach_multipliers(model, "hidden", implementation=implementation)
    with lrm.same_weights(model):
        with torch.inference_mode():
            model(torch.randn(9, 4))
        model(torch.randn(9, 4)).sum().backward()
    assert all(p.grad is not None for _, _, p in handle.named())
