"""A run on disk. No torch at import, so that the planner can look at runs.

``results/runs/<experiment>/<id>/`` holds

* ``run.json``: identity, settings, expanded rule table, groups, dimensionless products,
  environment;
* ``metrics.jsonl``, ``probes.jsonl``, ``vectors.jsonl``: appended while training;
* ``checkpoint.pt``: the latest state, replaced atomically, gone when the run is done;
* ``checkpoint-<step>-<chance>/``: its tensors, where the model lies in parts on several processes.
  Each writes a file of its own (``lrm.store.parts``), and ``checkpoint.pt``, which is replaced when
  all are on disk, holds their digests. Without being named there such a folder is a leftover;
* ``scalars.parquet``, ``vectors.parquet``: the same measurements, compacted at the end;
* ``weights.pt``: the final learnable tensors; ``weights-<step>.pt`` those of a snapshot;
* ``tensorboard/``: the measurements for TensorBoard, with ``execution.tensorboard``;
* ``failed.json``: why it failed, until it starts again;
* ``stopped.json``: why a trial of a search ended before its last step;
* ``done.json``: written last; its presence means that the run is complete. It holds the digests
  of the files above and its own, which are compared whenever one of them is read. Runs of earlier
  versions have none, and are read as they lie.

While a run trains, its checkpoint holds the digests of the logs and of the snapshots, and what
``run.json`` said of how the run was begun.
"""

from __future__ import annotations

import copy
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrm.errors import HIDDEN, UserError, unreadable
from lrm.store import checkpoint
from lrm.store.compaction import tables
from lrm.store.digests import digest, is_sealed, read_checked
from lrm.store.files import (
    as_json,
    make_folder,
    parsed,
    read_json,
    write_atomic,
    write_json,
    write_sealed,
)
from lrm.store.lock import Claim, holder_of, locked
from lrm.store.log import Log

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from lrm.store.parts import Commit, Saving

LOGS = ("metrics.jsonl", "probes.jsonl", "vectors.jsonl")
# What a finished run has found.
RESULTS = ("scalars.parquet", "vectors.parquet", "weights.pt")
_DESCRIBED = ("id", "kind", "scale", "arm", "grid", "seed", "label")
_FAILED = "failed.json"
_GIVEN_UP = "stopped.json"


def weights_file(step: int | None = None) -> str:
    """The file of the weights after ``step`` steps, where they are kept; without one, the last."""
    return "weights.pt" if step is None else f"weights-{step}.pt"


def read_description(path: Path, remedy: str = "") -> dict[str, Any]:
    """The ``run.json`` of the run in this directory; UserError where it is damaged.

    ``remedy`` is what then helps in a folder that was exported of a run.
    """
    if is_complete(path):
        content = read_file(path, "run.json")
        return parsed(content, path / "run.json", _DESCRIBED, _remedy(path))
    return read_json(path / "run.json", _DESCRIBED, remedy or remedy_of_description(path))


def remedy_of_description(path: Path) -> str:
    """What helps where the ``run.json`` in this directory is damaged.

    A run that goes on from its checkpoint writes it anew; to remove the run would lose that.
    """
    if not is_complete(path) and checkpoint.file(path).exists():
        return "call the same run.py again, which goes on from the checkpoint and writes it anew"
    return _remedy(path)


def read_outcome(path: Path) -> dict[str, Any]:
    """What ``done.json`` says of the finished run in this directory; UserError where it is damaged.

    Its digests are left out.
    """
    record = _read_done(path)
    return {key: value for key, value in record.items() if key not in ("files", "digest")}


def _read_done(path: Path) -> dict[str, Any]:
    record = read_json(path / "done.json", ("validation_loss",))
    if is_sealed(record) != ("files" in record):
        raise UserError(f"{path / 'done.json'} is damaged; {_remedy(path)}")
    return record


def read_file(path: Path, name: str) -> bytes:
    """A file of the finished run in this directory; UserError where it is missing or damaged."""
    digests = _read_done(path).get("files")
    expected = None if digests is None else digests.get(name, "")
    return read_checked(path / name, expected, _remedy(path))


def digest_of(path: Path) -> str:
    """Of all that tables are made of in the finished run in this directory, as it was written.

    That of an earlier version is read for it.
    """
    record = _read_done(path)
    if "files" in record:
        return record["digest"]
    names = ("done.json", "run.json", *RESULTS[:2])
    return digest("".join(digest(read_file(path, name)) for name in names).encode())


