"""Commands that are asked to stop, or killed: how they end, and that nothing is left running."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from lrm.cli import guarded, stop_delayed
from lrm.errors import UserError

ROOT = Path(__file__).parents[1]
STOPPED = "stopped; the same command goes on from here"
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="no table of processes in /proc"
)
# gloo would look for this machine's name, which may not resolve, and say so.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
LIMIT = 600.0  # seconds; a safety net, far above what anything takes on a busy machine
# A sweep whose workers do nothing but wait. Ending each takes a while, so that further signals
# come in the middle of it.
SWEEP = """
import dataclasses, sys, time
from pathlib import Path
from lrm.cli import guarded
from lrm.plan.experiment import load
from lrm.sweep import scheduler

class Process(scheduler.Process):
    def __init__(self, module, **options):
        super().__init__("stand_in", **options)

    def kill(self):
        super().kill()
        time.sleep(0.2)

scheduler.Process = Process
folder, count = Path(sys.argv[1]), int(sys.argv[2])
runs = load(Path("experiments/projector/config.yaml")).runs("smoke", [0], only=["FPN*"])
runs = [dataclasses.replace(run, corpus="a corpus") for run in runs]
jobs = [(run, folder / str(number)) for number, run in enumerate(runs[:count])]
guarded(lambda: scheduler.sweep(jobs, folder / "data", 2), resumes=True)
"""
# As a worker it starts a program of its own; it tells the numbers of both processes.
WORKER = """
import os, subprocess, time

def start(tell):
    own = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
    tell(ready=True)
    tell(note=f"processes {os.getpid()} {own.pid}")
    time.sleep(1000)
"""
# It takes this long to save when it is asked to stop.
SAVING = """
import os, signal, time
from pathlib import Path

def start(tell):
    def save(*_):
        time.sleep(SECONDS)
        Path(__file__).with_name(f"saved {os.getpid()}").touch()
        os._exit(0)

    signal.signal(signal.SIGTERM, save)
    tell(ready=True)
    tell(note=f"processes {os.getpid()} {os.getpid()}")
    while True:
        time.sleep(0.05)
"""
TOGETHER = """
import sys, time
from pathlib import Path
from lrm.cli import guarded
from lrm.train import distributed

def wait():
    with distributed.join() as group:
        Path(sys.argv[1], str(group.rank)).touch()
        while True:  # one long sleep may begin just after a signal came, and not hear it
            time.sleep(0.02)

guarded(wait, resumes=True)
"""


@pytest.fixture(autouse=True, scope="module")
def ordinary_signals():
    """Under nohup or in the background these are ignored, and children inherit that."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT)}
    for number, handler in before.items():
        if handler == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def until(happened):
    """Wait for what is bound to happen."""
    limit = time.monotonic() + LIMIT
    while not (found := happened()):
        assert time.monotonic() < limit
        time.sleep(0.02)
    return found


