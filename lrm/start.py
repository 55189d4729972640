"""The identity of weights that a run begins from. No torch here."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from lrm.errors import UserError


def weights_hash(folder: Path) -> str:
    """Of a model's folder: its configuration and its safetensors.

    Raises UserError where it has none.
    """
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    if len(files) < 2 or not files[0].is_file():
        raise UserError(
            f"train.start: {folder} is no model's folder; give one that save_pretrained wrote"
        )
    states = [file.stat() for file in files]
    return _digest(tuple((f, s.st_size, s.st_mtime_ns) for f, s in zip(files, states, strict=True)))


@functools.lru_cache
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Of the contents; sizes and times only tell when to look again."""
    found = hashlib.sha256()
    for file, *_ in files:
        with open(file, "rb") as stream:
            found.update(hashlib.file_digest(stream, "sha256").digest())
    return found.hexdigest()[:16]
