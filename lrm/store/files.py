"""Files that are written whole or not at all, and JSON that names what is wrong with it."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from lrm.errors import UserError, shown


def named(path: str, setting: str) -> Path:
    """The path that a setting names; UserError where it has no home or is no possible name."""
    try:
        found = Path(path).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            os.stat(found)
    except (RuntimeError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{setting} = {shown(path)} cannot be used: {reason}") from None
    return found


def write_atomic(path: Path, data: bytes) -> None:
    """Write to a temporary neighbour, flush to disk, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"cannot write {path}: {error.strerror}; choose a writable folder"
        ) from None


def write_json(path: Path, data: Any) -> None:
    """Atomic, indented, with a final newline."""
    write_atomic(path, (json.dumps(data, indent=1) + "\n").encode())


def read_json(path: Path, keys: tuple[str, ...] = ()) -> Any:
    """Raises UserError where the file is missing, not JSON, or no mapping with ``keys``."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        data = None
    if data is None or (keys and not (isinstance(data, dict) and set(keys) <= set(data))):
        raise UserError(f"{path} is damaged; remove {path.parent} and run again")
    return data


def read_records(
    path: Path, fields: Collection[str], place: str, kind: str, remedy: str
) -> list[dict[str, Any]]:
    """The records of an appended log of JSON lines; of a last line that was cut short, none.

    Raises UserError where a line is no mapping with these fields. It names the log as ``place``,
    the number of the line, the ``kind`` of record that it should be and the ``remedy``.
    """
    content = path.read_bytes()
    found = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not record.keys() >= set(fields):
            raise UserError(f"{place}: line {number} is no record of {kind}; {remedy}")
        found.append(record)
    return found


def make_folder(path: Path) -> Path:
    """Create a folder; UserError where that is not allowed."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot create {path}: {error.strerror}; choose a writable folder with --results"
        ) from None
    if not os.access(path, os.W_OK):
        raise UserError(f"{path} is read-only; choose a writable folder with --results")
    return path
