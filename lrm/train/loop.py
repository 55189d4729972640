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
import gc
import math
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrm import data
from lrm.cli import stop_delayed
from lrm.errors import Diverged, Stopped, UserError, as_user_error
from lrm.plan import memory
from lrm.plan.run import Note, Report, TrainRun
from lrm.plan.schedule import constant_end, sequences_before, snapshot_steps
from lrm.store.rundir import open_run
from lrm.train import batched, compiled
from lrm.train.compilation import compile_layers, compile_stack
from lrm.train.curvature import check_kernels
from lrm.train.description import describe
from lrm.train.device import device_of, equip
from lrm.train.distributed import ALONE, Group
from lrm.train.learner import Learner, begin_with_predecessor, build
from lrm.train.log import ProbeLog, StepLog
from lrm.train.sharding import copy_whole, recompute
from lrm.train.step import backward, train_step, validation_loss
from lrm.train.tensorboard import Board

# Without gradients so many tokens fit anywhere, and batches may be smaller than is fast.
VALIDATION_TOKENS = 4096
# Of a GPU's free memory for runs at once: the estimate leaves out logits and fragments.
_OF_MEMORY = 0.4
# Of a step: cross-entropy, gradient norm before clipping, whether it was clipped.
Measured = tuple[Tensor, Tensor, Tensor]


def train(
    run: TrainRun,
    path: Path,
    corpora: Path,
    report: Report = lambda step, loss: None,
    *,
    note: Note = lambda line: None,
    group: Group | None = None,
    each: Report = lambda step, loss: None,
) -> None:
    """Train ``run`` in its directory, from its last checkpoint if there is one.

    With a ``group`` all its processes call this alike, and all need to see both folders.
    ``report`` is told of some steps, ``each`` of every one that this process takes, in lots.
    ``note`` gets lines on how it is computed. Raises UserError for a corpus that is not the
    one of the run's identity, a kernel that is not usable here, a damaged checkpoint, a way of
    computing that differs from the one begun with, and a loss that is no longer finite, unless the
    settings call that a result.
    """
    _free()
    with ExitStack() as stack:
        loop = _Loop.opened(stack, run, path, corpora, report, note, group or ALONE, each)
        if loop is not None:
            _train_opened([loop], note)
            if loop.error is not None:
                raise loop.error


def train_together(
    jobs: Sequence[tuple[TrainRun, Path]],
    corpora: Path,
    report: Report = lambda step, loss: None,
    *,
    note: Note = lambda line: None,
) -> list[UserError | None]:
    """Train runs of one shape at once, each in its directory, from its own last checkpoint.

    What stopped each, where something did (see ``train``; Busy where another process trains it);
    the others go on. Which runs are of one shape ``lrm.sweep.together`` says.
    """
    _free()
    errors: list[UserError | None] = []
    for numbers in _lots([run for run, _ in jobs]):
        errors += _train_lot([jobs[number] for number in numbers], corpora, report, note)
        _free()
    return errors


def _train_lot(
    jobs: Sequence[tuple[TrainRun, Path]], corpora: Path, report: Report, note: Note
) -> list[UserError | None]:
    """As ``train_together``, of runs that fit into memory at once."""
    errors: list[UserError | None] = [None] * len(jobs)
    with ExitStack() as stack:
        loops: dict[int, _Loop] = {}
        for number, (run, path) in enumerate(jobs):
            try:
                loop = _Loop.opened(stack, run, path, corpora, report, note)
            except (UserError, OSError) as error:
                errors[number] = as_user_error(error)
                if errors[number] is None:
                    raise
                continue
            if loop is not None:
                loops[number] = loop
        every = list(loops.values())
        if all(batched.usable(loop.equipment.kernels) for loop in every):
            _train_opened(every, note)
        else:
            note("runs are trained one after another: GPU kernels know no runs at once")
            for loop in every:
                _train_opened([loop], note)
        for number, loop in loops.items():
            errors[number] = loop.error
    return errors


def _moved(rows: np.ndarray, device: torch.device) -> Tensor:
    """On the device; to a GPU from pinned memory, else it would be waited for."""
    found = torch.from_numpy(rows)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found


