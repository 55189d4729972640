"""Files of tables are compared with their digests before they are read.

Their readers are wrapped, and not changed: claims are locked to the code that reads their tables
(``analysis.claims.judges``), and of a file that is as it was written it makes what it always made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analysis.tables.run_list import RUN_LIST
from lrm.errors import UserError
from lrm.store.digests import is_listed, read_listed
from lrm.store.rundir import is_complete, read_file


def checked(reader: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """``reader`` for files of finished runs, and for those that a manifest lists.

    It raises UserError where the file is missing or not the one that was written.
    """

    @functools.wraps(reader)
    def read(path: Path) -> Any:
        if is_listed(path) or not is_complete(path.parent):
            read_listed(path)
        else:
            read_file(path.parent, path.name)
        return reader(path)

    return read


def complete(finder: Callable[..., Any]) -> Callable[..., Any]:
    """``find``, which tells of a list of published runs that is gone, and of copies of runs."""

    @functools.wraps(finder)
    def find(experiment: str, scale: str, source: str, results: Path, *arguments, **named):
        runs = results / "reference" / scale / experiment / RUN_LIST
        if source == "reference" and not runs.exists() and is_listed(runs):
            read_listed(runs)
        found = finder(experiment, scale, source, results, *arguments, **named)
        for description, path in found:
            if source == "runs" and path.name != description["id"]:
                raise UserError(
                    f"{path} is a copy of run {description['id']}; move it out of {path.parent}"
                )
        return found

    return find
