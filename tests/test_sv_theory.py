"""Scale vectors in theory: flows, stochastic equations, SGD and Adam against other ways to them."""

import json

import numpy as np
import pytest
import torch
from scipy.integrate import quad, solve_ivp

from lrm.errors import UserError
from lrm.noise.scale_vectors import flows, stochastic
from lrm.noise.scale_vectors.designs import DESIGNS, ER, FROZEN, OR, at_same_state
from lrm.noise.scale_vectors.teachers import TEACHERS, draw
from lrm.plan.config import OptimizerConfig
from lrm.plan.experiment import load
from lrm.plan.run import TheoryRun
from lrm.plan.theory import SdeTheory, SgdTheory

SHAPE = (4, 6)
TIMES = np.geomspace(0.01, 2.0, 7)


def generator(seed=0):
    return np.random.default_rng(seed)


def teacher(kind="gaussian", seed=0):
    return draw(kind, generator(seed), *SHAPE)


def rules_of(design):
    return DESIGNS[design].outputs, DESIGNS[design].inputs


def some_state(design, seed=0):
    """A state in which nothing learned is 1."""
    draws = generator(seed)
    matrix, *raw = DESIGNS[design].start(teacher(seed=seed))
    moved = [
        one if rule is FROZEN else one + 0.3 * draws.standard_normal(one.shape)
        for one, rule in zip(raw, rules_of(design), strict=True)
    ]
    return matrix, *moved


def by_torch(design, state, wanted):
    """The effective matrix and the gradients of ½‖A − W⋆‖² by autograd."""
    leaves = [torch.tensor(part, requires_grad=True) for part in state]

    def scales(raw, rule):
        if rule is OR:
            return raw[0] * (len(raw) - 1) ** 0.5 * raw[1:] / raw[1:].norm()
        return torch.exp(raw[0] + raw[1:] - raw[1:].mean()) if rule is ER else raw

    u, v = (scales(raw, rule) for raw, rule in zip(leaves[1:], rules_of(design), strict=True))
    effective = torch.diag(u) @ leaves[0] @ torch.diag(v)
    (0.5 * (effective - torch.tensor(wanted)).square().sum()).backward()
    gradients = [
        torch.zeros_like(leaf) if rule is FROZEN else leaf.grad
        for leaf, rule in zip(leaves, (None, *rules_of(design)), strict=True)
    ]
    return effective.detach().numpy(), [gradient.numpy() for gradient in gradients]


@pytest.mark.parametrize("design", DESIGNS)
def test_gradients_are_those_of_autograd(design):
    state, wanted, rule = some_state(design), teacher("uneven", 3), DESIGNS[design]
    effective, expected = by_torch(design, state, wanted)
    np.testing.assert_allclose(rule.effective(state), effective, atol=1e-14)
    found = rule.gradient(state, effective - wanted)
    for part, gradient in zip(found, expected, strict=True):
        np.testing.assert_allclose(part, gradient, atol=1e-13)
    squares = sum((gradient**2).sum() for gradient in expected)
    assert rule.rate(state, wanted - effective) == pytest.approx(squares)


def test_a_batch_is_its_members():
    states = [some_state("dp", seed) for seed in range(3)]
    together = tuple(np.stack(parts) for parts in zip(*states, strict=True))
    residual = generator(5).standard_normal((3, *SHAPE))
    found = DESIGNS["dp"].gradient(together, residual)
    for number, state in enumerate(states):
        alone = DESIGNS["dp"].gradient(state, residual[number])
        for part, own in zip(found, alone, strict=True):
            np.testing.assert_allclose(part[number], own, atol=1e-14)


def test_a_direction_has_no_gradient_along_itself_and_an_exponent_none_of_a_shift():
    raw, gradient = generator(1).standard_normal(7), generator(2).standard_normal(6)
    assert raw[1:] @ OR.pull(raw, gradient)[1:] == pytest.approx(0, abs=1e-14)
    assert ER.pull(raw, gradient)[1:].sum() == pytest.approx(0, abs=1e-14)
    np.testing.assert_allclose(ER.value(raw + [0.0, *[0.7] * 6]), ER.value(raw), rtol=1e-14)
    np.testing.assert_allclose(OR.value(raw * [1.0, *[2.5] * 6]), OR.value(raw), rtol=1e-14)