def processes():
    """The parent and the state of every process, by its number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just gone
            state, parent, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
            found[int(path.parent.name)] = int(parent), state
    return found


def alive(*pids):
    """Those of the processes that run; not those that only wait for somebody to note their end."""
    running = {pid for pid, (_, state) in processes().items() if state not in "ZX"}
    return [pid for pid in pids if pid in running]


def children(pid):
    return [child for child, (parent, _) in processes().items() if parent == pid]


def send(process, name):
    process.send_signal(getattr(signal, f"SIG{name}"))


class Sweep:
    """The stand-in sweep of so many runs, as a context; begun when two workers have a run."""

    def __init__(self, folder, runs=3, worker=WORKER):
        (folder / "stand_in.py").write_text(worker)
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-c", SWEEP, str(folder), str(runs)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines = []
        self.workers, self.programs = [], []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.begun(2)

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("processes "):
                worker, program = map(int, line.split()[1:])
                self.programs.append(program)
                self.workers.append(worker)

    def begun(self, count):
        until(lambda: len(self.workers) >= count or self.process.poll() is not None)
        assert self.process.poll() is None, self.lines

    def end(self):
        """Its exit code, and all that it wrote to standard error."""
        self.process.wait(LIMIT)
        self.reader.join(LIMIT)
        return self.process.returncode, "".join(self.lines)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for pid in alive(self.process.pid, *self.workers, *self.programs):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def assert_stopped(errors):
    """One last line, and nothing that a crash would say."""
    assert errors.count(STOPPED) == 1 and errors.endswith(STOPPED + "\n"), errors
    assert "Traceback" not in errors and "Exception" not in errors, errors


@needs_proc
@pytest.mark.parametrize(
    "order", ["INT", "TERM", "HUP", "INT INT INT", "INT TERM", "TERM INT HUP", "TERM TERM"]
)
def test_a_sweep_in_any_order_of_signals(tmp_path, order):
    """The first decides; the others come while it ends its workers."""
    first, *others = order.split()
    with Sweep(tmp_path) as sweep:
        send(sweep.process, first)
        until(lambda: len(alive(*sweep.workers)) < 2)
        for name in others:
            send(sweep.process, name)
        code, errors = sweep.end()
        assert alive(*sweep.workers) == []
        assert code == {"INT": 130, "TERM": 143, "HUP": 129}[first]
        assert_stopped(errors)
        until(lambda: not alive(*sweep.programs))


@needs_proc
@pytest.mark.parametrize(("seconds", "order"), [(0.5, "INT"), (300, "INT INT")])
def test_workers_save_unless_a_second_signal_comes(tmp_path, seconds, order):
    with Sweep(tmp_path, worker=SAVING.replace("SECONDS", str(seconds))) as sweep:
        for name in order.split():
            send(sweep.process, name)
            until(lambda: any("a second Ctrl-C ends them" in line for line in sweep.lines))
        code, errors = sweep.end()
        assert code == 130 and alive(*sweep.workers) == []
        assert_stopped(errors)
    saved = {path.name for path in tmp_path.glob("saved *")}
    assert saved == ({f"saved {pid}" for pid in sweep.workers} if order == "INT" else set())


@needs_proc
def test_a_sweep_under_a_hail_of_signals(tmp_path):
    with Sweep(tmp_path) as sweep:
        for name in itertools.cycle(["INT", "TERM", "HUP"]):
            if sweep.process.poll() is not None:
                break
            send(sweep.process, name)
            time.sleep(0.001)
        code, errors = sweep.end()
        assert alive(*sweep.workers) == []
        assert code in (129, 130, 143)
        assert_stopped(errors)


@needs_proc
@pytest.mark.parametrize("order", ["KILL", "TERM KILL"])
def test_workers_of_a_sweep_that_is_killed(tmp_path, order):
    with Sweep(tmp_path) as sweep:
        for name in order.split():
            send(sweep.process, name)
        code, errors = sweep.end()
        assert code == -signal.SIGKILL and "Traceback" not in errors
        until(lambda: not alive(*sweep.workers, *sweep.programs))


@needs_proc
def test_a_worker_that_is_killed(tmp_path):
    """The others go on, another takes its place, and its run is told of at the end."""
    with Sweep(tmp_path, runs=3) as sweep:
        os.kill(sweep.workers[0], signal.SIGKILL)
        sweep.begun(3)
        assert alive(*sweep.workers) == sweep.workers[1:]
        for worker in sweep.workers[1:]:
            os.kill(worker, signal.SIGINT)  # its parent's to handle
            os.kill(worker, signal.SIGTERM)
        until(lambda: not alive(*sweep.programs))  # they have standard error open
        code, errors = sweep.end()
        assert code == 2 and "Traceback" not in errors
        told = [line for line in errors.splitlines() if line.startswith("error: ")]
        assert len(told) == 1 and "its process ended with code -9; the same command" in told[0]
        assert told[0].endswith("use fewer --workers or a smaller batch (and 2 more)")


@needs_proc
def test_a_real_sweep_killed_stopped_and_finished(tmp_path):
    """Killed while it trains, stopped while its workers start; the same command then finishes."""
    # So long that no worker is done before the signal, with steps that cost little.
    command = [sys.executable, "experiments/projector/run.py", "--scale", "smoke"]
    command += ["--results", str(tmp_path), "--workers", "2", "--only", "FPN S=[14] *"]
    for override in ("train.steps=200", "train.batch_size=2", "model.num_hidden_layers=1",
                     "execution.precision=float32", "execution.checkpoint_every=10"):  # fmt: skip
        command += ["--set", override]

    def begin(begun):
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        until(lambda: begun(process) or process.poll() is not None)
        assert process.poll() is None
        return process, children(process.pid)

    process, workers = begin(lambda _: list(tmp_path.glob("runs/projector/*/checkpoint.pt")))
    assert len(workers) == 2
    process.kill()
    assert "Traceback" not in process.communicate(timeout=LIMIT)[1]
    until(lambda: not alive(*workers))

    process, workers = begin(lambda process: len(children(process.pid)) == 2)
    send(process, "TERM")
    until(lambda: len(alive(*workers)) < 2)
    send(process, "INT")
    errors = process.communicate(timeout=LIMIT)[1]
    assert alive(*workers) == [] and process.returncode == 143
    assert_stopped(errors)

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("runs/projector/*/done.json"))) == 2


def test_processes_that_train_together(tmp_path):
    """Torchrun hands its signal on to each of them; the first one speaks for all."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        **LOOPBACK,
    }
    processes = [
        subprocess.Popen([sys.executable, "-c", TOGETHER, str(tmp_path)], cwd=ROOT, text=True,
                         env={**os.environ, **common, "RANK": rank}, stderr=subprocess.PIPE)
        for rank in "01"
    ]  # fmt: skip
    until(lambda: len(list(tmp_path.iterdir())) == 2)
    # Both of the first one's signals wait when it is heard from again, as on a busy machine.
    send(processes[0], "STOP")
    for process in processes:
        send(process, "TERM")
    send(processes[0], "INT")
    send(processes[0], "CONT")
    first, second = (process.communicate(timeout=LIMIT)[1] for process in processes)
    assert_stopped(first)
    assert second == "" and {process.returncode for process in processes} <= {130, 143}


