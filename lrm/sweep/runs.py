"""``python -m lrm.sweep.runs list`` and ``clean``: the runs on disk, with their sizes."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from lrm.cli import Once, Parser, a_folder, counted, guarded, size
from lrm.errors import Busy, UserError, line_of, printable
from lrm.plan.experiment import check_scale
from lrm.store.files import read_json
from lrm.store.lock import holder_of, locked
from lrm.store.rundir import (
    damage,
    is_complete,
    read_given_up,
    remedy_of_description,
    run_folders,
    stated_failure,
)
from lrm.sweep.cluster import state

_UNKNOWN = "-"  # the scale of a run that tells none
# What is to be deleted has such a name, in the folder of runs.
_REMOVED = ".removed-"


class StoredRun(NamedTuple):
    """One run's directory, in the order in which runs are listed."""

    experiment: str
    scale: str
    label: str
    state: str
    size: int  # bytes
    path: Path
    told: tuple[str, ...] = ()  # lines about it


def main() -> None:
    """Parse the command line and act."""
    parser = Parser(prog="python -m lrm.sweep.runs")
    parser.add_argument("action", choices=["list", "clean"])
    parser.add_argument(
        "--results", type=a_folder, default=Path("results"), help="their folder; default results"
    )
    parser.add_argument("--experiment", action=Once, help="only of this experiment")
    parser.add_argument("--scale", action=Once, help="only at this scale")
    parser.add_argument("--yes", action="store_true", help="remove without asking")
    options = parser.parse_args()
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    if options.scale is not None:
        check_scale(options.scale)
    results = options.results
    if not results.is_dir():
        raise UserError(f"there is no folder {results}; --results names the one with runs/ in it")
    waiting = state.queued(results)
    paths, hidden = run_folders(results)
    for error in hidden:
        print(line_of(error).removeprefix("error: "), file=sys.stderr)
    found = [_read(path, waiting) for path in paths]
    if options.action == "list":
        found += _not_begun(results, waiting, {run.path for run in found})
    runs = sorted(
        run
        for run in found
        if options.experiment in (None, run.experiment) and options.scale in (None, run.scale)
    )
    if not runs:
        print(_none(options, found, results))
        return
    for run in runs:
        told = f"{run.experiment} {run.scale}  {run.label}  {run.path.name}"
        print(f"{size(run.size):>9}  {run.state:<10}  {printable(told)}")
        for line in run.told:
            print(f"{'':23}{printable(line)}")
    whole, number = size(sum(run.size for run in runs)), counted(len(runs), "run")
    print(f"{whole:>9}  {number} in {results}/runs")
    if options.action == "clean":
        _remove(runs, options.yes)


def _none(options: argparse.Namespace, found: Collection[StoredRun], results: Path) -> str:
    """That there are no such runs, and which others there are."""
    if not found:
        return f"no runs in {results / 'runs'}"
    of = f" of {options.experiment}" if options.experiment else ""
    at = f" at {options.scale}" if options.scale else ""
    own = [run for run in found if options.experiment in (None, run.experiment)]
    others = {run.scale for run in own} - {_UNKNOWN} if own else {run.experiment for run in found}
    there = ", ".join(sorted(others)) or "runs that cannot be read"
    return f"no runs{of}{at} in {results / 'runs'}; there are {there}"


def _read(path: Path, waiting: Mapping[str, Mapping[str, str]] = MappingProxyType({})) -> StoredRun:
    """What is stored of a run; of one whose files cannot be read why, and what can be."""
    scale, label = _UNKNOWN, "(not begun)"
    try:
        if (path / "run.json").exists():
            scale, label = _named(path)
        found, told = _state(path, waiting)
        damaged = damage(path)
        if damaged is not None:
            raise damaged
    except (UserError, OSError) as error:
        if scale == _UNKNOWN:
            label = "(cannot be read)"
        found, told = "damaged", (line_of(error).removeprefix("error: "),)
    return StoredRun(path.parent.name, scale, label, found, _size(path), path, told)


def _named(path: Path) -> tuple[str, str]:
    """The scale and the label in a run's ``run.json``; UserError where that is damaged."""
    description = read_json(path / "run.json", ("scale", "label"), remedy_of_description(path))
    return str(description["scale"]), str(description["label"])


