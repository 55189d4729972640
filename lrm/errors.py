"""The one exception that a user is meant to read, and how commands end."""

from __future__ import annotations

import errno
import signal
from typing import Any

# What the system refuses because of a path or a device that the user named.
_REFUSED = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EROFS, errno.ENOSPC,
            errno.EDQUOT, errno.EFBIG}  # fmt: skip
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LONGEST = 1000  # characters of an error's line


class UserError(Exception):
    """Bad input: one line that names the culprit and the remedy.

    Command lines print it without a traceback and exit with code 2.
    """


class Diverged(UserError):
    """A loss or gradient that is no longer finite: ends a run, not those after it.

    Of several processes that train together all raise it, at the same ``step``.
    """

    def __init__(self, text: str, step: int = 0):
        super().__init__(text)
        self.step = step


class Busy(UserError):
    """Another process has what is asked for; it will be free, or done, later."""


class Stopped(KeyboardInterrupt):
    """A signal asked the command to stop; its argument is the signal's number."""


def shown(value: Any, quoted: bool = True) -> str:
    """What a user wrote, to be quoted in a message: printable, and at most 80 characters."""
    try:
        text = repr(value) if quoted else str(value)
    except ValueError:  # an integer of thousands of digits
        text = f"an integer of {value.bit_length()} bits"
    return printable(text if len(text) <= 80 else f"{text[:50]}…{text[-25:]}")


def line_of(error: UserError | OSError) -> str:
    """The one line that is told of an error, whatever it quotes."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is None:
        text = f"the output cannot be written: {error.strerror}; make room, or write it elsewhere"
    elif isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror}; name another file or folder"
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 300]} … {text[-300:]}"
    return f"error: {printable(text)}"


def first_line(error: BaseException) -> str:
    """What a library's error says, in a line: some tell a whole page."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return printable(lines[0])


def printable(text: str) -> str:
    """``text`` with escapes in place of what a terminal would act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def ending(error: BaseException) -> tuple[int, str | None] | None:
    """Exit code and last line of a command that ``error`` ends in good order; None of a crash."""
    if isinstance(error, UserError):
        return 2, line_of(error)
    if isinstance(error, OSError) and error.errno in _REFUSED:
        named = error.filename is not None or error.errno in _FULL
        return (2, line_of(error)) if named else None
    if isinstance(error, KeyboardInterrupt):
        number = error.args[0] if isinstance(error, Stopped) else signal.SIGINT
        return 128 + number, "\nstopped; the same command goes on from here"
    if isinstance(error, BrokenPipeError):  # the reader of the output has gone: head, less
        return 141, None
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return error.code or 0, None
    return None
