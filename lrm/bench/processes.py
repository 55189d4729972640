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


class Processes:
    """As many processes as cores, of which a candidate uses as many as its threads leave room.

    A context: its processes end with it.
    """

    def __init__(self, cores: int, corpora: Path):
        self.cores, self.corpora = cores, corpora
        self.candidate: Candidate | None = None
        self.active = 0  # the first so many have built the candidate
        # Here and not in the processes, which are killed at the end.
        self._folder = tempfile.TemporaryDirectory()
        self._processes = [self._start(number) for number in range(cores)]
        self._reports = [process.reports() for process in self._processes]

    def _start(self, number: int) -> Process:
        folder = os.path.join(self._folder.name, str(number))
        # The profiler would report its start and end on standard error.
        process = Process("lrm.bench.worker", folder, str(number), corpora=self.corpora,
                          KINETO_LOG_LEVEL="99")  # fmt: skip
        if hasattr(os, "sched_setaffinity"):
            available = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(process.pid, available[: self.cores])
        return process

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error) -> None:
        with stop_delayed():
            for process in self._processes:
                process.kill()
            for process in self._processes:
                process.wait()
            self._folder.cleanup()

    def call(self, method: str, first: int = 1, **arguments: Any) -> list[Any]:
        """Have the ``first`` processes call their ``method`` at once; what each returned.

        Raises the first UserError when all have answered, and RuntimeError where one crashed.
        """
        for process in self._processes[:first]:
            process.send((method, arguments))
        answers = [next(reports, {}) for reports in self._reports[:first]]
        for answer, process in zip(answers, self._processes, strict=False):
            if "crash" in answer:
                raise RuntimeError(f"a process crashed:\n{answer['crash']}")
            if not answer:
                raise RuntimeError(f"a process ended with code {process.wait()}")
        for answer in answers:
            if "error" in answer:
                raise UserError(answer["error"])
        return [answer["done"] for answer in answers]

    def build(self, candidate: Candidate) -> int:
        """Have as many processes as fit build ``candidate``, each with a seed of its own.

        Returns the number of parameters.
        """
        self.candidate = candidate
        self.active = max(1, self.cores // candidate.threads)
        arguments = {"candidate": candidate, "corpora": self.corpora}
        return self.call("build", self.active, **arguments)[0]["parameters"]

    def steps(self, count: int) -> dict[str, float]:
        """``count`` steps of all active processes at once.

        Returns ``rate``, their tokens per second added up; ``step``, the mean seconds of a step;
        ``busy``, the share of the time in which their threads had a processor; and ``loss``,
        that of the first process.
        """
        results = self.call("steps", self.active, count=count)
        seconds = sum(result["seconds"] for result in results)
        return {
            "rate": sum(count * self.candidate.tokens / result["seconds"] for result in results),
            "step": seconds / len(results) / count,
            "busy": sum(result["busy"] for result in results) / seconds / self.candidate.threads,
            "loss": results[0]["loss"],
        }
