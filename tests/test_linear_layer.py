"""Table 1 in simulation: exponents of the width in equilibrium against those derived."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from analysis.quantities import table1
from analysis.quantities.stats import log_slope
from lrm.errors import UserError
from lrm.noise import linear_layer
from lrm.plan.config import Settings
from lrm.plan.rules import resolve

OPTIMIZERS = {
    "ADAM": {"name": "adamw"},
    "MUON": {"name": "muon", "shape_factor": "match_rms_adamw"},
    "JORDAN": {"name": "muon", "shape_factor": "original"},
}
WIDTHS = (8, 32)


def measured(optimizer: str, recipe: str, case: str) -> dict[str, float]:
    """Exponents over ``WIDTHS``, Σηλ = 5 at each; momentum forgets faster than 1 / ηλ steps."""
    draws = 16 if optimizer == "ADAM" else 6
    lr, decay, multiplier = table1.RECIPES[recipe]
    means: dict[str, list[float]] = {}
    for width in WIDTHS:
        ratio = width / WIDTHS[0]
        settings = Settings(
            model={"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 1,
                   "initializer_range": 0.02, "num_attention_heads": 2, "num_key_value_heads": 1,
                   "head_dim": 4, "mamba_d_ssm": 8, "mamba_n_heads": 2, "vocab_size": 16},
            train={"steps": int(1000 * ratio ** -(lr + decay))},
            optimizer={**OPTIMIZERS[optimizer], "lr": 1e-2, "weight_decay": 0.5,
                       "newton_schulz_precision": "float32", "eps": 1e-12},
            base_width=WIDTHS[0],
            rules=({"match": "mlp.up", "width_exponent":
                    {"lr": lr, "weight_decay": decay, "forward": multiplier}},),
        )  # fmt: skip
        [plan] = [plan for plan in resolve(settings) if plan.key == "mlp.up@0"]
        generator = torch.Generator().manual_seed(width)
        found = linear_layer.simulate(plan, settings, case, draws, generator, every=20)
        late = found.steps > found.steps[-1] * 3 / 4
        for stat, values in found.stats.items():
            means.setdefault(stat, []).append(float(np.log(values[late]).mean()))
    return {stat: log_slope(WIDTHS, np.exp(values)) for stat, values in means.items()}


@pytest.mark.parametrize("case", linear_layer.CASES)
@pytest.mark.parametrize("recipe", table1.RECIPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_exponents_are_those_derived(optimizer, recipe, case):
    found = measured(optimizer, recipe, case)
    expected = table1.derived(optimizer, recipe, case)
    for stat in ("weight_norm", "output_norm", "relative_update"):
        assert found[stat] == pytest.approx(expected[stat], abs=0.1), stat


def test_one_input_is_fully_aligned(settings):
    """‖y‖ = d ‖W‖ ‖x‖ once the start is forgotten; of fresh inputs sqrt(d) ‖W‖ ‖x‖."""
    config = settings(
        train={"steps": 600}, schedule={"warmup_steps": 0, "decay_steps": 0},
        optimizer={"lr": 2e-2, "weight_decay": 1.0},
    )  # fmt: skip
    [plan] = [plan for plan in resolve(config) if plan.key == "mlp.up@0"]
    d = plan.address.shape[1]
    for case, expected in (("one_input", d), ("fresh_inputs", d**0.5)):
        generator = torch.Generator().manual_seed(0)
        found = linear_layer.simulate(plan, config, case, 64, generator, every=600).stats
        ratio = found["output_norm"][-1] / found["weight_norm"][-1]
        assert ratio.mean() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("key", ["ssm.x@0", "norm.mlp@0", "embedding"])
def test_only_matrices_of_their_own(settings, key):
    [plan] = [plan for plan in resolve(settings()) if plan.key == key]
    with pytest.raises(UserError, match="no learning matrix of its own"):
        linear_layer.simulate(plan, settings(), "one_input", 2, torch.Generator(), 10)


def test_what_cannot_be_measured_is_told_before_hours_are_spent(tmp_path, monkeypatch, smoke_runs):
    """Of all that is matched, before the first is simulated."""
    run = next(run for run in smoke_runs("linear_layer") if run.kind == "layer")
    wrong = next(plan for plan in run.plans if plan.address.role != "matrix")
    monkeypatch.setattr(type(run), "matched", property(lambda run: [run.plans[1], wrong]))
    monkeypatch.setattr(linear_layer, "simulate", None)
    with pytest.raises(UserError, match="is no learning matrix of its own"):
        linear_layer.run(run, tmp_path / "run", tmp_path)


def test_the_first_step_is_not_measured(settings):
    """W is 0 before it."""
    config = settings()
    [plan] = [plan for plan in resolve(config) if plan.key == "mlp.up@0"]
    generator = torch.Generator().manual_seed(0)
    found = linear_layer.simulate(plan, config, "one_input", 2, generator, every=1)
    assert list(found.steps) == list(range(2, config.train.steps + 1))
    assert all(np.isfinite(values).all() for values in found.stats.values())
    one = config.model_copy(update={"train": config.train.model_copy(update={"steps": 1})})
    with pytest.raises(UserError, match="set train.steps to 2 or more"):
        linear_layer.simulate(plan, one, "one_input", 2, generator, every=1)
