"""A part of ``make gpu``: a worker takes items one by one until time is up. No torch here."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lrm.bench.gpu.items import PARTS, Item
from lrm.bench.gpu.plan import GpuPlan
from lrm.bench.gpu.record import Record
from lrm.cli import clock, stop_delayed
from lrm.errors import UserError
from lrm.sweep.machine import gpus
from lrm.sweep.process import Process

# Seconds for the end of a worker and for the files, which count to the part.
_ENDING = 10.0


class OutOfTime(Exception):
    """A worker was ended because it had no answer in time."""


class Session:
    """The worker of a call, started when it is first asked. A context: it ends with it."""

    def __init__(self, results: Path, toy: bool):
        self.results, self.toy = results, toy
        self._process: Process | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error) -> None:
        self.end()

    def ask(self, method: str, seconds: float, **arguments: Any) -> Any:
        """What the worker's ``method`` returns.

        Raises OutOfTime where that takes longer than ``seconds``, the worker's start included,
        UserError as the method does, and RuntimeError where it crashed. It has ended after each.
        """
        limit = time.monotonic() + seconds
        if self._process is None:
            self._start()
            if "ready" not in self._answer(limit):
                raise RuntimeError(f"its process ended with code {self.end()}")
        self._process.send((method, arguments))
        answer = self._answer(limit)
        if "done" in answer:
            return answer["done"]
        code = self.end()
        if "error" in answer:
            raise UserError(answer["error"])
        raise RuntimeError(answer.get("crash") or f"its process ended with code {code}")

    def _answer(self, limit: float) -> dict[str, Any]:
        """The next report, empty where the worker has ended; OutOfTime behind ``limit``."""
        try:
            return self._reports.get(timeout=max(limit - time.monotonic(), 0.0))
        except queue.Empty:
            self.end()
            raise OutOfTime from None

    def end(self) -> int | None:
        """End the worker, if there is one, and what it has started; its exit code."""
        if (process := self._process) is None:
            return None
        self._process = None
        with stop_delayed():
            process.kill()
            return process.wait()

    def _start(self) -> None:
        # A toy has no GPU, and a day on a GPU has one.
        card = {"CUDA_VISIBLE_DEVICES": ""} if self.toy else {}
        if not self.toy and (cards := gpus()):
            card = {"CUDA_VISIBLE_DEVICES": cards[0]}
        self._process = process = Process(
            "lrm.bench.gpu.worker", str(self.results), "toy" if self.toy else "gpu",
            corpora=self.results / "data", KINETO_LOG_LEVEL="99", **card,
        )  # fmt: skip
        self._reports: queue.SimpleQueue[dict] = queue.SimpleQueue()
        reports = self._reports

        def listen() -> None:
            for report in process.reports():
                reports.put(report)
            reports.put({})

        threading.Thread(target=listen, daemon=True).start()


def take(
    part: str, plan: GpuPlan, record: Record, session: Session, seconds: float,
    say: Callable[[str], None],
) -> bool:  # fmt: skip
    """Have the items of a part taken that the record lacks, for at most so many seconds.

    Returns whether all are taken. An item that fails is recorded with its line, as is one that
    takes longer than a whole part may; one that goes on where it was stopped is not.
    """
    limit = time.monotonic() + max(seconds - _ENDING, seconds / 2)
    for number, item in enumerate(unfinished(part, plan, record)):
        if (left := limit - time.monotonic()) <= 0:
            break
        began = time.monotonic()
        try:
            found = {"result": session.ask(item.method, left, **item.arguments)}
            if item.noted:
                found["result"] |= item.noted
        except OutOfTime:
            if item.goes_on or number:
                break
            found = {"failed": f"it takes longer than {seconds / 60:g} minutes"}
        except UserError as error:
            found = {"failed": str(error)}
        except RuntimeError as error:
            found = {"failed": _last_line(error)}
        # Of the first item with the worker's own start.
        took = time.monotonic() - began
        record.add(part, item.name, found | {"seconds": round(took, 2)})
        failure = f": failed, {found['failed']}" if "failed" in found else ""
        say(f"{part}: {item.name} ({clock(took)}){failure}")
    left = unfinished(part, plan, record)
    if left:
        say(f"{part}: time is up, with {len(left)} of {len(PARTS[part].items(plan))} items left")
    return not left


def unfinished(part: str, plan: GpuPlan, record: Record) -> list[Item]:
    """The items of a part that the record lacks."""
    return [item for item in PARTS[part].items(plan) if item.name not in record.items(part)]


def _last_line(error: RuntimeError) -> str:
    """Of a traceback the line that names the error."""
    return str(error).strip().splitlines()[-1][:500]
