"""Many runs over several processes, with one live line for each and one for the whole.

``sweep`` gives each run to one of several workers; ``sweep_together``, for processes that
``torchrun`` has started, gives each to all of them.

The parent of workers never imports torch. They are separate programs, so that the allocator can
be told before they start to keep its memory: fresh large buffers otherwise fault in page by page.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lrm.cli import Display, bar, clock, stop_delayed
from lrm.errors import Diverged, UserError
from lrm.plan.run import Run
from lrm.store.rundir import is_complete, note_failure, read_failure
from lrm.sweep import together, twins
from lrm.sweep.machine import gpus
from lrm.sweep.process import Process, compiled_code
from lrm.sweep.twins import Job

if TYPE_CHECKING:  # it loads torch
    from lrm.train.distributed import Group

# Seconds that workers get to end in after they were killed.
_PATIENCE = 10.0
# Seconds that they get to save in, when somebody stops the sweep once, and steps by the estimate.
_GRACE, _GRACE_STEPS = 10.0, 5
# Seconds between two tries of a run that another process has, and on a shift at most: other tasks
# may have it for days, and each try asks the file system.
_RETRY, _LONGEST_RETRY = 2.0, 60.0


# Told of a run that has ended, in the parent; returns jobs that follow from it.
Following = Callable[[Run], Sequence[Job]]


def sweep(
    jobs: Sequence[Job], corpora: Path, workers: int, following: Following | None = None
) -> None:
    """Train every run in its directory, and those that ``following`` adds as runs end.

    Of runs that compute the same one is trained, and copied for the others.
    A run that fails does not stop the others. Raises UserError at the end if one had bad input
    (the first one's line), RuntimeError if one crashed; KeyboardInterrupt stops the workers, which
    save before, and whose runs go on from there next time. A second one ends them at once.
    """
    if jobs:
        Sweep(jobs, corpora, workers, following).run()


def ordered(jobs: Sequence[Job]) -> list[Job]:
    """The first job, then noise, then the longest first, so that workers end together.

    Noise second: while the first run compiles the layers, others would wait for its code. Beside
    GPUs, which it would keep from training, it comes last.
    """
    first, *rest = jobs
    on_cores = first[0].cost.simulated_per_second is None

    def place(job: Job) -> tuple[bool, float]:
        return job[0].trains is on_cores, -job[0].estimate().flops

    return [first, *sorted(rest, key=place)]


class _Worker:
    """One process and the runs that it has in hand: one, or several that it trains at once."""

    def __init__(self, number: int, messages: queue.SimpleQueue, corpora: Path, cards: list[str]):
        self.number, self.corpora = number, corpora
        self.jobs: list[Job] = []
        self.step, self.loss = 0, math.nan
        self.ready = False
        self.spent = False  # a run has crashed in it: a GPU's fault stays with the process
        card = {"CUDA_VISIBLE_DEVICES": cards[number % len(cards)]} if cards else {}
        self.process = Process("lrm.sweep.worker", corpora=corpora, **card)
        self.listener = threading.Thread(target=self._listen, args=(messages,), daemon=True)
        self.listener.start()

    def _listen(self, messages: queue.SimpleQueue) -> None:
        for report in self.process.reports():
            messages.put((self, report))
        messages.put((self, {"gone": self.process.wait()}))

    def give(self, jobs: list[Job]) -> None:
        self.jobs, self.step, self.loss = jobs, 0, math.nan
        order = [(run, str(path)) for run, path in jobs]
        if len(jobs) == 1:
            self.process.send((*order[0], str(self.corpora)))
        else:
            self.process.send((order, str(self.corpora)))


@dataclass(frozen=True)
class Shift:
    """How a sweep works that is one of several on a cluster."""

    grace: float  # seconds that workers get to save what they have in hand, when they are stopped
    log: Path  # what a run that failed refers to
    tasks: int = 1  # that share its runs


class Sweep:
    """One call of ``sweep``. On a ``shift`` it leaves runs that others train and does not wait."""

    def __init__(
        self,
        jobs: Sequence[Job],
        corpora: Path,
        workers: int,
        following: Following | None = None,
        shift: Shift | None = None,
    ):
        self.asked, self.shift = jobs, shift
        # An arm of a search waits for its own trials, whatever computes the same.
        jobs = ordered(jobs if following else twins.firsts(jobs))
        workers = workers if following else min(workers, len(jobs))
        self.waiting: list[Job] = []
        # Of those that another process has: when each may be tried again.
        self.busy: dict[Path, float] = {}
        self.tries: dict[Path, int] = {}
        self.corpora, self.following = corpora, following
        self.count = 0
        self.weights: dict[str, float] = {}
        self.total = self.finished = 0.0
        self.done = 0
        # Seconds until the first step.
        self.moving: float | None = None
        self._add(jobs)
        # Labels tell the runs of one experiment apart.
        self.several = len({run.experiment for run, _ in jobs}) > 1
        self.errors: list[str] = []
        self.crashes: list[str] = []
        # A handler of signals may put into it.
        self.messages: queue.SimpleQueue = queue.SimpleQueue()
        # Runs that name their GPU, as cuda:1, have to see all of them.
        named = any(run.execution.device.startswith("cuda:") for run, _ in jobs)
        self.cards = [] if named else gpus()
        self.workers: list[_Worker] = []
        self.active = workers
        self.display = Display([*(f"worker {n}" for n in range(workers)), "all     "])

    def run(self) -> None:
        """See ``sweep``."""
        try:
            self._run()
        finally:
            twins.copy_finished(self.asked)

    def _run(self) -> None:
        with stop_delayed(lambda: self.messages.put((None, {}))) as stops:
            try:
                self._serve(stops)
            finally:
                self.end(stops)
        if self.waiting:
            were = "run was" if len(self.waiting) == 1 else "runs were"
            self.crashes.append(f"{len(self.waiting)} {were} not begun: no worker could be started")
        if self.crashes:
            raise RuntimeError("a run crashed:\n" + "\n".join(self.crashes))
        _raise_first(self.errors)

    def _add(self, jobs: Sequence[Job]) -> None:
        self.waiting += jobs
        self.count += len(jobs)
        for run, _ in jobs:
            self.weights[run.id] = max(run.estimate().flops, 1.0)
            self.total += self.weights[run.id]

    def _serve(self, stops: list[int]) -> None:
        """Start the workers and give them runs until none is left, or there is one of ``stops``."""
        for number in range(self.active):
            self.workers.append(self._start(number))
        began = None
        while self.active and not stops:
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
                self._note_end(worker, message)
                self._hand_out()
            if self.busy:
                self._hand_out()
            self._show(time.monotonic() - began)
        if not stops:
            self._show(time.monotonic() - began, last=True)

    def end(self, stops: Sequence[int] = ()) -> None:
        """End all workers that are left, and wait for them.

        They save first on a shift, and where one of ``stops``, signals that may come meanwhile, has
        asked for the end. A second one cuts that short.
        """
        if self.shift is not None:
            self._stop(self.shift.grace)
        elif stops:
            self.display.note("stopping: runs are saved; a second Ctrl-C ends them at once")
            self._stop(self._grace(), lambda: len(stops) > 1)
        for worker in self.workers:
            worker.process.kill()
        self._wait(_PATIENCE)
        with contextlib.suppress(queue.Empty):  # such as that a run could not be saved
            while True:
                _, message = self.messages.get_nowait()
                if "note" in message:
                    self.display.note(message["note"])

    def _grace(self) -> float:
        """Seconds in which a worker ends its step and saves."""
        steps = (
            sum(run.estimate().seconds / run.settings.train.steps for run, _ in worker.jobs)
            for worker in self.workers
        )
        return max([_GRACE, *(_GRACE_STEPS * step for step in steps)])

    def _stop(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        for worker in self.workers:
            worker.process.stop()
        self._wait(seconds, enough)

    def _wait(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Until all workers have ended, so many seconds have passed, or it is ``enough``."""
        limit = time.monotonic() + seconds
        for worker in self.workers:
            while worker.listener.is_alive() and time.monotonic() < limit and not enough():
                worker.listener.join(0.05)

    def _start(self, number: int) -> _Worker:
        return _Worker(number, self.messages, self.corpora, self.cards)

    def _note_end(self, worker: _Worker, message: dict) -> None:
        """Take note of a run, or a worker, that has ended; another takes that worker's place."""
        # Of several runs what became of each.
        each = message.get("done") or len(worker.jobs) * [message]
        for job, own in zip(worker.jobs, each, strict=True):
            self._note_end_of(job, own)
        worker.jobs = []
        worker.ready = worker.ready or "ready" in message
        if "gone" not in message:
            if any("crash" in own for own in each):
                worker.spent = True
                worker.process.kill()
            return
        # A search may add more when what others have in hand ends.
        comes = self.following is not None and any(each.jobs for each in self.workers)
        if (self.waiting or comes) and worker.ready:
            self.workers[worker.number] = self._start(worker.number)
        else:
            worker.ready = False
            self.active -= 1

    def _note_end_of(self, job: Job, message: dict) -> None:
        run, path = job
        if "busy" in message:
            also = "" if self.shift else "; waiting for it"
            self.display.note(f"{run.label}: another process trains it{also}")
            tries = self.tries[path] = self.tries.get(path, -1) + 1
            pause = min(_RETRY * 2**tries, _LONGEST_RETRY) if self.shift else _RETRY
            self.busy[path] = time.monotonic() + pause
            self.waiting.append(job)
            return
        name = f"{run.experiment} {run.label}"
        self.finished += self.weights[run.id]
        if "done" in message:
            self.done += 1
            if self.following is not None:
                self._add(self.following(run))
        elif "error" in message:
            self._note_failure(path, message["error"])
            self.errors.append(message["error"])
        elif "crash" in message:
            self._note_failure(path, message["crash"].splitlines()[-1])
            self.crashes.append(f"{name}: {message['crash']}")
        elif "gone" in message:
            if message["gone"] != -signal.SIGTERM:  # it was asked to stop, and has saved
                self._note_failure(path, f"its process ended with code {message['gone']}")
            self._note_loss(name, message["gone"])

    def _note_failure(self, path: Path, line: str) -> None:
        note_failure(path, line, self.shift and self.shift.log)

    def _note_loss(self, name: str, code: int) -> None:
        """Take note of a run whose process has ended; one that was killed has not failed."""
        told = f"{name}: its process ended with code {code}; the same command goes on from its"
        if code == -signal.SIGKILL:
            told += " checkpoint; if memory ran out, use fewer --workers or a smaller batch"
            self.errors.append(told)
        else:
            (self.errors if code < 0 else self.crashes).append(f"{told} checkpoint")

    def _hand_out(self) -> None:
        """Give every idle worker runs whose source, if they have one, is not still to come."""
        idle = [each for each in self.workers if each.ready and not each.jobs and not each.spent]
        if idle and self.shift is not None:
            self._leave_settled()
        for worker in idle:
            ready = self._ready()
            if ready:
                tasks = self.shift.tasks if self.shift else 1
                jobs = together.companions(ready[0], ready, self.active * tasks)
                for job in jobs:
                    self.waiting.remove(job)
                    self.busy.pop(job[1], None)
                worker.give(jobs)
            elif self._is_over():
                worker.ready = False
                worker.process.finish()

    def _leave_settled(self) -> None:
        """Leave out what another has trained, or failed to train, in the meantime."""
        for job in [*self.waiting]:
            trained = is_complete(job[1])
            if trained or read_failure(job[1]) is not None:
                self.waiting.remove(job)
                self.busy.pop(job[1], None)
                self.finished += self.weights[job[0].id]
                self.done += trained

    def _is_over(self) -> bool:
        """Whether no run is left for a worker that is idle."""
        in_hand = any(worker.jobs for worker in self.workers)
        if self.shift is not None and not in_hand:
            self.waiting = []  # what is left waits for runs that others train
        return not self.waiting and not (self.following is not None and in_hand)

    def _ready(self) -> list[Job]:
        """Those that may be begun now, in their order."""
        waiting = self.waiting
        if self.busy:
            now = time.monotonic()
            waiting = [job for job in waiting if self.busy.get(job[1], now) <= now]
        if all(run.after is None for run, _ in waiting):
            return waiting
        coming = {path for _, path in self.waiting}
        coming |= {path for worker in self.workers for _, path in worker.jobs}
        return [job for job in waiting if twins.source(*job) not in coming]

    def _show(self, elapsed: float, last: bool = False) -> None:
        lines, under_way = [], 0.0
        for worker in self.workers:
            if not worker.jobs:
                lines.append("idle")
                continue
            run, beside = worker.jobs[0][0], len(worker.jobs) - 1
            part = worker.step / run.settings.train.steps
            under_way += part * sum(self.weights[each.id] for each, _ in worker.jobs)
            line = _run_line(run, worker.step, worker.loss, self.several)
            lines.append(line + (f" and {beside} more" if beside else ""))
        part = (self.finished + under_way) / self.total
        # What came before the first step, compiling above all, does not come again.
        if part and self.moving is None:
            self.moving = elapsed
        working = elapsed - (self.moving or 0.0)
        whole = _whole_line(part, self.done, self.count, elapsed, working)
        self.display.show([*lines, whole], last)


def sweep_together(jobs: Sequence[Job], corpora: Path, group: Group) -> None:
    """Carry out the runs one after another, each by all processes of ``group``.

    Runs that train no model come last, each by one process. A run that diverges does not stop the
    others and is told of at the end, by a UserError; any other error ends all.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled_code(corpora)))
    asked = jobs
    # Those that begin with others' multipliers last of all.
    # The first process decides: another one may see a directory that has come since.
    chosen = set(group.first([path for _, path in twins.firsts(jobs)]))
    jobs = [job for job in jobs if job[1] in chosen]
    jobs = sorted(jobs, key=lambda job: (job[0].after is not None, not job[0].trains))
    display = Display(["worker 0", "all     "]) if group.rank == 0 else None
    began = time.monotonic()

    def show(done: int, step: int = 0, loss: float = math.nan) -> None:
        if display is None:
            return
        last = done == len(jobs)
        line, part = "idle", float(done)
        if not last:
            run, _ = jobs[done]
            line = _run_line(run, step, loss)
            part += step / run.settings.train.steps
        elapsed = time.monotonic() - began
        whole = _whole_line(part / len(jobs), done, len(jobs), elapsed, elapsed)
        display.show([line, whole], last)

    def note(line: str) -> None:
        if display is not None:
            display.note(line)

    errors: list[str] = []
    # Since all processes last met: of these one of them may not have the results on disk yet.
    begun: set[Path] = set()
    diverged: set[Path] = set()
    for done, (run, path) in enumerate(jobs):
        show(done)
        report = functools.partial(show, done)
        source = twins.source(run, path)
        if source in diverged:
            continue
        if source in begun:
            group.meet()
            begun.clear()
        begun.add(path)
        if run.trains or done % group.world == group.rank:
            try:
                run.execute(path, corpora, report, note, group)
            except Diverged as error:
                errors.append(str(error))
                diverged.add(path)
    group.meet()
    if group.rank == 0:
        twins.copy_finished(asked)
    if jobs:
        show(len(jobs))
    _raise_first(errors)


def _raise_first(errors: Sequence[str]) -> None:
    """Raise the first error as a UserError, with the number of the others."""
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise UserError(errors[0] + more)


def _run_line(run: Run, step: int, loss: float, several: bool = False) -> str:
    steps = run.settings.train.steps
    shown = "" if math.isnan(loss) else f"  loss {loss:.3f}"
    if not step and run.trains:
        shown = "  begins"
    label = f"{run.experiment} {run.label}" if several else run.label
    return f"{bar(step / steps)} {step:>6}/{steps}  {label}{shown}"


def _whole_line(part: float, done: int, count: int, elapsed: float, working: float) -> str:
    """``working``: seconds since the first step, from which the rest is estimated."""
    left = clock(working * (1 - part) / part) if part > 0.003 else "--:--"
    return f"{bar(part)} {done}/{count} runs  {clock(elapsed)} passed, {left} left"
