"""The one training loop.

Every step is a pure function of the state and of (seed, step): batches come by position and
initial values from generators keyed by tensor names, so that a run that was killed and resumed
ends with the same bits as one that was not.
"""

from __future__ import annotations

import contextlib
import math
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lrm import NUMERICS_VERSION, __version__, data, optim, probes, rules
from lrm.compose import Run
from lrm.config import Execution, ModelConfig, Settings
from lrm.errors import UserError
from lrm.loss import cross_entropy
from lrm.model import selection
from lrm.model.falcon_h1 import FalconH1
from lrm.model.gpu import PLAIN, Kernels
from lrm.model.init import initialize
from lrm.multipliers import Multipliers
from lrm.products import products
from lrm.rundir import open_run
from lrm.schedule import constant_end, lr_factor

# Losses are moved off the device and logged in lots, so that a GPU is not waited for.
_LOG_LOT = 20

Report = Callable[[int, float], None]
Note = Callable[[str], None]


@dataclass
class Learner:
    """A model with its multipliers, optimizer and plans: everything that a step touches."""

    model: nn.Module
    multipliers: Multipliers
    optimizer: optim.Optimizer
    plans: list[rules.TensorPlan]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {
            "model": self.model.state_dict(),
            "weights": {name: w.detach() for name, w in self.multipliers.weights.items()},
            "factors": {k: f.state_dict() for k, f in self.multipliers.factors.items()},
            "adamw": self.optimizer.adamw.state_dict(),
        }

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint."""
        self.model.load_state_dict(state["model"])
        for name, weight in self.multipliers.weights.items():
            weight.copy_(state["weights"][name])
        for key, factors in self.multipliers.factors.items():
            factors.load_state_dict(state["factors"][key])
        self.optimizer.adamw.load_state_dict(state["adamw"])


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
    multipliers = optim.attach(model, plans, settings.train.multiplier_implementation)
    found = optim.entries(model, plans, multipliers)
    optimizer = optim.Optimizer(found, settings.optimizer, settings.train)
    return Learner(model, multipliers, optimizer, plans)


def train_step(
    learner: Learner,
    batch: Tensor,
    settings: Settings,
    step: int,
    autocast: Any = None,
    micro_batch: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """One update on ``batch`` (sequences, length + 1), ``micro_batch`` sequences at a time.

    Returns (cross-entropy, gradient norm before clipping, whether it was clipped), scalars on
    the device.
    """
    learner.model.zero_grad(set_to_none=True)
    learner.optimizer.zero_grad()
    total = batch.new_zeros((), dtype=torch.float32)
    for part in batch.split(micro_batch or len(batch)):
        with autocast or contextlib.nullcontext():
            logits = learner.model(part[:, :-1])
            loss, objective = cross_entropy(logits, part[:, 1:], settings.train.z_loss)
        share = len(part) / len(batch)
        (objective if share == 1 else objective * share).backward()
        total = loss.detach() if share == 1 else total + loss.detach() * share
    learner.multipliers.pull_gradients()
    norm, clipped = learner.optimizer.step(lr_factor(settings.schedule, settings.train.steps, step))
    learner.multipliers.push_weights()
    return total, norm, clipped


@torch.no_grad()
def validation_loss(learner: Learner, sequences: np.ndarray, lot: int, autocast: Any) -> float:
    """Mean cross-entropy per token of the fixed sequences (count, length + 1), in nats."""
    device = next(learner.model.parameters()).device
    total = 0.0
    for start in range(0, len(sequences), lot):
        batch = torch.from_numpy(sequences[start : start + lot]).to(device)
        with autocast or contextlib.nullcontext():
            logits = learner.model(batch[:, :-1])
            loss, _ = cross_entropy(logits, batch[:, 1:])
        total += loss.item() * len(batch)
    return total / len(sequences)


def train(
    run: Run,
    path: Path,
    corpora: Path,
    report: Report = lambda step, loss: None,
    note: Note = lambda line: None,
) -> None:
    """Train ``run`` in its directory, from its last checkpoint if there is one.

    ``note`` gets one line on the kernels in use. Raises UserError for a corpus that is not the
    one of the run's identity, a kernel that is not usable here, a damaged checkpoint, a way of
    computing that differs from the one begun with, and a loss that is no longer finite.
    """
    settings = run.settings
    with open_run(path) as directory:
        if directory.complete:
            return
        corpus = data.prepare(settings.data, settings.model.vocab_size, corpora)
        if corpus.hash != run.corpus:
            raise UserError(
                f"the corpus {corpus.name} has changed since this run was planned; run again"
            )
        device, precision, kernels, line = equip(run.execution, settings.model)
        note(line)
        torch.set_num_threads(run.execution.threads)
        learner = build(settings, run.seed, device, kernels=kernels)
        directory.start(describe(run, learner, corpus, device, precision, kernels))
        _Loop(run, directory, learner, corpus, device, precision, report).run()


class _Loop:
    """The state that lives only as long as the process does."""

    def __init__(self, run, directory, learner, corpus, device, precision, report):
        train = run.settings.train
        self.run_, self.settings, self.directory = run, run.settings, directory
        self.learner: Learner = learner
        self.device, self.report = device, report
        self.autocast = autocast(device, precision)
        self.batches = data.Batches(corpus.train, train.batch_size, train.sequence_length, run.seed)
        self.validation = data.fixed_sequences(
            corpus.validation, train.validation_sequences, train.sequence_length
        )
        lot = np.ascontiguousarray(self.validation[: self.settings.probes.sequences, :-1])
        self.probe_tokens = torch.from_numpy(lot).to(device)
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
        every = self.run_.execution.checkpoint_every
        micro_batch = self.run_.execution.micro_batch
        began = time.perf_counter()
        if start == 0:
            self.probe(0)
        for step in range(start, steps):
            batch = torch.from_numpy(self.batches.batch(step)).to(self.device, non_blocking=True)
            measured = train_step(self.learner, batch, settings, step, self.autocast, micro_batch)
            self.pending.append((step + 1, *measured))
            done = step + 1
            if len(self.pending) == _LOG_LOT or done == steps:
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
        self.finish()

    def validates(self, done: int, stage_end: int) -> bool:
        every = self.settings.train.validation_every
        return done in (stage_end, self.settings.train.steps) or bool(every and done % every == 0)

    def log(self) -> None:
        """Write the pending steps' losses; stop at one that is not finite."""
        if not self.pending:
            return
        values = torch.stack(
            [torch.stack([m.float() for m in measured]) for _, *measured in self.pending]
        ).tolist()
        for (done, *_), (loss, norm, clipped) in zip(self.pending, values, strict=True):
            if not math.isfinite(loss) or not math.isfinite(norm):
                self.directory.flush()
                raise UserError(
                    f"{self.run_.label}: the loss or gradient is not finite at step {done} "
                    f"(loss {loss}); lower optimizer.lr, or lengthen schedule.warmup_steps; "
                    f"its log stays in {self.directory.path}"
                )
            self.directory.append(
                "metrics.jsonl", {"step": done, "train_loss": loss, "global_gradient_norm": norm}
            )
            self.clipped_steps += int(clipped)
            self.since_probe += 1
        self.report(self.pending[-1][0], values[-1][0])
        self.pending = []

    def probe(self, done: int) -> None:
        began = time.perf_counter()
        self.learner.model.eval()
        found = probes.tensor_norms(self.views)
        with self.autocast or contextlib.nullcontext():
            found |= probes.activation_norms(self.learner.model, self.probe_tokens)
        self.learner.model.train()
        fraction = self.clipped_steps / self.since_probe if self.since_probe else 0.0
        found["clipped_fraction"] = {"model": fraction}
        factor = lr_factor(self.settings.schedule, self.settings.train.steps, max(done - 1, 0))
        found["lr_factor"] = {"model": factor}
        self.clipped_steps = self.since_probe = 0
        self.directory.append("probes.jsonl", {"step": done, "values": found})
        ends = (constant_end(self.settings.schedule, self.settings.train.steps),
                self.settings.train.steps)  # fmt: skip
        if done % self.settings.probes.vectors_every == 0 or done in ends:
            self.directory.append(
                "vectors.jsonl", {"step": done, "values": probes.vectors(self.views)}
            )
        self.probe_seconds += time.perf_counter() - began

    def validate(self, done: int) -> None:
        self.log()
        lot = self.run_.execution.micro_batch or self.settings.train.batch_size
        loss = validation_loss(self.learner, self.validation, lot, self.autocast)
        self.directory.append("metrics.jsonl", {"step": done, "validation_loss": loss})
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
        if state is None:
            return 0
        self.learner.load(state["learner"])
        self.clipped_steps, self.since_probe = state["clipped_steps"], state["since_probe"]
        self.seconds, self.probe_seconds = state["seconds"], state["probe_seconds"]
        return state["step"]

    def finish(self) -> None:
        train = self.settings.train
        tokens = train.steps * train.batch_size * train.sequence_length
        weights = {plan.key: self.views.weight(plan).detach().clone() for plan in self.views.plans}
        for key, axis, parameter in self.learner.multipliers.named_factors():
            weights[f"{key}.{axis}"] = parameter.detach().clone()
        outcome = {
            "validation_loss": self.last_validation,
            "seconds": self.seconds,
            "tokens_per_second": tokens / max(self.seconds, 1e-9),
            "probe_fraction": self.probe_seconds / max(self.seconds, 1e-9),
        }
        self.directory.finish(outcome, weights)


