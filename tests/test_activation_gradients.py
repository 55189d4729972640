"""Gradients by activations against hooks, and what a Gated Delta Network tells of its heads."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest
import torch

from lrm import data
from lrm.model.blocks.gdn import GatedDeltaNet
from lrm.model.blocks.gdn_module import PLACES
from lrm.plan.experiment import load
from lrm.train.activation_gradients import activation_gradients
from lrm.train.learner import build
from lrm.train.sharding import recompute


@pytest.fixture
def batch():
    return torch.randint(0, 300, (4, 17), generator=torch.Generator().manual_seed(0))


def hooked(learner, batch, settings):
    """Gradients by what modules give out, through torch's own hooks."""
    kept = {}

    def keep(name):
        def hook(module, given, output):
            output.retain_grad()
            kept[name] = output

        return hook

    model, handles = learner.model, []
    for name, module in (("norm.final", model.model.final_layernorm),
                         ("residual@0", model.model.layers[0]),
                         ("mlp.down@1", model.model.layers[1].feed_forward)):  # fmt: skip
        handles.append(module.register_forward_hook(keep(name)))
    _, objective = model(batch[:, :-1], batch[:, 1:], settings.train.z_loss)
    objective.backward()
    for handle in handles:
        handle.remove()
    learner.zero_grad()
    return {name: each.grad.double().square().mean().sqrt().item() for name, each in kept.items()}


def test_layers_that_are_computed_again_leave_out_none(settings, batch):
    config = settings()
    (norms, _), (again, _) = (
        activation_gradients(learner, batch, config)
        for learner in (build(config, 0), _computed_again(build(config, 0)))
    )
    assert norms["activation_gradient_norm"] == again["activation_gradient_norm"]
    assert {"attention.out@0", "ssm.out@1"} <= set(norms["activation_gradient_norm"])


def _computed_again(learner):
    recompute(learner.model.model.layers)
    return learner


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_gradients_are_those_of_hooks(settings, batch, implementation):
    rules = [{"match": "mlp.up", "multiplier": {"kind": "row_column", "init": 2.0}}]
    config = settings(rules=rules, train={"multiplier_implementation": implementation})
    learner = build(config, 0)
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    found, told = activation_gradients(learner, batch, config)
    norms = found["activation_gradient_norm"]
    assert not told  # these mixers have nothing to say
    expected = hooked(learner, batch, config)
    assert {name: norms[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert all(torch.equal(before[name], v) for name, v in learner.model.state_dict().items())
    assert all(parameter.grad is None for parameter in learner.model.parameters())
    # Parts of the batch have their share of its mean.
    parts, _ = activation_gradients(learner, batch, config, micro_batch=3)
    assert parts["activation_gradient_norm"] == pytest.approx(norms, rel=1e-4)


def test_heads_tell_what_can_be_counted_by_hand():
    heads, length, width = 2, 9, 4
    kept = torch.full((3, length, heads), 0.5)
    written = torch.rand(3, length, heads, generator=torch.Generator().manual_seed(0))
    q = torch.randn(3, length, heads, width, generator=torch.Generator().manual_seed(1))
    k = q.clone()
    k[:, :, 1] = -2 * q[:, :, 1]  # one head looks for what it has just written, one away from it
    gates = {f"gdn.{name}": torch.randn(3, length, heads) for name in ("alpha", "beta")}
    found = GatedDeltaNet().statistics(
        {"gdn.kept": kept, "gdn.written": written, "gdn.conv_q": q, "gdn.conv_k": k, **gates}
    )
    for place in PLACES:
        told = found[f"cosine_{place}", "gdn.q"]
        torch.testing.assert_close(told, torch.tensor([1.0, -1.0]), atol=1e-5, rtol=0)
        torch.testing.assert_close(
            found[f"absolute_cosine_{place}", "gdn.q"], torch.ones(2), atol=1e-5, rtol=0
        )
    # L_t = 2 − 2^(1−t) after t tokens.
    memory = sum(2 - 2.0 ** (1 - t) for t in range(1, length + 1)) / length
    assert found["memory", "gdn.kept"].tolist() == pytest.approx([memory] * heads)
    assert found["head_mean", "gdn.written"].tolist() == pytest.approx(
        written.mean((0, 1)).tolist()
    )
    share = (written > 0.5).float().mean((0, 1)).tolist()
    assert found["above_half", "gdn.written"].tolist() == pytest.approx(share)
    spread = gates["gdn.alpha"].reshape(-1, heads).std(0, correction=0).tolist()
    assert found["deviation", "gdn.alpha"].tolist() == pytest.approx(spread)
    # Over all pairs of places: the squared length of the mean, and minus it.
    mean = torch.nn.functional.normalize(q, dim=-1).mean(1).square().sum(-1).mean(0)
    assert found["unrelated_cosine", "gdn.q"].tolist() == pytest.approx(
        [mean[0].item(), -mean[1].item()], abs=1e-5
    )


def test_a_run_keeps_them_at_its_probes(tmp_path):
    path = Path(__file__).parents[1] / "experiments" / "gdn_transfer" / "config.yaml"
    planned = next(run for run in load(path).runs("smoke", [0]) if run.arm == "MUP")
    settings = planned.settings
    corpora = tmp_path / "corpora"
    corpus = data.prepare(settings.data, settings.model.vocab_size, corpora)
    run = dataclasses.replace(planned, corpus=corpus.hash)
    run.execute(tmp_path / "run", corpora)
    scalars = pd.read_parquet(tmp_path / "run" / "scalars.parquet")
    norms = scalars[scalars["stat"] == "activation_gradient_norm"]
    assert {0, settings.train.steps} <= set(norms["step"])
    for _, row in norms.groupby("step"):
        values = row.set_index("tensor")["value"]
        assert {"embedding", "residual@0", "gdn.conv_q@1", "gdn.read@0"} <= set(values.index)
        assert (values > 0).all()
    vectors = pd.read_parquet(tmp_path / "run" / "vectors.parquet")
    memory = vectors[(vectors["stat"] == "memory") & (vectors["tensor"] == "gdn.kept@1")]
    assert all(len(value) == 3 for value in memory["value"])
