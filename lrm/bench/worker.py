"""A process of the benchmark: builds one variant and runs its steps on command.

It takes one argument, a folder for its logs. Commands come on standard input, one pickled
(method, arguments) a line; answers go to standard output, one JSON object a line. In between it
waits in a read, with no thread busy.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from lrm import data, machine, probes, train
from lrm.bench.parts import Marks
from lrm.bench.plan import Candidate
from lrm.bench.subjects import SUBJECTS
from lrm.errors import UserError
from lrm.rundir import RunDirectory, read_outcome


class Work:
    """The methods that the harness calls by name; answers are plain data."""

    def __init__(self, folder: Path):
        self.directory = RunDirectory(folder)

    def environment(self) -> dict[str, Any]:
        """Versions, commit, processor and what torch makes of it."""
        return {
            **machine.environment(),
            "vector_instructions": torch.backends.cpu.get_cpu_capability(),
            "native_bfloat16": torch.cpu._is_avx512_bf16_supported(),
        }

    def build(self, candidate: Candidate, seed: int, corpora: str) -> dict[str, Any]:
        """Forget the last variant; model, optimizer and batches of this one."""
        self.subject = self.views = None
        self.candidate = candidate
        run, execution = candidate.run, candidate.run.execution
        torch.set_num_threads(execution.threads)
        equipment = machine.equip(execution, run.settings.model)
        self.autocast = equipment.autocast
        torch._dynamo.reset()  # variants of one configuration follow each other
        corpus = data.prepare(run.settings.data, run.settings.model.vocab_size, Path(corpora))
        shape = run.settings.train
        self.batches = data.Batches(corpus.train, shape.batch_size, shape.sequence_length, seed)
        _quiet_transformers(candidate.implementation)
        self.subject = SUBJECTS[candidate.implementation](candidate, seed, equipment)
        if candidate.probes:
            learner = self.subject.learner
            self.views = probes.Views(learner.model, learner.plans, learner.multipliers)
            tokens = data.fixed_sequences(
                corpus.validation, run.settings.probes.sequences, shape.sequence_length
            )
            self.probe_tokens = torch.from_numpy(tokens[:, :-1].copy())
        self.done = 0
        return {"parameters": sum(p.numel() for p in self.subject.model.parameters())}

    def steps(self, count: int) -> dict[str, Any]:
        """``count`` steps: wall seconds, processor seconds, the last loss."""
        began, busy = time.perf_counter(), time.process_time()
        pending = []
        for _ in range(count):
            pending.append(self.subject.step(self.batch(), self.done))
            self.done += 1
            if len(pending) == train.LOG_LOT:
                self.log(pending)
            if self.views and self.done % self.candidate.run.settings.probes.every == 0:
                self.probe()
        self.log(pending)
        seconds, busy = time.perf_counter() - began, time.process_time() - busy
        return {"count": count, "seconds": seconds, "busy": busy, "loss": self.loss}

    def batch(self) -> torch.Tensor:
        """The next step's tokens."""
        return torch.from_numpy(self.batches.batch(self.done))

    def log(self, pending: list[tuple]) -> None:
        """Write and forget the pending (loss, gradient norm)."""
        if pending:
            values = torch.stack([torch.stack([m.float() for m in step]) for step in pending])
            for loss, norm in values.tolist():
                record = {"step": self.done, "train_loss": loss, "global_gradient_norm": norm}
                self.directory.append("metrics.jsonl", record)
            self.loss = loss
            pending.clear()

    def probe(self) -> None:
        """What the training loop measures at every interval."""
        learner = self.subject.learner
        found = train.measure_norms(learner, self.views, self.probe_tokens, self.autocast)
        self.directory.append("probes.jsonl", {"step": self.done, "values": found})

    def parts(self, count: int, blocks: int) -> dict[str, Any]:
        """Blocks of ``count`` steps, in turn plain and with marks: seconds a step of each part.

        ``parts`` has for every block the seconds of each [part, direction], direction being
        forward, backward or empty.
        """
        plain, marked, parts = [], [], []
        for _ in range(blocks):
            plain.append(self.steps(count)["seconds"] / count)
            began = time.perf_counter()
            pending = []
            with Marks(self.subject.model) as marks:
                for _ in range(count):
                    marks.enter("data")
                    batch = self.batch()
                    marks.enter("optimizer")
                    pending.append(self.subject.step(batch, self.done))
                    self.done += 1
                marks.enter("logging")
                self.log(pending)
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
        return {**found, "resident": resident, "allocated": allocated, "loss": self.loss}

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
        train.train(dataclasses.replace(run, corpus=corpus.hash), folder, Path(corpora))
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


def main() -> None:
    """Serve commands until standard input ends."""
    # Nothing but answers may reach the parent.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    work = Work(Path(sys.argv[1]))
    for line in sys.stdin:
        method, arguments = pickle.loads(base64.b64decode(line))
        try:
            answer = {"answer": getattr(work, method)(**arguments)}
        except UserError as error:
            answer = {"error": str(error)}
        except Exception:
            answer = {"crash": traceback.format_exc()}
        channel.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the parent has gone
        os._exit(1)
