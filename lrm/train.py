"""The one training loop.

Every step is a pure function of the state and of (seed, step): batches come by position and
initial values from generators keyed by tensor names, so that a run that was killed and resumed
ends with the same bits as one that was not.

A run may be trained by several processes (``lrm.distributed``). Each takes its rows of every
batch and its share of the validation sequences; gradients and losses are averaged, and the
optimizer does the same in all of them. The first alone measures norms and writes files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from lrm import compiled, data, hub, optim, probes, rules
from lrm.board import Board
from lrm.compose import Run
from lrm.config import Settings
from lrm.cost import estimate
from lrm.distributed import ALONE, Group
from lrm.errors import Diverged, UserError
from lrm.machine import Equipment, environment, equip
from lrm.model.falcon_h1 import FalconH1
from lrm.model.gpu import PLAIN, Kernels
from lrm.model.init import initialize, named_generator
from lrm.multipliers import Multipliers
from lrm.products import products
from lrm.rundir import is_complete, open_run
from lrm.schedule import constant_end, lr_factor, sequences_before

# Losses are moved off the device and logged in lots, so that a GPU is not waited for.
LOG_LOT = 20
# Without gradients so many tokens fit anywhere, and batches may be smaller than is fast.
VALIDATION_TOKENS = 4096

Report = Callable[[int, float], None]
Note = Callable[[str], None]


@dataclass
class Learner:
    """A model with its multipliers, optimizer and plans: everything that a step touches."""

    model: nn.Module
    multipliers: Multipliers
    optimizer: optim.Optimizer
    plans: list[rules.TensorPlan]
    # What a training step calls: the model, or what averages its gradients over processes.
    call: nn.Module
    group: Group = ALONE

    def join(self, group: Group) -> None:
        """Train together with the other processes of ``group`` from now on."""
        self.group, self.call = group, group.wrap(self.model)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {
            "model": self.model.state_dict(),
            **{name: part.state_dict() for name, part in self.optimizer.parts.items()},
        }

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self._parameters:
            parameter.grad = None
        self.optimizer.zero_grad()

    @functools.cached_property
    def _parameters(self) -> list[nn.Parameter]:
        # Walking through the modules for them takes 2% of a small model's step.
        return list(self.model.parameters())

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint."""
        self.model.load_state_dict(state["model"])
        for name, part in self.optimizer.parts.items():
            part.load_state_dict(state[name])


def build(
    settings: Settings,
    seed: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    kernels: Kernels = PLAIN,
) -> Learner:
    """Model, multipliers and optimizer of one run, freshly initialised from ``seed``.

    Raises UserError where the rules do not fit the model.
    """
    plans = rules.resolve(settings)
    forward = {plan.key: plan.forward for plan in plans if plan.forward != 1.0}
    with torch.device(device):
        model = FalconH1(settings.model, forward, kernels).to(dtype)
    if torch.device(device).type != "meta":
        scales = {plan.key: plan.init_scale for plan in plans if plan.init_scale != 1.0}
        initialize(model, settings.model, seed, scales)
        if settings.train.start is not None:
            hub.take_weights(model, settings.train.start)
    multipliers = optim.attach(model, plans, settings.train.multiplier_implementation)
    found = optim.entries(model, plans, multipliers)
    optimizer = optim.Optimizer(found, settings.optimizer, settings.train)
    return Learner(model, multipliers, optimizer, plans, model)


def read_multipliers(path: Path, run: Run) -> dict[str, Tensor]:
    """By key and axis the multipliers with which the source of ``run``, in ``path``, ended.

    Of a Brownian motion what is kept of its draws. Raises UserError where that run is not finished
    or cannot be read.
    """
    if not is_complete(path):
        raise UserError(
            f"{run.label} begins with the multipliers of {run.source.label}, which is not "
            "finished; run that too (without --only)"
        )
    noise = run.source.kind == "brownian"
    file = path / ("vectors.parquet" if noise else "weights.pt")
    try:
        if not noise:
            return torch.load(file, weights_only=True, map_location="cpu")
        rows = pd.read_parquet(file)
    except Exception as error:  # a damaged file raises whatever its reader likes
        raise UserError(
            f"{run.label} begins with the multipliers in {file}, which cannot be read ({error}); "
            "remove that run's folder and train it again"
        ) from None
    rows = rows[(rows["stat"] == "values") & (rows["step"] == rows["step"].max())]
    return {key: torch.tensor(v) for key, v in zip(rows["tensor"], rows["value"], strict=True)}