def is_complete(path: Path) -> bool:
    """Whether the run in this directory has finished.

    One in which nothing can be seen counts as finished: it must not be trained over, and whoever
    reads it is told.
    """
    try:
        return (path / "done.json").exists()
    except OSError as error:
        if error.errno not in HIDDEN:
            raise
        return True


def is_begun(path: Path) -> bool:
    """Whether a process works on the run in this directory, or it has got anywhere.

    A directory in which a copy was interrupted holds nothing to go on from.
    """
    if is_complete(path):
        return True
    got = (checkpoint.file(path), *(path / name for name in (*LOGS, _FAILED, _GIVEN_UP)))
    return holder_of(path) is not None or any(file.exists() for file in got)


def check_results(path: Path) -> None:
    """Read every file that the finished run in this directory has; UserError as ``read_file``."""
    for name in _found(path):
        read_file(path, name)


def _found(path: Path) -> list[str]:
    """The files of a finished run, but for ``run.json``; of an earlier version those there are."""
    listed = [name for name in _read_done(path).get("files", ()) if name != "run.json"]
    return listed or [name for name in RESULTS if (path / name).exists()]


def run_folders(results: Path) -> tuple[list[Path], list[UserError]]:
    """The directories of all runs below ``results``, sorted, and of what cannot be listed why."""
    found, hidden = [], []
    for folder in sorted((results / "runs").glob("[!.]*/")):
        try:
            inside = [path for path in sorted(folder.iterdir()) if path.is_dir()]
            found += [path for path in inside if not path.name.startswith(".")]  # claims
        except FileNotFoundError:  # it has just been removed
            continue
        except OSError as error:
            hidden.append(unreadable(folder, error, "make it a folder"))
    return found, hidden


def damage(path: Path) -> UserError | None:
    """What is wrong with the records of a finished run in this directory; None of all others.

    Of the other files that it lists only whether they are there.
    """
    if is_complete(path):
        try:
            read_description(path)
            for name in _read_done(path).get("files", ()):
                _check_there(path / name)
        except UserError as error:
            return error
    return None


def _check_there(file: Path) -> None:
    try:
        file.stat()
    except OSError as error:
        raise unreadable(file, error, _remedy(file.parent)) from None


def give_up(path: Path, outcome: str, reason: str, step: int) -> None:
    """Mark a trial of a search as ended before its last step; it will not go on.

    ``outcome``: ``stopped``, as others are better, or ``diverged``.
    """
    write_sealed(path / _GIVEN_UP, {"outcome": outcome, "reason": reason, "step": step})
    checkpoint.drop(path)


def read_given_up(path: Path) -> dict[str, Any] | None:
    """What ``give_up`` left in this directory, if anything; UserError where it is damaged."""
    if not (path / _GIVEN_UP).exists():
        return None
    record = read_json(path / _GIVEN_UP, ("outcome", "reason", "step"))
    if not all(isinstance(record[key], str) for key in ("outcome", "reason")):
        raise UserError(f"{path / _GIVEN_UP} is damaged; {_remedy(path)}")
    return record


def note_failure(path: Path, line: str, log: Path | None = None) -> None:
    """Leave in the run's directory why it failed, and where the rest is told, for lists of runs.

    Its next start removes it. Nothing is raised where it cannot be written.
    """
    with suppress(UserError):
        write_json(path / _FAILED, {"error": line, "log": log and str(log)})


def forget_failure(path: Path) -> None:
    """The run is to be tried again."""
    (path / _FAILED).unlink(missing_ok=True)


def read_failure(path: Path) -> dict[str, Any] | None:
    """The ``error`` and ``log`` of a run that failed and was not begun again since; else None.

    None too where that cannot be read: the run is then tried again.
    """
    with suppress(UserError):
        return stated_failure(path)
    return None


def stated_failure(path: Path) -> dict[str, Any] | None:
    """As ``read_failure``; UserError where that cannot be read."""
    file = path / _FAILED
    if not file.exists():
        return None
    record = read_json(file, ("error", "log"), remedy := f"remove {file}")
    if not isinstance(record["error"], str) or not isinstance(record["log"], str | None):
        raise UserError(f"{file} is damaged; {remedy}")
    return record


def _remedy(path: Path) -> str:
    return f"remove {path} and run again"


