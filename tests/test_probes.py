"""Norms by hand, and where they are read."""

import pytest
import torch

from lrm import data
from lrm.errors import Diverged
from lrm.plan.config import Execution
from lrm.plan.cost import Cost
from lrm.plan.run import TrainRun
from lrm.train import loop, probes
from lrm.train.learner import build
from lrm.train.step import backward, gradient_statistics, train_step


def test_norms_by_hand():
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.testing.assert_close(probes.row_norms(weight), torch.tensor([12.5**0.5, 0.0]))
    torch.testing.assert_close(probes.column_norms(weight), torch.tensor([4.5**0.5, 8.0**0.5]))
    assert probes.row_norms(torch.ones(3, 1, 4)).shape == (3,)
    # The mean over tokens of the RMS, not the RMS of all entries.
    tokens = torch.tensor([[[3.0, 3.0], [1.0, 1.0]]])
    assert probes.token_rms(tokens).item() == pytest.approx(2.0)
    half = torch.full((1, 4), 300.0, dtype=torch.float16)
    assert probes.row_norms(half).item() == pytest.approx(300.0)


def test_norms_of_tensors_by_hand(settings):
    learner = build(settings(), 0)
    views = probes.Views(learner.model, learner.plans, learner.multipliers)
    found = probes.tensor_norms(views)["weight_norm"]
    assert len(found) == len(learner.plans)
    for plan in learner.plans:
        expected = views.weight(plan).detach().double().square().mean().sqrt().item()
        assert found[plan.key] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_every_address_is_probed_alike_by_both_implementations(settings, implementation):
    rules = [{"match": "ssm.*", "optional": True, "lr_scale": 2.0},
             {"match": "ssm.z", "multiplier": {"kind": "row_column", "init": 2.0}},
             {"match": "norm.mixer", "weight": "frozen"}]  # fmt: skip
    config = settings(rules=rules, train={"multiplier_implementation": implementation})
    learner = build(config, 0)
    plain = build(settings(), 0)
    batch = torch.randint(0, 300, (2, 17), generator=torch.Generator().manual_seed(0))
    views = probes.Views(learner.model, learner.plans, learner.multipliers)
    before = probes.tensor_norms(views)
    expected = probes.tensor_norms(probes.Views(plain.model, plain.plans, plain.multipliers))
    assert before["weight_norm"] == pytest.approx(expected["weight_norm"])
    assert before["effective_norm"]["ssm.z@0"] == pytest.approx(
        4 * before["weight_norm"]["ssm.z@0"]
    )
    assert before["row_multiplier_norm"]["ssm.z@1"] == 2.0
    train_step(learner, batch, config, 0)
    found = probes.tensor_norms(views)
    gradients = found["gradient_norm"]
    own = learner.multipliers.scalings["ssm.z@0"].row.grad
    assert found["row_multiplier_gradient_norm"]["ssm.z@0"] == pytest.approx(
        own.square().mean().sqrt().item(), rel=1e-5
    )
    assert set(found["column_multiplier_gradient_norm"]) == {"ssm.z@0", "ssm.z@1"}
    keys = {plan.key for plan in learner.plans}
    assert set(gradients) == keys - {"norm.mixer@0", "norm.mixer@1"}
    vectors = probes.vectors(views)
    assert len(vectors["effective_row_norms"]["ssm.z@0"]) == 16
    assert len(vectors["values"]["norm.final"]) == 16
    assert len(vectors["row_norms"]["ssm.conv@0"]) == 24


def test_logits_are_also_centred(settings):
    learner = build(settings(), 0)
    with torch.no_grad():
        learner.model.lm_head.weight += 5.0  # a shift common to the vocabulary
        tokens = torch.randint(0, 300, (2, 8))
        found = probes.activation_norms(learner.model, tokens)
        logits = learner.model(tokens)
    centred = logits - logits.mean(-1, keepdim=True)
    assert found["centred_norm"]["projector"] == pytest.approx(
        centred.square().mean(-1).sqrt().mean().item(), rel=1e-4
    )
    assert found["activation_norm"]["projector"] > 1.5 * found["centred_norm"]["projector"]
    assert {"embedding", "attention.out@1", "ssm.dt@0", "mlp.gate@1"} <= set(
        found["activation_norm"]
    )


