"""A folder that one process claims at a time, on shared file systems too.

The claim is the folder ``.claim``. Its only entry is named after the process that holds it, or
``free``. A claim changes hands by one rename of that entry, which succeeds for one process alone:
for all others the old name is gone. File locks are not used, because many shared file systems lack
them or keep them within one machine.

The holder touches its entry every half minute. A holder that ended without giving its claim back
loses it to the next process that asks: at once where that process can know, which is on the same
machine and for the same SLURM job after a requeue, and after ten minutes of silence elsewhere.
"""

from __future__ import annotations

import errno
import functools
import os
import secrets
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from lrm.errors import Busy, UserError
from lrm.store.files import make_folder

BEAT = 30.0  # seconds between two touches
SILENCE = 600.0  # seconds without a touch after which a holder counts as gone
_POLL, _LONGEST_POLL = 0.2, 5.0  # seconds between two tries of a process that waits
_TRIES = 50  # to take a claim that nobody holds
_FREE = "free"
_UNKNOWN = "unknown"


class Holder(NamedTuple):
    """Who holds a claim; its fields, joined by commas, are the name of the entry.

    ``machine`` changes with every boot, and differs between containers whose processes have other
    numbers. ``start`` tells processes apart that had the same number. ``job`` and ``restart`` are
    SLURM's, and empty elsewhere.
    """

    host: str
    machine: str
    process: str
    start: str
    job: str
    restart: str
    chance: str

    @property
    def text(self) -> str:
        """For people: where it runs."""
        job = f", job {self.job}" if self.job else ""
        return f"process {self.process} on {self.host}{job}"

    def has_ended(self, entry: Path) -> bool:
        """Whether it is known, or after long silence taken, to run no more."""
        me = _myself()
        if (self.host, self.machine) == (me.host, me.machine):
            start = start_of(int(self.process))
            if not start or _UNKNOWN not in (start, self.start):
                return start != self.start
        if self.job and self.job == me.job and self.restart < me.restart:
            return True
        return _silence(entry) > SILENCE


class Claim:
    """A claim that this process holds."""

    def __init__(self, entry: Path):
        self._entry = entry
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def check(self) -> None:
        """Raise Busy where another process has it by now, as after this one was suspended."""
        if not self._entry.exists():
            raise Busy(
                f"{self._entry.parents[1]} was taken over by another process, because this one was "
                "silent for long; wait for that one or stop it"
            )

    def give_back(self) -> None:
        """Let others have it."""
        self._over.set()
        with suppress(OSError):  # the folder may have been removed
            self._entry.rename(self._entry.with_name(_FREE))

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with suppress(OSError):
                os.utime(self._entry)


@contextmanager
def locked(
    path: Path, waits: bool = False, note: Callable[[str], None] = lambda line: None
) -> Iterator[Claim]:
    """Hold the claim of the folder ``path``, which is made where it is missing.

    Raises Busy where another process has it, or ``waits`` for that process where asked to, of which
    ``note`` is told once. Raises UserError where the folder cannot be written, or what lies in its
    claim is none.
    """
    pause, tries, told = _POLL, 0, False
    while not isinstance(found := _take(path), Claim):
        if found is None:  # another process is just taking it, or nobody can
            pause, tries = _POLL, tries + 1
            if tries > _TRIES:
                raise UserError(f"{path / '.claim'} holds no claim; remove it and run again")
        elif not waits:
            raise Busy(
                f"{path} is in use by another process ({found.text}); wait for it or stop it"
            )
        else:
            tries = 0
            if not told:
                note(f"{path} is in use by another process ({found.text}); waiting for it")
            told = True
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_POLL)
    try:
        yield found
    finally:
        found.give_back()


@contextmanager
def publishing(results: Path) -> Iterator[None]:
    """Be the only process that writes into ``reference`` below ``results``; waits for another.

    Whoever reads lists or manifests there, and writes them with more, does both inside.
    """
    with locked(results / "runs", waits=True):
        yield


def holder_of(path: Path) -> Holder | None:
    """Who holds the claim of the folder ``path``; None where nobody does, or who did has ended."""
    entry = _entry(path)
    return entry and _holder(entry)


def _take(path: Path) -> Claim | Holder | None:
    """The claim of ``path``, or who holds it; None where another process was faster."""
    own = path / ".claim" / ",".join(_myself(secrets.token_hex(8)))
    try:
        if (old := _entry(path)) is None:
            taken = _begin(path, own)
        elif (holder := _holder(old)) is not None:
            return holder
        else:
            taken = _take_over(old, own)
    except OSError as error:
        raise UserError(
            f"{path} cannot be claimed ({error.strerror}); choose a writable folder with --results"
        ) from None
    return Claim(own) if taken else None


def _begin(path: Path, own: Path) -> bool:
    """Make the folder of claims, with our entry in it, unless another process does."""
    make_folder(path)
    made = path / f".claim.{own.name.rpartition(',')[2]}"
    try:
        made.mkdir()
        (made / own.name).touch()
        made.rename(own.parent)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        # Another was first, or has just removed the folder of the run.
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            return own.exists()  # a server may carry out what it then says has failed
        raise
    return True


def _take_over(old: Path, own: Path) -> bool:
    try:
        os.utime(old)  # before the rename: a new holder must not look silent
        old.rename(own)
    except FileNotFoundError:
        return own.exists()  # a server may carry out what it then says has failed
    return True


def _entry(path: Path) -> Path | None:
    """The entry of the claim, beside which file systems and desktops may leave files of theirs."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = (path / ".claim").iterdir()
        return next((each for each in found if each.name == _FREE or _read(each)), None)
    return None


def _holder(entry: Path) -> Holder | None:
    """Who holds the claim by this entry; None where it is free, or its holder has ended."""
    holder = _read(entry)
    return holder if holder and not holder.has_ended(entry) else None


def _read(entry: Path) -> Holder | None:
    """None of a claim that is free, and of what is no entry."""
    words = entry.name.split(",")
    return Holder(*words) if len(words) == len(Holder._fields) else None


def _silence(entry: Path) -> float:
    """Seconds since the last touch, by the clock of whoever keeps the files."""
    now = time.time()
    probe = entry.parents[1] / f".clock.{secrets.token_hex(8)}"
    with suppress(OSError):
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
    try:
        return now - entry.stat().st_mtime
    except FileNotFoundError:  # it has changed hands
        return 0.0


def _myself(chance: str = "") -> Holder:
    job = os.environ.get("SLURM_JOB_ID", "")
    array, task = (os.environ.get(f"SLURM_ARRAY_{part}_ID") for part in ("JOB", "TASK"))
    if array and task:  # the name by which scancel knows it
        job = f"{array}_{task}"
    restart = os.environ.get("SLURM_RESTART_COUNT", "0").zfill(6) if job else ""
    pid = os.getpid()
    words = (socket.gethostname(), _machine(), str(pid), start_of(pid), job, restart, chance)
    return Holder(*(word.replace(",", "").replace("/", "") for word in words))


@functools.cache
def _machine() -> str:
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
        return f"{boot.replace('-', '')}.{space.strip('pid:[]')}"
    return f"{uuid.getnode():x}"


def start_of(pid: int) -> str:
    """When the process with this number started, in ticks since boot; empty where there is none.

    Systems without /proc, and those that hide in it what other users run, tell only that it runs.
    """
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return _UNKNOWN
