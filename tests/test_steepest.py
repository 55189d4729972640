"""SGD against torch's; sign, normalized and per_token by hand, in whole runs, resumed, refused."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from lrm.errors import UserError
from lrm.multipliers.groups import Entry
from lrm.optim.directions import per_token
from lrm.optim.optimizer import Optimizer
from lrm.plan import rules
from lrm.plan.config import Execution, OptimizerConfig, TrainConfig
from lrm.plan.experiment import load
from lrm.plan.memory import of_process
from lrm.plan.msign import shape_factor
from lrm.plan.run import Brownian, BrownianRun, Cost, TrainRun
from lrm.plan.schedule import lr_factor
from lrm.plan.timescales import products
from lrm.sweep.dry_run import text
from lrm.train.learner import build
from lrm.train.step import train_step

# Every kind, on slices of merged matrices too, beside Muon and AdamW.
KINDS = [
    {"match": "embedding", "optimizer": "per_token", "rows": "seen", "momentum": 0.8},
    {"match": "projector", "optimizer": "per_token", "lr_scale": 0.5},
    {"match": "norms", "optimizer": "sign"},
    {"match": "ssm.conv_bias", "optimizer": "normalized"},
    {"match": "ssm.[zx]", "optimizer": "normalized"},
    {"match": "ssm.B", "optimizer": "sgd", "momentum": 0.5},
    {"match": "ssm.C", "optimizer": "sign", "rows": "seen"},
    {"match": "ssm.conv", "optimizer": "sgd", "momentum": 0.0},
]
MULTIPLIERS = [
    {"match": "mlp.*", "multiplier": {"kind": "row_column"}},
    {"match": "ssm.[zB]", "multiplier": {"kind": "row_column"}},
    {"match": "embedding", "multiplier": {"kind": "row_column"}},
    {"match": "projector", "multiplier": {"kind": "scalar"}},
]
MUON = {"name": "muon", "shape_factor": "spectral"}


def batch_of(step, sequences=3):
    return torch.randint(0, 300, (sequences, 17), generator=torch.Generator().manual_seed(step))


def moved_by(kind, leaves, options=(), lr=0.1, decay=0.0, **config):
    entries = [Entry((str(n),), leaf, leaf, None, lr, decay, True, kind, None,
                     (("momentum", 0.9), *options)) for n, leaf in enumerate(leaves)]  # fmt: skip
    return Optimizer(entries, OptimizerConfig(**config), TrainConfig(clip_norm=0.0))


def draw(step, shape=(6, 4)):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# --- SGD -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.98, True), (0.9, False), (0.0, True)])
def test_a_run_of_sgd_is_torchs(settings, momentum, nesterov):
    """All tensors of a model, clipped, under the schedule: the same bits."""
    config = settings(
        train={"clip_norm": 0.5, "steps": 8},
        optimizer={"weight_decay": 0.0, "lr": 0.3, "momentum": momentum, "nesterov": nesterov},
        rules=[{"match": "*", "optimizer": "sgd"}],
    )
    ours, theirs = build(config, 0), build(config, 0)
    model = theirs.model
    reference = torch.optim.SGD(model.parameters(), lr=0.3, momentum=momentum,
                                nesterov=nesterov and momentum > 0)  # fmt: skip
    for step in range(8):
        train_step(ours, batch_of(step), config, step)
        reference.zero_grad()
        loss = model(batch_of(step)[:, :-1], batch_of(step)[:, 1:], config.train.z_loss)[1]
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([e.leaf for e in theirs.optimizer.entries], 0.5)
        assert norm > 0.5
        reference.param_groups[0]["lr"] = 0.3 * lr_factor(config.schedule, 8, step)
        reference.step()
    for a, b in zip(ours.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_decay_of_sgd_is_decoupled():
    """W <- (1 − lr λ) W before the step, and nothing of it in the momentum."""
    leaf = nn.Parameter(draw(0))
    optimizer = moved_by("sgd", [leaf], lr=0.1, decay=0.5)
    expected, buffer = leaf.detach().clone(), None
    for step, factor in enumerate((1.0, 0.3, 0.1), 1):
        leaf.grad = draw(step)
        buffer = leaf.grad.clone() if buffer is None else 0.9 * buffer + leaf.grad
        lr = 0.1 * factor
        expected = expected * (1 - lr * 0.5) - lr * (leaf.grad + 0.9 * buffer)
        optimizer.step(factor)
    torch.testing.assert_close(leaf.detach(), expected, rtol=1e-13, atol=1e-13)


# --- steepest descent ------------------------------------------------------------------------


def rms(tensor, *dims):
    return tensor.square().mean(dims, keepdim=True).sqrt()


BY_HAND = {
    "sign": torch.sign,
    "normalized": lambda moment: moment / rms(moment, 0, 1),
    "per_token": lambda moment: moment / rms(moment, 1),
}


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("kind", BY_HAND)
def test_directions_by_hand(kind, nesterov):
    """Momentum first, then the direction; decay by the raw LR before the step."""
    leaf = nn.Parameter(draw(0))
    optimizer = moved_by(kind, [leaf], lr=0.1, decay=0.5, nesterov=nesterov)
    expected, buffer = leaf.detach().clone(), torch.zeros(6, 4, dtype=torch.float64)
    for step, factor in enumerate((1.0, 0.3, 0.1), 1):
        leaf.grad = draw(step)
        buffer = 0.9 * buffer + 0.1 * leaf.grad
        moment = 0.9 * buffer + 0.1 * leaf.grad if nesterov else buffer
        lr = 0.1 * factor
        expected = expected * (1 - lr * 0.5) - lr * BY_HAND[kind](moment)
        optimizer.step(factor)
    torch.testing.assert_close(leaf.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["sign", "per_token"])
@pytest.mark.parametrize("seen", [True, False])
def test_rows_without_a_gradient(kind, seen):
    """They move along their stale momentum, or only decay; what was never seen never moves."""
    leaf = nn.Parameter(torch.ones(3, 4))
    options = (("rows", "seen" if seen else "all"),)
    optimizer = moved_by(kind, [leaf], options, lr=0.1, decay=0.5)
    for rows in ([0, 1], [1]):
        leaf.grad = torch.zeros(3, 4)
        leaf.grad[rows] = 2.0
        optimizer.step(1.0)
    kept = 1 - 0.1 * 0.5
    once, twice = kept * (kept - 0.1), kept * (kept - 0.1) - 0.1
    expected = torch.tensor([once if seen else twice, twice, kept**2])
    torch.testing.assert_close(leaf.detach(), expected[:, None].expand(3, 4))
    # The momentum fades in both.
    [state] = optimizer.parts[kind].state.values()
    torch.testing.assert_close(state["momentum_buffer"][0], torch.full((4,), 0.9 * 0.1 * 2.0))


def test_a_row_of_any_size_has_a_direction():
    """Also where its squares are zero in float32; zeros and what is no number stay that."""
    sizes = torch.tensor([1e30, 1.0, 1e-30, 0.0, torch.nan])
    found = per_token(sizes[:, None] * torch.tensor([3.0, -4.0]))
    unit = torch.tensor([3.0, -4.0]) / 12.5**0.5
    for row in found[:3]:
        torch.testing.assert_close(row, unit)
    assert not found[3].any() and found[4].isnan().all()


def test_the_update_of_a_matrix_has_spectral_norm_lr():
    """Times sqrt(columns / rows), within what five Newton–Schulz iterations leave of it."""
    leaf = nn.Parameter(torch.zeros(48, 12))
    entry = Entry(("w",), leaf, leaf, None, 0.1, 0.0, True, "muon", "w")
    config = OptimizerConfig(**MUON, newton_schulz_precision="float32")
    optimizer = Optimizer([entry], config, TrainConfig(clip_norm=0.0))
    leaf.grad = torch.randn(48, 12, generator=torch.Generator().manual_seed(0))
    optimizer.step(1.0)
    assert shape_factor("spectral", 48, 12) == 2.0
    values = torch.linalg.svdvals(leaf.detach()) * (12 / 48) ** 0.5
    assert values.min() > 0.065 and values.max() < 0.125


# --- in a run --------------------------------------------------------------------------------


def test_who_moves_what(settings):
    """By rules, slices of one merged parameter included, beside Muon and AdamW."""
    config = settings(rules=KINDS + MULTIPLIERS, optimizer=MUON)
    learner = build(config, 0)
    found = {}
    for group in learner.optimizer.table():
        own = (group["optimizer"], group.get("momentum"), group.get("rows"))
        found |= {key.replace("@0", ""): own for key in group["tensors"]}
    expected = {
        "embedding": ("per_token", 0.8, "seen"), "projector": ("per_token", 0.95, "all"),
        "norm.mlp": ("sign", 0.95, "all"), "norm.final": ("sign", 0.95, "all"),
        "ssm.z": ("normalized", 0.95, None), "ssm.x": ("normalized", 0.95, None),
        "ssm.B": ("sgd", 0.5, None), "ssm.C": ("sign", 0.95, "seen"),
        "ssm.dt": ("muon", None, None), "mlp.up": ("muon", None, None),
        "ssm.conv": ("sgd", 0.0, None), "ssm.D": ("adamw", None, None),
        "mlp.up.row": ("adamw", None, None), "embedding.column": ("adamw", None, None),
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    records = {r["tensor"]: r for r in rules.table(learner.plans, config) if not r["multiplier"]}
    assert records["embedding"]["rows"] == "seen" and "momentum" not in records["mlp.up@0"]


def test_each_slice_is_normalised_by_itself(settings):
    """z and x are neighbours of equal settings, and yet no one tensor."""
    config = settings(rules=[{"match": "ssm.[zx]", "optimizer": "normalized"}],
                      optimizer={"weight_decay": 0.0}, schedule={"warmup_steps": 0})  # fmt: skip
    learner = build(config, 0, dtype=torch.float64)
    weight = learner.model.model.layers[0].mamba.in_proj.weight
    before = weight.detach().clone()
    train_step(learner, batch_of(0), config, 0)
    moved = weight.detach() - before
    for plan in learner.plans:
        if plan.key in ("ssm.z@0", "ssm.x@0"):
            rows = moved[slice(*plan.address.rows)]
            assert rms(rows).item() == pytest.approx(0.01, rel=1e-9)


def test_tokens_that_a_batch_lacks_stay(settings):
    """Rows of the embedding move as far as the LR says if their token is there."""
    for rows in ("seen", "all"):
        rule = {"match": "embedding", "optimizer": "per_token", "rows": rows}
        config = settings(rules=[rule], optimizer={"weight_decay": 0.0},
                          schedule={"warmup_steps": 0, "decay_steps": 0})  # fmt: skip
        learner = build(config, 0, dtype=torch.float64)
        weight = learner.model.model.embed_tokens.weight
        for step in range(2):
            before = weight.detach().clone()
            train_step(learner, batch_of(step), config, step)
            moved = rms(weight.detach() - before, 1)[:, 0]
            there = torch.zeros(len(weight), dtype=torch.bool)
            for each in range(step + 1) if rows == "all" else (step,):
                there[batch_of(each)[:, :-1].flatten()] = True
            torch.testing.assert_close(moved, torch.where(there, 0.01, 0.0).double())


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_resuming_gives_the_same_bits(settings, implementation):
    """A fresh learner with the state of another, whole or spread by names, goes on as that does."""
    config = settings(rules=KINDS + MULTIPLIERS, optimizer=MUON,
                      train={"multiplier_implementation": implementation, "clip_norm": 0.3},
                      )  # fmt: skip
    whole, resumed, spread = (build(config, seed) for seed in (0, 1, 2))
    for step in range(4):
        train_step(whole, batch_of(step), config, step)
    assert set(whole.optimizer.parts) == {"adamw", "muon", "sgd", "sign", "normalized", "per_token"}
    resumed.load(copy.deepcopy(whole.state()))
    outline, tensors = copy.deepcopy(whole.spread())

    def fill(wanted):
        assert wanted.keys() == tensors.keys()
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])

    spread.load(outline, fill)
    for step in range(4, 8):
        a, *others = (train_step(each, batch_of(step), config, step)
                      for each in (whole, resumed, spread))  # fmt: skip
        for b in others:
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    for a, *others in zip(*(each.model.parameters() for each in (whole, resumed, spread)),
                          strict=True):  # fmt: skip
        assert all(torch.equal(a, b) for b in others)


def test_both_implementations_train_alike(settings):
    """Each kind moves along the gradient of W, however the multipliers are implemented."""
    losses = {}
    for implementation in ("forward", "optimizer"):
        config = settings(
            rules=KINDS + MULTIPLIERS, optimizer=MUON,
            train={"multiplier_implementation": implementation, "clip_norm": 0.3},
        )  # fmt: skip
        learner = build(config, 0, dtype=torch.float64)
        losses[implementation] = [
            train_step(learner, batch_of(step), config, step)[0].item() for step in range(8)
        ]
    np.testing.assert_allclose(losses["forward"], losses["optimizer"], rtol=1e-9)
    assert losses["forward"][-1] < losses["forward"][0]


@pytest.mark.parametrize(("kind", "pattern"), [("per_token", "projector"), ("sign", "mlp.up"),
                                               ("normalized", "ssm.x")])  # fmt: skip
def test_compensated_sweep_reproduces_s_equal_one(settings, kind, pattern):
    """They know no scale: W' = S·W from S·W₀ with output factor 1/S is the S = 1 run."""
    kinds = [{"match": pattern, "optimizer": kind}]
    scaling = [{"match": pattern, "relative_scale": 4.0, "compensate": True}]
    configs = [settings(rules=found, train={"clip_norm": 0.0}, optimizer={"eps": 1e-40})
               for found in (kinds, kinds + scaling)]  # fmt: skip
    learners = [build(config, 0, dtype=torch.float64) for config in configs]
    for step in range(8):
        a, b = (train_step(learner, batch_of(step), config, step)[0].item()
                for learner, config in zip(learners, configs, strict=True))  # fmt: skip
        assert abs(a - b) < 1e-9