def describe(
    run: Run, learner: Learner, corpus, device, precision: str, kernels: Kernels
) -> dict[str, Any]:
    """The content of ``run.json``."""
    return {
        **run.describe(),
        "corpus": {"hash": corpus.hash, "name": corpus.name, **corpus.meta},
        "rules": rules.table(learner.plans, run.settings),
        "groups": learner.optimizer.table(),
        "products": products(learner.plans, run.settings),
        "execution": {
            "device": device.type,
            "precision": precision,
            "kernels": kernels.record(),
            "threads": run.execution.threads,
            "micro_batch": run.execution.micro_batch,
            "torch": torch.__version__,
        },
        "environment": environment(),
    }


def environment() -> dict[str, Any]:
    """Versions, commit and processor, for the record."""
    return {
        "lrm": __version__,
        "numerics": NUMERICS_VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _commit(),
        "processor": _processor(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def equip(execution: Execution, config: ModelConfig) -> tuple[torch.device, str, Kernels, str]:
    """Device, precision and kernels of a run, and a line that says them.

    Raises UserError where something that is asked for by name is not usable here.
    """
    device = _device(execution.device)
    precision = _precision(execution.precision, device)
    kernels = selection.select(execution.kernels, config, device, precision)
    line = selection.summary(kernels, execution.kernels, config, device, precision)
    return device, precision, kernels, line


def autocast(device: torch.device, precision: str) -> Any:
    """The context in which models compute in ``precision``; None leaves all as it is."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else None


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"execution.device = {name!r} is not usable here: {error}") from None


def _precision(name: str, device: torch.device) -> str:
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    native = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    return "bfloat16" if native else "float32"