@torch.no_grad()
def begin_with(multipliers: Multipliers, values: dict[str, Tensor], noise: bool) -> None:
    """Set multipliers' parameters to ``values``.

    Those of noise are the multipliers themselves, whose parameter may be the logarithm. Their RMS
    is made 1, so that they differ from none in spread and not in level, and where fewer are kept
    than a multiplier has entries, they are drawn from those: entries of such a walk are alike and
    independent. Raises UserError where one is missing.
    """
    for key, axis, parameter in multipliers.named_factors():
        name, size = f"{key}.{axis}", parameter.numel()
        if name not in values:
            raise UserError(f"the run to begin with has no {axis} multiplier of {key}")
        value = values[name].flatten()
        if noise:
            value = value / value.square().mean().sqrt()
            if len(value) < size:
                generator = named_generator(0, name)
                value = value[torch.randint(len(value), (size,), generator=generator)]
            if multipliers.factors[key].log[axis]:
                value = value.abs().log()
        elif len(value) != size:
            raise UserError(
                f"the run to begin with has {len(value)} {axis} multipliers of {key}, not {size}"
            )
        parameter.copy_(value[:size].view_as(parameter))
    multipliers.push_weights()


def backward(
    learner: Learner,
    batch: Tensor,
    settings: Settings,
    autocast: Any = None,
    micro_batch: int = 0,
) -> Tensor:
    """Gradients of the mean objective over ``batch`` and those of the other processes.

    Returns the cross-entropy of ``batch`` alone, a scalar on the device.
    """
    learner.zero_grad()
    total = batch.new_zeros((), dtype=torch.float32)
    parts = batch.split(micro_batch or len(batch))
    several = len(parts) > 1
    with learner.multipliers.unchanged() if several else contextlib.nullcontext():
        for part in parts:
            share = len(part) / len(batch)
            with learner.group.accumulating(learner.call, part is not parts[-1]):
                loss = add_gradients(learner.call, part, settings, autocast, share)
            total = loss if share == 1 else total + loss * share
    return total


def add_gradients(
    model: nn.Module, batch: Tensor, settings: Settings, autocast: Any = None, share: float = 1.0
) -> Tensor:
    """Add ``share`` times the gradients of ``batch`` to those there are; its cross-entropy."""
    with autocast or contextlib.nullcontext():
        loss, objective = model(batch[:, :-1], batch[:, 1:], settings.train.z_loss)
    (objective if share == 1 else objective * share).backward()
    return loss


def compile_layers(learner: Learner, run: Run, equipment: Equipment, group: Group = ALONE) -> bool:
    """Compile the layers if those of ``run`` are to be (see ``lrm.compiled``); whether they are.

    Before ``learner`` joins other processes: the trial is of the model alone. Raises UserError
    where they must be and cannot.
    """
    choice, train = run.execution.compile, run.settings.train
    if not compiled.wanted(choice, estimate(run).seconds, equipment.device):
        return False
    rows = run.execution.micro_batch or train.batch_size // group.world
    shape = (rows, train.sequence_length + 1)
    tokens = torch.zeros(shape, dtype=torch.int64, device=equipment.device)

    def trial() -> None:
        add_gradients(learner.model, tokens, run.settings, equipment.autocast)
        learner.zero_grad()

    name = _code_name(run.settings, learner.plans, rows, equipment.precision)
    return compiled.compile_layers(learner.model.model.layers, trial, choice == "always", name)


