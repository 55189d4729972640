"""The lock of a folder, held by one process at a time and given back however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from lrm.errors import Busy, UserError
from lrm.store.files import make_folder


@contextmanager
def locked(path: Path, waits: bool = False) -> Iterator[None]:
    """Hold the lock of the folder ``path``, which is made where it is missing.

    Raises Busy where another process has it, or ``waits`` for that process where asked to; raises
    UserError where the system has no locks.
    """
    while True:
        try:
            lock = open(path / ".lock", "w")  # noqa: SIM115
        except FileNotFoundError:
            make_folder(path)
            continue
        with lock:
            _take(lock, path, waits)
            # The folder may have been removed, and made again, since the file was opened.
            if _is_file(lock, path / ".lock"):
                yield
                return


def _take(lock: IO[str], path: Path, waits: bool) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        raise Busy(f"{path} is being trained by another process; wait for it or stop it") from None
    except OSError as error:
        raise UserError(
            f"{path / '.lock'} cannot be locked ({error.strerror}); choose a folder on another "
            "disk with --results"
        ) from None


def _is_file(lock: IO[str], path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    return False
