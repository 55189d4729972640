"""A simulation of ``lrm.plan.theory`` as a run: the same directory and tables as any other."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from lrm.noise.log import Log, Tell, carry_out
from lrm.noise.scale_vectors import flows, stochastic
from lrm.noise.scale_vectors.designs import DESIGNS, State
from lrm.noise.scale_vectors.teachers import TEACHERS, draw
from lrm.noise.tensor import seed_of
from lrm.plan.run import Report, TheoryRun
from lrm.plan.schedule import lr_factors

# Gradient flow is sampled from this time on, and stochastic runs this often, at even ratios.
_EARLIEST, _SAMPLES = 1e-3, 40
# States whose rates the vectors hold.
_KEPT = 200
# Of the loss at t = 0: when a flow counts as done.
_DONE = 0.01
DECAYS = ("undecayed", "decayed")


def run(
    run: TheoryRun, path: Path, corpora: Path, report: Report = lambda step, loss: None
) -> None:
    """Simulate what ``run.settings.theory`` says.

    ``_flow``, ``_start``, ``_adam``, ``_sde`` and ``_sgd`` say which tables each writes. What ends
    in ``_error`` or ``_deficit`` is 0 where the theory is right.
    """
    carry_out(run, path, corpora, report, lambda _: [functools.partial(_simulate, run)], "float64")


def _simulate(run: TheoryRun, log: Log, tell: Tell) -> None:
    simulate = {"flow": _flow, "start": _start, "adam": _adam, "sde": _sde, "sgd": _sgd}
    simulate[run.settings.theory.simulate](run, log, tell)


def _generator(run: TheoryRun, *key: object) -> np.random.Generator:
    """Runs of one seed that differ in design, LR or decay have the same draws."""
    return np.random.default_rng(seed_of(run.seed, "/".join(map(str, ("theory", *key)))))


def _flow(run: TheoryRun, log: Log, tell: Tell) -> None:
    """By teacher: at each sample ``time``, ``loss``, ``reference_loss`` and ``gap`` (L − L_ref).

    At the last sample the ``coefficient_error`` of t³ relative to the ``predicted_coefficient``,
    the ``faster_share`` of the samples at which L < L_ref, ``invariant_error``, and what
    ``_flow_more`` adds.
    """
    theory, steps = run.settings.theory, run.settings.train.steps
    times = np.geomspace(_EARLIEST, theory.horizon, steps)
    shape = (theory.outputs, theory.inputs)
    for position, kind in enumerate(TEACHERS):
        generator = _generator(run, "teacher", kind)
        teacher = draw(kind, generator, *shape)
        if theory.design == "hg":
            others = [draw(kind, generator, *shape) for _ in range(theory.branches - 1)]
            teacher = np.stack([teacher, *others])
        states, effective, other = flows.pair(theory.design, teacher, times)
        losses = flows.loss(effective, teacher)
        gaps = flows.gap(effective, other, teacher)
        for step, values in enumerate(zip(times, losses, losses - gaps, gaps, strict=True), 1):
            for stat, value in zip(("time", "loss", "reference_loss", "gap"), values, strict=True):
                log.scalar(step, stat, kind, value)
        predicted = flows.predicted_coefficient(theory.design, teacher)
        found = {
            "predicted_coefficient": predicted,
            "coefficient_error": abs(flows.coefficient(theory.design, teacher) / predicted - 1),
            "faster_share": (gaps < 0).mean(),
            "invariant_error": flows.invariant_error(theory.design, states),
            **_flow_more(theory.design, kind, teacher, times, states, losses),
        }
        if theory.design in ("dp", "or"):
            of_design, of_reference = flows.rates(theory.design, states, teacher - effective)
            found["rate_deficit"] = _deficit(of_design, of_reference)
            for step, ratio in enumerate(of_design / of_reference, 1):
                log.scalar(step, "rate_ratio", kind, ratio)
        for stat, value in found.items():
            log.scalar(steps, stat, kind, value)
        tell(steps * (position + 1) // len(TEACHERS))
    if theory.design in ("dp", "or"):
        _states(run, log)


def _flow_more(
    design: str,
    kind: str,
    teacher: np.ndarray,
    times: np.ndarray,
    states: State,
    losses: np.ndarray,
) -> dict[str, float]:
    """What the theorems say of one design alone, by stat.

    ``columns_rise`` of e^{2t}ℓ_j; ``preconditioner_error`` of ȧ = P(w − a), or of γ̇ under OR;
    ``least_eigenvalue`` of P; ``closed_form_error`` where a teacher has a closed form.
    """
    found = {}
    if design == "standard":
        found["columns_rise"] = flows.columns_rise(
            DESIGNS["standard"].effective(states), teacher, times
        )
        error, least = flows.preconditioning(states, teacher)
        found |= {"preconditioner_error": error, "least_eigenvalue": least}
    if design == "or":
        found["preconditioner_error"] = flows.scale_preconditioning(states, teacher)
    if design in ("standard", "or") and kind == "balanced":
        found["closed_form_error"] = flows.closed_form_error(design, teacher, losses, times)
    if design == "dp" and kind == "diagonal":
        expected = flows.matched(teacher, times)
        found["closed_form_error"] = np.abs(losses / expected - 1).max()
    return found


def _deficit(of_design: np.ndarray, of_reference: np.ndarray) -> float:
    """By what share of the reference's rate a design is ever slower at the same state."""
    return float(np.maximum(0.0, 1 - of_design / of_reference).max())