def _code_name(
    settings: Settings, plans: Sequence[rules.TensorPlan], rows: int, precision: str
) -> str:
    """The same for runs whose compiled layers are the same."""
    within = settings.train.multiplier_implementation == "forward"
    layers = [
        (plan.key, plan.forward, plan.trainable)
        + tuple((f.axis, f.parametrization) for f in plan.factors if within)
        for plan in plans
        if plan.address.layer is not None
    ]
    told = (settings.model, rows, settings.train.sequence_length, precision, within, layers)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def train_step(
    learner: Learner,
    batch: Tensor,
    settings: Settings,
    step: int,
    autocast: Any = None,
    micro_batch: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """One update on ``batch`` (sequences, length + 1), ``micro_batch`` sequences at a time.

    Of several processes each has its own rows of the batch. Returns (cross-entropy of these
    rows, gradient norm of the whole batch before clipping, whether it was clipped), scalars on
    the device.
    """
    total = backward(learner, batch, settings, autocast, micro_batch)
    learner.multipliers.pull_gradients()
    norm, clipped = learner.optimizer.step(lr_factor(settings.schedule, settings.train.steps, step))
    learner.multipliers.push_weights()
    return total, norm, clipped


@torch.no_grad()
def validation_loss(learner: Learner, sequences: np.ndarray, lot: int, autocast: Any) -> float:
    """Mean cross-entropy per token of the fixed sequences (count, length + 1), in nats.

    Of several processes each computes every so many-th sequence, and all return the mean.
    """
    device = next(learner.model.parameters()).device
    group = learner.group
    mine = sequences[group.rank :: group.world]
    total = 0.0
    for start in range(0, len(mine), lot):
        batch = torch.from_numpy(mine[start : start + lot]).to(device)
        with compiled.uncompiled(), autocast or contextlib.nullcontext():
            loss, _ = learner.model(batch[:, :-1], batch[:, 1:])
        total += loss.item() * len(batch)
    mean = group.mean(torch.tensor(total, dtype=torch.float64)).item()
    return mean * group.world / len(sequences)


def gradient_statistics(
    learner: Learner, views: probes.Views, batches: Iterable[Tensor], settings: Settings,
    autocast: Any = None, micro_batch: int = 0,
) -> probes.Scalars:  # fmt: skip
    """``lrm.probes.GradientStatistics`` over ``batches``, at least two; leaves no gradients."""
    found = probes.GradientStatistics(views)
    # The one process that measures does not wait for others.
    alone = dataclasses.replace(learner, call=learner.model, group=ALONE)
    for batch in batches:
        backward(alone, batch, settings, autocast, micro_batch)
        learner.multipliers.pull_gradients()
        found.add()
    learner.zero_grad()
    return found.result()


def measure_norms(
    learner: Learner, views: probes.Views, tokens: Tensor, autocast: Any
) -> probes.Scalars:
    """Every norm of ``lrm.probes``, activations on ``tokens`` (sequences, length)."""
    learner.model.eval()
    found = probes.tensor_norms(views)
    with compiled.uncompiled(), autocast or contextlib.nullcontext():
        found |= probes.activation_norms(learner.model, tokens)
    learner.model.train()
    return found


def train(
    run: Run,
    path: Path,
    corpora: Path,
    report: Report = lambda step, loss: None,
    *,
    group: Group = ALONE,
    note: Note = lambda line: None,
) -> None:
    """Train ``run`` in its directory, from its last checkpoint if there is one.

    With a ``group`` all its processes call this alike, and all need to see both folders.
    ``note`` gets one line on how it is computed. Raises UserError for a corpus that is not the
    one of the run's identity, a kernel that is not usable here, a damaged checkpoint, a way of
    computing that differs from the one begun with, and a loss that is no longer finite.
    """
    settings = run.settings
    with open_run(path, writes=group.rank == 0) as directory:
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
        learner = build(settings, run.seed, equipment.device, kernels=equipment.kernels)
        if run.source is not None:
            noise = run.source.kind == "brownian"
            values = read_multipliers(path.parent / run.source_id, run)
            begin_with(learner.multipliers, values, noise)
        with Board(path, run.execution.tensorboard and group.rank == 0) as board:
            # First, since it tells of data that do not suffice.
            loop = _Loop(run, directory, learner, corpus, equipment, report, board, group)
            is_compiled = compile_layers(learner, run, equipment, group)
            learner.join(group)
            note(equipment.summary + (", compiled layers" if is_compiled else ""))
            directory.start(describe(run, learner, corpus, equipment, is_compiled))
            loop.run()


class _Loop:
    """The state that lives only as long as the process does."""

    def __init__(self, run, directory, learner, corpus, equipment, report, board, group):
        train = run.settings.train
        self.run_, self.settings, self.directory = run, run.settings, directory
        self.learner: Learner = learner
        self.group: Group = group
        self.device, self.report, self.board = equipment.device, report, board
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
        self.probe_tokens = torch.from_numpy(lot).to(self.device)
        self.views = probes.Views(learner.model, learner.plans, learner.multipliers)
        self.pending: list[tuple[int, Tensor, Tensor, Tensor]] = []
        self.clipped_steps = 0
        self.since_probe = 0
        self.seconds = 0.0
        self.probe_seconds = 0.0

    def run(self) -> None:
        start = self.load()
        settings = self.settings
        steps, stage_end = (
            settings.train.steps,
            constant_end(settings.schedule, settings.train.steps),
        )
        self.board.open(start)
        every = self.run_.execution.checkpoint_every
        micro_batch = self.run_.execution.micro_batch
        began = time.perf_counter()
        if start == 0:
            self.probe(0)
        if self.group.world > 1:
            # The first backward decides how gradients are laid out to be summed, and with it the
            # order of summation; a resumed run shall find it decided, as an uninterrupted one.
            backward(self.learner, self.batch(start), settings, self.autocast, micro_batch)
        for step in range(start, steps):
            batch = self.batch(step)
            measured = train_step(self.learner, batch, settings, step, self.autocast, micro_batch)
            self.pending.append((step + 1, *measured))
            done = step + 1
            if len(self.pending) == LOG_LOT or done == steps:
                self.log()
            if done % settings.probes.every == 0 or done in (stage_end, steps):
                self.log()
                self.probe(done)
            if self.validates(done, stage_end):
                self.validate(done)
            if done % every == 0 and done < steps:
                self.log()
                self.seconds += time.perf_counter() - began
                began = time.perf_counter()
                self.save(done)
        self.seconds += time.perf_counter() - began
        if self.group.rank == 0:
            self.finish()

    def batch(self, step: int) -> Tensor:
        """This process's rows of the batch of ``step``, on its device."""
        rows = self.batches.batch(step, self.group.rank, self.group.world)
        return torch.from_numpy(rows).to(self.device, non_blocking=True)

    def validates(self, done: int, stage_end: int) -> bool:
        every = self.settings.train.validation_every
        return done in (stage_end, self.settings.train.steps) or bool(every and done % every == 0)

    def record(self, log: str, record: dict[str, Any]) -> None:
        """Append to a log, and show the same where that is wanted."""
        self.directory.append(log, record)
        self.board.add(log, record)

    def log(self) -> None:
        """Write the pending steps' losses; stop at one that is not finite."""
        if not self.pending:
            return
        values = torch.stack(
            [torch.stack([m.float() for m in measured]) for _, *measured in self.pending]
        )
        values[:, 0] = self.group.mean(values[:, 0])
        values = values.tolist()
        for (done, *_), (loss, norm, clipped) in zip(self.pending, values, strict=True):
            if not math.isfinite(loss) or not math.isfinite(norm):
                self.directory.flush()
                raise Diverged(
                    f"{self.run_.label}: the loss or gradient is not finite at step {done} "
                    f"(loss {loss}); lower optimizer.lr, or lengthen schedule.warmup_steps; "
                    f"its log stays in {self.directory.path}"
                )
            self.record(
                "metrics.jsonl", {"step": done, "train_loss": loss, "global_gradient_norm": norm}
            )
            self.clipped_steps += int(clipped)
            self.since_probe += 1
        self.report(self.pending[-1][0], values[-1][0])
        self.pending = []

    def probe(self, done: int) -> None:
        if self.group.rank:
            return
        began = time.perf_counter()
        found = measure_norms(self.learner, self.views, self.probe_tokens, self.autocast)
        fraction = self.clipped_steps / self.since_probe if self.since_probe else 0.0
        found["clipped_fraction"] = {"model": fraction}
        factor = lr_factor(self.settings.schedule, self.settings.train.steps, max(done - 1, 0))
        found["lr_factor"] = {"model": factor}
        self.clipped_steps = self.since_probe = 0
        ends = (constant_end(self.settings.schedule, self.settings.train.steps),
                self.settings.train.steps)  # fmt: skip
        with_vectors = done % self.settings.probes.vectors_every == 0 or done in ends
        if with_vectors and self.settings.probes.gradient_batches:
            found |= self.gradients(done)
        self.record("probes.jsonl", {"step": done, "values": found})
        if with_vectors:
            self.record("vectors.jsonl", {"step": done, "values": probes.vectors(self.views)})
        self.probe_seconds += time.perf_counter() - began

    def gradients(self, done: int) -> probes.Scalars:
        """Signal and noise over the next batches, as one process sees them."""
        number = self.settings.probes.gradient_batches
        batches = (
            torch.from_numpy(self.batches.batch(step)).to(self.device)
            for step in range(done, done + number)
        )
        micro_batch = self.run_.execution.micro_batch
        return gradient_statistics(
            self.learner, self.views, batches, self.settings, self.autocast, micro_batch
        )

    def validate(self, done: int) -> None:
        self.log()
        train = self.settings.train
        rows = self.run_.execution.micro_batch or train.batch_size
        lot = max(rows, VALIDATION_TOKENS // train.sequence_length)
        loss = validation_loss(self.learner, self.validation, lot, self.autocast)
        self.record("metrics.jsonl", {"step": done, "validation_loss": loss})
        self.last_validation = loss

    def save(self, done: int) -> None:
        self.directory.save_checkpoint(
            {
                "step": done,
                "learner": self.learner.state(),
                "clipped_steps": self.clipped_steps,
                "since_probe": self.since_probe,
                "seconds": self.seconds,
                "probe_seconds": self.probe_seconds,
            }
        )

    def load(self) -> int:
        state = self.directory.load_checkpoint()
        begun = state and state["step"]
        if self.group.first(begun) != begun:
            raise UserError(
                f"{self.directory.checkpoint} is not the same file for all processes; give "
                "--results a folder that all machines share"
            )
        if state is None:
            return 0
        self.learner.load(state["learner"])
        self.clipped_steps, self.since_probe = state["clipped_steps"], state["since_probe"]
        self.seconds, self.probe_seconds = state["seconds"], state["probe_seconds"]
        return state["step"]

    def finish(self) -> None:
        train = self.settings.train
        sequences = sequences_before(self.settings.schedule, train.batch_size, train.steps)
        tokens = sequences * train.sequence_length
        weights = {plan.key: self.views.weight(plan).detach().clone() for plan in self.views.plans}
        for key, axis, parameter in self.learner.multipliers.named_factors():
            weights[f"{key}.{axis}"] = parameter.detach().clone()
        outcome = {
            "validation_loss": self.last_validation,
            "seconds": self.seconds,
            "tokens_per_second": tokens / max(self.seconds, 1e-9),
            "probe_fraction": self.probe_seconds / max(self.seconds, 1e-9),
            "processes": self.group.world,
        }
        self.directory.finish(outcome, weights)


def describe(
    run: Run, learner: Learner, corpus, equipment: Equipment, is_compiled: bool
) -> dict[str, Any]:
    """The content of ``run.json``."""
    return {
        **run.describe(),
        "corpus": {"hash": corpus.hash, "name": corpus.name, **corpus.meta},
        "rules": rules.table(learner.plans, run.settings),
        "groups": learner.optimizer.table(),
        "products": products(learner.plans, run.settings),
        "execution": {
            "device": equipment.device.type,
            "precision": equipment.precision,
            "kernels": equipment.kernels.record(),
            "compiled": is_compiled,
            "threads": run.execution.threads,
            "micro_batch": run.execution.micro_batch,
            "torch": torch.__version__,
        },
        # Not part of the way of computing: it may change on resume.
        "environment": {**environment(), "processes": learner.group.world},
    }
