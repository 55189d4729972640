"""Many runs over several processes, with one live line for each and one for the whole.

The parent never imports torch. Workers are separate programs, so that the allocator can be
told before they start to keep its memory: fresh large buffers otherwise fault in page by page.
"""

from __future__ import annotations

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

from lrm.compose import Run
from lrm.cost import estimate
from lrm.display import Display, bar, clock
from lrm.errors import UserError
from lrm.worker import encode

# glibc: keep freed memory (top pad, trim and mmap thresholds in bytes).
_MALLOC = {
    "MALLOC_TOP_PAD_": str(1 << 28),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}


def gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    found = Path("/dev").glob("nvidia[0-9]*")
    return sorted((path.name.removeprefix("nvidia") for path in found), key=int)


def default_workers(runs: Sequence[Run]) -> int:
    """One worker a GPU, else one for every ``threads`` cores."""
    if any(run.execution.device in ("auto", "cuda") for run in runs) and gpus():
        return len(gpus())
    return max(1, (os.cpu_count() or 1) // max(run.execution.threads for run in runs))


def sweep(jobs: Sequence[tuple[Run, Path]], corpora: Path, workers: int) -> None:
    """Train every run in its directory.

    A run that fails does not stop the others. Raises UserError at the end if one had bad input
    (the first one's line), RuntimeError if one crashed; KeyboardInterrupt stops the workers,
    whose runs go on from their checkpoints next time.
    """
    if not jobs:
        return
    workers = max(1, min(workers, len(jobs)))
    _Sweep(list(jobs), corpora, workers).run()


class _Worker:
    """One process and the run that it has in hand."""

    def __init__(self, number: int, messages: queue.Queue):
        self.number = number
        self.run: Run | None = None
        self.step = 0
        self.loss = float("nan")
        extra = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
        if cards := gpus():
            extra["CUDA_VISIBLE_DEVICES"] = cards[number % len(cards)]
        self.ready = False
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lrm.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **_MALLOC, **extra},
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
        self.weights = {id(run): max(estimate(run).flops, 1.0) for run, _ in jobs}
        self.total = sum(self.weights.values())
        self.finished = 0.0
        self.count, self.done = len(jobs), 0
        self.errors: list[str] = []
        self.crashes: list[str] = []
        self.messages: queue.Queue = queue.Queue()
        self.workers = [_Worker(number, self.messages) for number in range(workers)]
        self.display = Display([f"worker {n}" for n in range(workers)] + ["all     "])

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
        if self.errors:
            more = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
            raise UserError(self.errors[0] + more)

    def _next(self, worker: _Worker, message: dict) -> int:
        """Take note of a finished run and hand out the next; 1 if this place is given up."""
        if worker.run is not None:
            self.finished += self.weights[id(worker.run)]
            if "done" in message:
                self.done += 1
            elif "error" in message:
                self.errors.append(message["error"])
            elif "crash" in message:
                self.crashes.append(f"{worker.run.label}: {message['crash']}")
            elif "gone" in message:
                self.crashes.append(
                    f"{worker.run.label}: its process ended with code {message['gone']}; "
                    "the same command goes on from its checkpoint"
                )
            worker.run = None
        worker.ready = worker.ready or "ready" in message
        if "gone" in message:
            if not (self.waiting and worker.ready):
                return 1
            # It died in its run; another takes its place for the rest.
            self.workers[worker.number] = _Worker(worker.number, self.messages)
            return 0
        if self.waiting:
            worker.give(*self.waiting.pop(0), self.corpora)
            return 0
        worker.process.stdin.close()
        return 0

    def _show(self, elapsed: float, last: bool = False) -> None:
        lines, under_way = [], 0.0
        for worker in self.workers:
            if worker.run is None:
                lines.append("idle")
                continue
            steps = worker.run.settings.train.steps
            part = worker.step / steps
            under_way += part * self.weights[id(worker.run)]
            loss = "" if worker.loss != worker.loss else f"  loss {worker.loss:.3f}"
            lines.append(f"{bar(part)} {worker.step:>6}/{steps}  {worker.run.label}{loss}")
        part = (self.finished + under_way) / self.total
        left = elapsed * (1 - part) / part if part > 0.003 else None
        whole = (
            f"{bar(part)} {self.done}/{self.count} runs  {clock(elapsed)} passed, "
            f"{clock(left) if left is not None else '--:--'} left"
        )
        self.display.show([*lines, whole], last)
