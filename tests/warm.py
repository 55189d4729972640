"""A Python with torch and the suite loaded, from which tests fork the commands that they call.

A fresh interpreter spends five to seven seconds of processor time on imports, and a sweep starts
three. ``Server`` makes a file that is called as Python is. What it runs is a process of its own,
with the caller's arguments, environment, folder and standard streams; only its modules are loaded
already. ``sys.executable`` remains for tests of what a command loads, of environments that act
while Python starts, and of signals.

With ``serve`` this file is the server's program, without it the caller's.
"""

import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

# To be called as Python is; conftest.py puts the servers' here: one of commands that may train, and
# one of notebooks, without torch.
python = sys.executable
kernels = sys.executable
# When to collect garbage. By default that takes a sixth of the time of what reads many runs: their
# millions of small objects, which live as long as the tests do, are looked through again and again.
COLLECTOR = (50_000, 20, 50)
# What commands spend their time on; the rest they load themselves.
_DRAWING = ("analysis.drawing.style", "analysis.claims.__main__")
MODULES = {
    "python": ("lrm.train.loop", "lrm.noise.brownian", "lrm.sweep.command", "analysis.publish",
               "analysis.figures.__main__", *_DRAWING),
    "kernels": ("ipykernel.kernelapp", "ipykernel.ipkernel", "matplotlib_inline.backend_inline",
                "matplotlib.pyplot", "seaborn", "scipy.stats", "analysis.explore", *_DRAWING),
}  # fmt: skip


class Server:
    """Makes the file ``python``; imports nothing before that is called. ``close`` ends it.

    ``kind``, a key of ``MODULES``: what is loaded.
    """

    def __init__(self, kind: str):
        # Not below pytest's folder: the name of a socket may have about a hundred characters.
        long = len(tempfile.gettempdir()) > 70
        self.folder = tempfile.TemporaryDirectory(prefix="warm", dir="/tmp" if long else None)
        self.python = Path(self.folder.name) / "python"
        call = shlex.join([sys.executable, "-IS", __file__, str(self.python)])
        self.python.write_text(f'#!/bin/sh\nexec {call} "$@"\n')
        self.python.chmod(0o755)
        command = [sys.executable, __file__, "serve", str(self.python), kind]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]
        )
        self.process.stdout.readline()  # it listens

    def close(self) -> None:
        """End it and every process that it has forked."""
        self.process.communicate()
        self.folder.cleanup()


def ask(python: str, arguments: list[str]) -> int:
    """Have the server run ``arguments``; returns what ``Popen.returncode`` would be."""
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(f"{python}.socket")
        request = {
            "arguments": arguments,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "leads": os.getsid(0) == os.getpid(),
        }
        socket.send_fds(door, [b"\n"], [0, 1, 2])
        door.sendall(json.dumps(request).encode() + b"\n")
        return int(door.makefile().readline() or 1)


def serve(python: str, kind: str) -> dict:
    """Fork a process for each request until standard input ends; returns only in these processes.

    Returns the request. A caller that ends before its process takes that process with it.
    """
    door = socket.socket(socket.AF_UNIX)
    door.bind(f"{python}.socket")
    door.listen()
    print(flush=True)
    ended, wake = socket.socketpair()
    for one in (ended, wake):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake.fileno())
    events = selectors.DefaultSelector()
    for one in (0, door, ended):
        events.register(one, selectors.EVENT_READ)
    callers: dict[int, socket.socket] = {}
    while True:
        ready = [key.fileobj for key, _ in events.select()]
        if ended in ready:
            ended.recv(4096)
            _reap(callers, events)
        if 0 in ready:
            for pid in callers:
                _kill(pid)
            while callers:
                _reap(callers, events, 0)
            os._exit(0)
        for pid, caller in list(callers.items()):
            if caller in ready:
                _kill(pid)
        if door in ready:
            _load(kind)
            caller, _ = door.accept()
            streams: list[int] = []
            try:
                _, streams, _, _ = socket.recv_fds(caller, 1, 3)
                request = json.loads(caller.makefile().readline())
            except (OSError, ValueError):  # it was killed before it had said all
                for stream in streams:
                    os.close(stream)
                caller.close()
                continue
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for one in (door, ended, wake, caller, *callers.values()):
                    one.close()
                events.close()
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                return request
            for stream in streams:
                os.close(stream)
            callers[pid] = caller
            events.register(caller, selectors.EVENT_READ)


def _load(kind: str) -> None:
    import gc
    import importlib

    for name in MODULES[kind]:
        importlib.import_module(name)
    gc.freeze()  # collections in the processes would copy every page
    gc.set_threshold(*COLLECTOR)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


def _reap(callers: dict[int, socket.socket], events, options: int = os.WNOHANG) -> None:
    """Tell callers whose process has ended, at least one of them without WNOHANG."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, options)
            if pid == 0:
                return
            caller = callers.pop(pid)
            events.unregister(caller)
            with suppress(BrokenPipeError), caller:
                caller.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def become(request: dict) -> NoReturn:
    """Turn this process into the one that the caller would have started."""
    import atexit
    import random
    import runpy
    import threading
    import traceback

    if request["leads"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    # The server's own streams remember what kind of file they were opened on.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    words = request["arguments"]
    if words[0] == "-u":
        sys.stdout.reconfigure(write_through=True)
        words = words[1:]
    code = 0
    try:
        if words[0] == "-m":
            sys.argv, sys.path[0] = words[1:], os.getcwd()
            # Else there would be a warning that it is imported already.
            for name in (words[1], f"{words[1]}.__main__"):
                if not hasattr(sys.modules.get(name), "__path__"):
                    sys.modules.pop(name, None)
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv, sys.path[0] = ["-c", *words[2:]], ""
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    # What the interpreter does in the end, but for freeing every object: that copies their pages.
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        sys.executable = sys.argv[2]  # what these processes start is forked too
        become(serve(*sys.argv[2:]))
    else:
        code = ask(sys.argv[1], sys.argv[2:])
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        sys.exit(code)