@pytest.mark.parametrize("design", DESIGNS)
def test_every_design_starts_at_the_same_matrix_and_is_paired_at_the_same_state(design):
    rule, matrix = DESIGNS[design], teacher()
    np.testing.assert_allclose(rule.effective(rule.start(matrix)), matrix, atol=1e-15)
    if design not in ("none", "hg"):
        state = some_state(design)
        paired = DESIGNS["standard"].effective(at_same_state(design, state))
        np.testing.assert_allclose(paired, rule.effective(state), atol=1e-14)


@pytest.mark.parametrize("design", ["standard", "dp", "or", "er"])
def test_flows_agree_with_another_solver(design):
    """scipy's implicit Radau on torch's gradients."""
    wanted, start = teacher("low_rank"), DESIGNS[design].start(np.zeros(SHAPE))
    ends = np.cumsum([part.size for part in start])[:-1]

    def slope(_, flat):
        parts = np.split(flat, ends)
        state = [part.reshape(one.shape) for part, one in zip(parts, start, strict=True)]
        return -np.concatenate([part.ravel() for part in by_torch(design, state, wanted)[1]])

    flat = np.concatenate([part.ravel() for part in start])
    solved = solve_ivp(slope, (0, TIMES[-1]), flat, method="Radau", rtol=1e-8, atol=1e-10)
    found = flows.flow(design, wanted, np.zeros(SHAPE), TIMES)
    end = np.concatenate([part[-1].ravel() for part in found])
    np.testing.assert_allclose(end, solved.y[:, -1], atol=1e-6)


@pytest.mark.parametrize("kind", TEACHERS)
@pytest.mark.parametrize("design", ["standard", "ap", "dp", "or", "er", "hg"])
def test_coefficients_and_what_is_conserved(design, kind):
    wanted = np.stack([teacher(kind, n) for n in range(3)]) if design == "hg" else teacher(kind)
    expected = flows.predicted_coefficient(design, wanted)
    assert flows.coefficient(design, wanted) == pytest.approx(expected, rel=1e-5)
    states, effective, other = flows.pair(design, wanted, TIMES)
    assert flows.invariant_error(design, states) < 1e-11
    difference = flows.loss(effective, wanted) - flows.loss(other, wanted)
    np.testing.assert_allclose(flows.gap(effective, other, wanted), difference, atol=1e-12)
    assert (np.sign(expected) == np.sign(difference)).all()


def test_a_shared_vector_is_a_standard_one_on_the_stack():
    wanted = np.stack([teacher("uneven", n) for n in range(3)])
    _, alone, shared = flows.pair("hg", wanted, TIMES)
    for number, branch in enumerate(wanted):
        np.testing.assert_allclose(alone[:, number], flows.pair("standard", branch, TIMES)[1],
                                   atol=1e-11)  # fmt: skip
    stack = flows.pair("standard", flows.shared(wanted), TIMES)[1]
    np.testing.assert_allclose(shared.reshape(stack.shape), stack, atol=1e-11)


@pytest.mark.parametrize("steepness", [0.2, 4.0, 300.0])
def test_the_closed_form_is_the_integral(steepness):
    theta = np.array([0.1, 0.5, 0.99])
    expected = [quad(lambda x: 1 / ((1 - x) * np.sqrt(1 + steepness * x * x)), 0, end)[0]
                for end in theta]  # fmt: skip
    np.testing.assert_allclose(flows.time_of(theta, steepness), expected, rtol=1e-7)


@pytest.mark.parametrize("design", ["standard", "or"])
def test_balanced_teachers_follow_the_closed_form(design):
    wanted = teacher("balanced")
    _, effective, _ = flows.pair(design, wanted, TIMES)
    losses = flows.loss(effective, wanted)
    assert flows.closed_form_error(design, wanted, losses, TIMES) < 1e-9
    assert flows.closed_form_error(design, wanted, 1.01 * losses, TIMES) > 1e-4


def test_matched_teachers_follow_the_reduced_equation():
    wanted = teacher("diagonal")
    _, effective, _ = flows.pair("dp", wanted, TIMES)
    expected = flows.matched(wanted, TIMES)
    np.testing.assert_allclose(flows.loss(effective, wanted), expected, rtol=1e-9)


