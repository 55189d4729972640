"""The file that lists published runs: the ``run.json`` of each, as JSON in one compressed file."""

from __future__ import annotations

import json
import lzma
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
