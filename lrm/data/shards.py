"""Token files: a header of 64 bytes, then unsigned little-endian integers.

Header, little-endian: magic (8 bytes), version (uint32), bytes per token (uint32), number of
tokens (uint64), blake2b of the tokens (32 bytes), zeros (8 bytes).
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from types import TracebackType

import numpy as np

from lrm.errors import UserError

MAGIC = b"LRMTOKEN"
VERSION = 1
HEADER = struct.Struct("<8sIIQ32s8x")
_TYPES = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_CHUNK = 1 << 22


class ShardWriter:
    """Writes one shard piece by piece; the header comes last, when the count is known."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        self.tokens = 0
        self._type = _TYPES[2 if vocab_size <= 1 << 16 else 4]
        self._digest = hashlib.blake2b(digest_size=32)
        self._file = path.open("wb")
        self._file.write(bytes(HEADER.size))

    def write(self, ids: list[int]) -> None:
        """Append token ids, each below the vocabulary size."""
        payload = np.array(ids, self._type).tobytes()
        self._file.write(payload)
        self._digest.update(payload)
        self.tokens += len(ids)

    @property
    def digest(self) -> bytes:
        """blake2b of the tokens written so far."""
        return self._digest.digest()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._file:
            if kind is None:
                self._file.seek(0)
                size = self._type.itemsize
                self._file.write(HEADER.pack(MAGIC, VERSION, size, self.tokens, self.digest))
                self._file.flush()
                os.fsync(self._file.fileno())


def open_shard(path: Path) -> np.ndarray:
    """The tokens of a shard, memory-mapped, read-only, of shape ``(tokens,)``.

    Raises UserError if the file is missing, is no shard of this version, or is not as long as
    its header says. The tokens themselves are not read: see ``verify_shard``.
    """
    kind, count, _ = _header(path)
    return np.memmap(path, kind, "r", offset=HEADER.size, shape=(count,))


def verify_shard(path: Path, vocab_size: int) -> None:
    """Read a whole shard.

    Raises UserError if its tokens do not match the checksum in its header, or if one is not
    below ``vocab_size``.
    """
    tokens = open_shard(path)
    digest = hashlib.blake2b(digest_size=32)
    for start in range(0, len(tokens), _CHUNK):
        piece = tokens[start : start + _CHUNK]
        digest.update(piece.tobytes())
        if piece.max() >= vocab_size:
            raise damaged(path, f"token {piece.max()} is not below vocab_size = {vocab_size}")
    if digest.digest() != _header(path)[2]:
        raise damaged(path, "its tokens do not match its checksum")


def damaged(path: Path, reason: str) -> UserError:
    """The error of a file that a new build would put right."""
    return UserError(f"{path}: {reason}; delete the folder {path.parent} and run again")


def _header(path: Path) -> tuple[np.dtype, int, bytes]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER.size)
    except OSError as error:
        raise damaged(path, f"cannot be read ({error.strerror})") from None
    if len(head) < HEADER.size:
        raise damaged(path, f"truncated: expected at least {HEADER.size} bytes, found {size}")
    magic, version, itemsize, count, digest = HEADER.unpack(head)
    if magic != MAGIC:
        raise damaged(path, f"not a token file: expected {MAGIC!r} at its start, found {magic!r}")
    if version != VERSION:
        raise damaged(path, f"expected format version {VERSION}, found {version}")
    if itemsize not in _TYPES or not count:
        raise damaged(path, f"impossible header: {count} tokens of {itemsize} bytes")
    expected = HEADER.size + count * itemsize
    if size != expected:
        raise damaged(path, f"truncated or overwritten: expected {expected} bytes, found {size}")
    return _TYPES[itemsize], count, digest
