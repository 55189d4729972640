"""Worker processes: how they are started, told what to do and ended; both ends of their pipes.

``python -m lrm.sweep.process MODULE ARGUMENTS`` is a worker. It imports the module and calls its
``start(tell, *arguments)``, with a function that reports its named arguments. What that returns is
called with every order of the parent. A report ``done`` holds what it returned, ``busy`` and
``error`` the line of its Busy or other UserError, or of what the system refuses of a path, and
``crash`` the traceback of any other exception.

The parent writes orders to a worker's standard input, one a line. The worker writes reports to its
standard output, one JSON object a line. An empty line tells a worker to finish. If its input ends
without one, the parent has gone, however it ended, and the worker ends at once. On Linux a second
process sees to that, since a thread of the worker may have to wait for a long call.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from lrm.errors import Busy, as_user_error

# What a worker's environment needs on top of its parent's: one thread, and glibc told to keep
# freed memory (top pad, trim and mmap thresholds in bytes) and to ask for huge pages.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "MALLOC_TOP_PAD_": str(1 << 28),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "GLIBC_TUNABLES": ":".join(
        filter(None, (os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1"))
    ),
}


def compiled_code(corpora: Path) -> Path:
    """Where compiled layers are kept between processes: beside the corpora."""
    return corpora.parent.absolute() / "compiled"


def encode(order: tuple) -> str:
    """An order as a line of text, without the line's end."""
    return base64.b64encode(pickle.dumps(order)).decode()


class Process:
    """The parent's end: a worker, which follows orders by a module with its arguments.

    It leads a process group of its own, in which are also the compilers that it starts.
    """

    def __init__(self, module: str, *arguments: str, corpora: Path, **environment: str):
        """``environment`` is added to the parent's and to what all workers need."""
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "lrm.sweep.process", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                **ENVIRONMENT,
                "TORCHINDUCTOR_CACHE_DIR": str(compiled_code(corpora)),
                **environment,
            },
            # The terminal sends Ctrl-C to its whole session; only the parent is to get it.
            start_new_session=True,
        )
        self.pid = self._popen.pid

    def send(self, order: tuple) -> None:
        """Tell the worker what to do next. One that has ended is noticed by its reports' end."""
        self._write(encode(order) + "\n")

    def finish(self) -> None:
        """Tell the worker to end when it has done what it was told."""
        self._write("\n")

    def _write(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(line)
            self._popen.stdin.flush()

    def reports(self) -> Iterator[dict[str, Any]]:
        """What the worker reports, until it ends."""
        for line in self._popen.stdout:
            with contextlib.suppress(ValueError):  # a line cut short by the worker's end
                yield json.loads(line)

    def wait(self) -> int:
        """Wait for the worker's end; its exit code, or minus the signal that ended it."""
        return self._popen.wait()

    def stop(self) -> None:
        """Ask the worker to save what it has in hand, and to end."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.terminate()

    def kill(self) -> None:
        """End the worker and what it has started, unless it has ended already."""
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it ends just now
                os.killpg(self.pid, signal.SIGKILL)


def main() -> None:
    """Be a worker: listen to the parent, and only then import what takes long."""
    _guard(os.getppid())
    orders, tell = _connect()
    module, *arguments = sys.argv[1:]
    execute = importlib.import_module(module).start(tell, *arguments)
    for order in orders:
        try:
            tell(done=execute(*pickle.loads(base64.b64decode(order))))
        except Busy as error:
            tell(busy=str(error))
        except Exception as error:
            known = as_user_error(error)
            if known is None:
                tell(crash=traceback.format_exc())
            else:
                tell(error=str(known))


def _guard(parent: int) -> None:
    """Leave a process that ends this one, and what it has started, as soon as ``parent`` ends.

    It ends what this one has started, compilers above all, also where this one has ended alone.
    """
    own = os.getpid()
    if not hasattr(os, "pidfd_open") or os.getpgrp() != own or os.fork():
        return
    try:
        os.closerange(0, 1024)  # the pipes to the parent are not this process's
        ready = select.poll()
        for pid in (own, parent):
            ready.register(os.pidfd_open(pid), select.POLLIN)
        ready.poll()
    except ProcessLookupError:  # one has ended already
        pass
    except OSError:  # a system without such handles
        os._exit(0)
    # The group is still this one's: the process that watches is in it.
    os.killpg(own, signal.SIGKILL)
    os._exit(0)


def _connect() -> tuple[Iterator[str], Callable[..., None]]:
    """The orders as they come, and the function that reports."""
    # Ctrl-C is the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing but reports may reach the parent.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        # Not sys.stdin: at its end the interpreter waits for whoever reads that.
        with open(0, closefd=False) as source:
            for line in source:
                if not line.endswith("\n"):  # the parent ended while it wrote
                    break
                lines.put(line.strip())
                if not line.strip():
                    return
        _end()

    def tell(**report: Any) -> None:
        try:
            channel.write(json.dumps(report) + "\n")
        except BrokenPipeError:
            _end()

    threading.Thread(target=listen, daemon=True).start()
    return iter(lines.get, ""), tell


def _end() -> NoReturn:
    """The parent has gone: end this process and what it has started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
