"""A worker of a sweep: it executes the runs that its parent sends, and reports on them.

SIGTERM, SIGUSR1 and SIGUSR2 have it save a checkpoint of the run in hand, if that trains, give the
run back and end. Clusters send them before they take a machine away.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from lrm.errors import Stopped
from lrm.plan.run import Run


def start(tell: Callable[..., None]) -> Callable[[Run, str, str], None]:
    """What executes a run in its directory, with the folder of corpora."""
    torch.set_num_threads(1)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGTERM))
    reported = 0.0

    def report(step: int, loss: float) -> None:
        nonlocal reported
        if time.monotonic() - reported > 0.3:
            reported = time.monotonic()
            tell(step=step, loss=loss)

    def execute(run: Run, path: str, corpora: str) -> None:
        signal.signal(signal.SIGTERM, _stop)
        try:
            run.execute(Path(path), Path(corpora), report, lambda line: tell(note=line))
        except Stopped:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    tell(ready=True)
    return execute


def _stop(number: int, _: object) -> NoReturn:
    raise Stopped(number)
