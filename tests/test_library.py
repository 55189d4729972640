"""lrm as a library: transformers architectures, implementations, optimizers, checkpoints."""

import copy
import pickle
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from lifecycle import IMPLEMENTATIONS, adamw, built, check, train
from torch import nn
from transformers.pytorch_utils import Conv1D
from zoo import CASES

import lrm
from lrm.errors import UserError
from lrm.multipliers import equations

both = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@both
@pytest.mark.parametrize("name", ["Falcon-H1", "GPT-2", "Qwen3-MoE", "ConvNet"])
def test_architectures_train_save_load_and_merge(name, implementation, tmp_path):
    """A hybrid, transposed matrices, experts, convolutions; ``make test-models`` has them all."""
    check(name, implementation, tmp_path)


class Mixed(nn.Module):
    """Every kind of parameter: tied, merged, transposed, stacked, convolved, vectors."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.conv = nn.Conv1d(6, 6, 3, padding=1, groups=6)
        self.merged = nn.Linear(6, 10)
        self.transposed = Conv1D(6, 5)
        self.experts = nn.Parameter(torch.randn(3, 6, 6) / 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        a, b = self.merged(x).split([5, 5], -1)
        x = x + self.transposed(a * b.tanh())
        x = x + torch.einsum("btd,edh->bth", x, self.experts)
        return self.head(self.norm(x))


KINDS = {
    "scalar": {"*": "scalar"},
    "row": {"*": "row", "norm.weight": "row", "merged.bias": "scalar", "conv.weight": "row"},
    "column": {"*": "column"},
    "row_column": {"*": "row_column"},
    "slices": {"merged.weight": [(0, 3, "row_column"), (5, 9, "scalar"), (9, 10, "column")],
               "transposed.weight": [(2, 6, "row_column")], "head.weight": "column"},
}  # fmt: skip


def small_losses(implementation, make, placement, parametrization="direct", steps=50, model=None):
    """Losses and gradient norms of ``steps`` steps of two micro-batches each, in float64."""
    if model is None:
        torch.manual_seed(0)
        model = Mixed().double()
    lrm.attach_multipliers(
        model, placement, implementation=implementation, parametrization=parametrization,
        weight_decay=0.05,
    )  # fmt: skip
    groups = lrm.build_param_groups(model, lr=0.02, weight_decay=0.1)
    optimizer = make(groups)
    found = []
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        with lrm.same_weights(model):
            for _ in range(2):
                tokens = torch.randint(0, 11, (2, 9), generator=generator)
                logits = model(tokens[:, :-1]).flatten(0, 1)
                loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
                (loss / 2).backward()
        found += [loss.item(), lrm.clip_grad_norm_(model, 0.5).item()]
        optimizer.step()
    return torch.tensor(found, dtype=torch.float64), model


def sgd(groups):
    return torch.optim.SGD([{**g, "lr": 5 * g["lr"]} for g in groups], momentum=0.9)


class Both(torch.optim.Optimizer):
    """Muon for the matrices, AdamW for the rest, as one optimizer."""

    def __init__(self, groups):
        super().__init__(groups, {})

        def matrices(g):
            return g["kind"] == "matrix" and all(p.dim() == 2 for p in g["params"])

        self.parts = [torch.optim.Muon([g for g in groups if matrices(g)]),
                      torch.optim.AdamW([g for g in groups if not matrices(g)])]  # fmt: skip

    def step(self, closure=None):
        for part in self.parts:
            part.step()


@pytest.mark.parametrize("make", [torch.optim.AdamW, sgd])
@pytest.mark.parametrize("parametrization", ["direct", "log"])
@pytest.mark.parametrize("kind", KINDS)
def test_implementations_have_one_trajectory(kind, parametrization, make):
    """50 steps of two micro-batches with decay, clipping and every shape of parameter."""
    a, first = small_losses("forward", make, KINDS[kind], parametrization)
    b, second = small_losses("optimizer", make, KINDS[kind], parametrization)
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    moved = lrm.effective_weights(first)
    assert set(moved) == set(lrm.effective_weights(second))
    for name, weight in lrm.effective_weights(second).items():
        torch.testing.assert_close(moved[name], weight, rtol=1e-8, atol=1e-10)


def test_implementations_have_one_trajectory_under_muon():
    def linears():
        torch.manual_seed(0)
        body = [nn.Embedding(11, 8), nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)]
        return nn.Sequential(*body, nn.Linear(8, 11)).double()

    found = [
        small_losses(name, Both, "hidden", steps=10, model=linears())[0]
        for name in ("forward", "optimizer")
    ]
    # Muon orthogonalises in bfloat16, which makes steps of rounding.
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("first", "second"), [("forward", "optimizer"), ("optimizer", "forward")])
def test_checkpoints_carry_over(first, second):
    def run(implementation, steps, state=None):
        model = built("Qwen3").double()
        lrm.attach_multipliers(model, implementation=implementation)
        optimizer = adamw(model)
        if state is not None:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        start = 0 if state is None else 5
        batch = CASES["Qwen3"].batch()
        losses = train(model, optimizer, batch, range(start, start + steps))
        return losses, (copy.deepcopy(model.state_dict()), optimizer.state_dict())

    whole, _ = run(first, 10)
    begun, state = run(first, 5)
    ended, _ = run(second, 5, state)
    assert begun + ended == pytest.approx(whole, rel=1e-10)


def test_multipliers_are_left_out_of_clipping():
    """The norm is that of every other gradient, and theirs are not scaled."""
    for implementation in ("forward", "optimizer"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        found = lrm.attach_multipliers(model, {"*": "row_column"}, implementation=implementation)
        (100 * model(torch.randn(16, 4))).square().mean().backward()
        factors = [f.grad.clone() for _, _, f in found.named()]
        others = [*found.weights.values(), model[0].bias, model[1].bias]
        expected = torch.cat([p.grad.flatten() for p in others]).norm()
        assert lrm.clip_grad_norm_(model, 1.0) == pytest.approx(expected.item(), rel=1e-5)
        after = torch.cat([p.grad.flatten() for p in others]).norm()
        assert after.item() == pytest.approx(1.0, rel=1e-4) and expected > 10
        for (_, _, parameter), before in zip(found.named(), factors, strict=True):
            assert torch.equal(parameter.grad, before)


def test_groups_decay_what_the_paper_decays():
    model = built("Falcon-H1")
    lrm.attach_multipliers(model, lr=0.03)
    groups = lrm.build_param_groups(model, lr=1e-3, weight_decay=0.1)
    by_kind = {group["kind"]: group for group in groups}
    assert {k: (g["lr"], g["weight_decay"]) for k, g in by_kind.items()} == {
        "matrix": (1e-3, 0.1), "embedding": (1e-3, 0.1), "head": (1e-3, 0.1),
        "vector": (1e-3, 0.0), "multiplier": (0.03, 2e-3),
    }  # fmt: skip
    names = {id(p): name for name, p in model.named_parameters()}
    vectors = {names[id(p)].rpartition("layers.0.")[2] for p in by_kind["vector"]["params"]}
    assert {"mamba.A_log", "mamba.D", "mamba.dt_bias", "mamba.conv1d.weight",
            "input_layernorm.weight"} <= vectors  # fmt: skip
    for kind, name in (("embedding", "model.embed_tokens.weight"), ("head", "lm_head.weight")):
        assert {names[id(p)] for p in by_kind[kind]["params"]} == {name}
    every = [id(p) for group in groups for p in group["params"]]
    assert sorted(every) == sorted(names)
    assert "lm_head.weight" not in lrm.effective_weights(model)
    other = lrm.build_param_groups(model, 1e-3, 0.1, multiplier_lr=0.5, multiplier_weight_decay=0)
    assert [g["lr"] for g in other if g["kind"] == "multiplier"] == [0.5]


def test_a_tied_weight_is_multiplied_once_for_both():
    model = built("Qwen3")
    lrm.attach_multipliers(model)
    assert [key for key in model.state_dict() if "embed_tokens" in key] == [
        "model.embed_tokens.weight", "model.embed_tokens.multipliers.weight.all.column",
    ]  # fmt: skip
    assert not any("lm_head.multipliers" in key for key in model.state_dict())
    with torch.no_grad():
        model.model.embed_tokens.multipliers["weight"].scalings()[0].column.mul_(2.0)
    torch.testing.assert_close(model.lm_head.weight, model.model.embed_tokens.weight)
    w = dict(model.named_parameters())["model.embed_tokens.weight"]
    torch.testing.assert_close(model.lm_head.weight, 2 * w)


def test_scaling_goes_to_the_cheaper_side(monkeypatch):
    """Few tokens: x and y are scaled and W̄ is never built. The same output and gradients."""
    torch.manual_seed(0)
    model = nn.Linear(24, 32).double()
    lrm.attach_multipliers(model, {"weight": "row_column"})
    with torch.no_grad():
        for scaling in model.multipliers["weight"].scalings():
            for parameter in scaling.parameters():
                parameter.uniform_(0.5, 2.0)
    built = []
    original = equations.effective
    monkeypatch.setattr(equations, "effective", lambda *a: built.append(1) or original(*a))
    x = torch.randn(40, 24, dtype=torch.float64)

    def gradients(parts):
        model.zero_grad()
        outputs = torch.cat([model(part) for part in parts])
        outputs.square().mean().backward()
        return [outputs.detach(), *(p.grad.clone() for p in model.parameters())]

    whole = gradients([x])
    assert built == [1]
    few = gradients(x.split(4))
    assert built == [1]
    torch.testing.assert_close(few, whole, rtol=1e-10, atol=1e-12)


def test_weights_are_built_once_for_all_micro_batches(monkeypatch):
    model = nn.Linear(4, 3)
    lrm.attach_multipliers(model, {"weight": "row"})
    x, built = torch.randn(64, 4), []
    original = equations.write
    monkeypatch.setattr(equations, "write", lambda *a, **n: built.append(1) or original(*a, **n))
    with lrm.same_weights(model):
        for _ in range(3):
            model(x).sum().backward()
    assert built == [1]
    once = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for _ in range(3):
        model(x).sum().backward()
    assert built == [1] * 4
    torch.testing.assert_close([p.grad for p in model.parameters()], once)


@both
def test_copies_and_pickles_are_models_of_their_own(implementation):
    model, batch = built("Llama"), CASES["Llama"].batch()
    lrm.attach_multipliers(model, implementation=implementation)
    optimizer = adamw(model)
    train(model, optimizer, batch, range(2))
    probe = torch.arange(6).view(1, 6)
    before = model(probe).logits
    copied = copy.deepcopy(model)
    pickled = pickle.loads(pickle.dumps(model))
    train(model, optimizer, batch, range(2, 4))
    for other in (copied, pickled):
        assert torch.equal(other(probe).logits, before)
        train(other, adamw(other), batch, range(2, 4))
        assert not torch.equal(other(probe).logits, before)
        lrm.merge_multipliers(other)
    assert lrm.effective_weights(model) and not lrm.effective_weights(copied)


def test_frozen_weights_may_have_multipliers():
    for implementation in ("forward", "optimizer"):
        model = nn.Linear(4, 3)
        model.weight.requires_grad_(False)
        before = model.weight.clone()
        found = lrm.attach_multipliers(model, {"weight": "row"}, implementation=implementation)
        groups = lrm.build_param_groups(model, lr=0.1, weight_decay=0.1)
        assert sum(p.numel() for g in groups for p in g["params"]) == 6
        optimizer = torch.optim.SGD(groups)
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
        assert torch.equal(found.weights["weight"], before)
        lrm.merge_multipliers(model)
        assert not model.weight.requires_grad and not torch.equal(model.weight, before)


def test_half_precision_models_have_float32_multipliers():
    model = nn.Linear(16, 8).bfloat16()
    for implementation in ("forward", "optimizer"):
        found = lrm.attach_multipliers(model, {"weight": "row_column"},
                                       implementation=implementation)  # fmt: skip
        assert all(f.dtype == torch.float32 for _, _, f in found.named())
        assert model.weight.dtype == torch.bfloat16
        with torch.no_grad():
            found.scalings["weight"].row.fill_(1.001)
        model.float().bfloat16()
        assert (found.scalings["weight"].row == torch.tensor(1.001)).all()
        model(torch.randn(64, 16).bfloat16()).float().square().sum().backward()
        assert all(f.grad.dtype == torch.float32 for _, _, f in found.named())
        lrm.merge_multipliers(model)
        model.zero_grad()


@both
def test_a_closure_and_an_abandoned_step(implementation):
    """A closure's gradients reach W and the multipliers, and zero_grad forgets all of them."""
    model = nn.Linear(4, 3)
    found = lrm.attach_multipliers(model, {"weight": "row"}, implementation=implementation)
    optimizer = torch.optim.SGD(lrm.build_param_groups(model, 0.1, 0.0))
    x = torch.randn(8, 4)
    model(x).sum().backward()
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    before = found.weights["weight"].detach().clone()

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    assert not torch.equal(found.weights["weight"], before)
    torch.testing.assert_close(model.weight, lrm.effective_weights(model)["weight"])