def _state(path: Path, waiting: Mapping[str, Mapping[str, str]]) -> tuple[str, tuple[str, ...]]:
    """In a word, and what more is to be told; UserError where a file that says so is damaged."""
    if is_complete(path):
        return "finished", ()
    if (holder := holder_of(path)) is not None:
        return "running", (holder.text,)
    if (given_up := read_given_up(path)) is not None:
        return given_up["outcome"], (given_up["reason"],)
    if (failure := stated_failure(path)) is not None:
        return "failed", _failure(failure)
    if tasks := waiting.get(f"{path.parent.name}/{path.name}"):
        return "queued", _tasks(tasks)
    return "unfinished", ()


def _size(path: Path) -> int:
    """Bytes of the files below ``path`` that can be seen; they may come and go meanwhile."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _not_begun(
    results: Path, waiting: Mapping[str, Mapping[str, str]], known: Collection[Path]
) -> list[StoredRun]:
    """Runs that are queued on a cluster and have no directory yet."""
    labels = {name: run for found in state.submissions(results) for name, run in found.runs.items()}
    return [
        StoredRun(path.parent.name, labels[name]["scale"], labels[name]["label"], "queued", 0, path,
                  _tasks(tasks))
        for name, tasks in waiting.items()
        if (path := results / "runs" / name) not in known
    ]  # fmt: skip


def _tasks(tasks: Mapping[str, str]) -> tuple[str, ...]:
    """How many tasks have it on their list, by their state, and the first of them."""
    counts = Counter(tasks.values())
    of = ", ".join(f"{count} {found}" for found, count in counts.items())
    return (f"in {len(tasks)} tasks ({of}), such as {next(iter(tasks))}",)


def _failure(failure: Mapping[str, str]) -> tuple[str, ...]:
    """The error, and the last line of the log that has more."""
    log = failure["log"]
    return (failure["error"], *([f"{log}: {state.last_line(log)}"] if log else []))


def _remove(runs: list[StoredRun], sure: bool) -> None:
    """Delete the directories, after a question unless ``sure``.

    Raises UserError without a terminal, where a run cannot be removed, and where one is being
    trained; all others are removed then.
    """
    if not sure:
        if not sys.stdin.isatty():
            raise UserError(
                "nothing removed: there is no terminal to ask; give the same with --yes (of make: "
                "YES=1 beside the same SCALE, EXPERIMENT and RESULTS)"
            )
        these = "this run" if len(runs) == 1 else f"these {len(runs)} runs"
        try:
            said = input(f"remove {these}? [y/N] ")
        except EOFError:  # Ctrl-D
            said = ""
        if said.strip().lower() not in ("y", "yes"):
            print("nothing removed")
            return
    busy, kept, results = [], [], runs[0].path.parents[2]
    for run in runs:
        try:
            with locked(run.path):
                # First: half a run must be none, and its claim must not be free before the rest.
                run.path.rename(results / "runs" / f"{_REMOVED}{secrets.token_hex(8)}")
        except Busy:
            busy.append(run.path)
        except (UserError, OSError) as error:
            if isinstance(error, OSError):
                kept.append(f"{run.path} cannot be removed ({error.strerror}); remove it by hand")
            else:
                kept.append(f"{error}; or remove {run.path} by hand")
    # Those of a removal that was stopped too.
    for folder in (results / "runs", results):  # the latter by an earlier version
        for path in folder.glob(f"{_REMOVED}*"):
            shutil.rmtree(path, ignore_errors=True)
    print(f"removed {counted(len(runs) - len(busy) - len(kept), 'run')}")
    told = kept[:1]
    if kept[1:]:
        told.append(f"nor can {len(kept) - 1} more")
    if busy:
        are = "is being trained and was" if len(busy) == 1 else "are being trained and were"
        told.append(f"{counted(len(busy), 'run')} {are} not removed, such as {busy[0]}; stop "
                    "what trains them, or wait for it")  # fmt: skip
    if told:
        raise UserError("; ".join(told))


if __name__ == "__main__":
    main()
