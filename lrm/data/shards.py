"""Token files: a header of 64 bytes, then unsigned little-endian integers.

Header, little-endian: magic (8 bytes), version (uint32), bytes per token (uint32), number of
tokens (uint64), digest of the tokens (32 bytes, ``lrm.store.digests``), zeros (8 bytes).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lrm.errors import UserError, unreadable
from lrm.store.digests import running

MAGIC = b"LRMTOKEN"
VERSION = 1
HEADER = struct.Struct("<8sIIQ32s8x")
_TYPES = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_CHUNK = 1 << 22


class ShardWriter:
    """Writes one shard piece by piece; the header comes last, when the count is known."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        self.path = path
        self.tokens = 0
        self._type = _TYPES[2 if vocab_size <= 1 << 16 else 4]
        self._digest = running()
        path.write_bytes(bytes(HEADER.size))

    def write(self, ids: list[int]) -> None:
        """Append token ids, each below the vocabulary size."""
        payload = np.array(ids, self._type).tobytes()
        with self.path.open("ab") as file:
            file.write(payload)
        self._digest.update(payload)
        self.tokens += len(ids)

    def close(self) -> None:
        """Write the header; the shard is complete, and on disk."""
        size, digest = self._type.itemsize, self._digest.digest()
        with self.path.open("r+b") as file:
            file.write(HEADER.pack(MAGIC, VERSION, size, self.tokens, digest))
            file.flush()
            os.fsync(file.fileno())


def open_shard(path: Path) -> np.ndarray:
    """The tokens of a shard, memory-mapped, read-only, of shape ``(tokens,)``.

    Raises UserError if the file is missing, is no shard of this version, or is not as long as
    its header says. The tokens themselves are not read: see ``verify_shard``.
    """
    dtype, count, _ = _header(path)
    return np.memmap(path, dtype, "r", offset=HEADER.size, shape=(count,))


class Tokens:
    """The tokens of several shards, one behind the other, read where they are asked for.

    ``tokens[i]``, with an integer, a slice of step 1 or an array of integers of any shape, is
    what the concatenated array would give. Raises UserError as ``open_shard`` does.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._shards = [open_shard(path) for path in paths]
        self._ends = np.cumsum([len(shard) for shard in self._shards])
        self.dtype = self._shards[0].dtype

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int | slice | np.ndarray) -> np.ndarray:
        if isinstance(index, slice):
            return self[np.arange(*index.indices(len(self)))]
        index = np.asarray(index)
        if ((index < -len(self)) | (index >= len(self))).any():
            raise IndexError(f"{index} in {len(self)} tokens")
        index = index % len(self)
        numbers = np.searchsorted(self._ends, index, side="right")
        tokens = np.empty(index.shape, self.dtype)
        for number in np.unique(numbers):
            here, shard = numbers == number, self._shards[number]
            tokens[here] = shard[index[here] - (self._ends[number] - len(shard))]
        return tokens[()]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        """All of them in memory."""
        return np.concatenate(self._shards).astype(dtype or self.dtype)


def verify_shard(path: Path, vocab_size: int) -> None:
    """Read a whole shard.

    Raises UserError if its tokens do not match the checksum in its header, or if one is not
    below ``vocab_size``.
    """
    digest = running()
    for piece in pieces(path):
        digest.update(piece)
        if piece.max() >= vocab_size:
            raise damaged(path, f"token {piece.max()} is not below vocab_size = {vocab_size}")
    if digest.digest() != _header(path)[2]:
        raise damaged(path, "its tokens do not match its checksum")


def recorded_digest(path: Path) -> str:
    """The checksum that a shard's header holds of its tokens; raises UserError as
    ``open_shard``."""
    return _header(path)[2].hex()


def pieces(path: Path) -> Iterator[np.ndarray]:
    """The tokens of a shard in short arrays, in order."""
    tokens = open_shard(path)
    for start in range(0, len(tokens), _CHUNK):
        yield tokens[start : start + _CHUNK]


def damaged(path: Path, reason: str) -> UserError:
    """The error of a file that a new build would put right."""
    return UserError(f"{path}: {reason}; {remedy_of(path)}")


def remedy_of(path: Path) -> str:
    """What puts a file of a corpus right."""
    return f"delete the folder {path.parent} and run again"


def _header(path: Path) -> tuple[np.dtype, int, bytes]:
    """Type of the tokens, their number and their checksum."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER.size)
    except OSError as error:
        raise unreadable(path, error, remedy_of(path)) from None
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
