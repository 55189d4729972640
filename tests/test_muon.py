"""Muon against torch's own, exact identities, slices, resumption, and its Brownian motion."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from lrm.multipliers.groups import Entry
from lrm.noise.closed_form import expected_square, has_closed_form
from lrm.noise.tensor import Walker, simulate, walkers
from lrm.optim.muon import newton_schulz
from lrm.optim.optimizer import Optimizer
from lrm.plan import rules
from lrm.plan.config import OptimizerConfig, TrainConfig
from lrm.plan.newton_schulz import noise_gain
from lrm.plan.rules import Matrix
from lrm.plan.schedule import lr_factor
from lrm.plan.timescales import products
from lrm.train.learner import build
from lrm.train.step import train_step

MUON = {"name": "muon"}
# Scale-free: no epsilon, no clipping.
EXACT = {"eps": 1e-40, "newton_schulz_eps": 1e-40, **MUON}
SHAPES = [(16, 16), (16, 24), (16, 24), (24, 16), (40, 8)]


def batch_of(step, sequences=3):
    return torch.randint(0, 300, (sequences, 17), generator=torch.Generator().manual_seed(step))


def entry(leaf, lr, decay, number):
    return Entry((str(number),), leaf, leaf, None, lr, decay, True, "muon", str(number))


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape_factor", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("double", [False, True])
def test_equals_torch_muon(monkeypatch, shape_factor, nesterov, double):
    """Matrix by matrix and in batches; in bfloat16, and without its rounding in float64."""
    if double:
        # torch's Muon rounds to bfloat16 whatever the dtype: keep it from that.
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    dtype = torch.float64 if double else torch.float32
    generator = torch.Generator().manual_seed(0)

    def draw(shape):
        return torch.randn(shape, dtype=dtype, generator=generator)

    ours = [nn.Parameter(draw(shape)) for shape in SHAPES]
    theirs = [nn.Parameter(leaf.detach().clone()) for leaf in ours]
    begun = [leaf.detach().clone() for leaf in ours]
    config = OptimizerConfig(
        name="muon", shape_factor=shape_factor, muon_momentum=0.9, muon_nesterov=nesterov
    )
    optimizer = Optimizer(
        [entry(leaf, 0.02, 0.3, n) for n, leaf in enumerate(ours)],
        config,
        TrainConfig(clip_norm=0.0),
    )
    reference = torch.optim.Muon(
        theirs, lr=0.02, weight_decay=0.3, momentum=0.9, nesterov=nesterov,
        adjust_lr_fn=shape_factor,
    )  # fmt: skip
    for step in range(6):
        factor = 1 / (step + 1)
        reference.param_groups[0]["lr"] = 0.02 * factor
        for a, b in zip(ours, theirs, strict=True):
            a.grad = draw(a.shape)
            b.grad = a.grad.clone()
        optimizer.step(factor)
        reference.step()
    # Of a way in bfloat16, two digits are the same however a processor orders the sums.
    for a, b, before in zip(ours, theirs, begun, strict=True):
        far = 1e-12 if double else 0.01
        assert (a - b).norm() <= far * (b - before).norm()


def test_the_whole_run_equals_torch(settings, monkeypatch):
    """Hidden matrices by torch's Muon and the rest by its AdamW, clipped together (float64)."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    config = settings(train={"clip_norm": 0.5, "steps": 10}, optimizer=MUON)
    ours = build(config, 0, dtype=torch.float64)
    model = copy.deepcopy(ours.model)
    hidden = {n: p for n, p in model.named_parameters() if "layers" in n and p.dim() == 2}
    assert len(hidden) == 2 * 9  # q, k, v, o, in_proj, out_proj, gate, up, down
    outer = [model.model.embed_tokens.weight, model.lm_head.weight]
    plain = [p for p in model.parameters() if p.dim() != 2]
    adamw = torch.optim.AdamW(
        [{"params": outer, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=0.01, betas=(0.9, 0.95), eps=1e-8, fused=False,
    )  # fmt: skip
    muon = torch.optim.Muon(
        hidden.values(), lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(10):
        train_step(ours, batch_of(step), config, step)
        model.zero_grad()
        tokens = batch_of(step)
        model(tokens[:, :-1], tokens[:, 1:], config.train.z_loss)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for part in (adamw, muon):
            for group in part.param_groups:
                group["lr"] = 0.01 * lr_factor(config.schedule, 10, step)
            part.step()
    for (name, a), (_, b) in zip(
        ours.model.named_parameters(), model.named_parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=name)


def test_singular_values_come_near_one():
    matrices = torch.randn(3, 20, 48, generator=torch.Generator().manual_seed(0)).double()
    found = newton_schulz(matrices, 5, 1e-7)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.65 and values.max() < 1.25
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    overlap = (found * (u @ vh)).sum((1, 2)) / 20
    assert (overlap > 0.8).all()
    torch.testing.assert_close(newton_schulz(matrices.mT, 5, 1e-7), found.mT)


def test_who_moves_what(settings):
    """The table says it: Muon the hidden matrices, AdamW the rest and every multiplier."""
    config = settings(
        optimizer=MUON, rules=[{"match": "mlp.up", "multiplier": {"kind": "row_column"}}]
    )
    learner = build(config, 0)
    found = {}
    for group in learner.optimizer.table():
        for key in group["tensors"]:
            assert found.setdefault(key.partition("@")[0] + key[-4:], group["optimizer"])
            if group["optimizer"] == "muon":
                assert key.split("@")[0] in (
                    *(f"attention.{n}" for n in ("q", "k", "v", "out")),
                    *(f"ssm.{n}" for n in ("z", "x", "B", "C", "dt", "out")),
                    *(f"mlp.{n}" for n in ("gate", "up", "down")),
                ) and not key.endswith(("row", "column"))
    names = [k for g in learner.optimizer.table() if g["optimizer"] == "muon" for k in g["tensors"]]
    assert len(names) == 2 * 13
    [row] = [
        r
        for r in rules.table(learner.plans, config)
        if r["tensor"] == "mlp.up@0" and r["multiplier"] == "row"
    ]
    assert row["optimizer"] == "adamw"


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("matrices", ["whole", "slices"])
def test_both_implementations_train_alike(settings, matrices, log):
    """Muon acts on the gradient of W, however the multipliers are implemented (float64)."""
    found = [
        {"match": "ssm.[zx]", "multiplier": {"kind": "row_column"}},
        {"match": "ssm.B", "lr_scale": 0.5},
        {"match": "ssm.C", "weight": "frozen", "multiplier": {"kind": "scalar"}},
        {"match": "attention.*", "multiplier": {"kind": "row_column"}},
        {"match": "mlp.up", "multiplier": {"kind": "scalar"}, "relative_scale": 4.0},
        {"match": "projector", "multiplier": {"kind": "row"}},
    ]
    losses = {}
    for implementation in ("forward", "optimizer"):
        config = settings(
            rules=found,
            optimizer={**MUON, "muon_matrices": matrices},
            train={"multiplier_implementation": implementation, "clip_norm": 0.3},
            multipliers={"parametrization": "log" if log else "direct", "lr": 0.03},
        )
        learner = build(config, seed=0, dtype=torch.float64)
        losses[implementation] = [
            train_step(learner, batch_of(step), config, step)[0].item() for step in range(8)
        ]
    torch.testing.assert_close(losses["forward"], losses["optimizer"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("patterns", "matrices"),
    [
        (["mlp.*"], "whole"),
        (["attention.*", "projector"], "whole"),
        (["ssm.[zxBC]", "ssm.dt"], "whole"),
        (["ssm.x"], "slices"),
        (["ssm.[zB]", "mlp.up"], "slices"),
    ],
)
@pytest.mark.parametrize("scale", [1 / 16, 4.0])
def test_compensated_sweep_reproduces_s_equal_one(settings, patterns, matrices, scale):
    """W' = S·W from S·W₀ with output factor 1/S is the S = 1 run, step by step (float64)."""
    exact = {
        "optimizer": {**EXACT, "muon_matrices": matrices},
        "train": {"clip_norm": 0.0},
        # With multipliers beside it: Muon sees W's gradient through them.
        "rules": [{"match": "mlp.*", "multiplier": {"kind": "row_column"}}],
    }
    scaling = [{"match": p, "relative_scale": scale, "compensate": True} for p in patterns]
    configs = settings(**exact), settings(**{**exact, "rules": exact["rules"] + scaling})
    base, scaled = (build(config, 0, dtype=torch.float64) for config in configs)
    for step in range(12):
        a = train_step(base, batch_of(step), configs[0], step)[0]
        b = train_step(scaled, batch_of(step), configs[1], step)[0]
        assert abs(a.item() - b.item()) < 1e-8
    plain, theirs = (
        {**dict(learner.model.named_parameters()), **learner.multipliers.weights}
        for learner in (base, scaled)
    )
    for plan in scaled.plans:
        rows = slice(*plan.address.rows) if plan.address.rows else slice(None)
        name, factor = plan.address.parameter, plan.init_scale
        torch.testing.assert_close(
            theirs[name][rows], factor * plain[name][rows], rtol=1e-6, atol=1e-9
        )


def reference_update(gradient, shape):
    """First Muon update of a stack of rows, without LR."""
    factor = 0.2 * max(shape) ** 0.5
    return factor * newton_schulz(gradient[None] * (1 - 0.95**2), 5, 1e-7)[0]


@pytest.mark.parametrize("matrices", ["whole", "slices"])
def test_slices_of_a_merged_matrix(settings, matrices):
    """Own LR and decay for some rows, others frozen: the learning rows are one matrix, or each."""
    found = [
        {"match": "ssm.x", "lr_scale": 0.5, "wd_scale": 3.0},
        {"match": "ssm.B", "weight": "frozen"},
    ]
    config = settings(
        rules=found,
        optimizer={**MUON, "muon_matrices": matrices},
        schedule={"warmup_steps": 0},
        train={"clip_norm": 0.0},
    )
    learner = build(config, 0, dtype=torch.float64)
    weight = learner.model.model.layers[0].mamba.in_proj.weight
    before = weight.detach().clone()
    train_step(learner, batch_of(0), config, 0)
    rows = {p.address.name: slice(*p.address.rows) for p in learner.plans
            if p.address.layer == 0 and p.address.rows}  # fmt: skip
    learning = [name for name in rows if name != "ssm.B"]
    if matrices == "whole":
        stacked = torch.cat([weight.grad[rows[name]] for name in learning])
        update = reference_update(stacked, stacked.shape)
        updates = dict(zip(learning, update.split([16, 16, 4, 2]), strict=True))
    else:
        updates = {
            name: reference_update(weight.grad[rows[name]], weight.grad[rows[name]].shape)
            for name in learning
        }
    for name in learning:
        lr, decay = (0.005, 0.3) if name == "ssm.x" else (0.01, 0.1)
        expected = before[rows[name]] * (1 - lr * decay) - lr * updates[name]
        torch.testing.assert_close(weight.detach()[rows[name]], expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(weight[rows["ssm.B"]], before[rows["ssm.B"]])


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_resuming_gives_the_same_bits(settings, implementation):
    """A fresh learner with the state of another goes on exactly as that does."""
    config = settings(
        rules=[
            {"match": "ssm.x", "lr_scale": 0.5},
            {"match": "ssm.dt", "weight": "frozen"},
            {"match": "mlp.*", "multiplier": {"kind": "row_column"}},
        ],
        optimizer=MUON,
        train={"multiplier_implementation": implementation},
    )
    whole = build(config, 0)
    for step in range(4):
        train_step(whole, batch_of(step), config, step)
    resumed = build(config, 1)
    resumed.load(copy.deepcopy(whole.state()))
    assert set(whole.state()) == {"model", "adamw", "muon"}
    for step in range(4, 8):
        a = train_step(whole, batch_of(step), config, step)
        b = train_step(resumed, batch_of(step), config, step)
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_micro_batches_add_up(settings):
    """To the whole batch within rounding, also while the batch grows (float64)."""
    ramp = [{"until_step": 2, "fraction": 1 / 6}, {"until_step": 5, "fraction": 0.5}]
    config = settings(
        optimizer=MUON,
        train={"batch_size": 6, "clip_norm": 0.3},
        schedule={"batch_ramp": ramp},
        rules=[{"match": "mlp.*", "multiplier": {"kind": "row_column"}}],
    )
    learners = [build(config, 0, dtype=torch.float64) for _ in range(2)]
    for step, size in enumerate([1, 1, 3, 3, 3, 6, 6]):
        a, b = (
            train_step(learner, batch_of(step, size), config, step, micro_batch=micro)
            for learner, micro in zip(learners, (0, 2), strict=True)
        )
        torch.testing.assert_close(a[:2], b[:2], rtol=1e-10, atol=1e-10)
    for a, b in zip(*(learner.model.parameters() for learner in learners), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


# --- Brownian motion -------------------------------------------------------------------------


def walk(config, rows, columns, lr, decay, draws=64, start=0.1):
    matrix = Matrix("w", rows, columns)
    walker = Walker("w", rows * columns, lr, decay, start, constant=False, matrix=matrix)
    steps, norms = simulate(walker, config, draws=draws, seed=0, every=20)
    return walker, steps, norms.astype(float)


@pytest.mark.parametrize(
    ("shape", "factor", "nesterov", "tolerance"),
    [
        ((16, 48), "match_rms_adamw", True, 0.015),
        ((48, 16), "original", True, 0.015),
        ((24, 16), "match_rms_adamw", False, 0.015),
        ((4, 64), "match_rms_adamw", True, 0.05),
        ((16, 16), "match_rms_adamw", True, 0.05),
        ((64, 64), "original", True, 0.05),
    ],
)
def test_closed_form_matches_the_simulation(settings, shape, factor, nesterov, tolerance):
    """E‖W‖² within the tolerance plus four standard errors, at every probe."""
    config = settings(
        train={"steps": 300},
        schedule={"warmup_steps": 20, "decay_steps": 60},
        optimizer={**MUON, "shape_factor": factor, "muon_nesterov": nesterov},
    )
    walker, steps, norms = walk(config, *shape, lr=2e-2, decay=0.5)
    squares = norms**2
    # The sampled start differs from its expectation by what decays.
    error = squares.std(axis=1, ddof=1) / np.sqrt(squares.shape[1])
    expected = expected_square(walker, config)[steps]
    gap = np.abs(squares.mean(axis=1) - expected)
    assert (gap <= tolerance * expected + 4 * error).all(), (gap / expected).max()


def test_jordan_shrinks_with_width_and_moonlight_does_not(settings):
    """Equilibrium norms of square matrices with d = 8 to 64, by simulation and by the gain."""
    widths = (8, 16, 32, 64)
    exponents = {}
    for factor in ("original", "match_rms_adamw"):
        config = settings(
            train={"steps": 120},
            schedule={"warmup_steps": 0, "decay_steps": 0},
            optimizer={**MUON, "shape_factor": factor},
        )
        ends = [walk(config, d, d, 2e-2, 1.5, draws=16)[2][-1].mean() for d in widths]
        gains = [noise_gain(d, d, config.optimizer) for d in widths]
        exponents[factor] = [
            np.polyfit(np.log(widths), np.log(norms), 1)[0] for norms in (ends, gains)
        ]
    assert exponents["original"] == pytest.approx([-0.5, -0.5], abs=0.05)
    assert exponents["match_rms_adamw"] == pytest.approx([0.0, 0.0], abs=0.05)


def test_the_gain_is_the_equilibrium_of_slow_forgetting(settings):
    """ηλ far below 1 − μ: the closed form ends at the gain times sqrt(η / 2λ)."""
    config = settings(
        train={"steps": 4000}, schedule={"warmup_steps": 0, "decay_steps": 0}, optimizer=MUON
    )
    walker = Walker("w", 512, 1e-3, 1.0, 0.1, constant=False, matrix=Matrix("w", 16, 32))
    norm = expected_square(walker, config)[-1] ** 0.5
    gain = noise_gain(16, 32, config.optimizer)
    assert norm == pytest.approx(gain * (1e-3 / 2) ** 0.5, rel=0.02)


def test_a_slice_walks_within_its_matrix(settings):
    """Whole: with the shape of the learning rows; slices: with its own; and what AdamW moves."""
    found = [{"match": "ssm.dt", "weight": "frozen"}]
    patterns = ("ssm.[xB]@0", "projector")
    assert not has_closed_form(Walker("ssm.dt", 32, 0.1, 0.1, 0.1, False, matrix=Matrix("", 2, 16)))
    shapes = {}
    for matrices in ("whole", "slices"):
        config = settings(rules=found, optimizer={**MUON, "muon_matrices": matrices})
        walked = walkers(rules.resolve(config), patterns, config)
        shapes[matrices] = {w.key: w.matrix and (w.matrix.rows, w.matrix.columns) for w in walked}
        for walker in walked:
            assert has_closed_form(walker)
            steps, norms = simulate(walker, config, draws=8, seed=0)
            assert norms.shape == (13, 8) and np.isfinite(norms).all()
            assert norms[0].mean() == pytest.approx(0.1, rel=0.1)
    # z, x, B and C have 16 + 16 + 4 + 4 rows.
    assert shapes["whole"] == {"ssm.x@0": (40, 16), "ssm.B@0": (40, 16), "projector": None}
    assert shapes["slices"] == {"ssm.x@0": (16, 16), "ssm.B@0": (4, 16), "projector": None}


def test_large_matrices_are_drawn_less_often(settings):
    config = settings(optimizer=MUON, train={"steps": 2}, schedule={"warmup_steps": 0,
                      "decay_steps": 0})  # fmt: skip
    assert walk(config, 16, 16, 0.01, 0.1, draws=64)[2].shape[1] == 64
    assert walk(config, 64, 64, 0.01, 0.1, draws=64)[2].shape[1] == 4
    assert walk(config, 200, 200, 0.01, 0.1, draws=64)[2].shape[1] == 2


def test_products_and_costs_know_muon(settings, smoke_runs):
    adam, muon = (settings(), settings(optimizer=MUON))
    norms = [
        {r["tensor"]: r.get("equilibrium_norm") for r in products(rules.resolve(c), c)}
        for c in (adam, muon)
    ]
    assert norms[0]["projector"] == norms[1]["projector"]
    gain = noise_gain(24, 16, muon.optimizer)
    assert norms[1]["mlp.up@0"] == pytest.approx(gain * norms[0]["mlp.up@0"])
    plain, other = (smoke_runs("projector", overrides=["optimizer.name=" + name])[0]
                    for name in ("adamw", "muon"))  # fmt: skip
    assert other.estimate().flops > 1.05 * plain.estimate().flops
    assert other.estimate().tokens == plain.estimate().tokens


def test_equal_shapes_go_through_one_call(settings, monkeypatch):
    """Layers and tensors of one shape are one batch; the order of leaves does not matter."""
    from lrm.optim import muon

    calls = []
    real = muon.newton_schulz

    def counted(matrices, *rest):
        calls.append(tuple(matrices.shape))
        return real(matrices, *rest)

    monkeypatch.setattr(muon, "newton_schulz", counted)
    config = settings(optimizer=MUON)
    learner = build(config, 0)
    train_step(learner, batch_of(0), config, 0)
    expected = {(2, 8, 16), (4, 4, 16), (2, 16, 8), (2, 42, 16), (2, 16, 16), (4, 24, 16),
                (2, 16, 24)}  # fmt: skip
    assert len(calls) == len(set(calls)) and set(calls) == expected
    assert all(a[1:] != b[1:] for a, b in itertools.combinations(calls, 2))