def test_the_presets(settings, tmp_path):
    """Steepest descent has each layer's kind, and the projector's LR falls with the width."""
    path = tmp_path / "some" / "config.yaml"
    path.parent.mkdir()
    found = {}
    for name in ("sgd", "steepest"):
        path.write_text(f"title: a test\nuse: [scale/$scale, optimizer/{name}]\n"
                        "grid: {d: [32, 64]}\nwidth: {hidden_size: $d}\n")  # fmt: skip
        found[name] = load(path).runs("smoke", [0])
    assert {plan.optimizer for run in found["sgd"] for plan in run.plans} == {"sgd"}
    narrow, wide = ({plan.key: plan for plan in run.plans} for run in found["steepest"])
    kinds = {key: plan.optimizer for key, plan in narrow.items()}
    assert kinds["embedding"] == kinds["projector"] == "per_token"
    assert kinds["norm.mlp@0"] == "sign" and kinds["mlp.up@0"] == kinds["ssm.x@0"] == "muon"
    assert kinds["ssm.conv_bias@0"] == "normalized" and kinds["ssm.A_log@0"] == "adamw"
    assert wide["projector"].lr == pytest.approx(narrow["projector"].lr / 2)
    assert wide["embedding"].lr == narrow["embedding"].lr
    shown = text(load(path), found["steepest"][:1], tmp_path)
    assert "per_token 0.95" in shown and "sign 0.95" in shown


