"""Brownian motion (ABM for Adam): the real optimizer on pure noise, as a run of its own kind.

Section 3: gradients g_t ~ N(0, 1), independent in time and entries, fed to the run's optimizer,
AdamW or Muon, with its weight decay and LR schedule. What a tensor's norm does then is what it
would do if the data had no say. Matrices start from the run's initial norm, multipliers and norm
weights from their initial value; gradients are not clipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lrm import data
from lrm.errors import UserError
from lrm.noise import tokens
from lrm.noise.closed_form import expected_square, has_closed_form
from lrm.noise.log import Log, Tell, carry_out
from lrm.noise.tensor import Walker, seed_of, simulate, walkers
from lrm.plan.run import BrownianRun, Report
from lrm.plan.schedule import stage_ends

# Values of a walked vector that are kept, of all its draws together.
_KEPT = 1 << 12


def run(
    run: BrownianRun, path: Path, corpora: Path, report: Report = lambda step, loss: None
) -> None:
    """A Brownian motion as a run of its own kind: the same directory, the same table.

    Probes ``weight_norm`` (mean over draws), ``weight_norm_sd`` (over draws) and
    ``expected_norm`` (square root of the closed form, where there is one); the vectors hold every
    draw's norm, at the stages' ends ``values`` of each vector, draw by draw, and with
    ``brownian.occurrences`` the embedding's ``row_norms`` and its tokens' ``frequency``.

    Raises UserError for a corpus that is not the one of the run's identity, and where nothing that
    is matched learns. Of a tensor with more entries than are walked (``walkers``) the norm is that
    of those entries: its mean is a little smaller, and its spread larger, than the whole tensor's.
    """

    def simulations(corpus: data.Corpus | None) -> Sequence[Callable[[Log, Tell], None]]:
        found = walkers(run.plans, run.brownian.match, run.settings)
        if not found:
            raise UserError(f"{run.label}: nothing that brownian.match names learns in this arm; "
                            "match something that does, or leave the arm out")  # fmt: skip
        return [
            functools.partial(_walk_tokens, walker, run, corpus)
            if walker.key == "embedding" and corpus is not None
            else functools.partial(_walk, walker, run)
            for walker in found
        ]

    carry_out(run, path, corpora, report, simulations)


def _walk(walker: Walker, run: BrownianRun, log: Log, tell: Tell) -> None:
    settings = run.settings
    ends = stage_ends(settings.schedule, settings.train.steps)

    def report(step: int, values: Tensor) -> None:
        tell(step)
        if step in ends and walker.constant:
            kept = walker.parametrization.value(values).flatten()[:_KEPT]
            log.vector(step, "values", walker.key, kept)

    every = settings.probes.every
    steps, norms = simulate(walker, settings, run.brownian.draws, run.seed, every, report)
    closed = np.sqrt(expected_square(walker, settings)) if has_closed_form(walker) else None
    _log_norms(log, walker.key, steps, norms, closed)


def _walk_tokens(
    walker: Walker, run: BrownianRun, corpus: data.Corpus, log: Log, tell: Tell
) -> None:
    settings = run.settings
    batches = data.batches_of(settings, corpus, run.seed)
    generator = torch.Generator().manual_seed(seed_of(run.seed, walker.key))
    draws, rates = run.brownian.draws, (walker.lr, walker.weight_decay)
    found = tokens.simulate(settings, batches, draws, generator, walker.start, *rates, tell)
    _log_norms(log, walker.key, found.steps, found.norms)
    for step, norms in found.row_norms.items():
        log.vector(step, "row_norms", walker.key, norms)
        log.vector(step, "frequency", walker.key, found.frequency)


def _log_norms(
    log: Log, key: str, steps: np.ndarray, norms: np.ndarray, closed: np.ndarray | None = None
) -> None:
    """``norms`` (steps, draws), and the closed form of every step."""
    for step, row in zip(steps.tolist(), norms, strict=True):
        log.scalar(step, "weight_norm", key, row.mean())
        log.scalar(step, "weight_norm_sd", key, row.std(ddof=1))
        if closed is not None:
            log.scalar(step, "expected_norm", key, closed[step])
        log.vector(step, "weight_norm_draws", key, row)