def test_norms_of_activations_are_means_over_tokens_however_many_pass_at_a_time(settings):
    model, tokens = build(settings(), 0).model, torch.randint(0, 300, (5, 8))
    with torch.no_grad():
        whole, parts = (probes.activation_norms(model, tokens, size) for size in (0, 2))
    for stat, values in whole.items():
        assert parts[stat] == pytest.approx(values, rel=1e-5)


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_signal_and_noise_of_gradients_by_hand(settings, implementation):
    """Against the same sums from each batch's gradients, held whole."""
    rules = [{"match": "mlp.up", "multiplier": {"kind": "scalar", "init": 2.0}}]
    config = settings(rules=rules, train={"multiplier_implementation": implementation})
    learner = build(config, 0, dtype=torch.float64)
    views = probes.Views(learner.model, learner.plans, learner.multipliers)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 300, (2, 17), generator=generator) for _ in range(5)]
    found = gradient_statistics(learner, views, batches, config)
    assert all(parameter.grad is None for parameter in learner.model.parameters())
    [plan] = [plan for plan in learner.plans if plan.key == "mlp.up@1"]
    weight = views.weight(plan).detach()
    gradients = []
    for batch in batches:
        backward(learner, batch, config)
        gradients.append(views.gradient(plan).clone())
    whole = torch.stack(gradients)
    for stat, values in {
        "gradient": whole,
        "scalar_gradient": (whole * weight).sum((1, 2))[:, None],
        "row_gradient": (whole * weight).sum(2),
        "column_gradient": (whole * weight).sum(1),
    }.items():
        noise = values.var(0).mean()
        signal = values.mean(0).square().mean() - noise / 5
        assert found[f"{stat}_noise"]["mlp.up@1"] == pytest.approx(noise.item(), rel=1e-6)
        assert found[f"{stat}_signal"]["mlp.up@1"] == pytest.approx(signal.item(), rel=1e-6)
    assert "row_gradient_noise" in found and "norm.final" not in found["row_gradient_noise"]


def test_the_sum_over_weight_and_gradient_is_the_scalars_own(settings):
    """The multiplier's own gradient is the sum over W and G, over its value."""
    rules = [{"match": "mlp.up", "multiplier": {"kind": "scalar", "init": 2.0}}]
    config = settings(rules=rules)
    learner = build(config, 0, dtype=torch.float64)
    views = probes.Views(learner.model, learner.plans, learner.multipliers)
    batch = torch.randint(0, 300, (2, 17), generator=torch.Generator().manual_seed(0))
    backward(learner, batch, config)
    [plan] = [plan for plan in learner.plans if plan.key == "mlp.up@1"]
    own = learner.multipliers.scalings["mlp.up@1"].scalar.grad
    product = (views.weight(plan) * views.gradient(plan)).sum()
    torch.testing.assert_close(product / 2.0, own.squeeze())


def test_a_start_that_is_not_finite_ends_as_diverged(settings, tmp_path, monkeypatch):
    """Its norms are written as no numbers; the losses then end the run, in the usual words."""

    def diverged(*arguments, **options):
        learner = build(*arguments, **options)
        learner.model.lm_head.weight.data[0, 0] = torch.nan
        return learner

    monkeypatch.setattr(loop, "build", diverged)
    corpora = tmp_path / "corpora"
    config = settings()
    corpus = data.prepare(config.data, config.model.vocab_size, corpora)
    execution = Execution(precision="float32", compile="never")
    run = TrainRun("test", "smoke", "A", {}, 0, config, execution, Cost(), corpus=corpus.hash)
    with pytest.raises(Diverged, match="not finite at step 1 .*lower optimizer.lr"):
        run.execute(tmp_path / "run", corpora)
    found = probes._singular_values(torch.full((4, 3), torch.inf))
    assert found.shape == (3,) and found.isnan().all()
