"""A folder of files that another program makes for later: all are as they were made, or are gone.

The program reads them as they lie. Therefore they are compared with their digests before it does.
Each use reads all files for that, which takes about two seconds a gigabyte.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lrm.errors import UserError
from lrm.store.digests import digest
from lrm.store.files import read_json, write_sealed
from lrm.store.flock import is_last, release, take

_LIST = "digests.json"


@contextmanager
def checked(folder: Path) -> Iterator[list[str]]:
    """Around the use of ``folder``; yields the names of damaged files, which it has removed.

    Several processes may use it at once. The last of them to end notes the digests of what was
    made. If its own use has failed, it removes that instead: it may be incomplete. What a process
    left that failed while others were at work is noted with the rest.
    A folder that has no list of digests yet is taken as it lies. So is any folder where the file
    system has no locks.
    """
    with open(folder / ".lock", "a+") as lock:
        if not take(lock, shared=True):
            yield []
            return
        listed = _listed(folder)
        damaged = _damaged(folder, listed)
        if damaged or listed is None:
            # Nobody is about to load them, or has made new ones. Two that keep a shared lock while
            # they ask for the other would wait for each other.
            release(lock)
            take(lock)
            listed = _listed(folder)
            damaged = _damaged(folder, listed)
            _remove(folder, set(damaged))
            kept = _digests(folder, _names(folder)) if listed is None else listed
            _write(folder, {name: found for name, found in kept.items() if name not in damaged})
            take(lock, shared=True)
        try:
            yield damaged
        except BaseException:
            if is_last(lock):
                _remove(folder, _names(folder) - set(_listed(folder) or ()))
            raise
        if is_last(lock):
            listed = _listed(folder) or {}
            if made := _names(folder) - set(listed):
                _write(folder, listed | _digests(folder, made))


def _names(folder: Path) -> set[str]:
    """The files by their paths in the folder, without locks and what is being written.

    Another process may compile there: folders vanish, and Triton writes into some that begin with
    ``tmp.`` first.
    """
    found = set()
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith("tmp.")]
        inside = Path(place).relative_to(folder)
        found |= {
            (inside / name).as_posix()
            for name in files
            if not name.endswith(".lock") and name[0] != "." and name != _LIST
        }
    return found


def _listed(folder: Path) -> dict[str, str] | None:
    """The digests by name; None without a list. By a damaged list every file is damaged."""
    if not (folder / _LIST).exists():
        return None
    with suppress(UserError, TypeError, ValueError):
        return dict(read_json(folder / _LIST, ("files",))["files"])
    return dict.fromkeys((_LIST, *_names(folder)), "unknown")


def _damaged(folder: Path, listed: dict[str, str] | None) -> list[str]:
    found = _digests(folder, listed or ())
    return sorted(name for name in found if found[name] != listed[name])


def _digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """By name; nothing of a file that cannot be read."""
    found = dict.fromkeys(names, "")
    for name in found.keys() & _names(folder):
        with suppress(OSError):
            found[name] = digest((folder / name).read_bytes())
    return found


def _remove(folder: Path, names: set[str]) -> None:
    for name in names & _names(folder):
        (folder / name).unlink(missing_ok=True)


def _write(folder: Path, digests: dict[str, str]) -> None:
    write_sealed(folder / _LIST, {"files": dict(sorted(digests.items()))})
