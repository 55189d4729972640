"""A run's logs, shown by TensorBoard: the same records, for the eye only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from lrm.errors import UserError


class Board:
    """Writer of ``<run>/tensorboard/``: scalars of the logs, histograms of the vectors.

    Tags are ``model/<stat>`` and ``<stat>/<address>``, layers as ``<address>/<layer>``. Where it
    is not ``wanted`` nothing is loaded and nothing written. Raises UserError where the package
    tensorboard is missing.
    """

    def __init__(self, path: Path, wanted: bool):
        self.path = path / "tensorboard"
        self._kind: type | None = None
        self._writer: Any = None
        if wanted:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError(
                    "execution.tensorboard needs the package tensorboard; install "
                    "lrm-suite[tensorboard]"
                ) from None
            self._kind = SummaryWriter

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._guarded(self._writer.close)

    def open(self, start: int) -> None:
        """Begin, or go on after ``start`` steps: what an interrupted run wrote later is hidden."""
        if self._kind is not None:
            # The measurements at step ``start`` itself are older than the checkpoint.
            purge_step = start + 1 if start else 0
            self._guarded(lambda: self._begin(purge_step))

    def add(self, log: str, record: dict[str, Any]) -> None:
        """Show a record of ``metrics.jsonl``, ``probes.jsonl`` or ``vectors.jsonl``."""
        if self._writer is not None:
            self._guarded(lambda: self._show(log, record))

    def _begin(self, purge_step: int) -> None:
        self._writer = self._kind(str(self.path), purge_step=purge_step)

    def _show(self, log: str, record: dict[str, Any]) -> None:
        step = record["step"]
        if log == "metrics.jsonl":
            values = {stat: {"model": value} for stat, value in record.items() if stat != "step"}
        else:
            values = record["values"]
        for stat, by_tensor in values.items():
            for tensor, value in by_tensor.items():
                tag = f"model/{stat}" if tensor == "model" else f"{stat}/{tensor}"
                tag = tag.replace("@", "/")
                if log == "vectors.jsonl":
                    self._writer.add_histogram(tag, np.asarray(value), step)
                else:
                    self._writer.add_scalar(tag, value, step)

    def _guarded(self, action) -> None:
        """Whatever happens to the pictures, the run goes on."""
        try:
            action()
        except Exception as error:
            self._writer = None
            print(f"{self.path} is not written any more: {error}", file=sys.stderr)
