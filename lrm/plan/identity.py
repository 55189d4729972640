"""What identifies the mathematics of a run, beside its settings. No torch here."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from lrm.errors import UserError, shown, unreadable

# Raised by hand whenever a change alters what a run computes; part of every run's identity.
NUMERICS_VERSION = 1


def weight_files(folder: Path) -> list[Path]:
    """The configuration of a model's folder and its safetensors; UserError where it has none."""
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    if len(files) < 2 or not files[0].is_file():
        raise UserError(
            f"{folder} is no model's folder: it lacks config.json or .safetensors files; give one "
            "that save_pretrained wrote"
        )
    return files


def weights_hash(folder: Path) -> str:
    """Of the configuration and the weights of a model's folder."""
    return files_hash(weight_files(folder))


def files_hash(files: Sequence[Path]) -> str:
    """Of their contents, in this order."""
    try:
        states = [file.stat() for file in files]
        told = zip(files, states, strict=True)
        return _digest(tuple((f, s.st_size, s.st_mtime_ns) for f, s in told))
    except OSError as error:  # as of a link whose file is gone
        file = Path(error.filename or files[0])
        raise unreadable(file, error, "save the model there again") from None


@functools.lru_cache
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Of the contents; sizes and times only tell when to look again."""
    found = hashlib.sha256()
    for file, *_ in files:
        with open(file, "rb") as stream:
            found.update(hashlib.file_digest(stream, "sha256").digest())
    return found.hexdigest()[:16]


# What a lock may get after the seeds that judge have run: it means the same.
NOTED_SINCE = ("same_as", "grown_to", "only_added")


def criterion_hash(criterion: dict, lock: dict | None = None) -> str:
    """Identity of what judges one claim: its criterion and, where there is one, its lock.

    What would decide an open part (``if_open``) is advice, and no part of the criterion. A lock
    holds the hashes of the judging code and of the experiment's configuration; what has been noted
    beside them since means the same, and so does an entry that has got ``only`` since, which names
    the runs that there were before its experiment got more.
    """
    judged = {key: value for key, value in criterion.items() if key != "if_open"}
    if lock:
        judged["lock"] = {key: lock[key] for key in lock if key not in NOTED_SINCE}
        if "only_added" in lock and lock["only_added"] == criterion.get("only"):
            judged.pop("only", None)
    text = json.dumps(judged, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_locks(folder: Path) -> dict[str, dict]:
    """The locks of an experiment's claims (``locks.json``) by claim; none without the file.

    Raises UserError where the file is damaged, or an entry in it is no lock.
    """
    path, remedy = folder / "locks.json", "restore it from the repository"
    try:
        locks = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {remedy}") from None
    if not isinstance(locks, dict):
        raise UserError(f"{path} is damaged: it is no mapping of claims to locks; {remedy}")
    for claim, lock in locks.items():
        if not isinstance(lock, dict):
            raise UserError(f"{path}: {claim}: {shown(lock)} is no lock; {remedy}")
    return locks
