"""The system's locks of files, where a file system has them."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from typing import IO, Any


def take(
    lock: IO[Any], waiting: Callable[[], None] = lambda: None, *, shared: bool = False
) -> bool:
    """Wait for the lock; False where there are none, as on some network file systems.

    ``waiting`` is called where another process has it. Who takes a ``shared`` lock needs a file
    that is open for reading, and of any other one that is open for writing.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, kind)
    except OSError:
        return False
    return True


def release(lock: IO[Any]) -> None:
    """Give a lock back that was taken."""
    fcntl.flock(lock, fcntl.LOCK_UN)


def is_last(lock: IO[Any]) -> bool:
    """Whether nobody else has the shared lock that this process gives up."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
