"""Norm statistics, fits, products and costs against values worked out by hand."""

import numpy as np
import pandas as pd
import pytest
import torch

from analysis.drawing.style import power_of_two
from analysis.publish import kept
from analysis.quantities.norms import (
    at_step,
    geometric_mean,
    noise_spread,
    over_layers,
    pooled_relative_norms,
    relative_norms,
)
from analysis.quantities.stats import interval, log_range, log_slope
from analysis.tables import compact
from analysis.tables.compact import Kept, of_tensors, scalars
from lrm.errors import UserError
from lrm.model.config import ModelConfig
from lrm.plan.config import Execution
from lrm.plan.cost import flops_per_token, of_one_device, of_simulation
from lrm.plan.rules import resolve
from lrm.plan.run import Cost, TrainRun
from lrm.plan.timescales import products
from lrm.train.learner import build


def test_intervals_and_fits():
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.n == 3
    assert found.high - found.mean == pytest.approx(4.302653 / 3**0.5)  # t(0.975, 2) · s / √n
    assert interval([5.0]).low == -np.inf
    assert log_slope([1, 4, 16], [3, 1.5, 0.75]) == pytest.approx(-0.5)
    assert log_range([2.0, 8.0, 4.0]) == pytest.approx(np.log(4))


def test_norm_distributions():
    assert geometric_mean([1.0, 4.0, 16.0]) == pytest.approx(4.0)
    assert geometric_mean([1.0, 0.0]) == 0.0
    relative, dead = relative_norms([1.0, 3.0, 0.0])
    assert dead == 1
    np.testing.assert_allclose(relative, [0.5, 1.5])
    pooled, dead = pooled_relative_norms(pd.DataFrame({"value": [[1.0, 3.0], [10.0, 10.0, 0.0]]}))
    np.testing.assert_allclose(pooled, [0.5, 1.5, 1.0, 1.0])
    assert dead == 1
    noise = np.random.default_rng(0).standard_normal((20000, 64))
    norms = np.sqrt((noise**2).mean(axis=1))
    assert norms.std() / norms.mean() == pytest.approx(noise_spread(64), rel=0.03)


def test_tables_over_layers_and_steps():
    frame = pd.DataFrame(
        {
            "arm": "A",
            "step": [0, 0, 50, 50, 100, 100],
            "tensor": "mlp.up",
            "layer": [0, 1] * 3,
            "value": [1.0, 4.0, 2.0, 8.0, 9.0, 9.0],
        }
    )
    assert over_layers(frame)["value"].tolist() == pytest.approx([2.0, 4.0, 9.0])
    assert sorted(at_step(frame, 99)["value"]) == [2.0, 8.0]
    assert [power_of_two(v) for v in (0.03125, 0.5, 2.0, 8.0)] == ["1/32", "1/2", "2", "8"]


def test_vectors_of_a_run_that_ended_before_any_was_measured():
    rows = pd.DataFrame({"tensor": ["mlp_up@0", "mlp_up@1", "lm_head"], "value": [1.0, 2.0, 3.0]})
    assert of_tensors(rows, {"mlp_up"})["value"].tolist() == [1.0, 2.0]
    assert of_tensors(rows[:0], {"mlp_up"}).empty


def test_a_loss_that_is_no_number_is_published_as_such():
    """The means between probes of a run that diverged at step 13."""
    losses = [*np.linspace(5.0, 4.0, 12), np.nan]
    frame = pd.DataFrame({"step": range(1, 14), "tensor": "model", "stat": "train_loss",
                          "value": losses})  # fmt: skip
    description = {"settings": {"train": {"steps": 40}, "schedule": {"decay_steps": 10},
                                "probes": {"every": 10}}}  # fmt: skip
    found = scalars(frame, description, Kept(()), whole=False).set_index("step")["value"]
    assert found[10] == pytest.approx(np.mean(losses[:10])) and found.index.tolist() == [10, 20]
    assert np.isnan(found[20])


