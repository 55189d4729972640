"""Files that are written whole or not at all, and JSON that names what is wrong with it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from lrm.errors import UserError, shown, unreadable
from lrm.store.digests import MANIFEST, is_intact, sealed, with_listed


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
    """Write to a temporary neighbour, flush to disk, rename; the name is on disk too.

    Raises UserError where that fails. The file is then as it was.
    """
    write_filled(path, lambda file: file.write(data))


def write_filled(
    path: Path, fill: Callable[[BinaryIO], Any], check: Callable[[], None] = lambda: None
) -> None:
    """As ``write_atomic`` of what ``fill`` writes into a file, piece by piece.

    Where ``check`` raises, when all is written, the file stays as it was.
    """
    temporary = _write_beside(path, fill)
    try:
        check()
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _replace(temporary, path)


def _write_beside(path: Path, fill: Callable[[BinaryIO], Any]) -> Path:
    """The temporary neighbour of ``path``, on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _told(path, temporary), open(temporary, "wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _replace(temporary: Path, path: Path) -> None:
    with _told(path, temporary):
        os.replace(temporary, path)
        sync_folder(path.parent)


@contextmanager
def _told(path: Path, temporary: Path) -> Iterator[None]:
    """UserError where ``path`` cannot be written; ``temporary`` is then gone."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise unwritable(path, error) from None


def sync_folder(path: Path) -> None:
    """Have the names of the files in a folder survive a power failure, where that can be asked."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def unwritable(path: Path, error: OSError) -> UserError:
    """The error of a file that the system does not let us write."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "make room and run again" if full else "choose a writable folder"
    return UserError(f"cannot write {path}: {error.strerror}; {remedy}")


def as_json(data: Any, indent: int | None = 1) -> bytes:
    """Indented or, without ``indent``, on one line; with a final newline."""
    return (json.dumps(data, indent=indent) + "\n").encode()


def write_json(path: Path, data: Any) -> None:
    """Atomic; see ``as_json``."""
    write_atomic(path, as_json(data))


def write_sealed(path: Path, record: dict[str, Any]) -> None:
    """``write_json`` of a record with its own digest, which ``read_json`` compares."""
    write_json(path, sealed(record))


def write_listed(folder: Path, contents: dict[str, bytes]) -> None:
    """Write files by name, and then their digests into the folder's manifest.

    All of them are on disk before the first takes its place, so that little time is left in which
    an end would leave some of them new and others old.
    """
    whole = {**contents, MANIFEST: with_listed(folder, contents)}
    begun: list[tuple[Path, Path]] = []
    try:
        for name, content in whole.items():
            path = folder / name
            begun.append((_write_beside(path, lambda file, data=content: file.write(data)), path))
        for new, path in begun:
            _replace(new, path)
    finally:
        for new, _ in begun:
            with suppress(OSError):
                new.unlink(missing_ok=True)


def read_json(path: Path, keys: tuple[str, ...] = (), remedy: str = "") -> Any:
    """What a JSON file holds.

    Raises UserError, which ends with the remedy (by default to remove the folder), where the file
    is missing, not JSON, no mapping with ``keys``, or not what its own digest says.
    """
    remedy = remedy or f"remove {path.parent} and run again"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error, remedy) from None
    return parsed(content, path, keys, remedy)


def parsed(content: bytes, path: Path, keys: tuple[str, ...], remedy: str) -> Any:
    """What ``content``, read from ``path``, holds as JSON; raises UserError as ``read_json``."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        data = None
    if data is None or (keys and not (isinstance(data, dict) and set(keys) <= set(data))):
        raise UserError(f"{path} is damaged; {remedy}")
    if isinstance(data, dict) and not is_intact(data):
        raise UserError(f"{path} is damaged: its digest is not the recorded one; {remedy}")
    return data


def read_records(
    content: bytes, fields: Collection[str], place: str, kind: str, remedy: str
) -> list[dict[str, Any]]:
    """The records in an appended log of JSON lines; of a last line that was cut short, none.

    Raises UserError where a line is no mapping with these fields, or not what its own digest says.
    It names the log as ``place``, the number of the line, the ``kind`` of record that it should be
    and the ``remedy``.
    """
    found = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not record.keys() >= set(fields):
            raise UserError(f"{place}: line {number} is no record of {kind}; {remedy}")
        if not is_intact(record):
            raise UserError(f"{place}: line {number}, {kind}, is damaged; {remedy}")
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