def test_preconditioners_are_told_from_others():
    wanted = teacher("uneven")
    states, effective, _ = flows.pair("standard", wanted, TIMES)
    error, smallest = flows.preconditioning(states, wanted)
    assert error < 1e-14 and smallest > 1 - 1e-12
    assert flows.columns_rise(effective, wanted, TIMES) <= 0
    assert flows.columns_rise(effective * (1 - 0.1 * TIMES[:, None, None]), wanted, TIMES) > 0
    other = (states[0], states[1], 0.9 * states[2])
    assert flows.preconditioning(other, wanted)[1] == pytest.approx(0.81, rel=0.05)
    states, _, _ = flows.pair("or", wanted, TIMES)
    assert flows.scale_preconditioning(states, wanted) < 1e-13
    # ‖α‖ = √d is what makes it so.
    stretched = states[2] * np.array([1.0, *[1.5] * SHAPE[1]])
    assert flows.scale_preconditioning((*states[:2], stretched), wanted) > 0.01


@pytest.mark.parametrize("design", ["dp", "or"])
def test_random_states_keep_what_is_conserved_and_counterexamples_are_slower(design):
    states, residuals = flows.random_states(design, generator(), (50, *SHAPE), kept=True)
    assert flows.invariant_error(design, states) < 1e-10
    of_design, of_reference = flows.rates(design, states, residuals)
    assert (of_design >= of_reference * (1 - 1e-12)).all()
    states, residuals = flows.random_states(design, generator(), (50, *SHAPE), kept=False)
    assert flows.invariant_error(design, states) > 1
    of_design, of_reference = flows.rates(design, states, residuals)
    assert 0 < (of_design < of_reference).mean() < 1
    states, residual = flows.counterexample(design, generator(), *SHAPE)
    of_design, of_reference = flows.rates(design, states, residual)
    assert of_design[0] < 0.5 * of_reference[0]
    if design == "or":
        along = (states[0] * residual).sum(1)
        assert along.sum() == pytest.approx(0, abs=1e-12) and np.abs(along).max() > 0.1


def test_without_noise_the_stochastic_equations_are_gradient_flow_with_decay():
    theory = SdeTheory(simulate="sde", noise=0.0, paths=2, dt=0.005)
    *_, (w, scale, chance) = stochastic.sde(theory, 1000, generator())
    for row, decay in enumerate((0.0, 0.1)):
        solved = solve_ivp(
            lambda t, y, decay=decay: [-(y[0] * y[1] - 1) * y[1] - 0.1 * y[0],
                                       -(y[0] * y[1] - 1) * y[0] - decay * y[1]],
            (0, 5), [0.0, 1.0], rtol=1e-10)  # fmt: skip
        np.testing.assert_allclose([w[row, 0], scale[row, 0]], solved.y[:, -1], rtol=1e-4)
    assert not np.any(chance)


def test_the_splitting_agrees_with_small_steps_of_eulers():
    """Means over the same Brownian motion, which Euler's steps of a tenth see in detail."""
    theory = SdeTheory(simulate="sde", noise=0.1, paths=4000, dt=0.02)
    *_, (w, scale, _) = stochastic.sde(theory, 250, generator())
    draws, dt = generator(1), 0.002
    x, y = np.zeros((2, 4000)), np.ones((2, 4000))
    for _ in range(2500):
        kick = (theory.noise * dt) ** 0.5 * draws.standard_normal((2, 4000))
        error = x * y - 1
        x, y = (x - dt * (error * y + 0.1 * x) + kick[0],
                y - dt * (error * x + np.array([[0.0], [0.1]]) * y) + kick[1])  # fmt: skip
    for found, expected in ((w, x), (scale, y)):
        spread = (expected**2).std(1) / 4000**0.5
        assert (np.abs((found**2).mean(1) - (expected**2).mean(1)) < 5 * spread + 0.01).all()


def test_gradient_flow_keeps_the_balance_however_steep_it_is():
    theory = SdeTheory(simulate="sde", noise=0.0, weight_decay=1e-99, target=30.0,
                       paths=1, dt=0.1)  # fmt: skip
    for w, scale, _ in stochastic.sde(theory, 20, generator()):
        np.testing.assert_allclose(scale**2 - w**2, 1.0, rtol=1e-9)


def test_sharpness_is_the_hessians():
    w, scale, target = 0.7, -1.3, 0.4
    hessian = torch.autograd.functional.hessian(
        lambda y: 0.5 * (y[0] * y[1] - target) ** 2, torch.tensor([w, scale], dtype=torch.float64)
    )
    expected = torch.linalg.eigvalsh(hessian)[-1]
    assert stochastic.sharpness(w, scale, target) == pytest.approx(float(expected))


