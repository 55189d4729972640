"""What a paper derives of Gated Delta Networks, measured: a run with the tables of any other."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from lrm import data
from lrm.errors import UserError
from lrm.model.blocks.gdn import GATES
from lrm.noise.gated_delta import gates
from lrm.noise.gated_delta.network import Network
from lrm.noise.gated_delta.read import course, distance, mean_square
from lrm.noise.gated_delta.sizes import sizes
from lrm.noise.log import Log, Tell, carry_out
from lrm.plan.config import Settings
from lrm.plan.rules import TensorPlan
from lrm.plan.run import Report, TheoryRun
from lrm.plan.schedule import lr_factor


def run(
    run: TheoryRun, path: Path, corpora: Path, report: Report = lambda step, loss: None
) -> None:
    """Measure what ``run.settings.theory`` says; ``_sizes``, ``_gates`` and ``_read`` name the
    tables.

    Raises UserError for a corpus that is not the one of the run's identity.
    """
    simulate = {"sizes": _sizes, "gates": _gates, "read": _read}[run.settings.theory.simulate]
    precision = "float64" if simulate is _read else "float32"

    def simulations(corpus: data.Corpus | None) -> list[Callable[[Log, Tell], None]]:
        batches = data.batches_of(run.settings, corpus, run.seed)
        return [functools.partial(simulate, run, batches)]

    carry_out(run, path, corpora, report, simulations, precision)


class _Means:
    """Geometric means over draws, of which each gives a number for every (stat, tensor)."""

    def __init__(self) -> None:
        self._logs: dict[tuple[int, str, str], list[float]] = defaultdict(list)

    def add(self, step: int, values: dict[tuple[str, str], float]) -> None:
        for key, value in values.items():
            self._logs[step, *key].append(np.log(value))

    def write(self, log: Log) -> None:
        for (step, stat, tensor), values in self._logs.items():
            log.scalar(step, stat, tensor, np.exp(np.mean(values)))


def _sizes(run: TheoryRun, batches: data.Batches, log: Log, tell: Tell) -> None:
    """``lrm.noise.gated_delta.sizes.sizes``: geometric means over ``train.steps`` models."""
    means, steps = _Means(), run.settings.train.steps
    for draw in range(steps):
        network = Network.begin(run, batches, draw)
        _, found = network.gradients(0)
        means.add(steps, sizes(network, found))
        tell(draw + 1)
    means.write(log)


def _gates(run: TheoryRun, batches: data.Batches, log: Log, tell: Tell) -> None:
    """``change`` of the gates after the first step and after the last, and the first's ``sources``.

    Geometric means over models. ``tokens`` (of no tensor) is how many a batch has.
    """
    train, means = run.settings.train, _Means()
    plans = [plan for plan in run.plans if plan.address.name in GATES]
    if train.clip_norm or not all(_by_plain_sgd(plan, run.settings) for plan in plans):
        raise UserError("theory.simulate = gates compares with plain SGD: of the gates at their "
                        "whole LR, without momentum, weight decay, a forward factor, "
                        "train.clip_norm or a ramp of the batch")  # fmt: skip
    models = run.settings.theory.models(train.batch_size)
    rates = {plan.key: plan.lr for plan in plans}
    for draw in range(models):
        network = Network.begin(run, batches, draw)
        before = gates.start(network)
        for step in range(train.steps):
            loss, found = network.gradients(step)
            if step == 0:
                means.add(1, gates.sources(found, rates))
            network.move(step)
            if step in (0, train.steps - 1):
                means.add(step + 1, gates.change(network, before, found))
                means.add(step + 1, {("loss", "batch"): float(loss)})
        tell((draw + 1) * train.steps // models)
    means.write(log)
    log.scalar(1, "tokens", "batch", train.batch_size * train.sequence_length)


def _by_plain_sgd(plan: TensorPlan, settings: Settings) -> bool:
    """Whether the first step moves this tensor by its LR times minus its gradient."""
    schedule = settings.schedule
    whole = lr_factor(schedule, settings.train.steps, 0) == 1.0 and not schedule.batch_ramp
    momentum = dict(plan.options).get("momentum", settings.optimizer.momentum)
    plain = plan.optimizer == "sgd" and not momentum and not plan.weight_decay
    return whole and plain and plan.forward == 1.0


def _read(run: TheoryRun, batches: data.Batches, log: Log, tell: Tell) -> None:
    """By tensor ``factor`` (the same epsilon) and ``rescaled`` (epsilon times the factor's square).

    Each has the largest relative difference to the model without a factor, over ``train.steps``
    steps, of the ``loss``, the ``gradient`` and the ``weight``; ``first_gradient`` is that of the
    first step. ``share`` of the tensor ``eps`` is epsilon over the mean square of what is read.
    """
    theory, steps = run.settings.theory, run.settings.train.steps
    begin = functools.partial(Network.begin, run, batches, 0, torch.float64)
    log.scalar(steps, "share", "eps", theory.eps / mean_square(begin()))
    plain = course(begin(), 1.0, theory.eps)
    others = {"factor": theory.eps, "rescaled": theory.eps * theory.factor**2}
    for name, eps in others.items():
        for stat, value in distance(course(begin(), theory.factor, eps), plain).items():
            log.scalar(steps, stat, name, value)
    tell(steps)