# What a command does with a signal, within this process.


@pytest.fixture
def handlers():
    """The handlers of signals that ask to stop, given back after the test."""
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


def kept(before):
    return all(signal.getsignal(number) == handler for number, handler in before.items())


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
@pytest.mark.parametrize("resumes", [True, False])
def test_the_first_signal_decides_how_a_command_ends(handlers, capsys, name, code, resumes):
    """That the same command goes on is told where it does."""

    def action():
        try:
            signal.raise_signal(getattr(signal, f"SIG{name}"))
        finally:
            for number in handlers:
                with contextlib.suppress(KeyboardInterrupt):
                    signal.raise_signal(number)
            raise OSError("what it was about to write to has gone")

    with pytest.raises(SystemExit) as ended:
        guarded(action, resumes)
    assert ended.value.code == code
    for number in handlers:
        signal.raise_signal(number)  # the interpreter ends, undisturbed
    assert capsys.readouterr().err == f"\n{STOPPED if resumes else 'stopped'}\n"


def test_a_command_gives_handlers_back(handlers):
    guarded(lambda: None)
    assert kept(handlers)

    def fail():
        raise UserError("no such thing")

    with pytest.raises(SystemExit):
        guarded(fail)
    assert kept(handlers)


def test_an_ignored_signal_stays_ignored(handlers):
    """As nohup has it; and commands work off the main thread, where no handler can be set."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    seen = []
    guarded(lambda: (signal.raise_signal(signal.SIGHUP), seen.append(1)))
    thread = threading.Thread(target=guarded, args=(lambda: seen.append(2),))
    thread.start()
    thread.join()
    assert seen == [1, 2] and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_delayed_signal(handlers):
    """It takes effect at the end of the block, whatever ends that, and handlers are given back."""
    told, caught = [], []
    signal.signal(signal.SIGTERM, lambda number, _: caught.append(number))
    before = {number: signal.getsignal(number) for number in handlers}
    with pytest.raises(KeyboardInterrupt), stop_delayed(lambda: told.append(1)) as stops:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stops == [signal.SIGTERM, signal.SIGINT] and len(told) == 2 and not caught
        raise ValueError("on the way out")
    assert caught == [signal.SIGTERM] and kept(before)
    with stop_delayed() as stops:
        pass
    assert stops == [] and kept(before)
