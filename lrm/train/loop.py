"""The one training loop.

Every step is a pure function of the state and of (seed, step): batches come by position and
initial values from generators keyed by tensor names, so that a run that was killed and resumed
ends with the same bits as one that was not.

A run may be trained by several processes (``lrm.train.distributed``). Each takes its rows of every
batch and its share of the validation sequences; gradients and losses are averaged, and the
optimizer does the same in all of them. The first alone measures norms and writes files.

A signal that asks to stop takes effect between two steps, after a checkpoint.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrm import data
from lrm.cli import stop_delayed
from lrm.errors import Diverged, Stopped, UserError
from lrm.plan.config import Settings
from lrm.plan.rules import TensorPlan, table
from lrm.plan.run import Note, Report, TrainRun
from lrm.plan.schedule import constant_end, sequences_before, snapshot_steps
from lrm.plan.timescales import products
from lrm.store.rundir import open_run
from lrm.train import compiled
from lrm.train.device import Equipment, environment, equip
from lrm.train.distributed import ALONE, Group
from lrm.train.learner import Learner, begin_with_predecessor, build
from lrm.train.log import ProbeLog, StepLog
from lrm.train.sharding import copy_whole, recompute
from lrm.train.step import add_gradients, backward, train_step, validation_loss
from lrm.train.tensorboard import Board

# Without gradients so many tokens fit anywhere, and batches may be smaller than is fast.
VALIDATION_TOKENS = 4096


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
    choice, train = run.execution.compile, run.settings.train
    if run.execution.parallel is not None and group.world > 1:
        return compiled.Code()
    if not compiled.wanted(choice, run.estimate().seconds, equipment.device):
        return compiled.Code()
    note(f"layers are compiled, which takes about a minute where {compiled.folder()} has no code "
         "for them")  # fmt: skip
    rows = run.execution.micro_batch or train.batch_size // group.world
    shape = (rows, train.sequence_length + 1)
    tokens = torch.zeros(shape, dtype=torch.int64, device=equipment.device)

    def trial() -> None:
        with learner.multipliers.unchanged(several=False):
            add_gradients(learner.model, tokens, run.settings, equipment.autocast)
        learner.zero_grad()

    name = _code_name(run.settings, learner.plans, rows, equipment.precision)
    return compiled.compile_layers(learner.model.model.layers, trial, choice == "always", name)


def _code_name(settings: Settings, plans: Sequence[TensorPlan], rows: int, precision: str) -> str:
    """The same for runs whose compiled layers are the same."""
    within = settings.train.multiplier_implementation == "forward"
    layers = [
        (plan.key, plan.forward, plan.trainable)
        + tuple((each.axis, each.parametrization) for each in plan.multipliers if within)
        for plan in plans
        if plan.address.layer is not None
    ]
    told = (settings.model, rows, settings.train.sequence_length, precision, within, layers)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def train(
    run: TrainRun,
    path: Path,
    corpora: Path,
    report: Report = lambda step, loss: None,
    *,
    note: Note = lambda line: None,
    group: Group | None = None,
) -> None:
    """Train ``run`` in its directory, from its last checkpoint if there is one.

    With a ``group`` all its processes call this alike, and all need to see both folders.
    ``note`` gets one line on how it is computed. Raises UserError for a corpus that is not the
    one of the run's identity, a kernel that is not usable here, a damaged checkpoint, a way of
    computing that differs from the one begun with, and a loss that is no longer finite, unless the
    settings call that a result.
    """
    settings, group = run.settings, group or ALONE
    # One of several processes must not end alone: it waits until the run is free.
    with open_run(path, writes=group.rank == 0, waits=group.world > 1) as directory:
        if group.first(directory.complete):
            return
        corpus = data.prepare(settings.data, settings.model.vocab_size, corpora)
        if corpus.hash != run.corpus:
            raise UserError(
                f"the corpus {corpus.name} has changed since this run was planned; run again"
            )
        equipment = equip(run.execution, settings.model, group)
        torch.set_num_threads(run.execution.threads)
        # Probabilities too small for a normal number are multiplied 20 times slower on CPUs; 0 is
        # as good.
        torch.set_flush_denormal(True)
        make = functools.partial(build, settings, run.seed, equipment.device,
                                 kernels=equipment.kernels, plans=run.plans)  # fmt: skip
        learner = make()
        # What is measured of a model in parts is measured on a whole copy.
        parts = run.execution.parallel is not None and group.world > 1
        copy = make() if parts and group.rank == 0 else None
        if run.execution.recompute:
            recompute(learner.model.model.layers)
        if run.after is not None:
            begin_with_predecessor(learner.multipliers, run, path.parent / run.after_id)
        with Board(path, run.execution.tensorboard and group.rank == 0) as board:
            # First, since it tells of data that do not suffice.
            loop = _Loop(run, directory, learner, copy, corpus, equipment, report, board, group)
            code = compile_layers(learner, run, equipment, group, note)
            learner.join(group, run.execution.parallel)
            note(equipment.summary + (", compiled layers" if code.compiled else ""))
            if code.damaged:
                note(f"{code.damaged} was damaged; it was removed, and compiled anew")
            if code.problem:
                note(f"layers are not compiled: {code.problem}; if they were before, remove "
                     f"{compiled.folder()}, and the next run compiles them anew")  # fmt: skip
            description = describe(run, learner, corpus, equipment, code)
            state = directory.start(description, note)
            if state is not None and code.made:
                note(f"{run.label}: the code of its layers was no longer in {compiled.folder()} "
                     "and was compiled anew; its bits may differ from those of an uninterrupted "
                     "run, and run.json records it")  # fmt: skip
            try:
                loop.run(state)
            except Diverged as error:
                if settings.train.divergence == "error":
                    raise
                loop.finish(error.step, diverged=True)
                note(f"{run.label}: diverged at step {error.step}, which is its result")


class _Loop:
    """The state that lives only as long as the process does."""

    def __init__(self, run, directory, learner, copy, corpus, equipment, report, board, group):
        train = run.settings.train
        self.run_, self.settings, self.directory = run, run.settings, directory
        self.learner: Learner = learner
        self.copy: Learner | None = copy
        self.group: Group = group
        self.device, self.board = equipment.device, board
        self.autocast = equipment.autocast
        self.batches = data.Batches(
            corpus.train,
            train.batch_size,
            train.sequence_length,
            run.seed,
            self.settings.schedule,
            train.data_order,
        )
        self.validation = data.fixed_sequences(
            corpus.validation, train.validation_sequences, train.sequence_length
        )
        lot = np.ascontiguousarray(self.validation[: self.settings.probes.sequences, :-1])
        self.log = StepLog(run.label, directory, self.record, group, report, train.divergence)
        self.probes = ProbeLog(
            copy or learner, self.settings, torch.from_numpy(lot).to(self.device), self.batches,
            self.log, self.record, self.autocast, run.execution.micro_batch,
        )  # fmt: skip
        self.snapshots = snapshot_steps(train)
        self.seconds = 0.0

    def run(self, state: dict[str, Any] | None) -> None:
        start = self.load(state)
        settings = self.settings
        steps, stage_end = (
            settings.train.steps,
            constant_end(settings.schedule, settings.train.steps),
        )
        self.board.open(start)
        every = self.run_.execution.checkpoint_every
        micro_batch = self.run_.execution.micro_batch
        self.began = time.perf_counter()
        if start == 0:
            self.probe(0)
        if self.group.world > 1:
            # The first backward decides how gradients are laid out to be summed, and with it the
            # order of summation; a resumed run shall find it decided, as an uninterrupted one.
            backward(self.learner, self.batch(start), settings, self.autocast, micro_batch)
        with stop_delayed() as stops:
            for step in range(start, steps):
                batch = self.batch(step)
                measured = train_step(
                    self.learner, batch, settings, step, self.autocast, micro_batch
                )
                done = step + 1
                self.log.add(done, *measured)
                if self.probes.due(done):
                    self.probe(done)
                if self.validates(done, stage_end):
                    self.validate(done)
                if done == steps:
                    break
                if done in self.snapshots:
                    self.refresh_copy()
                    if self.group.rank == 0:
                        self.directory.save_weights(self.weights(), done)
                stopping = self.group.any(bool(stops))
                if stopping or done % every == 0:
                    self.log.write()
                    self.stop_clock()
                    self.save(done, stopping)
                if stopping:
                    raise Stopped(stops[0] if stops else signal.SIGTERM)
            self.finish(steps)

    def batch(self, step: int) -> Tensor:
        """This process's rows of the batch of ``step``, on its device."""
        rows = self.batches.batch(step, self.group.rank, self.group.world)
        return torch.from_numpy(rows).to(self.device, non_blocking=True)

    def validates(self, done: int, stage_end: int) -> bool:
        every = self.settings.train.validation_every
        ends = (stage_end, self.settings.train.steps, *self.snapshots)
        return done in ends or bool(every and done % every == 0)

    def record(self, log: str, record: dict[str, Any]) -> None:
        """Append to a log, and show the same where that is wanted."""
        self.directory.append(log, record)
        self.board.add(log, record)

    def probe(self, done: int) -> None:
        self.log.write()
        self.refresh_copy()
        if self.group.rank == 0:
            self.probes.take(done)

    def refresh_copy(self) -> None:
        """Give the whole copy what a model in parts has now; all processes call this alike."""
        if self.learner.is_shared:
            copy_whole(self.learner.model, self.copy and self.copy.model)

    def validate(self, done: int) -> None:
        self.log.write()
        train = self.settings.train
        rows = self.run_.execution.micro_batch or train.batch_size
        lot = max(rows, VALIDATION_TOKENS // train.sequence_length)
        loss = validation_loss(self.learner, self.validation, lot, self.autocast)
        self.record("metrics.jsonl", {"step": done, "validation_loss": loss})
        self.last_validation = loss

    def save(self, done: int, stopping: bool) -> None:
        """A checkpoint; that of a model in parts is written beside training, but for the last."""
        state = {
            "step": done,
            "seconds": self.seconds,
            "probe_seconds": self.probes.seconds,
            **self.log.state(),
        }
        if not self.learner.is_shared:
            self.directory.save_checkpoint({**state, "learner": self.learner.state()})
            return
        outline, tensors = self.learner.spread()
        chance = self.group.first(secrets.token_hex(8))
        self.directory.save_parts({**state, "learner": outline}, tensors, chance, self.group.beside)
        if stopping:
            self.directory.settle()

    def load(self, state: dict[str, Any] | None) -> int:
        begun = state and state["step"]
        if self.group.first(begun) != begun:
            raise UserError(
                f"{self.directory.checkpoint} is not the same file for all processes; give "
                "--results a folder that all machines share"
            )
        if state is None:
            return 0
        self.learner.load(state["learner"], self.directory.read_parts)
        self.log.load(state)
        self.seconds, self.probes.seconds = state["seconds"], state["probe_seconds"]
        return state["step"]

    def stop_clock(self) -> None:
        """Add the time since this was last called, or since training began, to ``seconds``."""
        now = time.perf_counter()
        self.seconds, self.began = self.seconds + now - self.began, now

    def finish(self, steps: int, diverged: bool = False) -> None:
        """Mark the run as done after ``steps``; one that diverged leaves no weights."""
        if self.group.rank > 0:
            return
        self.stop_clock()
        train = self.settings.train
        sequences = sequences_before(self.settings.schedule, train.batch_size, steps)
        tokens = sequences * train.sequence_length
        outcome = {
            "validation_loss": None if diverged else self.last_validation,
            **({"diverged": steps} if diverged else {}),
            "seconds": self.seconds,
            "tokens_per_second": tokens / max(self.seconds, 1e-9),
            "probe_fraction": self.probes.seconds / max(self.seconds, 1e-9),
            "processes": self.group.world,
        }
        self.directory.finish(outcome, None if diverged else self.weights())

    def weights(self) -> dict[str, Tensor]:
        """All learnable tensors by address: of a model in parts those of the copy."""
        views = self.probes.views
        weights = {plan.key: views.weight(plan).detach().clone() for plan in views.plans}
        for name, _, parameter in self.learner.multipliers.named():
            weights[name] = parameter.detach().clone()
        return weights


def describe(
    run: TrainRun, learner: Learner, corpus, equipment: Equipment, code: compiled.Code
) -> dict[str, Any]:
    """The content of ``run.json``."""
    return {
        **run.describe(),
        "corpus": {"hash": corpus.hash, "name": corpus.name, **corpus.meta},
        "rules": table(learner.plans, run.settings),
        "groups": learner.optimizer.table(),
        "products": products(learner.plans, run.settings),
        "execution": {
            "device": equipment.device.type,
            "precision": equipment.precision,
            "kernels": equipment.kernels.record(),
            "compiled": code.compiled,
            "threads": run.execution.threads,
            "micro_batch": run.execution.micro_batch,
            "torch": torch.__version__,
        },
        # Not part of the way of computing: it may change on resume.
        "environment": {
            **environment(),
            "processes": learner.group.world,
            "compiled_anew": code.made,
        },
    }