def test_runs_on_another_text_are_not_published_beside_others(tmp_path, monkeypatch):
    there, added = (
        {"id": name, "kind": "train", "seed": 0, "corpus": {"hash": name, "name": name}}
        for name in ("old", "new")
    )
    monkeypatch.setattr(compact, "find", lambda *_, **__: [(added, tmp_path)])
    monkeypatch.setattr(compact, "_published", lambda *_: ([there], {"scalars": [], "vectors": []}))
    with pytest.raises(UserError, match=r"come from 2 corpora \(old, new\)"):
        compact.publish("projector", "tiny", [0], tmp_path, Kept(()))
    assert not list(tmp_path.rglob("*.parquet"))


def test_the_seeds_that_judge_by_vectors_keep_them():
    found = kept("scale_diversity")
    label = "FULL seed=207"
    assert found.read(label, 207, rank=9) and not found.whole(label, 9) and found.whole(label, 0)
    assert not found.read(label, 3, rank=9)


def test_runs_that_no_claim_reads_vectors_of_publish_none():
    found = kept("gdn_transfer")
    read, other = "SP width=64 lr=0.016 seed=200", "SP width=64 lr=0.032 seed=200"
    assert found.whole(read, 0) and "gdn.q" in found.read(read, 200, rank=0)
    assert not found.whole(other, 0) and not found.read(other, 200, rank=0)
    assert Kept(()).whole(other, 0) and not Kept(()).whole(other, 1)


def test_products_by_hand(settings):
    rules = [{"match": "projector", "relative_scale": 4.0, "multiplier": {"kind": "row"}}]
    config = settings(rules=rules)
    found = {record["tensor"]: record for record in products(resolve(config), config)}
    factors = 0.5 + 1.0 * 7 + sum(8.0 ** (-k / 4) for k in (1, 2, 3, 4))
    assert found["projector"]["lr_wd_t"] == pytest.approx(0.01 * 0.1 * factors)
    assert found["projector"]["equilibrium_norm"] == pytest.approx((0.04 / (2 * 0.025)) ** 0.5)
    assert found["projector"]["needed"] == 0.0
    assert found["projector.row"]["travel"] == pytest.approx(0.01 * factors)
    assert found["projector.row"]["step"] == 0.01


def test_what_decays_starts_from_its_own_law(settings):
    """Of a norm, of biases drawn uniformly, and of filters: what their entries begin with."""
    names = ("norm.mixer", "ssm.A_log", "ssm.dt_bias", "ssm.conv")
    rules = [{"match": name, "weight_decay": 0.1} for name in names]
    config = settings(rules=rules)
    plans = {plan.key: plan for plan in resolve(config)}
    found = {record["tensor"]: record for record in products(list(plans.values()), config)}
    model = build(config, 0, dtype=torch.float64).model
    parameters = dict(model.named_parameters())
    assert found["norm.mixer@0"]["initial_norm"] == 1.0 and found["norm.mixer@0"]["needed"] > 1
    assert found["norm.mixer@0"]["step"] == plans["norm.mixer@0"].lr
    for name in names[1:]:
        values = parameters[plans[f"{name}@0"].address.parameter]
        size = values.square().mean().sqrt().item()
        # Of two heads; the filters are many.
        near = 0.5 if values.numel() < 10 else 0.1
        assert found[f"{name}@0"]["initial_norm"] == pytest.approx(size, rel=near), name


def test_costs(settings):
    config = ModelConfig()
    # 6 per entry of every matrix but the embedding, plus attention and SSD.
    matrices = 521_411_104 - 32784 * 1024
    assert 1.0 < flops_per_token(config, 4096) / (6 * matrices) < 1.4
    run = TrainRun("x", "smoke", "A", {}, 0, settings(), Execution(), Cost(
        devices=8, flops_per_second=1e12, price_per_hour=2.0), corpus="x")  # fmt: skip
    found = run.estimate()
    assert found.tokens == 12 * 4 * 16
    assert found.seconds == pytest.approx(found.flops / 8e12)
    assert found.devices == 8
    found = of_one_device(3600, 1e12, run.cost)
    assert (found.seconds, found.devices) == (3600.0, 1)  # whatever a training occupies
    # Beside a GPU noise is simulated on a core.
    beside = run.cost.model_copy(update={"simulated_per_second": 1e10})
    assert of_simulation(36, 1e12, beside).seconds == 3600.0
    assert of_simulation(3600, 1e12, run.cost).seconds == 3600.0
