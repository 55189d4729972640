"""Steepest descent on any model: kinds by module type, one step's criterion, resumption, errors."""

import copy
import re
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

import lrm
from lrm.errors import UserError
from lrm.optim import SteepestDescent

LR = 0.1
SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
         "num_attention_heads": 2}  # fmt: skip


class Model(nn.Module):
    """One parameter of each kind, a table of positions and a stack of matrices."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 6), nn.Embedding(5, 6)
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 12)
        self.experts = nn.Parameter(torch.randn(3, 4, 12) / 4)
        self.lm_head = nn.Linear(4, 11, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.lm_head((self.up(self.norm(x)).tanh() @ self.experts.mT[:, None]).sum(0))


def model_of(seed=0):
    torch.manual_seed(seed)
    return Model().double()


def loss_of(model, step=0):
    ids = torch.randint(9, (4, 5), generator=torch.Generator().manual_seed(step))
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())


def rms(tensor, dim=None):
    return tensor.square().mean(dim).sqrt()


def test_a_step_has_the_criterion_of_each_layer():
    """The LR, whatever the gradient; and a Newton–Schulz update within its 0.7 to 1.2."""
    model = model_of()
    before = copy.deepcopy(model.state_dict())
    optimizer = SteepestDescent(model, LR)
    loss_of(model).backward()
    optimizer.step()
    moved = {name: value - before[name] for name, value in model.state_dict().items()}
    assert {g["kind"]: len(g["params"]) for g in optimizer.param_groups} == {
        "embedding": 2, "gain": 1, "bias": 2, "linear": 2, "head": 1}  # fmt: skip
    seen = rms(moved["tokens.weight"], 1)
    assert ((seen - LR).abs() < 1e-12).sum() >= 5 and (seen[9:] == 0).all()
    torch.testing.assert_close(rms(moved["positions.weight"], 1), torch.full((5,), LR).double())
    torch.testing.assert_close(4 * rms(moved["lm_head.weight"], 1), torch.full((11,), LR).double())
    assert (moved["norm.weight"].abs() - LR).abs().max() < 1e-12
    for name in ("norm.bias", "up.bias"):
        assert rms(moved[name]).item() == pytest.approx(LR)
    for matrix in (moved["up.weight"], *moved["experts"]):
        values = torch.linalg.svdvals(matrix) * (matrix.shape[1] / matrix.shape[0]) ** 0.5
        assert 0.65 * LR < values.max() < 1.25 * LR
    for name, own in moved.items():
        assert (own * dict(model.named_parameters())[name].grad).sum() < 0, name


def test_a_step_is_that_of_the_runs_of_this_suite():
    """The same directions as of rules, momentum and decay included (float64)."""
    from lrm.multipliers.groups import Entry
    from lrm.optim.optimizer import Optimizer
    from lrm.plan.config import OptimizerConfig, TrainConfig

    kinds = {"tokens.weight": "per_token", "positions.weight": "per_token", "norm.weight": "sign",
             "norm.bias": "normalized", "up.weight": "muon", "up.bias": "normalized",
             "lm_head.weight": "per_token"}  # fmt: skip
    ours, theirs = model_of(), model_of()
    optimizer = SteepestDescent(ours, LR, weight_decay=0.3, momentum=0.9, kind={"experts": "none"})
    entries = []
    for name, leaf in theirs.named_parameters():
        if name in kinds:
            lr, decay = LR, 0.3 if leaf.dim() > 1 else 0.0
            if name == "lm_head.weight":
                lr, decay = LR / 4, 0.3 * 4
            options = () if kinds[name] == "muon" else (("momentum", 0.9),)
            mover = (kinds[name], name, options)
            entries.append(Entry((name,), leaf, leaf, None, lr, decay, True, *mover))
    config = OptimizerConfig(shape_factor="spectral", muon_momentum=0.9)
    reference = Optimizer(entries, config, TrainConfig(clip_norm=0.0))
    for step in range(4):
        for model, each in ((ours, optimizer), (theirs, reference)):
            each.zero_grad()
            loss_of(model, step).backward()
        optimizer.step()
        reference.step(1.0)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_resumed_optimizer_goes_on_with_the_same_bits():
    by_kind = {"embedding": {"lr": 0.2, "rows": "seen"}, "head": {"momentum": 0.5}}
    runs = []
    for resumed in (False, True):
        model = model_of()
        optimizer = SteepestDescent(model, LR, by_kind=by_kind)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        for step in range(6):
            if resumed and step == 3:
                states = [copy.deepcopy(each.state_dict()) for each in (model, optimizer, schedule)]
                model = model_of(1)
                optimizer = SteepestDescent(model, 7.0)
                schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
                for each, state in zip((model, optimizer, schedule), states, strict=True):
                    each.load_state_dict(state)
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            schedule.step()
        runs.append((loss, *model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    groups = {group["kind"]: group for group in optimizer.param_groups}
    assert groups["embedding"]["rows"] == "seen" and groups["head"]["momentum"] == 0.5
    assert groups["gain"]["lr"] == pytest.approx(LR * 0.8**6)


def test_kinds_of_others_models():
    """Matrices that are stored with inputs first; positions; a head that the model names."""
    config = transformers.GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    with pytest.raises(UserError, match="the first is transformer.wte.weight, an embedding that"):
        SteepestDescent(model, LR)
    optimizer = SteepestDescent(model, LR, kind={"*.wte.weight": "embedding"})
    named = {id(p): n for n, p in model.named_parameters()}
    found = {named[id(p)]: g["kind"] for g in optimizer.param_groups for p in g["params"]}
    assert len(found) == len(named) and set(found.values()) == {"embedding", "linear", "gain",
                                                                "bias"}  # fmt: skip
    assert found["transformer.wpe.weight"] == "embedding"
    assert found["transformer.h.0.attn.c_attn.weight"] == "linear"
    weight = model.transformer.h[0].attn.c_attn.weight  # 16 inputs, 48 outputs
    before = weight.detach().clone()
    ids = torch.arange(8)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    largest = torch.linalg.matrix_norm(weight.detach() - before, 2) * (16 / 48) ** 0.5
    assert 0.65 * LR < largest < 1.25 * LR
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    kinds = {group["kind"] for group in SteepestDescent(llama, LR).param_groups}
    assert kinds == {"embedding", "linear", "gain", "head"}


def test_with_multipliers():
    """AdamW moves those, in both implementations alike; whoever forgets them is told."""
    found = {}
    for implementation in ("forward", "optimizer"):
        model = model_of()
        lrm.attach_multipliers(model, implementation=implementation)
        with lrm.same_weights(model):
            loss_of(model).backward()
        with pytest.raises(UserError, match="the optimizer lacks .* multipliers that learn"):
            SteepestDescent(model, LR).step()
        groups = lrm.build_param_groups(model, lr=1e-3, weight_decay=0.0)
        of_multipliers = [group for group in groups if group["kind"] == "multiplier"]
        optimizers = [SteepestDescent(model, LR), torch.optim.AdamW(of_multipliers)]
        losses = found[implementation] = []
        for step in range(6):
            for optimizer in optimizers:
                optimizer.zero_grad()
            with lrm.same_weights(model):
                loss = loss_of(model, step)
                loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
    assert found["forward"] == pytest.approx(found["optimizer"], rel=1e-9)


class InputsFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.randn(4, 16, dtype=torch.float64))

    def forward(self, x):
        return x @ self.W


@pytest.mark.parametrize("attached", [False, True])
def test_matrices_with_inputs_first(attached):
    """A step of the spectral norm of 16 outputs from 4 inputs, said here or at attaching."""
    torch.manual_seed(0)
    model, role = InputsFirst(), {"W": "transposed"}
    if attached:
        lrm.attach_multipliers(model, role=role)
    optimizers = [SteepestDescent(model, LR, role=None if attached else role)]
    if attached:
        groups = lrm.build_param_groups(model, 1e-3, 0.0)
        optimizers.append(torch.optim.AdamW([g for g in groups if g["kind"] == "multiplier"]))
    weight = model._parameters["W"]
    before = weight.detach().clone()
    model(torch.randn(9, 4, dtype=torch.float64)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    largest = torch.linalg.matrix_norm(weight.detach() - before, 2) * (4 / 16) ** 0.5
    assert 0.65 * LR < largest < 1.25 * LR


def test_momentum_zero_and_a_closure():
    model = model_of()
    optimizer = SteepestDescent(model, LR, momentum=0.0)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    for _ in range(5):
        last = optimizer.step(closure)
    assert last < first and not optimizer.state


def test_a_scheduler_changes_the_tensor_of_each_group_once():
    optimizer = SteepestDescent(Model(), torch.tensor(0.5))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    optimizer.step()
    schedule.step()
    assert len(optimizer.param_groups) > 2
    assert all(float(group["lr"]) == pytest.approx(0.05) for group in optimizer.param_groups)


class Strange(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.table = nn.Embedding(4, 3, sparse=sparse)
        self.A_log = nn.Parameter(torch.zeros(3))
        self.conv = nn.Conv1d(3, 3, 2, bias=False)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (Strange(), {}, "2 parameters are of no kind .* .the first is A_log.; say what"),
        (Strange(), {"kind": {"*": "matrix"}}, "kind 'matrix' of '.': use one of linear"),
        (Strange(), {"kind": {"x": "gain"}}, "no parameter's name matches 'x'"),
        (Strange(), {"kind": {"A_log": "gain", "conv.*": "linear"}},
         "conv.weight is a convolution and no linear, .* give it 'none'"),
        (Strange(), {"kind": {"A_log": "gain", "conv.*": "none"}, "by_kind": {"bias": {}}},
         "nothing of the kind 'bias'"),
        (Strange(), {"kind": {"*": "gain", "A_log": "head"}}, "A_log has shape .3,. and is no hea"),
        (Strange(True), {"kind": {"A_log": "gain", "conv.*": "none"}}, "give its module sparse="),
        (Strange(), {"kind": {"*": "none"}}, "nothing that learns"),
        (Model(), {"by_kind": {"matrix": {}}}, "'matrix' is no kind; use one of linear"),
        (Model(), {"by_kind": {"head": {"rows": "seen"}}}, "head has no 'rows'; use one of lr"),
        (Model(), {"by_kind": {"embedding": {"rows": "some"}}}, "rows is 'some'; write all or"),
        (Model(), {"momentum": 1.0}, "momentum is 1.0; give one below 1"),
        (Model(), {"weight_decay": -1.0}, "weight_decay is -1.0; give a number that is not neg"),
        (list(Model().parameters()), {}, "optim.SteepestDescent takes the model, not list"),
        (Model(), {"kind": "none"}, "kind is 'none'; give a mapping of patterns to kinds"),
        (Model(), {"by_kind": ["linear"]}, r"by_kind is \['linear'\]; give a mapping of kinds"),
        (Model(), {"by_kind": {"linear": 3}}, "by_kind is {'linear': 3}; give a mapping of kinds"),
        (Model(), {"weight_decay": True}, "weight_decay is True; give a number that is not neg"),
        (Model(), {"by_kind": {"head": {"lr": float("inf")}}}, "lr is inf; .* and finite"),
        (Model(), {"by_kind": {"head": {"lr": torch.tensor([0.02])}}}, "or a tensor of shape ..$"),
        (Model(), {"role": "matrix"}, "role is 'matrix'; give a mapping of patterns to roles"),
        (Model(), {"momentum": torch.ones(2)}, "momentum is tensor.*; give a number that is not"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(model, settings, message):
    with pytest.raises(UserError, match=message) as caught:
        SteepestDescent(model, LR, **settings)
    assert "\n" not in str(caught.value)


def test_a_group_that_is_added_has_the_direction_of_its_kind():
    optimizer, more = SteepestDescent(Model(), LR), nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [more], "kind": "gain", "direction": "sign"})
    for group in ({"direction": "sign"}, {"direction": "sign", "kind": "linear"}):
        with pytest.raises(UserError, match="the direction 'sign' and the kind .* not belong toge"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], **group})
    more.grad = torch.tensor([1.0, -2.0, 3.0])
    optimizer.step()
    assert torch.allclose(more.detach(), 1 - LR * torch.tensor([1.0, -1.0, 1.0]))


def test_the_example_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "lrm" / "multipliers" / "README.md").read_text()
    [example] = re.findall(r"<!-- steepest.*?```python\n(.*?)```", page, re.DOTALL)
    spaces = {}
    exec(compile(example, "README.md", "exec"), spaces)
    assert spaces["losses"][-1] < spaces["losses"][0]