def test_a_later_optimizer_forgets_what_an_earlier_was_told(settings):
    """But keeps what it knows too, field by field."""
    first = {"match": "embedding", "optimizer": "per_token", "rows": "seen", "momentum": 0.5}
    for kind, expected in (("adamw", {}), ("sgd", {"momentum": 0.5}),
                           ("sign", {"momentum": 0.5, "rows": "seen"})):  # fmt: skip
        said = [first, {"match": "embedding", "optimizer": kind}]
        assert dict(rules.resolve(settings(rules=said))[0].options) == expected


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"match": "norm.mlp", "optimizer": "per_token"}, "per_token needs a matrix, this tensor"),
        ({"match": "mlp.up", "momentum": 0.5}, "momentum is for sgd, normalized, sign, per_token"),
        ({"match": "mlp.up", "optimizer": "muon", "momentum": 0.5}, "moved by muon; drop momentum"),
        ({"match": "mlp.up", "optimizer": "sgd", "rows": "seen"}, "rows is for sign, per_token"),
        ({"match": "norms", "optimizer": "sign", "rows": "seen"}, "rows is for matrices, and its"),
        ({"match": "norm.mlp", "optimizer": "sign", "weight": "scalar"},
         "weight = scalar learns a multiplier, which AdamW moves; drop optimizer or weight"),
        ({"match": "mlp.up", "optimizer": "row_normalized"}, "optimizer"),
        ({"match": "mlp.up", "optimizer": "sgd", "momentum": 1.0}, "momentum"),
    ],
)  # fmt: skip
def test_bad_rules_are_one_line(settings, rule, message):
    with pytest.raises(UserError, match=message) as caught:
        rules.resolve(settings(rules=[rule]))
    assert "\n" not in str(caught.value)


