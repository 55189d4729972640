"""The one exception that a user is meant to read, and how commands end."""

from __future__ import annotations

import difflib
import errno
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

# What the system refuses because of a path or a device that the user named.
_REFUSED = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EIO,
            errno.ESTALE, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # fmt: skip
# What says nothing of whether the file is there, or whole.
HIDDEN = {errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# There is no such file, or something else stands in its place.
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
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


def unreadable(path: Path, error: OSError, remedy: str) -> UserError:
    """The error of a file that cannot be read; ``remedy`` is that of one that is not there.

    What the system only refuses to show may be whole. Then nothing is to be removed.
    """
    if error.errno not in _ABSENT:
        remedy = "make it readable and run again"
    return UserError(f"{path} cannot be read ({error.strerror}); {remedy}")


def shown(value: Any, quoted: bool = True) -> str:
    """What a user wrote, to be quoted in a message: printable, and at most 80 characters."""
    try:
        text = repr(value) if quoted else str(value)
    except ValueError:  # an integer of thousands of digits
        text = f"an integer of {value.bit_length()} bits"
    return printable(text if len(text) <= 80 else f"{text[:50]}…{text[-25:]}")


def nearest(name: str, names: Collection[str], most: int = 10) -> str:
    """``names``, those most like ``name`` first, and how many more there are than ``most``."""
    found = difflib.get_close_matches(name, names, most, cutoff=0.0)
    more = len(names) - len(found)
    return ", ".join(found) + (f" and {more} more" if more else "")


def line_of(error: UserError | OSError) -> str:
    """The one line that is told of an error, whatever it quotes."""
    text = _text_of(error)
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 300]} … {text[-300:]}"
    return f"error: {printable(text)}"


def _text_of(error: UserError | OSError) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.filename is None:
        return f"the output cannot be written: {error.strerror}; make room, or write it elsewhere"
    remedy = "name another file or folder"
    if error.errno in (errno.EACCES, errno.EPERM):
        remedy = f"get access to it, or {remedy}"
    return f"{error.filename}: {error.strerror}; {remedy}"


def as_user_error(error: Exception) -> UserError | None:
    """A UserError as it is, one in place of what the system refuses of a path; None of a crash."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError) and ending(error) is not None:
        return UserError(_text_of(error))
    return None


def first_line(error: BaseException) -> str:
    """What a library's error says, in a line: some tell a whole page."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return printable(lines[0])


def printable(text: str) -> str:
    """``text`` with escapes in place of what a terminal would act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def ending(error: BaseException, resumes: bool = False) -> tuple[int, str | None] | None:
    """Exit code and last line of a command that ``error`` ends in good order; None of a crash.

    ``resumes``: called again, the command goes on from where it was stopped.
    """
    if isinstance(error, UserError):
        return 2, line_of(error)
    if isinstance(error, OSError) and error.errno in _REFUSED:
        named = error.filename is not None or error.errno in _FULL
        return (2, line_of(error)) if named else None
    if isinstance(error, KeyboardInterrupt):
        number = error.args[0] if isinstance(error, Stopped) else signal.SIGINT
        more = "; the same command goes on from here" if resumes else ""
        return 128 + number, f"\nstopped{more}"
    if isinstance(error, BrokenPipeError):  # the reader of the output has gone: head, less
        return 141, None
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return error.code or 0, None
    return None
