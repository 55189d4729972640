"""How every command begins and ends, the command ``lrm``, and text for people."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lrm.errors import Stopped, UserError, ending, printable, shown

_MOST_SEEDS, _LARGEST_SEED, _MOST_PROCESSES = 10_000, 1 << 53, 1024
# Seeds below it explore, and those from it on judge; nobody trains so many.
FIRST_JUDGING_SEED = 100
# What ``lrm`` can do: the module whose ``main`` takes the arguments, and the extra that it needs.
_VERBS = {
    "probe": ("lrm.exchange.measure_checkpoint", "evaluation", "norms of a model's matrices"),
    "export": ("lrm.exchange.export", "evaluation", "a finished run as a transformers folder"),
    "evaluate": ("lrm.exchange.evaluation.command", "evaluation", "scores by EleutherAI's harness"),
    "adopt": ("lrm.exchange.adopt", "evaluation", "settings that train a Falcon-H1 further"),
    "symmetries": ("lrm.symmetry.found", "suite", "symmetries of placements, counted"),
}


def main() -> None:
    """The command ``lrm``."""
    guarded(lambda: _main(sys.argv[1:]))


def _main(arguments: list[str]) -> None:
    parser = Parser(prog="lrm", description="lrm VERB --help says more of each.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, (_, _, told) in _VERBS.items():
        verbs.add_parser(verb, help=told, add_help=False)
    verb = parser.parse_args(arguments[:1]).verb
    module, extra, _ = _VERBS[verb]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("lrm"):
            raise
        raise UserError(
            f"lrm {verb} needs {error.name}; run pip install 'lrm-suite[{extra}]'"
        ) from None
    found.main(arguments[1:])


def positive(text: str) -> int:
    """A number of processes, as a type of arguments."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 0 < int(text) <= _MOST_PROCESSES:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is not a number from 1 to {_MOST_PROCESSES}"
        )
    return int(text)


def positive_number(text: str) -> float:
    """A finite number above 0, as a type of arguments."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{shown(text)} is no positive number")


class Parser(argparse.ArgumentParser):
    """One line for what it cannot read, as for all that is wrong; ``--help`` has the options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {printable(message)}; {self.prog} --help lists what there is\n")


class Once(argparse.Action):
    """An option that may be given once: of two values the first would be dropped in silence."""

    _stored_in: argparse.Namespace | None = None

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self._stored_in is namespace:
            raise argparse.ArgumentError(self, "is given twice; make a call for each value")
        self._stored_in = namespace
        setattr(namespace, self.dest, values)


def begin() -> None:
    """Have commands end in good order from their first import on; ``guarded`` does the rest.

    Called on import by the packages whose modules are run as ``python -m`` or by an experiment's
    ``run.py``: what follows may take seconds. The verbs of ``lrm`` are imported by ``guarded``.
    """
    _take_all_letters()
    before = sys.excepthook

    def tell(kind, error, trace) -> None:
        if issubclass(kind, KeyboardInterrupt):
            with contextlib.suppress(OSError):
                print(ending(Stopped(signal.SIGINT))[1], file=sys.stderr)
        else:
            before(kind, error, trace)

    if before is sys.__excepthook__:
        sys.excepthook = tell


def _take_all_letters() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal may lack the letters of the output
            stream.reconfigure(errors="backslashreplace")


def guarded(action, resumes: bool = False) -> None:
    """Call ``action``; a UserError becomes one line and exit code 2, Ctrl-C exit code 130.

    ``resumes``: whether the same command goes on from where it was stopped, which is told.
    SIGTERM and SIGHUP stop it as Ctrl-C does, with 143 and 129. The first signal that comes
    decides; those that come when the action has ended change nothing.
    """
    _take_all_letters()
    stops: list[int] = []
    over = False

    def stop(number: int, _) -> None:
        stops.append(number)
        if not over:
            raise Stopped(stops[0])

    before: dict[int, Any] = {}
    try:
        before = _on_stop(stop)
        action()
        _flush_output()
        over = True
    except BaseException as error:
        over = True
        # What fails on the way out fails because of the signal.
        known = ending(Stopped(stops[0]) if stops else error, resumes)
        if known is None:
            raise
        code, line = known
        if line is not None:
            with contextlib.suppress(OSError):  # the terminal has gone, as SIGHUP tells
                print(line, file=sys.stderr)
        _drop_output()
        raise SystemExit(code) from None
    finally:
        for number, handler in before.items():
            # Once stopped the process is about to end; the interpreter does so undisturbed too.
            signal.signal(number, signal.SIG_IGN if stops else handler)


