"""Digests: how a file that is read again is told from a damaged one. One way for all files.

A digest is BLAKE2b with 32 bytes, in hexadecimal. It stands in one of three places:

* A *sealed* record is JSON with its own digest under the key ``digest``.
* A *manifest*, the file ``B2SUMS``, lists the files of a folder that are read again, one a line,
  sorted by name. ``b2sum -c B2SUMS`` checks it as well.
* For other files it stands in the sealed record or in the checkpoint that is written after them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from lrm.errors import UserError, unreadable

MANIFEST = "B2SUMS"
_SEAL = "digest"
_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+)")


def running(data: bytes = b"") -> hashlib.blake2b:
    """A digest that is fed piece by piece."""
    return hashlib.blake2b(data, digest_size=32)


def digest(data: bytes) -> str:
    """Of bytes in memory."""
    return running(data).hexdigest()


def read_checked(path: Path, expected: str | None, remedy: str) -> bytes:
    """The content of a file whose digest is ``expected`` (None: whatever it is).

    Raises UserError, which ends with the remedy, where it is missing or its content is another.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error, remedy) from None
    if expected is not None and digest(content) != expected:
        raise _damaged(path, remedy)
    return content


def digest_of_file(path: Path) -> str:
    """Of a file that may be too large for memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, running).hexdigest()


def check_file(path: Path, expected: str, remedy: str) -> None:
    """As ``read_checked`` for a file that may be too large for memory, without its content."""
    try:
        found = digest_of_file(path)
    except OSError as error:
        raise unreadable(path, error, remedy) from None
    if found != expected:
        raise _damaged(path, remedy)


def _damaged(path: Path, remedy: str) -> UserError:
    return UserError(f"{path} is damaged: its digest is not the recorded one; {remedy}")


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """``record`` with its own digest."""
    bare = {key: value for key, value in record.items() if key != _SEAL}
    return {**bare, _SEAL: _of_record(bare)}


def is_intact(record: dict[str, Any]) -> bool:
    """Whether a record has the digest that it holds; one without a digest counts as intact."""
    bare = {key: value for key, value in record.items() if key != _SEAL}
    return _SEAL not in record or record[_SEAL] == _of_record(bare)


def is_sealed(record: dict[str, Any]) -> bool:
    """Whether a record holds a digest; those of earlier versions do not."""
    return _SEAL in record


def _of_record(bare: dict[str, Any]) -> str:
    text = json.dumps(bare, sort_keys=True, separators=(",", ":"))
    return digest(text.encode("utf-8", "surrogatepass"))


def manifest_of(folder: Path, names: Collection[str]) -> bytes:
    """The text of a manifest of these files as they lie in ``folder``."""
    return _text({name: digest((folder / name).read_bytes()) for name in names})


def restore(folder: Path) -> str:
    """The remedy for what is published: it comes with the repository, and is not made here."""
    return f"restore {folder} from the repository"


def read_listed(path: Path, remedy: str = "") -> bytes:
    """The content of a file that the manifest beside it lists.

    Raises UserError, which ends with the remedy (by default to restore the folder), where file or
    manifest are missing or damaged, or do not agree.
    """
    remedy = remedy or restore(path.parent)
    listed = _listed(path.parent, remedy)
    if path.name not in listed:
        raise UserError(f"{path} is not listed in {path.parent / MANIFEST}; {remedy}")
    return read_checked(path, listed[path.name], remedy)


def is_listed(path: Path) -> bool:
    """Whether a published file is to be there: the manifest beside it lists it."""
    if not (path.parent / MANIFEST).exists():
        return False
    return path.name in _listed(path.parent, restore(path.parent))


def with_listed(folder: Path, contents: dict[str, bytes]) -> bytes:
    """The text of the manifest of ``folder`` once these files are written; others stay listed."""
    listed = _listed(folder, restore(folder)) if (folder / MANIFEST).exists() else {}
    return _text(listed | {name: digest(content) for name, content in contents.items()})


def _listed(folder: Path, remedy: str) -> dict[str, str]:
    path = folder / MANIFEST
    lines = read_checked(path, None, remedy).decode("utf-8", "replace").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    if not all(found):
        raise UserError(f"{path} is damaged: it is no list of digests; {remedy}")
    return {match[2]: match[1] for match in found}


def _text(digests: dict[str, str]) -> bytes:
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()
