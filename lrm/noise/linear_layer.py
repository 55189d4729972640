"""One linear layer y = s W x in equilibrium, moved by the run's optimizer (section 4.2, table 1).

Its gradients are those of a loss that is noise, G_t = δ_t x_tᵀ with δ_t ~ N(0, 1):

* ``one_input``: x_t = x, of random signs, in every step. Under Adam W ends as w xᵀ, so that y and W
  are aligned at any width: α = 1 in ‖y‖ = s d α ‖W‖ ‖x‖, the assumption of table 1;
* ``fresh_inputs``: G_t has independent entries, as for inputs that never come again, and y is that
  of an x which W knows nothing of: α = d^(−½).

A layer of a model lies between the two. W starts at 0: of a random start little would be left, but
under Muon with one input the equilibrium is smaller still.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lrm.errors import UserError
from lrm.noise.log import Log, Tell, carry_out
from lrm.noise.tensor import Walker, entries_of, seed_of
from lrm.optim.optimizer import Optimizer
from lrm.plan.config import Settings
from lrm.plan.rules import TensorPlan
from lrm.plan.run import NoiseRun, Report
from lrm.plan.schedule import lr_factor, stage_ends

CASES = ("one_input", "fresh_inputs")


@dataclass(frozen=True)
class Layer:
    """What was measured: ``steps`` (n,), and by stat one value a draw, shape (n, draws).

    A value is the geometric mean over what was measured in the second half of the steps so far.
    ``weight_norm`` is ‖W‖, ``output_norm`` ‖y‖ with the fixed forward multiplier,
    ``relative_update`` ‖ΔW x‖ / ‖W x‖ of that step, without what weight decay takes. Root mean
    squares; ‖x‖ = 1.
    """

    steps: np.ndarray
    stats: dict[str, np.ndarray]


def run(run: NoiseRun, path: Path, corpora: Path, report: Report = lambda step, loss: None) -> None:
    """Linear layers under noise as a run: what ``Layer`` holds, as ``<tensor>.<case>``.

    The probes are means over draws; the vectors hold every draw, under ``<stat>_draws``.
    """

    def simulations(_: object) -> list[Callable[[Log, Tell], None]]:
        for plan in run.matched:  # all of them before the first takes its hours
            _check(plan, run.settings)
        return [
            functools.partial(_log_layer, plan, case, run) for plan in run.matched for case in CASES
        ]

    carry_out(run, path, corpora, report, simulations)


def _check(plan: TensorPlan, settings: Settings) -> None:
    if plan.address.role != "matrix" or plan.address.rows is not None or not plan.trainable:
        raise UserError(
            f"brownian.linear_layers: {plan.key} is no learning matrix of its own; match such as "
            "mlp.up"
        )
    if settings.train.steps < 2:
        raise UserError("brownian.linear_layers measures from the second step on; set train.steps "
                        "to 2 or more")  # fmt: skip


def _log_layer(plan: TensorPlan, case: str, run: NoiseRun, log: Log, tell: Tell) -> None:
    key = f"{plan.key}.{case}"
    generator = torch.Generator().manual_seed(seed_of(run.seed, key))
    settings, draws = run.settings, run.brownian.draws
    found = simulate(plan, settings, case, draws, generator, settings.probes.every, tell)
    for number, step in enumerate(found.steps.tolist()):
        for stat, values in found.stats.items():
            log.scalar(step, stat, key, values[number].mean())
            log.vector(step, f"{stat}_draws", key, values[number])


def simulate(
    plan: TensorPlan,
    settings: Settings,
    case: str,
    draws: int,
    generator: torch.Generator,
    every: int,
    report: Callable[[int], None] = lambda step: None,
) -> Layer:
    """Move ``draws`` copies of the matrix ``plan`` over the run's schedule; see ``CASES``.

    Measured every ``every`` steps and at the end of each stage, but not at the first step: W is 0
    before it, and an update relative to that is no number. ``report`` gets those steps. Raises
    UserError for what is no matrix of its own (a vector, or rows of a merged parameter), and for
    a single step.
    """
    _check(plan, settings)
    address = plan.address
    rows, columns = address.shape
    values = torch.zeros(draws, rows, columns)
    x = torch.randn(draws, columns, 1, generator=generator).sign()
    gradient = torch.empty_like(values)
    rates = (plan.lr, plan.weight_decay)
    walker = Walker(plan.key, address.size, *rates, 0.0, False, matrix=plan.matrix)
    optimizer = Optimizer(entries_of(walker, values, gradient), settings.optimizer, settings.train)
    total = settings.train.steps
    ends = stage_ends(settings.schedule, total)
    steps, found = [], []
    for step in range(total):
        if case == "one_input":
            delta = torch.randn(draws, rows, 1, generator=generator)
            torch.mul(delta, x.mT, out=gradient)
        else:
            gradient.normal_(generator=generator)
        done = step + 1
        is_measured = step > 0 and (done % every == 0 or done in ends)
        before = values @ x if is_measured else None
        factor = lr_factor(settings.schedule, total, step)
        optimizer.step(factor)
        if before is not None:
            kept = before * (1 - factor * plan.lr * plan.weight_decay)
            output = values @ x
            measured = {
                "weight_norm": _rms(values),
                "output_norm": plan.forward * _rms(output),
                "relative_update": _rms(output - kept) / _rms(before),
            }
            report(done)
            steps.append(done)
            found.append(measured)
    taken = np.array(steps)
    stats = {name: torch.stack([one[name] for one in found]).numpy() for name in found[0]}
    return Layer(taken, {name: _late_means(taken, values) for name, values in stats.items()})


def _late_means(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.stack([np.exp(np.log(values[(steps > t / 2) & (steps <= t)]).mean(0)) for t in steps])


def _rms(values: Tensor) -> Tensor:
    return values.square().mean((1, 2)).sqrt()