def _flush_output() -> None:
    """Write what waits, so that a full disk is told here and not by the interpreter."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _drop_output() -> None:
    """Where standard output takes nothing more, let the interpreter write to nowhere."""
    try:
        _flush_output()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def stop_delayed(tell: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """Within it a signal that asks to stop calls ``tell``, and is in the list that is yielded.

    The first one takes effect when the block has ended, in place of the block's own exception.
    """
    stops: list[int] = []

    def hear(number: int, _) -> None:
        stops.append(number)
        tell()

    def take_effect() -> None:
        if stops:
            signal.signal(stops[0], before[stops[0]])
            signal.raise_signal(stops[0])
            raise Stopped(stops[0])

    with contextlib.ExitStack() as stack:
        before = _on_stop(hear)
        for number, handler in before.items():
            stack.callback(signal.signal, number, handler)
        # Before the others have their handlers again, which would act in its place.
        stack.callback(take_effect)
        yield stops


def _on_stop(handler: Callable[[int, Any], None]) -> dict[int, Any]:
    """Have signals that ask to stop call ``handler``; returns the handlers that they had.

    Those that are ignored stay so, as ``nohup`` has it. Only the main thread may set handlers;
    in others none is set.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # None: a handler that is not Python's, and could not be given back.
    heeded = [n for n in numbers if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    return {number: signal.signal(number, handler) for number in heeded}


def size(count: float) -> str:
    """So many bytes, for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def counted(count: int, noun: str) -> str:
    """So many of them: ``1 run``, ``2 runs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def a_folder(text: str) -> Path:
    """An option that names a folder; ``~`` is the home, which no shell reads after ``=``."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a folder, or leave it out")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{shown(text)}: {error}") from None


def parse_seeds(text: str) -> list[int]:
    """``3`` is seeds 0 to 2; ``100-102,7`` and ``5,`` are lists.

    Raises UserError, also for a lone number of 100 or more: who writes 200 means the seed.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    found: dict[int, None] = {}
    for part in parts:
        match = re.fullmatch(r"([0-9]{1,16})(?:-([0-9]{1,16}))?", part)
        if not match:
            raise UserError(
                f"seeds {shown(text)}: write a number such as 3, or a list such as 100-107"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if parts == [text.strip()] and not match[2]:
            if first >= FIRST_JUDGING_SEED:
                raise UserError(
                    f"seeds {shown(text)}: write {first}-{first} for that seed, or 0-{first - 1} "
                    "for so many"
                )
            if not first:
                raise UserError(f"seeds {shown(text)}: none; write 1, or 0-0, for seed 0")
            first, last = 0, first - 1
        if last < first:
            raise UserError(f"seeds {shown(text)}: {part} ends before it begins; write a number "
                            "such as 3, or a list such as 100-107")  # fmt: skip
        found |= dict.fromkeys(range(first, min(last, first + _MOST_SEEDS) + 1))
        if len(found) > _MOST_SEEDS or last > _LARGEST_SEED:
            raise UserError(
                f"seeds {shown(text)}: at most {_MOST_SEEDS} of them, up to {_LARGEST_SEED}"
            )
    if not found:
        raise UserError(f"seeds {shown(text)}: none; write a number such as 3, or 100-107")
    return list(found)


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
            # In the place of those lines, which come again below it.
            over = f"\x1b[{self.shown}A\x1b[J" if self.live and self.shown else ""
            sys.stderr.write(over + printable(line) + "\n")
            self.shown, self.last = 0, -1e9

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
            sys.stderr.write(clear + printable(f"{name}  {line}")[:width] + "\n")
        self.shown = len(lines)
        sys.stderr.flush()


def bar(part: float, width: int = 16) -> str:
    """``part`` of a whole, at most all of it, as a bar and a percentage."""
    part = min(max(part, 0.0), 1.0)
    filled = int(round(width * part))
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