def test_compiled_modules(monkeypatch):
    """torch.compile sees through the property, with the eager backend: no C++ is needed."""
    torch.manual_seed(0)
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        lrm.attach_multipliers(model, {"0.weight": "row_column", "2.weight": [(0, 1, "row")]})
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        optimizer = torch.optim.AdamW(lrm.build_param_groups(call, 0.1, 0.1))
        for seed in range(4):
            x = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed)).double()
            optimizer.zero_grad()
            loss = call(x).square().mean()
            loss.backward()
            lrm.clip_grad_norm_(call, 1.0)
            optimizer.step()
            losses.append(loss.item())
    assert losses[:4] == pytest.approx(losses[4:], rel=1e-12)


def test_errors_name_the_culprit():
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6))
    for placement, message in [
        ("everything", "unknown placement 'everything'; use one of all, hidden, scalar"),
        ({"head.*": "row"}, "pattern 'head.*' matches no parameter's name"),
        ({"1.*": "row"}, "matches no matrix of the model; write 1.weight and the like out in full"),
        ({"0.weight": "rows"}, "0.weight: unknown kind 'rows'"),
        ({"1.weight": "column"}, r"1.weight: a column multiplier needs a matrix, .* \(6,\)"),
        ({"0.weight": [(0, 4, "row"), (3, 6, "row")]}, "rows 3 to 6 overlap others"),
        ({"0.weight": [(4, 7, "row")]}, "rows 4 to 7 .* not among its 6"),
        ({"0.weight": "none"}, "leaves every parameter without multipliers; name parameters by"),
        (lambda name, module, parameter: None, "leaves every parameter without"),
    ]:
        with pytest.raises(UserError, match=message):
            lrm.attach_multipliers(model, placement)
    with pytest.raises(UserError, match="unknown implementation 'magic'"):
        lrm.attach_multipliers(model, implementation="magic")
    assert not lrm.effective_weights(model)
    lrm.attach_multipliers(model, lambda name, module, parameter: "row")
    assert set(lrm.effective_weights(model)) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    with pytest.raises(UserError, match="has multipliers already"):
        lrm.attach_multipliers(model)
    for implementation in ("forward", "optimizer"):
        lrm.merge_multipliers(model)
        lrm.attach_multipliers(model, "hidden", implementation=implementation)
        state = model.state_dict()
        key = "0.multipliers.weight.all.row"
        with pytest.raises(RuntimeError, match="size mismatch for " + key):
            model.load_state_dict({**state, key: torch.ones(7)})
        del state[key]
        with pytest.raises(RuntimeError, match="Missing key.*" + key):
            model.load_state_dict(state)


def test_importing_the_package_does_not_import_torch():
    code = (
        "import lrm, sys; assert 'torch' not in sys.modules; lrm.attach_multipliers; "
        "assert 'lrm.optim' not in sys.modules; lrm.optim.mup_param_groups"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_shows_its_calls_and_types():
    stub = (Path(lrm.__file__).parent / "__init__.pyi").read_text()
    for name in lrm.__all__:
        assert getattr(lrm, name).__doc__ and f" as {name}\n" in stub
    assert set(lrm.__all__) <= set(dir(lrm)) and lrm.UserError is UserError
    assert (Path(lrm.__file__).parent / "py.typed").exists()
    shown = pydoc.render_doc(lrm, renderer=pydoc.plaintext)
    assert "attach_multipliers(model: 'nn.Module', placement: 'Placement' = 'all'" in shown


def test_the_example_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "lrm" / "multipliers" / "README.md").read_text()
    [example] = re.findall(r"<!-- example.*?```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not any("multipliers" in name for name in loaded.state_dict())
