"""The file that lists published runs: the ``run.json`` of each, as JSON in one compressed file."""

from __future__ import annotations

import functools
import json
import lzma
from collections.abc import Callable
from pathlib import Path

from lrm.errors import UserError
from lrm.store.digests import read_listed

# Descriptions of runs repeat one another over more than the 32 kB that gzip looks back.
RUN_LIST = "runs.json.xz"


def as_run_list(descriptions: list[dict]) -> bytes:
    """The content of the file."""
    return lzma.compress(json.dumps(descriptions).encode(), preset=9)


def read_run_list(path: Path) -> list[dict]:
    """The descriptions in the file; UserError where it is missing or not as it was written."""
    content = read_listed(path)
    try:
        return json.loads(lzma.decompress(content))
    except (ValueError, lzma.LZMAError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it from the repository") from None


def _remembered(reader: Callable[[Path], list[dict]]) -> Callable[[Path], list[dict]]:
    """``reader``, which takes an unchanged file's runs from its last call.

    What lists runs asks for those of one experiment several times, and most of that time is spent
    on JSON. Whoever reads the descriptions must not change them. The reader is wrapped and not
    changed, as in ``analysis.tables.checked``.
    """
    last: dict[Path, tuple[bytes, list[dict]]] = {}

    @functools.wraps(reader)
    def read(path: Path) -> list[dict]:
        content = read_listed(path)
        if path not in last or last[path][0] != content:
            last.clear()  # of one experiment alone: all together take hundreds of megabytes
            last[path] = content, reader(path)
        return [*last[path][1]]

    return read


read_run_list = _remembered(read_run_list)
