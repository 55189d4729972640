"""Directions and heads of Beyond MuP 3: by hand, against convex optimisation, and as runs."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from lrm.errors import UserError
from lrm.noise.steepest import head as heads
from lrm.noise.steepest.directions import (
    DIRECTIONS,
    GRADIENTS,
    LAYERS,
    gradient_of,
    msign,
    slope,
    steepest_in_differences,
)
from lrm.optim.criteria import of_head
from lrm.optim.directions import newton_schulz
from lrm.plan.experiment import load


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def test_criteria_by_hand():
    """Those of the article's table, of a small update."""
    update = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]], dtype=torch.float64)
    rms = 12.5**0.5
    found = {name: float(layer.criterion(update)) for name, layer in LAYERS.items()}
    spectral = np.linalg.norm(update.numpy(), 2)
    assert found["linear"] == pytest.approx(spectral * (2 / 3) ** 0.5)
    assert found["embedding"] == pytest.approx(rms) and found["head"] == pytest.approx(2 * rms)
    vector = update[:1]
    assert float(LAYERS["gain"].criterion(vector)) == 4
    assert float(LAYERS["bias"].criterion(vector)) == pytest.approx(rms)
    apart = math.dist((3, 4), (1, 0))
    assert float(of_head(update)) == pytest.approx(2**0.5 * apart)


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("name", LAYERS)
def test_the_own_direction_reaches_the_dual_norm(name, kind):
    layer = LAYERS[name]
    gradient = gradient_of(layer, kind, (9, 5), generator())
    assert gradient.shape == ((1, 5) if layer.is_vector else (9, 5))
    assert slope(layer, gradient, DIRECTIONS[layer.own](gradient)) == pytest.approx(1, abs=1e-12)
    for seed in range(1, 21):
        assert slope(layer, gradient, draw(*gradient.shape, seed=seed)) < 1


def test_the_dual_norm_of_a_gain_is_the_optimum_of_a_linear_program():
    """The most of ⟨G, Δ⟩ under bounds on each entry."""
    gradient = draw(1, 6)
    best = linprog(-gradient[0].numpy(), bounds=[(-1, 1)] * 6)
    assert float(LAYERS["gain"].dual(gradient)) == pytest.approx(-best.fun)


def test_msign_is_exact_and_newton_schulz_near_it():
    matrix = GRADIENTS["low_rank"]((9, 5), generator())
    values = torch.linalg.svdvals(msign(matrix))
    torch.testing.assert_close(values, torch.tensor([1.0, 1, 0, 0, 0]).double(), atol=1e-9, rtol=0)
    full = draw(9, 5)
    rough = newton_schulz(full[None], 5, 1e-7)[0]
    assert (rough * msign(full)).sum() / 5 > 0.85


def test_gradients_of_a_loss_sum_to_zero():
    """Hence D, which does not see what all rows share, has a largest slope."""
    gradient = GRADIENTS["softmax"]((9, 5), generator())
    assert gradient.sum(0).abs().max() < 1e-15
    rows = draw(9, 5, seed=1)
    shifted = rows + draw(1, 5, seed=2)
    torch.testing.assert_close(of_head(shifted), of_head(rows))
    torch.testing.assert_close((gradient * shifted).sum(), (gradient * rows).sum())
    assert 0 < steepest_in_differences(gradient, 100) < 1


def test_in_one_dimension_rows_are_the_steepest_for_the_difference():
    """There a row over its norm is its sign, and no direction surpasses it."""
    gradient = GRADIENTS["softmax"]((9, 1), generator())
    assert steepest_in_differences(gradient, 50) == pytest.approx(0, abs=1e-12)


def test_losses_and_their_gradient_are_cross_entropys():
    head, inputs = draw(7, 4), heads.inputs_of(3, 4, generator(1))
    targets = torch.tensor([0, 6, 2])
    logits = inputs @ head.mT
    expected = logits.logsumexp(-1) - logits[torch.arange(3), targets]
    torch.testing.assert_close(heads.losses(inputs, targets, head), expected)
    torch.testing.assert_close(inputs.square().mean(-1), torch.ones(3).double())


def test_the_supremum_is_found():
    """Of two tokens in closed form: log(1 + e^D) at the difference of their rows."""
    head = draw(2, 5)
    wanted = math.log1p(math.exp(float(of_head(head))))
    for found in heads.supremum(head, 2, 200, generator()):
        assert found == pytest.approx(wanted, rel=1e-9)


def test_more_steps_of_ascent_never_lower_the_loss():
    head = 2 * draw(12, 4)
    found = [heads.supremum(head, 2, steps, generator())[1] for steps in (0, 1, 2, 5, 20)]
    assert found == sorted(found) and found[-1] > found[0]


def test_training_is_steepest_descent_of_the_suite():
    """The head's rule in a run: per_token with LR / d, without momentum."""
    from torch import nn

    from lrm.multipliers.groups import Entry
    from lrm.optim.optimizer import Optimizer
    from lrm.plan.config import OptimizerConfig, TrainConfig

    inputs, targets = heads.inputs_of(20, 4, generator(1)), torch.arange(20) % 7
    leaf = nn.Parameter(draw(7, 4) / 4)
    entry = Entry(("w",), leaf, leaf, None, 0.5 / 4, 0.0, True, "per_token", None,
                  (("momentum", 0.0),))  # fmt: skip
    optimizer = Optimizer([entry], OptimizerConfig(), TrainConfig(clip_norm=0.0))
    found, update = heads.trained(leaf.detach().clone(), 0.5, 5, inputs, targets)
    for _ in range(5):
        before = leaf.detach().clone()
        leaf.grad = None
        heads.losses(inputs, targets, leaf).mean().backward()
        optimizer.step(1.0)
    torch.testing.assert_close(leaf.detach(), found)
    torch.testing.assert_close(leaf.detach() - before, update)


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "some" / "config.yaml"
    path.parent.mkdir()

    def make(theory, *seeds):
        path.write_text(f"title: a test\nrun: lrm.plan.run:TheoryRun\ntheory: {theory}\n"
                        "train: {steps: 4}\n")  # fmt: skip
        return load(path).runs("smoke", list(seeds) or [0])

    return make


@pytest.mark.parametrize(
    "theory",
    [
        "{simulate: directions, width: 4, tokens: 6}",
        "{simulate: head, width: 4, tokens: 6, points: 50}",
    ],
)
def test_a_run_has_its_tables_and_the_same_bits_again(runs, tmp_path, theory):
    first, other = runs(theory, 0, 1)
    assert first.id != other.id and first.estimate().seconds > 0
    for run, folder in ((first, "a"), (first, "b"), (other, "c")):
        run.execute(tmp_path / folder, tmp_path)
    tables = [(tmp_path / name / "scalars.parquet").read_bytes() for name in "abc"]
    assert tables[0] == tables[1] != tables[2]
    said = json.loads((tmp_path / "a" / "run.json").read_text())
    assert said["kind"] == "theory" and said["execution"]["precision"] == "float64"


@pytest.mark.parametrize("theory", ["{simulate: directions, width: 1}", "{simulate: heads}",
                                    "{simulate: head, points: 0}"])  # fmt: skip
def test_bad_input_is_one_line(runs, theory):
    with pytest.raises(UserError, match="theory") as caught:
        runs(theory)
    assert "\n" not in str(caught.value)
