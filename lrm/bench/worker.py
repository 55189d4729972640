"""A process of the benchmark: builds one variant and runs its steps on command.

Between two commands no thread is busy.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lrm import data
from lrm.bench.parts import Marks
from lrm.bench.plan import Candidate
from lrm.bench.trainers import BatchTrainer, SuiteTrainer, TransformersTrainer
from lrm.errors import UserError
from lrm.store.rundir import RunDirectory, read_outcome
from lrm.sweep.process import ENVIRONMENT
from lrm.train import device, loop
from lrm.train.log import ProbeLog, StepLog

# Instruction sets that decide how fast matrices are multiplied.
_INSTRUCTIONS = ("avx", "fma", "amx", "asimd", "sve", "sme", "bf16", "i8mm", "f16c")


class Worker:
    """The methods that the parent calls by name; answers are plain data."""

    def __init__(self, folder: Path, seed: int):
        folder.mkdir()
        self.directory, self.seed = RunDirectory(folder), seed
        self.trainer: SuiteTrainer | BatchTrainer | TransformersTrainer | None = None
        self.probes: ProbeLog | None = None

    def machine(self) -> dict[str, Any]:
        """Instruction sets, memory, versions and commit, and how the processes are started."""
        words = "".join(_lines("/proc/cpuinfo", ("flags", "Features"))[:1]).split()
        memory = None
        with suppress(ValueError, OSError):
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {
            "flags": sorted(word for word in words if any(name in word for name in _INSTRUCTIONS)),
            "memory_bytes": memory,
            "system": platform.platform(),
            "transformers": version("transformers"),
            "process_environment": {name: os.environ[name] for name in ENVIRONMENT},
            **device.environment(),
            "vector_instructions": torch.backends.cpu.get_cpu_capability(),
            "native_bfloat16": torch.cpu._is_avx512_bf16_supported(),
        }

    def build(self, candidate: Candidate, corpora: Path) -> dict[str, Any]:
        """Forget the last variant; model, optimizer and batches of this one."""
        self.trainer = self.probes = None
        run, settings = candidate.run, candidate.run.settings
        torch.set_num_threads(run.execution.threads)
        equipment = device.equip(run.execution, settings.model)
        torch._dynamo.reset()  # variants of one configuration follow each other
        corpus = data.prepare(settings.data, settings.model.vocab_size, corpora)
        length = settings.train.sequence_length
        seeds = range(self.seed, self.seed + candidate.at_once)
        self.batches = [data.batches_of(settings, corpus, seed) for seed in seeds]
        if candidate.implementation == "transformers":
            _load_transformers()
            self.trainer = TransformersTrainer(run, self.seed, equipment, candidate.attention)
        elif candidate.at_once > 1:
            if candidate.probes:
                raise UserError("a variant with probes measures one run; leave batch_runs out")
            self.trainer = BatchTrainer(run, self.seed, equipment)
        else:
            self.trainer = SuiteTrainer(run, self.seed, equipment)
        record = self.directory.append
        self.logs = [StepLog(run.label, self.directory, record) for _ in self.batches]
        if candidate.probes:
            count = settings.probes.sequences
            tokens = data.fixed_sequences(corpus.validation, count, length)[:, :-1].copy()
            self.probes = ProbeLog(
                self.trainer.learner, settings, torch.from_numpy(tokens), self.batches[0],
                self.logs[0],
                record, equipment.autocast,
            )  # fmt: skip
        self.done = 0
        return {"parameters": sum(p.numel() for p in self.trainer.model.parameters())}

    def steps(self, count: int) -> dict[str, Any]:
        """``count`` steps: wall seconds, processor seconds, the last loss."""
        began, busy = time.perf_counter(), time.process_time()
        for _ in range(count):
            self._log(self.trainer.step(self._batch(), self.done))
            if self.probes and self.probes.due(self.done):
                self._write()
                self.probes.take(self.done)
        self._write()
        seconds, busy = time.perf_counter() - began, time.process_time() - busy
        return {"seconds": seconds, "busy": busy, "loss": self.logs[0].loss}

    def _batch(self) -> torch.Tensor:
        rows = [batches.batch(self.done) for batches in self.batches]
        return torch.from_numpy(rows[0] if len(rows) == 1 else np.stack(rows))

    def _log(self, results: Any) -> None:
        """Of one run what its step measured; of several a list of that."""
        self.done += 1
        every = [results] if len(self.logs) == 1 else results
        for log, measured in zip(self.logs, every, strict=True):
            log.add(self.done, *measured)

    def _write(self) -> None:
        for log in self.logs:
            log.write()

    def parts(self, steps: int, blocks: int) -> dict[str, Any]:
        """Blocks of ``steps`` steps, in turn plain and with marks: seconds a step of each part.

        ``parts`` has for every block the seconds of each [part, direction], direction being
        forward, backward or empty.
        """
        plain, marked, parts = [], [], []
        for _ in range(blocks):
            plain.append(self.steps(steps)["seconds"] / steps)
            began = time.perf_counter()
            with Marks(self.trainer.model) as marks:
                for _ in range(steps):
                    marks.enter("data")
                    batch = self._batch()
                    marks.enter("optimizer")
                    results = self.trainer.step(batch, self.done)
                    marks.enter("logging")
                    self._log(results)
                self._write()
            marked.append((time.perf_counter() - began) / steps)
            parts.append([[*key, seconds / steps] for key, seconds in marks.seconds().items()])
        return {"plain": plain, "marked": marked, "parts": parts}

    def memory(self, candidate: Candidate, corpora: Path, count: int) -> dict[str, Any]:
        """Bytes that ``count`` steps take in this process, which must be fresh.

        ``resident``: the highest resident size over that after all imports; None where the
        system does not tell. ``allocated``: the most that one step holds in tensors over what
        stood at its start (weights, gradients and the optimizer's state).
        """
        if candidate.implementation == "transformers":
            _load_transformers()
        # Torch imports 80 MB of modules when the first optimizer is made.
        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], fused=True)
        before = _resident("VmRSS")
        built = self.build(candidate, corpora)
        self.steps(count)
        peak = _resident("VmHWM")
        # The first look sees old gradients go that it did not see come.
        allocated = [self._allocated() for _ in range(2)][-1]
        resident = None if before is None else peak - before
        return {**built, "resident": resident, "allocated": allocated, "loss": self.logs[0].loss}

    def _allocated(self) -> int:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            self.steps(1)
        events = profile.profiler.kineto_results.events()
        changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
        return max(itertools.accumulate((change for _, change in changes), initial=0))

    def whole(self, candidate: Candidate, corpora: Path) -> dict[str, Any]:
        """A run from its first step to its last through ``lrm.train.loop.train``: its outcome."""
        run = candidate.run
        corpus = data.prepare(run.settings.data, run.settings.model.vocab_size, corpora)
        folder = self.directory.path / "run"
        loop.train(dataclasses.replace(run, corpus=corpus.hash), folder, corpora)
        return read_outcome(folder)


def _load_transformers() -> None:
    """Import it, and have it not say that its GPU kernels are missing."""
    import transformers
    from transformers import FalconH1ForCausalLM  # noqa: F401  (imports the model's module)

    transformers.logging.set_verbosity_error()


def _resident(field: str) -> int | None:
    """A size of this process in bytes; None where there is no /proc."""
    sizes = _lines("/proc/self/status", (field,))
    return int(sizes[0].split()[0]) * 1024 if sizes else None


def _lines(path: str, fields: tuple[str, ...]) -> list[str]:
    """What follows the colon in the lines of these fields; nothing where there is no file."""
    with suppress(OSError):
        lines = [line.partition(":") for line in Path(path).read_text().splitlines()]
        return [value for name, _, value in lines if name.strip() in fields]
    return []


def start(_: Callable[..., None], folder: str, seed: str) -> Callable[[str, dict], Any]:
    """What calls the methods that are asked for; ``folder`` is for logs."""
    torch.set_num_threads(1)
    worker = Worker(Path(folder), int(seed))
    return lambda method, arguments: getattr(worker, method)(**arguments)
