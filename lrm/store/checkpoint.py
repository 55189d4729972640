"""The latest state of a run that is being trained, in ``checkpoint.pt``. No torch at import.

The file begins with a mark and the digest of what follows, so that a torn one is told. Tensors of a
model in parts lie beside it, in a folder that it names (``lrm.store.parts``).
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from lrm.errors import UserError, unreadable
from lrm.store.digests import running
from lrm.store.files import write_filled

_MAGIC = b"LRMCKPT1"
_DIGEST = 32  # bytes
_PARTS = "checkpoint-"
# What run.json keeps of how a run was begun when it is resumed. All else is what the plan says.
BEGUN = ("criteria", "execution", "environment", "resumed")
# What of an environment may change the bits.
_MATTERS = ("commit", "code", "lrm", "numerics", "python", "torch", "processor", "gpu", "cuda",
            "runs_at_once", "processes")  # fmt: skip

Note = Callable[[str], None]


def file(path: Path) -> Path:
    """Where the latest state of the run in this directory lies."""
    return path / "checkpoint.pt"


def parts_folder(step: int, chance: str) -> str:
    """The name of the folder of its tensors; ``chance`` is a word that no other has in its name."""
    return f"{_PARTS}{step}-{chance}"


def drop(path: Path) -> None:
    """Remove the latest state of the run in this directory; its next start is from step 0."""
    file(path).unlink(missing_ok=True)
    remove_parts(path)


def remove_parts(path: Path, but: str | None = None) -> None:
    """Remove all folders of tensors that the checkpoint does not name."""
    for folder in path.glob(f"{_PARTS}*"):
        if folder.name != but:
            shutil.rmtree(folder, ignore_errors=True)


def remove_unfinished(path: Path) -> None:
    """Remove states of the run in this directory whose writing was cut short."""
    for left in path.glob(f".{file(path).name}.*"):
        with suppress(OSError):
            left.unlink()


class _Sink:
    """A file for ``torch.save``, with the digest of what it was given.

    An error is kept: it would not come through the writer of torch as what it is.
    """

    def __init__(self, file: BinaryIO):
        self._file, self.digest = file, running()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        self.digest.update(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Whoever opened the file does that."""


class _Payload(io.RawIOBase):
    """What stands in a file behind its first ``start`` bytes, as a file."""

    def __init__(self, file: BinaryIO, start: int):
        self._file, self._start = file, start
        self.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        moved = self._start if whence == io.SEEK_SET else 0
        return self._file.seek(offset + moved, whence) - self._start

    def tell(self) -> int:
        return self._file.tell() - self._start


def write(path: Path, record: dict[str, Any], check: Callable[[], None] = lambda: None) -> None:
    """Replace the latest state of the run in this directory, atomically.

    Piece by piece: a second copy of it may not fit into memory. ``check`` is called before the
    replacement, behind a writing that may take minutes.
    """
    import torch

    def fill(to: BinaryIO) -> None:
        to.write(_MAGIC + bytes(_DIGEST))
        sink = _Sink(to)
        torch.save(record, sink)
        if sink.error is not None:
            raise sink.error
        to.seek(len(_MAGIC))
        to.write(sink.digest.digest())

    write_filled(file(path), fill, check)


def read(path: Path) -> dict[str, Any] | None:
    """The latest state of the run in this directory, if any, on the CPU.

    Raises UserError where it is damaged, or cannot be read.
    """
    import torch

    again = "remove it and this run starts again from step 0 (finished runs are not touched)"
    if not file(path).exists():
        return None
    head = len(_MAGIC) + _DIGEST
    try:
        with open(file(path), "rb") as source:
            begin = source.read(head)
            if begin != _MAGIC + hashlib.file_digest(source, running).digest():
                raise UserError(f"{file(path)} is damaged; {again}")
            # Not onto the device that it came from: of several processes each has another.
            payload = _Payload(source, head)
            return torch.load(payload, weights_only=True, map_location="cpu")
    except OSError as error:
        raise unreadable(file(path), error, again) from None


def continued(
    path: Path, description: dict[str, Any], step: int, begun: dict[str, Any], note: Note
) -> dict[str, Any]:
    """``description``, with how the run was ``begun`` and that it goes on after ``step``.

    ``note`` gets a line where that is in another environment. Raises UserError where the checkpoint
    is of another run, and where the way of computing is not the one begun with.
    """
    if begun.get("id", description["id"]) != description["id"]:
        raise UserError(
            f"{file(path)} is that of another run, {begun['id']}; remove {path} "
            "and this run starts again from step 0"
        )
    before = begun.get("execution", {})
    for key, now in description["execution"].items():
        if before.get(key, now) != now:
            remedy = "set it back"
            if key == "compiled":
                remedy = f"add --set execution.compile={'always' if before[key] else 'never'}"
            raise UserError(
                f"{path} was begun with {key} = {before[key]}, now it is {now}: the "
                f"bits would differ; {remedy}, or remove that folder to start over"
            )
    resumed = list(begun.get("resumed", []))
    now = description.get("environment", {})
    if changed := _changed([begun.get("environment", {}), *resumed], now):
        label = description.get("label", path.name)
        note(
            f"{label}: goes on after step {step} with another {changed}; its bits "
            "may differ from those of an uninterrupted run, and run.json records both"
        )
    resumed.append({"step": step, **now})
    kept = {key: begun[key] for key in BEGUN if key in begun}
    return {**description, **kept, "resumed": resumed}


def marks(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a checkpoint says of the logs; that of an earlier version knows no digests."""
    lengths = state.pop("log_lengths", {})
    without = {log: {"length": length, "digest": None} for log, length in lengths.items()}
    return state.pop("logs", without)


def _changed(before: list[dict[str, Any]], now: dict[str, Any]) -> str:
    """What of an environment differs from the last before, in words; nothing where none does."""
    last = before[-1]
    keys = [key for key in _MATTERS if key in last and key in now and last[key] != now[key]]
    return ", ".join(f"{key} ({last[key]}, now {now[key]})" for key in keys)