def test_noise_walks_what_adam_and_muon_move(settings):
    config = settings(rules=[{"match": "embedding", "optimizer": "per_token"}])
    common = ("test", "smoke", "A", {}, 0, config, Execution(), Cost())
    BrownianRun(*common, brownian=Brownian(match=("mlp.up",), arms=("A",)))
    with pytest.raises(UserError, match="embedding is moved by per_token, and only what AdamW or"):
        BrownianRun(*common, brownian=Brownian(match=("embedding",), arms=("A",)))


def test_products_and_memory(settings):
    """No equilibrium is claimed for them; of momentum 0 there is no state."""
    config = settings(rules=KINDS, optimizer=MUON)
    records = {r["tensor"]: r for r in products(rules.resolve(config), config)}
    assert "needed" in records["mlp.up@0"] and "needed" not in records["embedding"]
    assert records["embedding"]["lr_wd_t"] > 0
    job = TrainRun("test", "smoke", "A", {}, 0, config, Execution(precision="float32"), Cost())
    learner = build(config, 0)
    train_step(learner, batch_of(0), config, 0)
    used = sum(p.numel() for p in learner.model.parameters())
    for part in learner.optimizer.parts.values():
        for group in part.param_groups:
            used += sum(leaf.numel() for leaf in group["params"])
        used += sum(v.numel() for state in part.state.values() for v in state.values() if v.dim())
    assert of_process(job).state == 4 * used
    plain = dataclasses.replace(job, settings=settings())
    assert of_process(plain).state > of_process(job).state
