"""A worker of a sweep: it executes the runs that its parent sends, and reports on them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from lrm.errors import UserError
from lrm.sweep.process import decode


def serve(orders: Iterator[str], tell: Callable[..., None]) -> None:
    """Execute the run of each order, (run, directory, folder of corpora)."""
    torch.set_num_threads(1)
    tell(ready=True)
    for order in orders:
        told = 0.0

        def report(step: int, loss: float) -> None:
            nonlocal told
            if time.monotonic() - told > 0.3:
                told = time.monotonic()
                tell(step=step, loss=loss)

        def note(line: str) -> None:
            tell(note=line)

        try:
            run, path, corpora = decode(order)
            run.execute(Path(path), Path(corpora), report, note)
            tell(done=True)
        except UserError as error:
            tell(error=str(error))
        except Exception:
            tell(crash=traceback.format_exc())