def _free() -> None:
    """Give back a GPU's memory: models of runs that are over stay in cycles of references."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def _lots(runs: Sequence[TrainRun]) -> Iterator[range]:
    """The numbers of runs of one shape that are trained at once: as many as fit, if auto."""
    fitting = len(runs)
    device = device_of(runs[0].execution.device)
    if device.type == "cuda" and runs[0].execution.batch_runs == "auto":
        free, _ = torch.cuda.mem_get_info(device)
        fitting = max(1, int(_OF_MEMORY * free // memory.of_process(runs[0]).total))
    for start in range(0, len(runs), fitting):
        yield range(start, min(start + fitting, len(runs)))


def _train_opened(loops: Sequence[_Loop], note: Note) -> None:
    """Train them to their ends, several at once; errors are noted in them."""
    if not loops:
        return
    first = loops[0]
    run, settings, autocast = first.run_, first.settings, first.autocast
    if len(loops) == 1:
        learner, micro_batch = first.learner, run.execution.micro_batch
        code = compile_layers(learner, run, first.equipment, first.group, note)
        learner.join(first.group, run.execution.parallel)

        def take(step: int) -> list[Measured]:
            batch = first.batch(step)
            return [train_step(learner, batch, settings, step, autocast, micro_batch)]
    else:
        stack = batched.Batch([loop.learner for loop in loops], [loop.settings for loop in loops])
        code = compile_stack(stack, [loop.run_ for loop in loops], first.equipment, note)
        note(f"{len(loops)} runs are trained at once, beginning with {run.label}")

        def take(step: int) -> list[Measured]:
            rows = np.stack([loop.batches.batch(step) for loop in loops])
            batches = _moved(rows, first.device)
            taking_part = [loop.is_active(step) for loop in loops]
            found = stack.step(batches, step, taking_part, autocast)
            return [measured for measured in found if measured is not None]

    _tell_how(first.equipment.summary, code, note)
    for loop in loops:
        loop.attempt(functools.partial(loop.start, code, len(loops)))
    advance(loops, take)


def _tell_how(summary: str, code: compiled.Code, note: Note) -> None:
    """Tell in lines how runs are computed, and what became of compiling."""
    note(summary + (", compiled layers" if code.compiled else ""))
    if code.damaged:
        note(f"{code.damaged} was damaged; it was removed, and compiled anew")
    if code.problem:
        note(f"layers are not compiled: {code.problem}; if they were before, remove "
             f"{compiled.folder()}, and the next run compiles them anew")  # fmt: skip


def advance(loops: Sequence[_Loop], take: Callable[[int], list[Measured]]) -> None:
    """Train all ``loops``, which take equally many steps, from where each is to the end.

    ``take`` takes one step of those that are active, and gives what ``train_step`` returns of each.
    One that has gone further waits for the others. An error of one, which is noted in it, does not
    stop the others; a signal stops all.
    """
    group = loops[0].group
    steps, every = loops[0].settings.train.steps, loops[0].run_.execution.checkpoint_every
    for loop in loops:
        loop.attempt(loop.begin)
        loop.stop_clock()
    last: list[_Loop] = []
    with stop_delayed() as stops:
        for step in range(min(loop.done for loop in loops), steps):
            active = [loop for loop in loops if loop.is_active(step)]
            if active != last:
                for loop in last:
                    loop.stop_clock()
                for loop in active:
                    loop.start_clock(1 / len(active))
                last = active
            if not any(loop.error is None and not loop.is_over for loop in loops):
                break
            measured = take(step) if active else []
            done = step + 1
            for loop, results in zip(active, measured, strict=True):
                loop.attempt(functools.partial(loop.add, done, results))
            if done == steps:
                break
            stopping = group.any(bool(stops))
            if stopping or done % every == 0:
                for loop in active:
                    loop.attempt(functools.partial(loop.keep, done, stopping))
            if stopping:
                for loop in active:
                    if loop.error is not None:
                        loop.note(f"{loop.run_.label} is not saved ({loop.error}); it goes on from "
                                  "its checkpoint before that")  # fmt: skip
                group.meet()  # who raises first ends all, and the first process may still write
                raise Stopped(stops[0] if stops else signal.SIGTERM)
        for loop in loops:
            loop.attempt(functools.partial(loop.finish, steps))


class _Loop:
    """The state of one run that lives only as long as the process does.

    ``done`` are the steps that it has taken. With an ``error`` it has ended, and ``is_over`` once
    it has its result. ``share`` is its part of the time that passes: others may train beside it.
    """

    @classmethod
    def opened(
        cls, stack: ExitStack, run: TrainRun, path: Path, corpora: Path, report: Report, note: Note,
        group: Group = ALONE, each: Report = lambda step, loss: None,
    ) -> _Loop | None:  # fmt: skip
        """That of ``run`` in its directory, until ``stack`` ends; None where it has finished."""
        settings = run.settings
        # One of several processes must not end alone: it waits until the run is free.
        opening = open_run(path, writes=group.rank == 0, waits=group is not ALONE, note=note)
        directory = stack.enter_context(opening)
        if group.first(directory.complete):
            return None
        corpus = data.prepare_planned(settings, run.corpus, corpora)
        equipment = equip(run.execution, settings.model, group)
        same = (equipment.device.type, equipment.precision, equipment.kernels.record())
        if (said := group.first(same)) != same:
            raise UserError(
                f"{run.label}: process {group.rank} computes with {same}, and the first one with "
                f"{said}; name execution.device, precision and kernels, or use equal machines"
            )
        if settings.probes.curvature:
            check_kernels(equipment.kernels)
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
            for model in (learner.model, *([copy.model] if copy else [])):
                recompute(model.model.layers)
        if run.after is not None:
            begin_with_predecessor(learner.multipliers, run, path.parent / run.after_id)
        board = stack.enter_context(Board(path, run.execution.tensorboard and group.rank == 0))
        # It tells of data that do not suffice.
        return cls(
            run, directory, learner, copy, corpus, equipment, report, note, board, group, each
        )

    def __init__(
        self, run, directory, learner, copy, corpus, equipment, report, note, board, group, each
    ):
        train = run.settings.train
        self.run_, self.settings, self.directory = run, run.settings, directory
        self.learner: Learner = learner
        self.copy: Learner | None = copy
        self.group: Group = group
        self.corpus, self.equipment, self.note = corpus, equipment, note
        self.device, self.board = equipment.device, board
        self.autocast = equipment.autocast
        self.batches = data.batches_of(self.settings, corpus, run.seed)
        self.validation = data.fixed_sequences(
            corpus.validation, train.validation_sequences, train.sequence_length
        )
        self.recalled = data.recalled(self.validation)
        lot = np.ascontiguousarray(self.validation[: self.settings.probes.sequences, :-1])
        self.log = StepLog(run.label, directory, self.record, group, report, train.divergence, each)
        self.probes = ProbeLog(
            copy or learner, self.settings, torch.from_numpy(lot).to(self.device), self.batches,
            self.log, self.record, self.autocast,
            # One process takes no more sequences at a time than in training.
            run.execution.micro_batch or (group.world > 1 and train.batch_size // group.world) or 0,
        )  # fmt: skip
        self.snapshots = snapshot_steps(train)
        self.stage_end = constant_end(self.settings.schedule, train.steps)
        self.seconds = 0.0
        self.start_clock(0.0)
        self.done = 0
        self.error: UserError | None = None
        self.is_over = False

    def start(self, code: compiled.Code, beside: int = 1) -> None:
        """Describe the run, and take the state of its checkpoint where there is one.

        ``beside`` is how many runs are trained at once.
        """
        run = self.run_
        description = describe(run, self.learner, self.corpus, self.equipment, code, beside)
        state = self.directory.start(description, self.note)
        if state is not None and code.made:
            self.note(f"{run.label}: the code of its layers was no longer in {compiled.folder()} "
                      "and was compiled anew; its bits may differ from those of an uninterrupted "
                      "run, and run.json records it")  # fmt: skip
        self.done = self.load(state)

    def attempt(self, part: Callable[[], None]) -> None:
        """Do ``part``, unless it is over; an error is noted, and divergence may be a result."""
        if self.error is not None or self.is_over:
            return
        try:
            try:
                part()
            except Diverged as error:
                if self.settings.train.divergence == "error":
                    raise
                self.finish(error.step, diverged=True)
                self.note(f"{self.run_.label}: diverged at step {error.step}, which is its result")
        except (UserError, OSError) as error:
            self.error = as_user_error(error)
            if self.error is None:
                raise
            # Else closing would fail again, when errors of all runs have been noted.
            with suppress(UserError, OSError):
                self.directory.close()

    def is_active(self, step: int) -> bool:
        """Whether the step after ``step`` steps is its next."""
        return self.error is None and not self.is_over and self.done == step

    def begin(self) -> None:
        """What comes before the first step in this process."""
        self.board.open(self.done)
        self.start_clock(1.0)
        if self.done == 0:
            self.probe(0)
        self.hold(self.done)
        if self.group.world > 1:
            # The first backward decides how gradients are laid out to be summed, and with it the
            # order of summation; a resumed run shall find it decided, as an uninterrupted one.
            micro_batch = self.run_.execution.micro_batch
            backward(self.learner, self.batch(self.done), self.settings, self.autocast, micro_batch)

    def add(self, done: int, measured: Measured) -> None:
        """Take the results of the step that made it ``done``, and measure what is due."""
        self.done = done
        self.log.add(done, *measured)
        if self.probes.due(done):
            self.probe(done)
        if self.validates(done):
            self.validate(done)
        if done in self.snapshots and done < self.settings.train.steps:
            self.refresh_copy()
            if self.group.rank == 0:
                self.directory.save_weights(self.weights(), done)
        self.hold(done)

    def hold(self, done: int) -> None:
        """Before a step whose update is measured."""
        if not self.probes.holds(done):
            return
        self.refresh_copy()
        if self.group.rank == 0:
            self.probes.hold()

    def keep(self, done: int, stopping: bool) -> None:
        """Save a checkpoint; ``stopping`` waits until it is on disk."""
        self.log.write()
        self.stop_clock()
        self.save(done, stopping)

    def batch(self, step: int) -> Tensor:
        """This process's rows of the batch of ``step``, on its device."""
        rows = self.batches.batch(step, self.group.rank, self.group.world)
        return _moved(rows, self.device)

    def validates(self, done: int) -> bool:
        every = self.settings.train.validation_every
        ends = (self.stage_end, self.settings.train.steps, *self.snapshots)
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
        self.group.meet()  # without it NCCL's own limit counts while the first measures

    def refresh_copy(self) -> None:
        """Give the whole copy what a model in parts has now; all processes call this alike."""
        if self.learner.is_shared:
            copy_whole(self.learner.model, self.copy and self.copy.model)

    def validate(self, done: int) -> None:
        self.log.write()
        train = self.settings.train
        rows = self.run_.execution.micro_batch or train.batch_size // self.group.world
        lot = max(rows, VALIDATION_TOKENS // train.sequence_length)
        loss = validation_loss(self.learner, self.validation, lot, self.autocast)
        if not math.isfinite(loss):  # after the last update no step would tell
            raise self.log.diverged(done, "validation loss", loss)
        record = {"step": done, "validation_loss": loss}
        share = self.recalled.mean()
        if 0 < share < 1:
            recall = validation_loss(
                self.learner, self.validation, lot, self.autocast, self.recalled
            )
            record |= {"recall_loss": recall, "other_loss": (loss - share * recall) / (1 - share)}
        self.record("metrics.jsonl", record)
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

    def start_clock(self, share: float) -> None:
        """From now on ``share`` of the time that passes is its own."""
        self.began, self.share = time.perf_counter(), share

    def stop_clock(self) -> None:
        """Add its share of the time since this was last called, or since its clock was started."""
        now = time.perf_counter()
        self.seconds, self.began = self.seconds + self.share * (now - self.began), now

    def finish(self, steps: int, diverged: bool = False) -> None:
        """Mark the run as done after ``steps``; one that diverged leaves no weights."""
        self.is_over = True
        if self.group.rank > 0:
            return
        self.stop_clock()
        if diverged:
            # Else the loss before the decay would be its last.
            self.record("metrics.jsonl", {"step": steps, "validation_loss": math.nan})
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