class RunDirectory:
    """Writer of one run; use inside ``open_run``."""

    def __init__(self, path: Path, claim: Claim | None = None):
        self.path, self._claim = path, claim
        self._logs: dict[str, Log] = {}
        self._digests: dict[str, str] = {}
        self._begun: dict[str, Any] = {}
        self._parts: dict[str, Any] = {}
        self._saving: Saving | None = None

    @property
    def checkpoint(self) -> Path:
        """Where the latest state lies."""
        return checkpoint.file(self.path)

    @property
    def complete(self) -> bool:
        """Whether another process has finished this run; then its leftovers are removed."""
        if not is_complete(self.path):
            return False
        self._remove_leftovers()
        return True

    def _remove_leftovers(self) -> None:
        forget_failure(self.path)
        checkpoint.drop(self.path)
        for log in LOGS:
            (self.path / log).unlink(missing_ok=True)
        # Of processes that were killed: what they were writing, and claims that they were making.
        for pattern in (".*.[0-9]*", ".claim.*", ".clock.*"):
            for left in self.path.glob(pattern):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)

    def start(
        self, description: dict[str, Any], note: checkpoint.Note = lambda line: None
    ) -> dict[str, Any] | None:
        """Write ``run.json``; the latest state where there is one, with the logs cut back to it.

        Tensors of a model in parts are not in it; ``read_parts`` reads them.
        ``note`` gets a line where the run goes on in another environment than it was begun in.
        Raises UserError where the checkpoint is damaged or of another run, where a log is not what
        the checkpoint says, and where the way of computing is not the one begun with.
        """
        self._check_claim()
        forget_failure(self.path)
        state = self._read_checkpoint()
        checkpoint.remove_parts(self.path, self._parts.get("folder"))
        checkpoint.remove_unfinished(self.path)
        if state is not None:
            begun = self._how_begun(state)
            description = checkpoint.continued(self.path, description, state["step"], begun, note)
        marks = {} if state is None else checkpoint.marks(state)
        self._digests |= json.loads(state.pop("snapshots", "{}")) if state else {}
        self._logs = {log: self._log(log, marks.get(log)) for log in LOGS}
        self._begun = {key: description[key] for key in checkpoint.BEGUN if key in description}
        self._begun["id"] = description.get("id")
        self._write("run.json", as_json(description))
        return state

    def _how_begun(self, state: dict[str, Any]) -> dict[str, Any]:
        """From the checkpoint; those of earlier versions leave it to ``run.json``."""
        said = state.pop("begun", None)
        if said is not None:
            return json.loads(said)
        file = self.path / "run.json"
        return read_json(file, _DESCRIBED) if file.exists() else {}

    def _read_checkpoint(self) -> dict[str, Any] | None:
        state = checkpoint.read(self.path)
        self._parts = {} if state is None else state.pop("parts", {})
        return state

    def _check_claim(self) -> None:
        if self._claim is not None:
            self._claim.check()

    def _write(self, name: str, content: bytes) -> None:
        """Write a file whose digest ``done.json`` will hold."""
        self._check_claim()
        write_atomic(self.path / name, content)
        self._digests[name] = digest(content)

    def append(self, log: str, record: dict[str, Any]) -> None:
        """Append one JSON line to a log (buffered until ``flush``)."""
        if log not in self._logs:
            self._logs[log] = self._log(log)
        self._logs[log].append(record)

    def _log(self, name: str, mark: dict[str, Any] | None = None) -> Log:
        return Log(self.path / name, mark, self._check_claim)

    def flush(self) -> None:
        """Hand all logs to the system."""
        for log in self._logs.values():
            log.flush()

    def close(self) -> None:
        """Have all written: what is being saved, and the logs, whose files are given back."""
        with ExitStack() as stack:
            for log in self._logs.values():
                stack.callback(log.close)
            self.settle()

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Save ``state`` atomically, with the lengths and digests of the logs, which are on disk.

        A torn file is told by its digest. Raises Busy where another process has taken the run.
        """
        self.settle()
        checkpoint.write(self.path, self._record(state), self._check_claim)
        checkpoint.remove_parts(self.path)

    def save_parts(
        self, state: dict[str, Any], tensors: dict[str, Tensor], chance: str, group: ProcessGroup
    ) -> None:
        """Save ``state`` and beside it ``tensors``, each process what lies there of them.

        Returns when all is copied, so that training may go on. The checkpoint is replaced when all
        processes have written, and ``settle`` waits for that. They call this alike, the others on
        an ``Onlooker``, with a word ``chance`` that no folder has in its name. Over ``group`` they
        tell each other. Raises what kept the last checkpoint from being saved, and Busy.
        """
        self.settle()
        record = copy.deepcopy(self._record(state))
        folder = checkpoint.parts_folder(state["step"], chance)

        def commit(digests: dict[str, str]) -> None:
            self._check_claim()
            parts = {"folder": folder, "files": digests}
            checkpoint.write(self.path, {**record, "parts": parts}, self._check_claim)
            checkpoint.remove_parts(self.path, folder)

        self._save_parts(folder, tensors, commit, group)

    def _save_parts(
        self, folder: str, tensors: dict[str, Tensor], commit: Commit, group: ProcessGroup
    ) -> None:
        from lrm.store.parts import Saving

        self._saving = Saving(self.path / folder, tensors, commit, group)

    def settle(self) -> None:
        """Wait until the checkpoint that is being saved counts; raises what keeps it from that."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.wait()

    def _record(self, state: dict[str, Any]) -> dict[str, Any]:
        """``state`` with what else a checkpoint tells."""
        self._check_claim()
        marks = {name: log.mark() for name, log in self._logs.items()}
        snapshots = {name: found for name, found in self._digests.items() if name != "run.json"}
        kept = {"begun": json.dumps(self._begun), "snapshots": json.dumps(snapshots)}
        return {**state, "logs": marks, **kept}

    def read_parts(self, tensors: dict[str, Tensor]) -> None:
        """Fill ``tensors`` with those of the latest state, whatever part of each lies here.

        Raises UserError where a file is missing or damaged, or holds those of another model.
        """
        from lrm.store import parts

        folder = self.path / self._parts["folder"]
        remedy = f"remove {self.checkpoint} and this run starts again from step 0"
        parts.load(folder, self._parts["files"], tensors, remedy)

    def take_over(self, source: Path, description: dict[str, Any]) -> None:
        """Finish with what the finished run in ``source`` has found, under this description."""
        self._write("run.json", as_json(description))
        for name in _found(source):
            self._write(name, read_file(source, name))
        self._mark_done(read_outcome(source))

    def _mark_done(self, outcome: dict[str, Any]) -> None:
        self._check_claim()
        write_sealed(self.path / "done.json", {**outcome, "files": self._digests})
        self._remove_leftovers()

    def finish(self, outcome: dict[str, Any], weights: dict[str, Any] | None) -> None:
        """Compact the logs, keep the final tensors, mark the run as done, drop the checkpoint."""
        self.settle()
        records = [self._logs[log].records() if log in self._logs else [] for log in LOGS]
        for name, content in tables(*records):
            self._write(name, content)
        if weights is not None:
            self.save_weights(weights)
        self._mark_done(outcome)

    def save_weights(self, weights: dict[str, Any], step: int | None = None) -> None:
        """Keep tensors as those after ``step`` steps, or as the last."""
        import torch

        buffer = io.BytesIO()
        torch.save(weights, buffer)
        self._write(weights_file(step), buffer.getvalue())


