"""The one exception that a user is meant to read, and how commands end."""

from __future__ import annotations


class UserError(Exception):
    """Bad input: one line that names the culprit and the remedy.

    Command lines print it without a traceback and exit with code 2.
    """


class Diverged(UserError):
    """A loss or gradient that is no longer finite: ends a run, not those after it.

    Of several processes that train together all raise it, at the same step.
    """


def ending(error: BaseException) -> tuple[int, str | None] | None:
    """Exit code and last line of a command that ``error`` ends in good order; None of a crash."""
    if isinstance(error, UserError):
        return 2, f"error: {error}"
    if isinstance(error, KeyboardInterrupt):
        return 130, "\nstopped; the same command goes on from here"
    if isinstance(error, BrokenPipeError):  # the reader of the output has gone: head, less
        return 141, None
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return error.code or 0, None
    return None
