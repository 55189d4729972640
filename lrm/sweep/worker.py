"""A worker of a sweep: it executes the runs that its parent sends, and reports on them.

SIGTERM, SIGUSR1 and SIGUSR2 have it save a checkpoint of the run in hand, if that trains, give the
run back and end. Clusters send them before they take a machine away.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from lrm.errors import Busy, Stopped, UserError
from lrm.plan.run import execute_together


def start(tell: Callable[..., None]) -> Callable[..., list[dict[str, str | None]] | None]:
    """What executes a run in its directory, with the folder of corpora.

    Or several runs at once, given as pairs of run and directory; it returns what became of each.
    """
    torch.set_num_threads(1)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGTERM))
    reported = 0.0

    def report(step: int, loss: float) -> None:
        nonlocal reported
        if time.monotonic() - reported > 0.3:
            reported = time.monotonic()
            tell(step=step, loss=loss)

    def note(line: str) -> None:
        tell(note=line)

    def execute(*order: Any) -> list[dict[str, str | None]] | None:
        signal.signal(signal.SIGTERM, _stop)
        *given, corpora = order
        try:
            if len(given) == 2:
                run, path = given
                run.execute(Path(path), Path(corpora), report, note)
                return None
            jobs = [(run, Path(path)) for run, path in given[0]]
            return [*map(_told, execute_together(jobs, Path(corpora), report, note))]
        except Stopped:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    tell(ready=True)
    return execute


def _told(error: UserError | None) -> dict[str, str | None]:
    """As ``lrm.sweep.process`` tells the end of one order."""
    if error is None:
        return {"done": None}
    return {"busy" if isinstance(error, Busy) else "error": str(error)}


def _stop(number: int, _: object) -> NoReturn:
    raise Stopped(number)
