"""Many runs over several processes, with one live line for each and one for the whole.

``sweep`` gives each run to one of several workers; ``sweep_together``, for processes that
``torchrun`` has started, gives each to all of them.

The parent of workers never imports torch. They are separate programs, so that the allocator can
be told before they start to keep its memory: fresh large buffers otherwise fault in page by page.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lrm.compose import Run
from lrm.cost import estimate
from lrm.display import Display, bar, clock
from lrm.errors import Diverged, UserError
from lrm.worker import encode

if TYPE_CHECKING:  # it loads torch
    from lrm.distributed import Group

# What a worker's environment needs on top of its parent's: one thread, and glibc told to keep
# freed memory (top pad, trim and mmap thresholds in bytes) and to ask for huge pages.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "MALLOC_TOP_PAD_": str(1 << 28),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "GLIBC_TUNABLES": ":".join(
        filter(None, (os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1"))
    ),
}


def compiled_code(corpora: Path) -> Path:
    """Where compiled layers are kept between processes: beside the corpora."""
    return corpora.parent.absolute() / "compiled"


def gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    found = Path("/dev").glob("nvidia[0-9]*")
    return sorted((path.name.removeprefix("nvidia") for path in found), key=int)


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_workers(runs: Sequence[Run]) -> int:
    """One worker a GPU that the runs may use, else one for every ``threads`` cores."""
    devices = {run.execution.device for run in runs}
    if devices & {"auto", "cuda"} and gpus():
        return len(gpus())
    if named := {device for device in devices if device.startswith("cuda:")}:
        return len(named)
    return max(1, available_cores() // max(run.execution.threads for run in runs))


def sweep(jobs: Sequence[tuple[Run, Path]], corpora: Path, workers: int) -> None:
    """Train every run in its directory.

    A run that fails does not stop the others. Raises UserError at the end if one had bad input
    (the first one's line), RuntimeError if one crashed; KeyboardInterrupt stops the workers,
    whose runs go on from their checkpoints next time.
    """
    if not jobs:
        return
    workers = max(1, min(workers, len(jobs)))
    _Sweep(ordered(jobs), corpora, workers).run()


def ordered(jobs: Sequence[tuple[Run, Path]]) -> list[tuple[Run, Path]]:
    """The first job, then noise, then the longest first, so that workers end together.

    Noise second: while the first run compiles the layers, others would wait for its code.
    """
    first, *rest = jobs
    rest.sort(key=lambda job: (job[0].kind != "brownian", -estimate(job[0]).flops))
    return [first, *rest]


class _Worker:
    """One process and the run that it has in hand."""

    def __init__(self, number: int, messages: queue.Queue, compiled: Path, cards: list[str]):
        self.number = number
        self.run: Run | None = None
        self.step = 0
        self.loss = float("nan")
        extra = {"TORCHINDUCTOR_CACHE_DIR": str(compiled)}
        if cards:
            extra["CUDA_VISIBLE_DEVICES"] = cards[number % len(cards)]
        self.ready = False
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lrm.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT, **extra},
            # Ctrl-C is the parent's to handle.
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(messages,), daemon=True).start()

    def _listen(self, messages: queue.Queue) -> None:
        for line in self.process.stdout:
            with suppress(ValueError):  # a line cut short by the process's end
                messages.put((self, json.loads(line)))
        messages.put((self, {"gone": self.process.wait()}))

    def give(self, run: Run, path: Path, corpora: Path) -> None:
        self.run, self.step, self.loss = run, 0, float("nan")
        with suppress(BrokenPipeError):  # its end is reported as "gone"
            self.process.stdin.write(encode((run, str(path), str(corpora))) + "\n")
            self.process.stdin.flush()


class _Sweep:
    def __init__(self, jobs: list[tuple[Run, Path]], corpora: Path, workers: int):
        self.waiting = jobs
        self.corpora = corpora
        self.compiled = compiled_code(corpora)
        self.weights = {id(run): max(estimate(run).flops, 1.0) for run, _ in jobs}
        self.total = sum(self.weights.values())
        self.finished = 0.0
        self.count, self.done = len(jobs), 0
        # Labels tell the runs of one experiment apart.
        self.several = len({run.experiment for run, _ in jobs}) > 1
        self.errors: list[str] = []
        self.crashes: list[str] = []
        self.messages: queue.Queue = queue.Queue()
        # Runs that name their GPU, as cuda:1, have to see all of them.
        named = any(run.execution.device.startswith("cuda:") for run, _ in jobs)
        self.cards = [] if named else gpus()
        self.workers = [self._start(number) for number in range(workers)]
        self.display = Display([*(f"worker {n}" for n in range(workers)), "all     "])

    def run(self) -> None:
        active = len(self.workers)
        began = None
        try:
            while active:
                try:
                    worker, message = self.messages.get(timeout=1.0)
                except queue.Empty:
                    message = {}
                began = began or time.monotonic()
                if "step" in message:
                    worker.step, worker.loss = message["step"], message["loss"]
                elif "note" in message:
                    self.display.note(message["note"])
                elif message:
                    active -= self._next(worker, message)
                self._show(time.monotonic() - began)
            self._show(time.monotonic() - began, last=True)
        finally:
            for worker in self.workers:
                worker.process.kill()
        if self.waiting:
            self.crashes.append(
                f"{len(self.waiting)} runs were not begun: no worker could be started"
            )
        if self.crashes:
            raise RuntimeError("a run crashed:\n" + "\n".join(self.crashes))
        _tell(self.errors)

    def _start(self, number: int) -> _Worker:
        return _Worker(number, self.messages, self.compiled, self.cards)

    def _next(self, worker: _Worker, message: dict) -> int:
        """Take note of a finished run and hand out the next; 1 if this place is given up."""
        if worker.run is not None:
            name = f"{worker.run.experiment} {worker.run.label}"
            self.finished += self.weights[id(worker.run)]
            if "done" in message:
                self.done += 1
            elif "error" in message:
                self.errors.append(message["error"])
            elif "crash" in message:
                self.crashes.append(f"{name}: {message['crash']}")
            elif "gone" in message:
                self.crashes.append(
                    f"{name}: its process ended with code {message['gone']}; "
                    "the same command goes on from its checkpoint"
                )
            worker.run = None
        worker.ready = worker.ready or "ready" in message
        if "gone" in message:
            if not (self.waiting and worker.ready):
                worker.ready = False
                self._hand_out()
                return 1
            # It died in its run; another takes its place for the rest.
            self.workers[worker.number] = self._start(worker.number)
            return 0
        self._hand_out()
        return 0

    def _hand_out(self) -> None:
        """Give every idle worker a run whose source, if it has one, is not still to come."""
        for worker in self.workers:
            if worker.run is not None or not worker.ready:
                continue
            place = self._first_ready()
            if place is not None:
                worker.give(*self.waiting.pop(place), self.corpora)
            elif not self.waiting:
                worker.process.stdin.close()

    def _first_ready(self) -> int | None:
        if all(run.source is None for run, _ in self.waiting):
            return 0 if self.waiting else None
        coming = {run.id for run, _ in self.waiting}
        coming |= {worker.run.id for worker in self.workers if worker.run is not None}
        ready = (n for n, (run, _) in enumerate(self.waiting) if run.source_id not in coming)
        return next(ready, None)

    def _show(self, elapsed: float, last: bool = False) -> None:
        lines, under_way = [], 0.0
        for worker in self.workers:
            if worker.run is None:
                lines.append("idle")
                continue
            part = worker.step / worker.run.settings.train.steps
            under_way += part * self.weights[id(worker.run)]
            lines.append(_run_line(worker.run, worker.step, worker.loss, self.several))
        part = (self.finished + under_way) / self.total
        whole = _whole_line(part, self.done, self.count, elapsed)
        self.display.show([*lines, whole], last)


def sweep_together(jobs: Sequence[tuple[Run, Path]], corpora: Path, group: Group) -> None:
    """Train the runs one after another, each by all processes of ``group``.

    Brownian motions come last, each by one process. A run that diverges does not stop the
    others and is told of at the end, by a UserError; any other error ends all.
    """
    from lrm import brownian, train

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled_code(corpora)))
    # Those that begin with others' multipliers last of all.
    jobs = sorted(jobs, key=lambda job: (job[0].source is not None, job[0].kind == "brownian"))
    display = Display(["worker 0", "all     "]) if group.rank == 0 else None
    began = time.monotonic()

    def show(done: int, step: int = 0, loss: float = float("nan")) -> None:
        if display is None:
            return
        last = done == len(jobs)
        line, part = "idle", float(done)
        if not last:
            run, _ = jobs[done]
            line = _run_line(run, step, loss)
            part += step / run.settings.train.steps
        whole = _whole_line(part / len(jobs), done, len(jobs), time.monotonic() - began)
        display.show([line, whole], last)

    def note(line: str) -> None:
        if display is not None:
            display.note(line)

    errors: list[str] = []
    for done, (run, path) in enumerate(jobs):
        show(done)
        report = functools.partial(show, done)
        if run.kind != "brownian":
            try:
                train.train(run, path, corpora, report, group=group, note=note)
            except Diverged as error:
                errors.append(str(error))
        elif done % group.world == group.rank:
            brownian.run(run, path, corpora, report)
    group.first(None)
    if jobs:
        show(len(jobs))
    _tell(errors)


def _tell(errors: Sequence[str]) -> None:
    """Raise the first error as a UserError, with the number of the others."""
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise UserError(errors[0] + more)


def _run_line(run: Run, step: int, loss: float, several: bool = False) -> str:
    steps = run.settings.train.steps
    shown = "" if loss != loss else f"  loss {loss:.3f}"
    label = f"{run.experiment} {run.label}" if several else run.label
    return f"{bar(step / steps)} {step:>6}/{steps}  {label}{shown}"


def _whole_line(part: float, done: int, count: int, elapsed: float) -> str:
    left = clock(elapsed * (1 - part) / part) if part > 0.003 else "--:--"
    return f"{bar(part)} {done}/{count} runs  {clock(elapsed)} passed, {left} left"
