"""``python -m lrm.sweep.runs list`` and ``clean``: the runs on disk, with their sizes."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from lrm.cli import guarded, size
from lrm.errors import Busy, UserError, printable
from lrm.store.lock import locked
from lrm.store.rundir import is_complete, read_description


class StoredRun(NamedTuple):
    """One run's directory, in the order in which runs are listed."""

    experiment: str
    scale: str
    label: str
    state: str
    size: int  # bytes
    path: Path


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
    runs = sorted(
        run
        for run in map(_read, (options.results / "runs").glob("*/*/"))
        if options.experiment in (None, run.experiment) and options.scale in (None, run.scale)
    )
    if not runs:
        print(f"no runs in {options.results / 'runs'}")
        return
    for run in runs:
        told = f"{run.experiment} {run.scale}  {run.label}  {run.path.name}"
        print(f"{size(run.size):>9}  {run.state:<10}  {printable(told)}")
    print(f"{size(sum(run.size for run in runs)):>9}  {len(runs)} runs in {options.results}/runs")
    if options.action == "clean":
        _remove(runs, options.yes)


def _read(path: Path) -> StoredRun:
    scale, label = "-", "(not begun)"
    state = "finished" if is_complete(path) else "unfinished"
    if (path / "run.json").exists():
        try:
            description = read_description(path)
            scale, label = str(description["scale"]), str(description["label"])
        except UserError:
            label, state = "(run.json is damaged)", "damaged"
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return StoredRun(path.parent.name, scale, label, state, size, path)


def _remove(runs: list[StoredRun], sure: bool) -> None:
    """Delete the directories, after a question unless ``sure``.

    Raises UserError without a terminal, and where a run is being trained; all others are removed.
    """
    if not sure:
        if not sys.stdin.isatty():
            raise UserError(
                "nothing removed: there is no terminal to ask; use make clean-runs YES=1"
            )
        if input(f"remove these {len(runs)} runs? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing removed")
            return
    busy = []
    for run in runs:
        try:
            with locked(run.path):
                # First: what a removal that is stopped leaves must be no finished run.
                (run.path / "done.json").unlink(missing_ok=True)
                shutil.rmtree(run.path)
        except Busy:
            busy.append(run.path)
    print(f"removed {len(runs) - len(busy)} runs")
    if busy:
        raise UserError(
            f"{len(busy)} runs are being trained and were not removed, such as {busy[0]}; stop "
            "what trains them, or wait for it"
        )


if __name__ == "__main__":
    main()