def _states(run: TheoryRun, log: Log) -> None:
    """Rates at random states, of the tensors ``kept`` and ``any``, and at a ``counterexample``.

    ``kept``: states with the conserved quantities of flow from W = 0; ``any``: without them.
    ``rate_deficit``, the ``slower_share`` of states, ``rate_ratio`` (the least) and, as vectors,
    the ratios of some.
    """
    theory, steps = run.settings.theory, run.settings.train.steps
    shape = (theory.states, theory.outputs, theory.inputs)
    generator = _generator(run, "states", theory.design)
    found = {
        name: flows.random_states(theory.design, generator, shape, name == "kept")
        for name in ("kept", "any")
    }
    found["counterexample"] = flows.counterexample(theory.design, generator, *shape[1:])
    for name, (states, residuals) in found.items():
        of_design, of_reference = flows.rates(theory.design, states, residuals)
        log.scalar(steps, "rate_deficit", name, _deficit(of_design, of_reference))
        log.scalar(steps, "slower_share", name, (of_design < of_reference).mean())
        log.scalar(steps, "rate_ratio", name, (of_design / of_reference).min())
        log.vector(steps, "rate_ratios", name, (of_design / of_reference)[:_KEPT])


def _start(run: TheoryRun, log: Log, tell: Tell) -> None:
    """By design, from a nonzero W(0): ``time`` and ``loss`` relative to t = 0, at even times.

    At the last sample the ``time_to_done`` (1% of the loss at t = 0; the horizon where it is not
    reached), and the shares of the samples at which its loss lies above that without scales and
    above the standard vector's, ``above_none`` and ``above_standard``.
    """
    theory, steps = run.settings.theory, run.settings.train.steps
    generator = _generator(run, "start")
    teacher = draw("gaussian", generator, theory.outputs, theory.inputs)
    first = generator.standard_normal(teacher.shape)
    first *= theory.start * np.linalg.norm(teacher) / np.linalg.norm(first)
    times = np.linspace(0.0, theory.horizon, steps + 1)[1:]
    begin = 0.5 * ((teacher - first) ** 2).sum()
    courses = {}
    for design in ("none", "standard", "ap", "dp", "or", "er"):
        states = flows.flow(design, teacher, first, times)
        courses[design] = flows.loss(DESIGNS[design].effective(states), teacher) / begin
    for design, course in courses.items():
        for step, (time, loss) in enumerate(zip(times, course, strict=True), 1):
            log.scalar(step, "time", design, time)
            log.scalar(step, "loss", design, loss)
        done = times[course <= _DONE]
        log.scalar(steps, "time_to_done", design, done[0] if done.size else theory.horizon)
        for other in ("none", "standard"):
            log.scalar(steps, f"above_{other}", design, (course > courses[other]).mean())
    tell(steps)


