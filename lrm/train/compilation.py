"""What of a run is compiled, by ``lrm.train.compiled``, and under which name it is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import nn

from lrm.plan.config import Settings
from lrm.plan.rules import TensorPlan, point_factors
from lrm.plan.run import Note, TrainRun
from lrm.train import batched, compiled
from lrm.train.device import Equipment
from lrm.train.distributed import ALONE, Group
from lrm.train.learner import Learner
from lrm.train.step import add_gradients


def compile_layers(
    learner: Learner,
    run: TrainRun,
    equipment: Equipment,
    group: Group = ALONE,
    note: Note = lambda line: None,
) -> compiled.Code:
    """Compile the layers if ``run`` asks for it (see ``lrm.train.compiled``).

    Before ``learner`` joins other processes: the trial is of the model alone. Layers of a model
    in parts are not compiled. Raises UserError where layers must be and cannot.
    """
    train = run.settings.train
    if run.execution.parallel is not None and group.world > 1:
        return compiled.Code()
    rows = run.execution.micro_batch or train.batch_size // group.world
    shape = (rows, train.sequence_length + 1)
    tokens = torch.zeros(shape, dtype=torch.int64, device=equipment.device)

    def trial() -> None:
        with learner.multipliers.unchanged(several=False):
            add_gradients(learner.model, tokens, run.settings, equipment.autocast)
        learner.zero_grad()

    name = code_name(run.settings, learner.plans, rows, equipment.precision)
    return _compile(learner.model.model.layers, [run], equipment.device, trial, name, note)


def compile_stack(
    stack: batched.Batch, runs: Sequence[TrainRun], equipment: Equipment,
    note: Note = lambda line: None,
) -> compiled.Code:  # fmt: skip
    """``compile_layers`` of ``runs`` that are trained at once."""
    run, device = runs[0], equipment.device
    train = run.settings.train
    shape = (len(runs), train.batch_size, train.sequence_length + 1)
    tokens = torch.zeros(shape, dtype=torch.int64, device=device)

    def trial() -> None:
        stack.add_gradients(tokens, equipment.autocast)
        stack.zero_grad()

    name = code_name(run.settings, run.plans, train.batch_size, equipment.precision)
    return _compile(stack.layers, runs, device, trial, f"{name}-{len(runs)}", note)


def _compile(
    layers: nn.ModuleList, runs: Sequence[TrainRun], device: torch.device,
    trial: Callable[[], None], name: str, note: Note,
) -> compiled.Code:  # fmt: skip
    choice = runs[0].execution.compile
    # Expert by expert breaks a layer in pieces: at tiny compiled ones took twice the time.
    if choice == "auto" and runs[0].settings.model.experts is not None:
        return compiled.Code()
    # Of runs that are trained at once all are as long as it takes, or none (``sweep.together``).
    if not compiled.wanted(choice, runs[0].estimate().seconds, device):
        return compiled.Code()
    note(f"layers are compiled, which takes about a minute where {compiled.folder()} has no code "
         "for them")  # fmt: skip
    return compiled.compile_layers(layers, trial, choice, name)


def code_name(settings: Settings, plans: Sequence[TensorPlan], rows: int, precision: str) -> str:
    """The same for runs whose compiled layers are the same."""
    within = settings.train.multiplier_implementation == "forward"
    layers = [
        (plan.key, plan.forward, plan.trainable)
        + tuple((each.axis, each.parametrization) for each in plan.multipliers if within)
        for plan in plans
        if plan.address.layer is not None
    ]
    layers += sorted(point_factors(settings).items())
    told = (settings.model, rows, settings.train.sequence_length, precision, within, layers)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]