class Onlooker(RunDirectory):
    """The same directory for a process that helps the first to train: read, never written."""

    @property
    def complete(self) -> bool:
        return is_complete(self.path)

    def start(
        self, description: dict[str, Any], note: checkpoint.Note = lambda line: None
    ) -> dict[str, Any] | None:
        state = self._read_checkpoint()
        for key in ("begun", "snapshots", "logs", "log_lengths") if state else ():
            state.pop(key, None)
        return state

    def append(self, log: str, record: dict[str, Any]) -> None:
        pass

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        pass

    def save_parts(
        self, state: dict[str, Any], tensors: dict[str, Tensor], chance: str, group: ProcessGroup
    ) -> None:
        self.settle()
        # Only the first process is asked to.
        folder = checkpoint.parts_folder(state["step"], chance)
        self._save_parts(folder, tensors, lambda digests: None, group)


@contextmanager
def open_run(
    path: Path,
    writes: bool = True,
    waits: bool = False,
    note: checkpoint.Note = lambda line: None,
) -> Iterator[RunDirectory]:
    """Exclusive access to a run's directory; Busy, a UserError, if another process trains it.

    It ``waits`` for that process instead, where asked to, and ``note`` is told. Without ``writes``,
    an onlooker of the process that has it.
    """
    if not writes:
        with _closed(Onlooker(path)) as directory:
            yield directory
        return
    make_folder(path)
    with locked(path, waits, note) as claim, _closed(RunDirectory(path, claim)) as directory:
        yield directory


@contextmanager
def _closed(directory: RunDirectory) -> Iterator[RunDirectory]:
    try:
        yield directory
    except BaseException:
        # What fails on the way out must not hide why.
        with suppress(Exception):
            directory.close()
        raise
    directory.close()