@pytest.mark.parametrize("enters", ["parameters", "target"])
def test_sgd_is_torchs(enters):
    """Decoupled decay, on gradients of autograd with the same noise."""
    theory = SgdTheory(simulate="sgd", enters=enters, noise=0.3, weight_decay=0.2, paths=1)
    kicks = theory.noise * generator().standard_normal((5, 2, 1))
    pairs = [torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True) for _ in range(2)]
    for kick in kicks[..., 0]:
        for decay, pair in zip((0.0, 0.2), pairs, strict=True):
            optimizer = torch.optim.SGD([pair], lr=0.1)
            optimizer.zero_grad()
            shift = kick[0] if enters == "target" else 0.0
            loss = 0.5 * (pair[0] * pair[1] - theory.target + shift) ** 2
            loss = loss + 0.1 * pair[0] ** 2 + 0.5 * decay * pair[1] ** 2
            if enters == "parameters":
                loss = loss + (pair * torch.tensor(kick)).sum()
            loss.backward()
            optimizer.step()
    *_, (w, scale) = stochastic.sgd(theory, 0.1, 5, generator())
    for row, pair in enumerate(pairs):
        np.testing.assert_allclose([w[row, 0], scale[row, 0]], pair.detach(), rtol=1e-12)


@pytest.mark.parametrize("design", ["none", "dp", "or", "er"])
def test_adam_is_torchs(design):
    wanted, draws, factors = teacher(), generator(4), np.linspace(1.0, 0.2, 6)
    optimizer = OptimizerConfig(lr=0.05, beta2=0.9)
    state = [torch.tensor(p, requires_grad=True) for p in DESIGNS[design].start(np.zeros(SHAPE))]
    adam = torch.optim.Adam(state, lr=0.05, betas=(0.9, 0.9), eps=optimizer.eps)
    for factor in factors:
        values = [part.detach().numpy() for part in state]
        noisy = wanted - 0.2 * draws.standard_normal(SHAPE)
        for part, gradient in zip(state, by_torch(design, values, noisy)[1], strict=True):
            part.grad = torch.tensor(gradient)
        adam.param_groups[0]["lr"] = 0.05 * factor
        adam.step()
    values = [part.detach().numpy() for part in state]
    expected = 0.5 * ((by_torch(design, values, wanted)[0] - wanted) ** 2).sum()
    again = generator(4)
    found = stochastic.adam(DESIGNS[design], wanted, optimizer, factors,
                            lambda: 0.2 * again.standard_normal(SHAPE))  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "some_theory" / "config.yaml"
    path.parent.mkdir()

    def make(text, *seeds):
        run = "" if "run:" in text else "run: lrm.plan.run:TheoryRun\n"
        path.write_text(f"title: a test\n{run}{text}\n")
        return load(path).runs("smoke", list(seeds) or [0])

    return make


def test_a_run_has_its_tables_and_the_same_bits_again(runs, tmp_path):
    text = "theory: {simulate: sde, paths: 4}\ntrain: {steps: 50}"
    first, other = runs(text, 0, 1)
    assert isinstance(first, TheoryRun) and first.id != other.id and not first.reads_corpus
    for run, folder in ((first, "a"), (first, "b"), (other, "c")):
        run.execute(tmp_path / folder, tmp_path)
    tables = [(tmp_path / name / "scalars.parquet").read_bytes() for name in "abc"]
    assert tables[0] == tables[1] != tables[2]
    said = json.loads((tmp_path / "a" / "run.json").read_text())
    assert said["kind"] == "theory" and said["execution"]["precision"] == "float64"


def test_a_model_has_no_theory(runs):
    text = "run: lrm.plan.run:TrainRun\ntheory: {simulate: sde}"
    with pytest.raises(UserError, match="write run: lrm.plan.run:TheoryRun, or take it out"):
        runs(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {steps: 5}", "theory is missing in arm base; write theory"),
        ("theory: {simulate: flows}", "theory"),
        ("theory: {simulate: flow, design: both}", "theory.flow.design"),
        ("theory: {simulate: sde, drift: 1}", "unknown key theory.sde.drift"),
        ("theory: {simulate: flow, design: none}", "theory.flow.design"),
        ("theory: {simulate: adam, design: hg}", "theory.adam.design"),
        ("theory: {simulate: sde, weight_decay: 0.0}", "theory.sde.weight_decay"),
    ],
)
def test_bad_input_is_one_line(runs, text, message):
    with pytest.raises(UserError, match=message) as caught:
        runs(text)
    assert "\n" not in str(caught.value)
