"""A worker of a sweep: it executes the runs that its parent sends, and reports on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from lrm.plan.run import Run


def start(tell: Callable[..., None]) -> Callable[[Run, str, str], None]:
    """What executes a run in its directory, with the folder of corpora."""
    torch.set_num_threads(1)
    reported = 0.0

    def report(step: int, loss: float) -> None:
        nonlocal reported
        if time.monotonic() - reported > 0.3:
            reported = time.monotonic()
            tell(step=step, loss=loss)

    def execute(run: Run, path: str, corpora: str) -> None:
        run.execute(Path(path), Path(corpora), report, lambda line: tell(note=line))

    tell(ready=True)
    return execute
