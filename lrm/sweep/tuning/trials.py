"""The runs of a search, what is kept of them, and when one is stopped early."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from lrm.errors import Diverged
from lrm.plan.run import Note, Report, TrainRun
from lrm.store.digests import read_listed, sealed
from lrm.store.files import make_folder, read_records
from lrm.store.flock import take
from lrm.store.lock import locked
from lrm.store.rundir import give_up, is_complete, read_file, read_given_up, read_outcome

# What a record of the log holds.
_FIELDS = ("id", "arm", "stage", "point", "seed", "steps", "outcome", "loss", "early_loss",
           "tokens", "flops", "seconds")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrialRun(TrainRun):
    """A training run that a search asked for; it may be stopped at a third of its steps.

    ``said`` is its point in words. Neither it nor ``limit`` is part of the id: a limit decides
    whether a run is finished, not what it computes.
    """

    kind = "trial"
    performed_by = "lrm.sweep.tuning.trials:run"
    performed_together_by = None  # each may be stopped by itself

    said: str = field(default="", compare=False)
    # Mean training loss, in the half of the steps before the third, above which it is stopped.
    limit: float | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        return f"{self.arm} {self.said} seed={self.seed}"

    @property
    def window(self) -> tuple[int, int]:
        """The steps (first, last] whose mean training loss is compared with ``limit``."""
        third = self.settings.train.steps // 3
        return third // 2, third


class _Hopeless(Exception):
    """Stops a trial; never leaves this module."""


def run(
    trial: TrialRun, path: Path, corpora: Path, report: Report, *, note: Note, group: Any = None
) -> None:
    """Train ``trial``; where it diverges or is stopped, its directory says that it was given up."""
    if has_ended(path):  # another search has run it meanwhile
        return
    from lrm.train.loop import train  # it loads torch

    first, last = trial.window
    losses: dict[int, float] = {}
    hopeless: list[str] = []

    def tell(step: int, loss: float) -> None:
        report(step, loss)
        if hopeless:
            raise _Hopeless(hopeless[0], step)

    def watch(step: int, loss: float) -> None:
        if first < step <= last:
            losses[step] = loss
        if step != last or trial.limit is None:
            return
        # Of steps before a resumption the log tells, which was cut to the checkpoint.
        before = _logged(path) if len(losses) < last - first else {}
        whole = [losses.get(each, before.get(each)) for each in range(first + 1, last + 1)]
        mean = sum(whole) / len(whole)
        if mean > trial.limit:
            hopeless.append(f"{mean:.4f} above {trial.limit:.4f}")

    try:
        train(trial, path, corpora, tell, note=note, group=group, each=watch)
    except Diverged as error:
        _end(path, "diverged", str(error), error.step)
    except _Hopeless as error:
        _end(path, "stopped", *error.args)


def _end(path: Path, outcome: str, reason: str, step: int) -> None:
    """Give it up; Busy where another search has begun to go on with it."""
    with locked(path):
        if not is_complete(path):
            give_up(path, outcome, reason, step)


def _logged(path: Path) -> dict[int, float]:
    """The training losses by step in the log of a run that is under way, as far as it is on disk.

    A last line that is only half there is left out.
    """
    lines = (path / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    records = map(json.loads, lines)
    return {each["step"]: each["train_loss"] for each in records if "train_loss" in each}


def has_ended(path: Path) -> bool:
    """Whether the trial in this directory is finished, diverged or stopped."""
    return is_complete(path) or read_given_up(path) is not None


def outcome(trial: TrialRun, path: Path) -> dict[str, Any]:
    """What the log keeps of a trial that has ended: outcome, loss, cost."""
    estimate = trial.estimate()
    steps = trial.settings.train.steps
    if is_complete(path):
        found = read_outcome(path)
        return {
            "outcome": "finished",
            "loss": found["validation_loss"],
            "early_loss": _early_loss(trial, path),
            "tokens": estimate.tokens,
            "flops": estimate.flops,
            "seconds": round(found["seconds"], 1),
        }
    found = read_given_up(path)
    part = found["step"] / steps
    return {
        "outcome": found["outcome"],
        "loss": None,
        "early_loss": None,
        "tokens": round(part * estimate.tokens),
        "flops": part * estimate.flops,
        "seconds": None,
    }


def _early_loss(trial: TrialRun, path: Path) -> float | None:
    """Mean training loss over the steps of ``window``."""
    import pandas as pd

    rows = pd.read_parquet(io.BytesIO(read_file(path, "scalars.parquet")))
    first, last = trial.window
    inside = (rows["stat"] == "train_loss") & (rows["step"] > first) & (rows["step"] <= last)
    return float(rows.loc[inside, "value"].mean()) if inside.any() else None


class TrialLog:
    """Every trial of a search, one JSON line each, appended as it ends.

    A trial in the log is not run again, whether or not its directory is still there; nor is one
    of a ``published`` log, whose trials an own log takes over: what is read of a search is all of
    it. ``published`` holds their ids. Raises UserError where a file is no such log.
    """

    def __init__(self, path: Path, published: Path | None = None):
        self.path = path
        there = {} if published is None else _records(read_listed(published), published)
        own = _records(path.read_bytes(), path) if path.exists() else {}
        self.records = there | own
        self.published = frozenset(there)
        self._unwritten = [record for id, record in there.items() if id not in own]
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            with path.open("r+b") as file:
                take(file)
                _cut(file)

    def read_again(self) -> None:
        """Take up what other searches have written since: several may share a log."""
        if self.path.exists():
            whole = self.path.read_bytes().rpartition(b"\n")
            self.records = self.records | _records(whole[0] + whole[1], self.path)

    def lacks(self, published: Path, but_of: Collection[str] = ()) -> int:
        """How many trials of a published log it does not hold, those of some arms left out."""
        there = _records(read_listed(published), published)
        return sum(id not in self.records and record["arm"] not in but_of
                   for id, record in there.items())  # fmt: skip

    def content(self) -> bytes:
        """All of it, published trials first, as a file."""
        return "".join(_line(record) for record in self.records.values()).encode()

    def add(self, record: dict[str, Any]) -> None:
        """Append one record, at once on disk."""
        self.records[record["id"]] = record
        self._append([*self._unwritten, record])

    def complete(self) -> None:
        """Give an own log that there is the published trials that it lacks."""
        if self._unwritten and self.path.exists():
            self._append(self._unwritten)

    def _append(self, records: Sequence[dict[str, Any]]) -> None:
        make_folder(self.path.parent)
        with self.path.open("a+b") as file:
            take(file)
            _cut(file)  # what another search left when it ended
            file.write("".join(map(_line, records)).encode())
            file.flush()
            os.fsync(file.fileno())
        self._unwritten = []


def _records(content: bytes, path: Path) -> dict[str, dict[str, Any]]:
    remedy = "remove that line, and the trial runs again"
    found = read_records(content, _FIELDS, str(path), "a trial", remedy)
    return {each["id"]: {name: each[name] for name in _FIELDS} for each in found}


def _line(record: dict[str, Any]) -> str:
    return json.dumps(sealed({name: record[name] for name in _FIELDS})) + "\n"


def _cut(file: BinaryIO) -> None:
    """Take away a last line that was cut short when its process ended.

    Under a lock, because a line without an end may be one that another search is writing.
    """
    file.seek(0)
    content = file.read()
    if not content.endswith(b"\n"):
        file.truncate(content.rfind(b"\n") + 1)