def _adam(run: TheoryRun, log: Log, tell: Tell) -> None:
    """By teacher: the last ``loss`` relative to that of W = 0. Designs and LRs share the noise."""
    settings = run.settings
    theory, steps = settings.theory, settings.train.steps
    for kind in ("gaussian", "uneven"):
        teacher = draw(kind, _generator(run, "teacher", kind), theory.outputs, theory.inputs)
        generator = _generator(run, "adam")
        loss = stochastic.adam(
            DESIGNS[theory.design],
            teacher,
            settings.optimizer.model_copy(update={"lr": settings.base_lr}),
            lr_factors(settings.schedule, steps),
            lambda shape=teacher.shape, of=generator: theory.noise * of.standard_normal(shape),
        )
        log.scalar(steps, "loss", kind, loss / (0.5 * (teacher**2).sum()))
    tell(steps)


def _sde(run: TheoryRun, log: Log, tell: Tell) -> None:
    """Of γ without weight decay (``undecayed``) and with it (``decayed``), means over paths.

    At samples ``time``, ``matrix_square`` E w², ``scale_square`` E γ², what bounds each
    (``…_bound``, of γ² only with weight decay) and E λ_max (``sharpness``). At the end the
    ``loss``, a mean over the second half, and ``identity_error``: how far E(γ² − w²) is from
    1 + 2∫λE w² − μE γ², relative to 1 + 2∫λE w² + μE γ². The noise in γ² − w², of mean 0, is taken
    out of it.
    """
    theory, steps = run.settings.theory, run.settings.train.steps
    samples = set(np.geomspace(1, steps, _SAMPLES).round().astype(int).tolist())
    # ∫w² and ∫γ² of every path by the trapezoidal rule, and the loss over the second half.
    past = np.zeros((2, 2, theory.paths))
    loss = np.zeros((2, theory.paths))
    generator = _generator(run, "sde", theory.target, theory.noise)
    for step, state in enumerate(stochastic.sde(theory, steps, generator)):
        w, scale, chance = state
        weight = theory.dt if 0 < step < steps else theory.dt / 2
        past[0] += weight * (w * w)
        past[1] += weight * (scale * scale)
        if step > steps // 2:
            loss += 0.5 * (scale * w - theory.target) ** 2
        if step not in samples:
            continue
        time = np.array([step * theory.dt])
        sharpness = stochastic.sharpness(w, scale, theory.target)
        for row, name in enumerate(DECAYS):
            found = {
                "time": time[0],
                "matrix_square": (w[row] ** 2).mean(),
                "scale_square": (scale[row] ** 2).mean(),
                "matrix_square_bound": stochastic.square_bound(theory, 0.0, time)[0],
                "sharpness": sharpness[row].mean(),
            }
            if name == "decayed":
                found["scale_square_bound"] = stochastic.square_bound(theory, 1.0, time)[0]
            for stat, value in found.items():
                log.scalar(step, stat, name, value)
        tell(step)
    balance = (scale**2 - w**2 - chance).mean(1)
    for row, name in enumerate(DECAYS):
        won, lost = 2 * theory.weight_decay * past[:, row].mean(1) * [1, name == "decayed"]
        log.scalar(steps, "loss", name, loss[row].mean() / (steps - steps // 2))
        error = (balance[row] - (1 + won - lost)) / (1 + won + lost)
        log.scalar(steps, "identity_error", name, error)


def _sgd(run: TheoryRun, log: Log, tell: Tell) -> None:
    """Of γ without weight decay and with it: the ``loss``, a mean over paths and the second half.

    And λ_max at the end (``sharpness``).
    """
    settings = run.settings
    theory, steps = settings.theory, settings.train.steps
    loss = np.zeros((2, theory.paths))
    # Noise belongs to the seed: LRs share it, and so do the two ways in which it enters.
    for step, (w, scale) in enumerate(
        stochastic.sgd(theory, settings.base_lr, steps, _generator(run, "sgd"))
    ):
        if step > steps // 2:
            loss += 0.5 * (scale * w - theory.target) ** 2
        if step % 1000 == 0:
            tell(step)
    sharpness = stochastic.sharpness(w, scale, theory.target).mean(1)
    for row, name in enumerate(DECAYS):
        log.scalar(steps, "loss", name, loss[row].mean() / (steps - steps // 2))
        log.scalar(steps, "sharpness", name, sharpness[row])
