"""The processes of one variant: commanded together, idle in between. No torch here."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from lrm.bench.plan import Candidate
from lrm.cli import stop_delayed
from lrm.errors import UserError
from lrm.sweep.process import Process


class Worker:
    """One process; ``send`` a command, then take its ``answer``."""

    def __init__(self, cores: int, folder: Path, corpora: Path):
        folder.mkdir()
        self.process = Process("lrm.bench.worker", str(folder), corpora=corpora)
        self.reports = self.process.reports()
        if hasattr(os, "sched_setaffinity"):
            available = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(self.process.pid, available[:cores])

    def send(self, method: str, **arguments: Any) -> None:
        """Have the process call its ``method``."""
        self.process.send((method, arguments))

    def answer(self) -> dict[str, Any]:
        """``answer``, what the method returned, or ``error``, the line of its UserError.

        Raises RuntimeError where it crashed.
        """
        found = next(self.reports, None)
        if found is None:
            raise RuntimeError(f"a process ended with code {self.process.wait()}")
        if "crash" in found:
            raise RuntimeError(f"a process crashed:\n{found['crash']}")
        return found


class Crew:
    """As many processes as cores, of which a candidate uses as many as its threads leave room.

    A context: its processes end with it.
    """

    def __init__(self, cores: int, corpora: str):
        self.cores, self.corpora = cores, corpora
        # Here and not in the processes, which are killed at the end.
        self.folder = tempfile.TemporaryDirectory()
        folders = [Path(self.folder.name) / str(number) for number in range(cores)]
        self.workers = [Worker(cores, folder, Path(corpora)) for folder in folders]
        self.active: list[Worker] = []
        self.candidate: Candidate | None = None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error) -> None:
        with stop_delayed():
            for worker in self.workers:
                worker.process.kill()
            for worker in self.workers:
                worker.process.wait()
            self.folder.cleanup()

    def build(self, candidate: Candidate) -> int:
        """Have every active process build ``candidate``, each with a seed of its own.

        Returns the number of parameters.
        """
        self.candidate = candidate
        self.active = self.workers[: max(1, self.cores // candidate.threads)]
        for seed, worker in enumerate(self.active):
            worker.send("build", candidate=candidate, seed=seed, corpora=self.corpora)
        return _answers(self.active)[0]["parameters"]

    def steps(self, count: int) -> dict[str, float]:
        """``count`` steps of all active processes at once.

        Returns ``rate``, their tokens per second added up; ``step``, the mean seconds of a step;
        ``busy``, the share of the time in which their threads had a processor; and ``loss``,
        that of the first process.
        """
        for worker in self.active:
            worker.send("steps", count=count)
        found = _answers(self.active)
        rates = [count * self.candidate.tokens / one["seconds"] for one in found]
        seconds = sum(one["seconds"] for one in found)
        return {
            "rate": sum(rates),
            "step": seconds / len(found) / count,
            "busy": sum(one["busy"] for one in found) / seconds / self.candidate.threads,
            "loss": found[0]["loss"],
        }

    def alone(self, method: str, **arguments: Any) -> Any:
        """Have the first process call ``method``; its answer."""
        self.workers[0].send(method, **arguments)
        return _answers(self.workers[:1])[0]


def _answers(workers: list[Worker]) -> list[Any]:
    """What each returned; the first UserError, when all have answered."""
    found = [worker.answer() for worker in workers]
    for one in found:
        if "error" in one:
            raise UserError(one["error"])
    return [one["answer"] for one in found]
