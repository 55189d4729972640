"""What is measured while a model trains, and when it is written: losses of steps, and norms.

The training loop and the benchmark share it, so that a benchmark pays for what a run pays for.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lrm import data
from lrm.errors import Diverged
from lrm.plan.config import Settings
from lrm.plan.run import Report
from lrm.plan.schedule import lr_factor, stage_ends, vector_steps
from lrm.store.rundir import RunDirectory
from lrm.train import probes
from lrm.train.activation_gradients import activation_gradients
from lrm.train.criteria import Criteria
from lrm.train.curvature import largest_curvature
from lrm.train.distributed import ALONE, Group
from lrm.train.learner import Learner
from lrm.train.step import gradient_statistics, measure_norms

# Losses are moved off the device and written in lots, so that a GPU is not waited for.
_LOT = 20
# Seconds between two times that they are handed to the system, for whoever watches the files.
_FLUSH = 30.0
# Takes the name of a log and what to append to it.
Record = Callable[[str, dict[str, Any]], None]


class StepLog:
    """Losses and gradient norms of the steps, checked and written in lots.

    ``report`` is told the last loss of each lot, and ``each`` that of every step.
    ``loss`` is the last that was written. Where ``divergence`` is a result, gradients that are not
    finite are no end yet: the losses that follow show what they did.
    """

    def __init__(
        self,
        label: str,
        directory: RunDirectory,
        record: Record,
        group: Group = ALONE,
        report: Report = lambda step, loss: None,
        divergence: str = "error",
        each: Report = lambda step, loss: None,
    ):
        self._is_result = divergence == "result"
        self._label, self._directory, self._record = label, directory, record
        self._group, self._report, self._each = group, report, each
        self._pending: list[tuple[int, Tensor, Tensor, Tensor]] = []
        self.loss = math.nan
        self._flushed = time.monotonic()
        # Since the last probe.
        self._steps = self._clipped = 0

    def add(self, done: int, loss: Tensor, norm: Tensor, clipped: Tensor) -> None:
        """Take the results of a step, scalars on the device."""
        self._pending.append((done, loss, norm, clipped))
        if len(self._pending) == _LOT:
            self.write()

    def write(self) -> None:
        """Write the pending steps; raise Diverged at one that is not finite.

        As a result that step is written too.
        """
        if not self._pending:
            return
        values = torch.stack(
            [torch.stack([m.float() for m in measured]) for _, *measured in self._pending]
        )
        values[:, 0] = self._group.mean(values[:, 0])
        values = values.tolist()
        for (done, *_), (loss, norm, clipped) in zip(self._pending, values, strict=True):
            is_over = not math.isfinite(loss) or not (self._is_result or math.isfinite(norm))
            if self._is_result or not is_over:
                values_of_step = {"train_loss": loss, "global_gradient_norm": norm}
                self._record("metrics.jsonl", {"step": done, **values_of_step})
            if is_over:
                raise self.diverged(done, "loss or gradient", loss)
            self._clipped += int(clipped)
            self._steps += 1
            self._each(done, loss)
        self.loss = loss
        self._report(done, loss)
        self._pending = []
        if time.monotonic() - self._flushed > _FLUSH:
            self._directory.flush()
            self._flushed = time.monotonic()

    def diverged(self, done: int, what: str, loss: float) -> Diverged:
        """The error of a run that ends at this step; what was logged before is kept."""
        self._directory.flush()
        return Diverged(
            f"{self._label}: the {what} is not finite at step {done} (loss {loss}); lower "
            "optimizer.lr, or lengthen schedule.warmup_steps; its log stays in "
            f"{self._directory.path}",
            done,
        )

    def clipped_fraction(self) -> float:
        """Of the steps since this was last called."""
        fraction = self._clipped / self._steps if self._steps else 0.0
        self._steps = self._clipped = 0
        return fraction

    def state(self) -> dict[str, int]:
        """What a checkpoint holds of it."""
        return {"clipped_steps": self._clipped, "since_probe": self._steps}

    def load(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint."""
        self._clipped, self._steps = state["clipped_steps"], state["since_probe"]


class ProbeLog:
    """Norms of ``learner`` at the steps that ``settings.probes`` asks for; ``seconds`` they took.

    Activations are those on ``tokens`` (sequences, length). Gradients are taken over the batches
    that follow.
    """

    def __init__(
        self,
        learner: Learner,
        settings: Settings,
        tokens: Tensor,
        batches: data.Batches,
        steps: StepLog,
        record: Record,
        autocast: Any = None,
        micro_batch: int = 0,
    ):
        self._learner, self._settings, self._tokens = learner, settings, tokens
        self._batches, self._steps, self._record = batches, steps, record
        self._autocast, self._micro_batch = autocast, micro_batch
        self._ends = stage_ends(settings.schedule, settings.train.steps)
        self._vectors = vector_steps(settings.probes, settings.schedule, settings.train.steps)
        self.seconds = 0.0

    @functools.cached_property
    def views(self) -> probes.Views:
        """Made by the process that measures: it keeps the parameters as they are by then."""
        learner = self._learner
        return probes.Views(learner.model, learner.plans, learner.multipliers)

    @functools.cached_property
    def _criteria(self) -> Criteria:
        return Criteria(self.views)

    def holds(self, done: int) -> bool:
        """Whether the update of the step after ``done`` steps is measured."""
        return self._settings.probes.criteria and self.due(done + 1)

    def hold(self) -> None:
        """Keep what that update is measured from."""
        self._criteria.hold()

    def due(self, done: int) -> bool:
        """Whether norms are measured after ``done`` steps: at intervals and at stages' ends."""
        return done % self._settings.probes.every == 0 or done in self._ends

    def take(self, done: int) -> None:
        """Measure and write; the steps before it have been written."""
        began = time.perf_counter()
        settings = self._settings
        found = measure_norms(
            self._learner, self.views, self._tokens, self._autocast, self._micro_batch
        )
        found["clipped_fraction"] = {"model": self._steps.clipped_fraction()}
        factor = lr_factor(settings.schedule, settings.train.steps, max(done - 1, 0))
        found["lr_factor"] = {"model": factor}
        told: probes.Vectors = {}
        if settings.probes.activation_gradients:
            gradients, told = activation_gradients(
                self._learner, self._tokens, settings, self._autocast, self._micro_batch
            )
            found |= gradients
        if settings.probes.criteria:
            found |= self._criteria.result()
        with_vectors = done in self._vectors
        if with_vectors and settings.probes.gradient_batches:
            found |= self._gradients(done)
        if with_vectors and settings.probes.curvature:
            found["curvature"] = {"model": self._curvature()}
        self._record("probes.jsonl", {"step": done, "values": found})
        if with_vectors:
            vectors = probes.vectors(self.views) | told
            self._record("vectors.jsonl", {"step": done, "values": vectors})
        self.seconds += time.perf_counter() - began

    def _gradients(self, done: int) -> probes.Scalars:
        """Signal and noise over the next batches, as one process sees them."""
        number = self._settings.probes.gradient_batches
        batches = (
            torch.from_numpy(self._batches.batch(step)).to(self._tokens.device)
            for step in range(done, done + number)
        )
        return gradient_statistics(
            self._learner, self.views, batches, self._settings, self._autocast, self._micro_batch
        )

    def _curvature(self) -> float:
        """The largest eigenvalue of the loss's Hessian on the fixed sequences."""
        return largest_curvature(
            self._learner, self._tokens, self._settings, self._settings.probes.curvature,
            self._micro_batch,
        )  # fmt: skip
