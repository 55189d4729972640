"""A process of the benchmark: builds one variant and runs its steps on command.

An order is a pair of a method and its arguments; the report on it is its answer. In between no
thread is busy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from lrm import data
from lrm.bench.parts import Marks
from lrm.bench.plan import Candidate
from lrm.bench.subjects import SUBJECTS
from lrm.errors import UserError
from lrm.store.rundir import RunDirectory, read_outcome
from lrm.sweep.process import decode
from lrm.train import device, loop
from lrm.train.log import ProbeLog, StepLog


class Work:
    """The methods that the harness calls by name; answers are plain data."""

    def __init__(self, folder: Path):
        self.directory = RunDirectory(folder)

    def environment(self) -> dict[str, Any]:
        """Versions, commit, processor and what torch makes of it."""
        return {
            **device.environment(),
            "vector_instructions": torch.backends.cpu.get_cpu_capability(),
            "native_bfloat16": torch.cpu._is_avx512_bf16_supported(),
        }

    def build(self, candidate: Candidate, seed: int, corpora: str) -> dict[str, Any]:
        """Forget the last variant; model, optimizer and batches of this one."""
        self.subject = self.probes = None
        run, execution = candidate.run, candidate.run.execution
        torch.set_num_threads(execution.threads)
        equipment = device.equip(execution, run.settings.model)
        torch._dynamo.reset()  # variants of one configuration follow each other
        corpus = data.prepare(run.settings.data, run.settings.model.vocab_size, Path(corpora))
        shape = run.settings.train
        self.batches = data.Batches(corpus.train, shape.batch_size, shape.sequence_length, seed)
        _quiet_transformers(candidate.implementation)
        self.subject = SUBJECTS[candidate.implementation](candidate, seed, equipment)
        record = self.directory.append
        self.log = StepLog(run.label, self.directory, record)
        if candidate.probes:
            tokens = data.fixed_sequences(
                corpus.validation, run.settings.probes.sequences, shape.sequence_length
            )
            self.probes = ProbeLog(
                self.subject.learner, run.settings, torch.from_numpy(tokens[:, :-1].copy()),
                self.batches, self.log, record, equipment.autocast,
            )  # fmt: skip
        self.done = 0
        return {"parameters": sum(p.numel() for p in self.subject.model.parameters())}

    def steps(self, count: int) -> dict[str, Any]:
        """``count`` steps: wall seconds, processor seconds, the last loss."""
        began, busy = time.perf_counter(), time.process_time()
        for _ in range(count):
            measured = self.subject.step(self.batch(), self.done)
            self.done += 1
            self.log.add(self.done, *measured)
            if self.probes and self.probes.due(self.done):
                self.log.write()
                self.probes.take(self.done)
        self.log.write()
        seconds, busy = time.perf_counter() - began, time.process_time() - busy
        return {"count": count, "seconds": seconds, "busy": busy, "loss": self.log.loss}

    def batch(self) -> torch.Tensor:
        """The next step's tokens."""
        return torch.from_numpy(self.batches.batch(self.done))

    def parts(self, count: int, blocks: int) -> dict[str, Any]:
        """Blocks of ``count`` steps, in turn plain and with marks: seconds a step of each part.

        ``parts`` has for every block the seconds of each [part, direction], direction being
        forward, backward or empty.
        """
        plain, marked, parts = [], [], []
        for _ in range(blocks):
            plain.append(self.steps(count)["seconds"] / count)
            began = time.perf_counter()
            with Marks(self.subject.model) as marks:
                for _ in range(count):
                    marks.enter("data")
                    batch = self.batch()
                    marks.enter("optimizer")
                    measured = self.subject.step(batch, self.done)
                    self.done += 1
                    marks.enter("logging")
                    self.log.add(self.done, *measured)
                self.log.write()
            marked.append((time.perf_counter() - began) / count)
            parts.append([[*key, seconds / count] for key, seconds in marks.seconds().items()])
        return {"plain": plain, "marked": marked, "parts": parts}

    def memory(self, candidate: Candidate, seed: int, corpora: str, count: int) -> dict[str, Any]:
        """Bytes that ``count`` steps take in this process, which must be fresh.

        ``resident``: the highest resident size over that after all imports; None where the
        system does not tell. ``allocated``: the most that one step holds in tensors over what
        stood at its start (weights, gradients and the optimizer's state).
        """
        _quiet_transformers(candidate.implementation)
        _load_optimizer()
        before = _resident("VmRSS")
        found = self.build(candidate, seed, corpora)
        self.steps(count)
        peak = _resident("VmHWM")
        # The first look sees old gradients go that it did not see come.
        allocated = [self._allocated() for _ in range(2)][-1]
        resident = None if before is None else peak - before
        return {**found, "resident": resident, "allocated": allocated, "loss": self.log.loss}

    def _allocated(self) -> int:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with _silence(), torch.profiler.profile(activities=activities, profile_memory=True) as seen:
            self.steps(1)
        events = seen.profiler.kineto_results.events()
        changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
        now = highest = 0
        for _, change in changes:
            now += change
            highest = max(highest, now)
        return highest

    def whole(self, candidate: Candidate, corpora: str) -> dict[str, Any]:
        """A run from its first step to its last through ``lrm.train.train``: its outcome."""
        run = candidate.run
        corpus = data.prepare(run.settings.data, run.settings.model.vocab_size, Path(corpora))
        folder = self.directory.path / "run"
        loop.train(dataclasses.replace(run, corpus=corpus.hash), folder, Path(corpora))
        return read_outcome(folder)


def _quiet_transformers(implementation: str) -> None:
    """Import it, if it is what runs, and have it not say that its GPU kernels are missing."""
    if implementation == "transformers":
        import transformers
        from transformers import FalconH1ForCausalLM  # noqa: F401  (imports the model's module)

        transformers.logging.set_verbosity_error()


def _load_optimizer() -> None:
    """Torch imports 80 MB of modules when the first optimizer is made."""
    weight = torch.nn.Parameter(torch.zeros(1))
    torch.optim.AdamW([weight], fused=True)


def _resident(field: str) -> int | None:
    """A size of this process in bytes; None where there is no /proc."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return None


@contextlib.contextmanager
def _silence():
    """The profiler's native part talks on standard error."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def serve(orders: Iterator[str], tell: Callable[..., None], folder: str) -> None:
    """Call the methods that are ordered; ``folder`` is for logs."""
    torch.set_num_threads(1)
    work = Work(Path(folder))
    for order in orders:
        try:
            method, arguments = decode(order)
            tell(answer=getattr(work, method)(**arguments))
        except UserError as error:
            tell(error=str(error))
        except Exception:
            tell(crash=traceback.format_exc())
