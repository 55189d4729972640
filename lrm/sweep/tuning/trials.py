"""The runs of a search, what is kept of them, and when one is stopped early."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lrm.errors import Diverged
from lrm.plan.run import Note, Report, TrainRun
from lrm.store import checkpoint
from lrm.store.digests import read_listed, sealed
from lrm.store.files import make_folder, read_json, read_records, write_sealed
from lrm.store.rundir import is_complete, read_file, read_outcome

# What a record of the log holds.
_FIELDS = ("id", "arm", "stage", "point", "seed", "steps", "outcome", "loss", "early_loss",
           "tokens", "flops", "seconds")  # fmt: skip
_STOPPED = "stopped.json"


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
    """Train ``trial``; a run that diverges or is stopped leaves ``stopped.json`` instead."""
    if has_ended(path):  # another search has run it meanwhile
        return
    from lrm.train.loop import train  # it loads torch

    first, last = trial.window
    losses: list[float] = []
    seen: list[int] = []  # the first step that this process tells

    def watch(step: int, loss: float) -> None:
        report(step, loss)
        seen[:] = seen or [step]
        if first < step <= last:
            losses.append(loss)
        # After a resumption inside of the window only a part of it was seen, with lower losses.
        elif step > last and losses and seen[0] <= first and trial.limit is not None:
            mean, losses[:] = sum(losses) / len(losses), []
            if mean > trial.limit:
                raise _Hopeless(f"{mean:.4f} above {trial.limit:.4f}", step)

    try:
        train(trial, path, corpora, watch, note=note, group=group)
    except Diverged as error:
        _end(path, "diverged", str(error), error.step)
    except _Hopeless as error:
        _end(path, "stopped", *error.args)


def _end(path: Path, outcome: str, reason: str, step: int) -> None:
    write_sealed(path / _STOPPED, {"outcome": outcome, "reason": reason, "step": step})
    checkpoint.drop(path)


def has_ended(path: Path) -> bool:
    """Whether the trial in this directory is finished, diverged or stopped."""
    return is_complete(path) or (path / _STOPPED).exists()


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
    found = read_json(path / _STOPPED, ("outcome", "step"))
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
    of a ``published`` log. Raises UserError where a file is no such log.
    """

    def __init__(self, path: Path, published: Path | None = None):
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        if published is not None:
            self.records |= _records(read_listed(published), published)
        if path.exists():
            self.records |= _records(path.read_bytes(), path)
            _cut(path)

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
        make_folder(self.path.parent)
        self.records[record["id"]] = record
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(record))


def _records(content: bytes, path: Path) -> dict[str, dict[str, Any]]:
    remedy = "remove that line, and the trial runs again"
    found = read_records(content, _FIELDS, str(path), "a trial", remedy)
    return {each["id"]: {name: each[name] for name in _FIELDS} for each in found}


def _line(record: dict[str, Any]) -> str:
    return json.dumps(sealed({name: record[name] for name in _FIELDS})) + "\n"


def _cut(path: Path) -> None:
    """Take away a last line that was cut short when its process ended."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)
