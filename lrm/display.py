"""Text for people: progress lines, bars, durations and tables."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence


class Display:
    """Progress on stderr: a fixed number of lines, each behind its name.

    Rewritten in place on a terminal, printed now and then elsewhere.
    """

    def __init__(self, names: Sequence[str], every: float = 15.0):
        """``every`` is the least number of seconds between two printings off a terminal."""
        self.live = sys.stderr.isatty()
        self.every = 0.2 if self.live else every
        self.names = names
        self.shown = 0
        self.last = -1e9
        self.notes: set[str] = set()

    def note(self, line: str) -> None:
        """A line that stays, above those that are rewritten; each is shown once."""
        if line not in self.notes:
            self.notes.add(line)
            sys.stderr.write(line + "\n")
            self.shown = 0

    def show(self, lines: Sequence[str], last: bool = False) -> None:
        """One line for each name; drops calls that come too soon, but not the ``last``."""
        now = time.monotonic()
        if now - self.last < self.every and not last:
            return
        self.last = now
        if self.live and self.shown:
            sys.stderr.write(f"\x1b[{self.shown}A")
        clear = "\x1b[2K" if self.live else ""
        # A line that wraps would put the next rewrite in the wrong place.
        width = shutil.get_terminal_size().columns - 1 if self.live else None
        for name, line in zip(self.names, lines, strict=True):
            sys.stderr.write(clear + f"{name}  {line}"[:width] + "\n")
        self.shown = len(lines)
        sys.stderr.flush()


def bar(part: float, width: int = 16) -> str:
    """``part`` of a whole, between 0 and 1, as a bar and a percentage."""
    filled = int(round(width * min(max(part, 0.0), 1.0)))
    return "[" + "#" * filled + "." * (width - filled) + f"] {100 * part:3.0f}%"


def clock(seconds: float) -> str:
    """A duration as minutes and seconds, with hours before them where there are any."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def columns(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned text, the first row ruled off; numbers are set to the right."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]

    def cell(text: str, width: int) -> str:
        return text.rjust(width) if text[:1].isdigit() or text[:1] == "-" else text.ljust(width)

    lines = ["  ".join(map(cell, row, widths)).rstrip() for row in table]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
