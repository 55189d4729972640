"""A log of JSON lines that grows while a run trains, with a running digest of its bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lrm.errors import UserError, unreadable
from lrm.store.digests import digest, running
from lrm.store.files import unwritable, write_atomic

_BUFFER = 1 << 13  # bytes that wait in memory until they are written


class Log:
    """The writer of one log, which begins empty or after a ``mark``.

    ``mark`` is the length and the digest of all that was written; a checkpoint keeps it.
    ``check`` raises Busy where the log belongs to another process by now. Then nothing more is
    written.
    """

    def __init__(
        self,
        path: Path,
        mark: dict[str, Any] | None = None,
        check: Callable[[], None] = lambda: None,
    ):
        """Cut the file back to ``mark``, or remove it where there is none.

        Raises UserError where what the mark counts is not there, or has changed.
        """
        self.path, self._check = path, check
        self._file: int | None = None
        self._waiting = bytearray()
        self._length, self._digest = 0, running()
        if not (mark and mark["length"]):
            path.unlink(missing_ok=True)
            return
        self._length = mark["length"]
        counted = self._counted()
        self._digest.update(counted)
        # Checkpoints of earlier versions know the length alone.
        if mark["digest"] not in (None, self._digest.hexdigest()):
            raise self._damaged("has changed since its checkpoint was written")
        # Another file: a process that lost this one may still have it open.
        write_atomic(path, counted)

    def append(self, record: dict[str, Any]) -> None:
        """Append one line, which may wait in memory until ``flush``."""
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        self._waiting += line
        self._digest.update(line)
        self._length += len(line)
        if len(self._waiting) >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the system; UserError where it takes them not, as on a full disk.

        Raises Busy where another process has the log. What was not written is lost either way, and
        the next start cuts the log back.
        """
        if not self._waiting:
            return
        try:
            self._check()
            if self._file is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                self._file = os.open(self.path, flags, 0o666)
            while self._waiting:
                del self._waiting[: os.write(self._file, self._waiting)]
        except OSError as error:
            raise unwritable(self.path, error) from None
        finally:
            self._waiting.clear()

    def mark(self) -> dict[str, Any]:
        """Have all lines on disk; their length and their digest."""
        self.flush()
        if self._file is not None:
            try:
                os.fsync(self._file)
            except OSError as error:
                raise unwritable(self.path, error) from None
        return {"length": self._length, "digest": self._digest.hexdigest()}

    def close(self) -> None:
        """Write what waits, and give the file back."""
        try:
            self.flush()
        finally:
            if self._file is not None:
                with suppress(OSError):
                    os.close(self._file)
                self._file = None

    def records(self) -> list[dict[str, Any]]:
        """All records, in order; UserError where the file is not what was written."""
        self.close()
        if not self._length:
            return []
        content = self._counted()
        if digest(content) != self._digest.hexdigest():
            raise self._damaged("has changed while it was written")
        return [json.loads(line) for line in content.splitlines()]

    def _counted(self) -> bytes:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise unreadable(self.path, error, f"remove {self.path.parent}") from None
        if len(content) < self._length:
            raise self._damaged("is shorter than its checkpoint says")
        return content[: self._length]

    def _damaged(self, how: str) -> UserError:
        return UserError(
            f"{self.path} {how}; remove {self.path.parent} and this run starts again from step 0"
        )
