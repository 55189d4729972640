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

from lrm.cli import guarded, size
from lrm.errors import Busy, UserError, printable
from lrm.store.lock import holder_of, locked
from lrm.store.rundir import is_complete, read_description, read_failure, read_given_up
from lrm.sweep.cluster import state

# What is to be deleted has such a name, beside the folder of runs.
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
    parser = argparse.ArgumentParser(prog="python -m lrm.sweep.runs")
    parser.add_argument("action", choices=["list", "clean"])
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--experiment", help="only of this experiment")
    parser.add_argument("--scale", help="only at this scale")
    parser.add_argument("--yes", action="store_true", help="remove without asking")
    options = parser.parse_args()
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    waiting = state.queued(options.results)
    found = [_read(path, waiting) for path in (options.results / "runs").glob("*/*/")]
    if options.action == "list":
        found += _not_begun(options.results, waiting, {run.path for run in found})
    runs = sorted(
        run
        for run in found
        if options.experiment in (None, run.experiment) and options.scale in (None, run.scale)
    )
    if not runs:
        print(f"no runs in {options.results / 'runs'}")
        return
    for run in runs:
        told = f"{run.experiment} {run.scale}  {run.label}  {run.path.name}"
        print(f"{size(run.size):>9}  {run.state:<10}  {printable(told)}")
        for line in run.told:
            print(f"{'':23}{printable(line)}")
    print(f"{size(sum(run.size for run in runs)):>9}  {len(runs)} runs in {options.results}/runs")
    if options.action == "clean":
        _remove(runs, options.yes)


def _read(path: Path, waiting: Mapping[str, Mapping[str, str]] = MappingProxyType({})) -> StoredRun:
    scale, label = "-", "(not begun)"
    told: tuple[str, ...] = ()
    if is_complete(path):
        found = "finished"
    elif (holder := holder_of(path)) is not None:
        found, told = "running", (holder.text,)
    elif (given_up := read_given_up(path)) is not None:
        found, told = given_up["outcome"], (given_up["reason"],)
    elif (failure := read_failure(path)) is not None:
        found, told = "failed", _failure(failure)
    elif tasks := waiting.get(f"{path.parent.name}/{path.name}"):
        found, told = "queued", _tasks(tasks)
    else:
        found = "unfinished"
    if (path / "run.json").exists():
        try:
            description = read_description(path)
            scale, label = str(description["scale"]), str(description["label"])
        except UserError:
            label, found = "(run.json is damaged)", "damaged"
    return StoredRun(path.parent.name, scale, label, found, _size(path), path, told)


def _size(path: Path) -> int:
    """Bytes of the files below ``path``, which may come and go meanwhile."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
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
                "nothing removed: there is no terminal to ask; use make clean-runs YES=1"
            )
        if input(f"remove these {len(runs)} runs? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing removed")
            return
    busy, results = [], runs[0].path.parents[2]
    for run in runs:
        try:
            with locked(run.path):
                # First: half a run must be none, and its claim must not be free before the rest.
                run.path.rename(results / f"{_REMOVED}{secrets.token_hex(8)}")
        except Busy:
            busy.append(run.path)
        except OSError as error:
            raise UserError(f"{run.path} cannot be removed ({error.strerror}); remove it by hand"
                            ) from None  # fmt: skip
    # Those of a removal that was stopped too.
    for path in results.glob(f"{_REMOVED}*"):
        shutil.rmtree(path, ignore_errors=True)
    print(f"removed {len(runs) - len(busy)} runs")
    if busy:
        raise UserError(
            f"{len(busy)} runs are being trained and were not removed, such as {busy[0]}; stop "
            "what trains them, or wait for it"
        )


if __name__ == "__main__":
    main()
