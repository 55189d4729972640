"""``python -m lrm.sweep.watch``: what is being trained, read from the run directories.

Nothing is written, and no process is asked: it works beside any sweep, also over a shared folder.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lrm.cli import Parser, a_folder, bar, clock, columns, counted, guarded
from lrm.errors import UserError, line_of, printable
from lrm.store.rundir import (
    LOGS,
    is_complete,
    read_description,
    read_given_up,
    run_folders,
    stated_failure,
)

_TAIL = 1 << 16  # bytes of a log's end that are read first; longer lines take more
_LONGEST = 200  # characters of why a run failed
# Without a new line for so many seconds, and so many steps at its speed, a run counts as stopped.
QUIET, QUIET_STEPS = 120.0, 100
# The same where its speed is not known: it may be at its first steps, or be compiled.
QUIET_AT_FIRST = 900.0


@dataclass(frozen=True)
class Watched:
    """An unfinished run: steps done of ``steps``, its losses, and seconds since its last line.

    ``norm`` is the geometric mean over matrices of ‖W‖, per entry (RMS), at the last probe.
    """

    experiment: str
    label: str
    step: int
    steps: int
    loss: float | None
    norm: float | None
    quiet: float
    rate: float | None  # steps a second since the run began
    failed: str | None = None  # why it failed, where it was not begun again since

    @property
    def is_stopped(self) -> bool:
        """Whether it is quiet for longer than a run that trains: losses are written in lots."""
        return self.quiet >= (max(QUIET, QUIET_STEPS / self.rate) if self.rate else QUIET_AT_FIRST)

    @property
    def left(self) -> float | None:
        """Seconds until the run ends, at its speed so far."""
        return (self.steps - self.step) / self.rate if self.rate else None


class Seen(NamedTuple):
    """The unfinished runs, how many of each experiment have ended, and why others are not read."""

    unfinished: list[Watched]
    finished: Counter[str]
    unread: list[str]


def look(folder: Path, now: float | None = None) -> Seen:
    """What is under ``folder``/runs.

    Runs that move come first, and those that failed last. A directory that is being made, or
    removed, is left out.
    """
    now = time.time() if now is None else now
    unfinished, finished = [], Counter()
    paths, hidden = run_folders(folder)
    unread = list(map(str, hidden))
    for path in paths:
        try:
            begun = (path / "run.json").exists()  # first: it tells of what cannot be seen
            if is_complete(path) or read_given_up(path) is not None:
                finished[path.parent.name] += 1
            elif begun:  # else it is being made, or is gone
                unfinished.append(_read(path, now))
        except FileNotFoundError:  # it is being removed
            continue
        except (OSError, UserError) as error:
            unread.append(line_of(error).removeprefix("error: "))
        except (TypeError, ValueError, KeyError, AttributeError):
            unread.append(f"{path}: run.json or a log is not as runs write it; look at it")
    unfinished.sort(key=lambda run: (run.failed is not None, run.is_stopped, run.experiment))
    return Seen(unfinished, finished, unread)


def _read(path: Path, now: float) -> Watched:
    description = read_description(path)
    failure = stated_failure(path)
    done, probe = _last(path / "metrics.jsonl"), _last(path / "probes.jsonl")
    # What trains nothing has probes alone, or no log at all.
    changed = _changed(path / "metrics.jsonl")
    changed = changed or max(_changed(path / name) for name in ("run.json", *LOGS))
    step = int((done or probe).get("step", 0))
    # A run that was resumed has done its first steps before.
    resumed = description.get("resumed") or [{"step": 0}]
    steps = step - int(resumed[-1]["step"])
    began = (path / "run.json").stat().st_mtime
    matrices = {rule["tensor"] for rule in description.get("rules", []) if len(rule["shape"]) == 2}
    found = probe.get("values", {}).get("weight_norm", {})
    norms = [norm for key, norm in found.items() if key.partition("@")[0] in matrices]
    return Watched(
        description.get("experiment", path.parent.name),
        description["label"],
        step,
        int(description.get("settings", {}).get("train", {}).get("steps", 0)),
        done.get("train_loss"),
        math.exp(sum(map(math.log, norms)) / len(norms)) if norms and min(norms) > 0 else None,
        max(now - changed, 0.0),
        steps / (changed - began) if steps > 0 and changed > began else None,
        failure and failure["error"],
    )


def _changed(file: Path) -> float:
    """When the file was last written; 0 where there is none."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime
    return 0.0


def _last(log: Path) -> dict[str, Any]:
    """The last whole line of a log; nothing where there is none."""
    if not log.exists():
        return {}
    tail = _TAIL
    with log.open("rb") as file:
        while True:
            start = file.seek(max(file.seek(0, 2) - tail, 0))
            # Of a line that is being written, and of the one that is cut, nothing can be said.
            lines = file.read().split(b"\n")[1 if start else 0 : -1]
            for line in reversed(lines):
                with suppress(ValueError):
                    return json.loads(line)
            if not start:
                return {}
            tail *= 4


def text(
    unfinished: Iterable[Watched], finished: Counter[str], unread: Sequence[str] = ()
) -> list[str]:
    """Lines for a terminal: a table of unfinished runs, and lines with what ended or is unread."""
    rows = [("run", "progress", "loss", "RMS of W", "left")]
    for run in unfinished:
        left = "" if run.left is None else clock(run.left)
        if run.is_stopped:
            left = f"nothing new for {clock(run.quiet)}"
        if run.failed is not None:
            left = printable(f"failed: {run.failed}")[:_LONGEST]
        rows.append(
            (
                printable(f"{run.experiment} {run.label}"),
                bar(run.step / run.steps if run.steps else 0.0),
                "" if run.loss is None else f"{run.loss:.3f}",
                "" if run.norm is None else f"{run.norm:.3g}",
                left,
            )
        )
    total = sum(finished.values())
    of = ", ".join(f"{count} of {name}" for name, count in sorted(finished.items()))
    have = "has" if total == 1 else "have"
    ended = [f"{counted(total, 'run')} {have} ended" + (f": {of}" if total else "")]
    if unread:
        ended.append(f"{counted(len(unread), 'run')} cannot be read: {printable(unread[0])}")
    return [*(columns(rows) if len(rows) > 1 else ["no run is unfinished"]), "", *ended]


def main() -> None:
    """Parse the command line and show, again and again on a terminal, until Ctrl-C."""
    parser = Parser(prog="python -m lrm.sweep.watch")
    parser.add_argument("--results", type=a_folder, default=Path("results"))
    parser.add_argument("--once", action="store_true", help="show it once")
    options = parser.parse_args()
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    if not (options.results / "runs").exists():
        raise UserError(f"there are no runs in {options.results}; --results names their folder")
    while True:
        lines = text(*look(options.results))
        if options.once or not sys.stdout.isatty():
            print("\n".join(lines))
            return
        # Home and clear, so that nothing of a longer table stays.
        print("\x1b[H\x1b[2J" + "\n".join([*lines, "", "Ctrl-C ends this; the runs go on."]))
        time.sleep(2.0)


if __name__ == "__main__":
    main()
