"""A run on disk. No torch at import, so that the planner can look at runs.

``results/runs/<experiment>/<id>/`` holds

* ``run.json``: identity, settings, expanded rule table, groups, dimensionless products,
  environment;
* ``metrics.jsonl``, ``probes.jsonl``, ``vectors.jsonl``: appended while training;
* ``checkpoint.pt``: the latest state, replaced atomically, gone when the run is done;
* ``scalars.parquet``, ``vectors.parquet``: the same measurements, compacted at the end;
* ``weights.pt``: the final learnable tensors;
* ``tensorboard/``: the measurements for TensorBoard, with ``execution.tensorboard``;
* ``done.json``: written last; its presence means that the run is complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lrm.errors import UserError
from lrm.store.files import make_folder, read_json, write_atomic, write_json

LOGS = ("metrics.jsonl", "probes.jsonl", "vectors.jsonl")
_MAGIC = b"LRMCKPT1"


def read_description(path: Path) -> dict[str, Any]:
    """The ``run.json`` of the run in this directory; UserError where it is damaged."""
    return read_json(path / "run.json", ("id", "kind", "scale", "arm", "grid", "seed", "label"))


def read_outcome(path: Path) -> dict[str, Any]:
    """The ``done.json`` of the finished run in this directory; UserError where it is damaged."""
    return read_json(path / "done.json", ("validation_loss",))


def is_complete(path: Path) -> bool:
    """Whether the run in this directory has finished."""
    return (path / "done.json").exists()


class RunDirectory:
    """Writer of one run; use inside ``open_run``."""

    def __init__(self, path: Path):
        self.path = path
        self._files: dict[str, io.TextIOBase] = {}

    @property
    def checkpoint(self) -> Path:
        """Where the latest state lies."""
        return self.path / "checkpoint.pt"

    @property
    def complete(self) -> bool:
        """Whether another process has finished this run; then its leftovers are removed."""
        if not is_complete(self.path):
            return False
        self._remove_leftovers()
        return True

    def _remove_leftovers(self) -> None:
        self.checkpoint.unlink(missing_ok=True)
        for log in LOGS:
            (self.path / log).unlink(missing_ok=True)
        for torn in self.path.glob(".*.[0-9]*"):
            torn.unlink(missing_ok=True)

    def start(self, description: dict[str, Any]) -> None:
        """Write ``run.json``; on resume check that the way of computing is the same."""
        file = self.path / "run.json"
        if self.checkpoint.exists() and file.exists():
            before = read_json(file).get("execution", {})
            for key, now in description["execution"].items():
                if before.get(key, now) != now:
                    raise UserError(
                        f"{self.path} was begun with {key} = {before[key]}, now it is {now}: the "
                        f"bits would differ; set it back, or remove that folder to start over"
                    )
        else:
            write_json(file, description)

    def append(self, log: str, record: dict[str, Any]) -> None:
        """Append one JSON line to a log (buffered until ``flush``)."""
        if log not in self._files:
            self._files[log] = (self.path / log).open("a", encoding="utf-8")
        self._files[log].write(json.dumps(record, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        """Hand all logs to the system."""
        for file in self._files.values():
            file.flush()

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Save ``state`` with the logs' lengths, atomically; a torn file is told by its digest."""
        import torch

        self.flush()
        lengths = {log: _size(self.path / log) for log in LOGS}
        buffer = io.BytesIO()
        torch.save({**state, "log_lengths": lengths}, buffer)
        payload = buffer.getbuffer()
        digest = hashlib.blake2b(payload, digest_size=32).digest()
        write_atomic(self.checkpoint, b"".join((_MAGIC, digest, payload)))

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The latest state, or None; cuts the logs back to it.

        Raises UserError where the file is damaged.
        """
        if not self.checkpoint.exists():
            for log in LOGS:
                (self.path / log).unlink(missing_ok=True)
            return None
        state = self._read_checkpoint()
        for log, length in state.pop("log_lengths").items():
            if _size(self.path / log) < length:
                raise UserError(
                    f"{self.path / log} is shorter than its checkpoint says; remove {self.path} "
                    "and this run starts again from step 0"
                )
            if (self.path / log).exists():
                os.truncate(self.path / log, length)
        return state

    def _read_checkpoint(self) -> dict[str, Any]:
        import torch

        data = self.checkpoint.read_bytes()
        head = len(_MAGIC) + 32
        payload = data[head:]
        digest = hashlib.blake2b(payload, digest_size=32).digest()
        if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : head] != digest:
            raise UserError(
                f"{self.checkpoint} is damaged; remove it and this run starts again from step 0 "
                "(finished runs are not touched)"
            )
        # Not onto the device that it came from: of several processes each has another.
        return torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")

    def finish(self, outcome: dict[str, Any], weights: dict[str, Any] | None) -> None:
        """Compact the logs, keep the final tensors, mark the run as done, drop the checkpoint."""
        self.flush()
        for file in self._files.values():
            file.close()
        self._files = {}
        self._compact()
        if weights is not None:
            import torch

            buffer = io.BytesIO()
            torch.save(weights, buffer)
            write_atomic(self.path / "weights.pt", buffer.getvalue())
        write_json(self.path / "done.json", outcome)
        self._remove_leftovers()

    def _compact(self) -> None:
        """JSON lines to Parquet: a killed Parquet writer leaves an unreadable file, these don't."""
        import pandas as pd

        metrics = read_lines(self.path / "metrics.jsonl")
        scalars: dict[str, list] = {"step": [], "tensor": [], "stat": [], "value": []}

        def add(step: int, tensor: str, stat: str, value: float) -> None:
            for name, item in zip(scalars, (step, tensor, stat, value), strict=True):
                scalars[name].append(item)

        for record in metrics:
            step = record.pop("step")
            for stat, value in record.items():
                add(step, "model", stat, value)
        for record in read_lines(self.path / "probes.jsonl"):
            for stat, values in record["values"].items():
                for tensor, value in values.items():
                    add(record["step"], tensor, stat, value)
        vectors: dict[str, list] = {"step": [], "tensor": [], "stat": [], "value": []}
        for record in read_lines(self.path / "vectors.jsonl"):
            for stat, values in record["values"].items():
                for tensor, value in values.items():
                    row = (record["step"], tensor, stat, np.asarray(value, np.float32))
                    for name, item in zip(vectors, row, strict=True):
                        vectors[name].append(item)
        for name, columns in (("scalars", scalars), ("vectors", vectors)):
            frame = pd.DataFrame(columns)
            frame["step"] = frame["step"].astype("int32")
            buffer = io.BytesIO()
            frame.to_parquet(buffer, compression="zstd", index=False)
            write_atomic(self.path / f"{name}.parquet", buffer.getvalue())


class Onlooker(RunDirectory):
    """The same directory for a process that helps the first to train: read, never written."""

    @property
    def complete(self) -> bool:
        return is_complete(self.path)

    def start(self, description: dict[str, Any]) -> None:
        pass

    def append(self, log: str, record: dict[str, Any]) -> None:
        pass

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        pass

    def load_checkpoint(self) -> dict[str, Any] | None:
        return self._read_checkpoint() if self.checkpoint.exists() else None


@contextmanager
def open_run(path: Path, writes: bool = True) -> Iterator[RunDirectory]:
    """Exclusive access to a run's directory; UserError if another process trains it.

    Without ``writes``, an onlooker of the process that has it.
    """
    if not writes:
        yield Onlooker(path)
        return
    make_folder(path)
    with open(path / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{path} is being trained by another process; wait for it or stop it"
            ) from None
        directory = RunDirectory(path)
        try:
            yield directory
        finally:
            directory.flush()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All records of a log, in order."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
