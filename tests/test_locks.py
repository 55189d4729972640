"""Two processes on one folder, a worker whose parent ends, a disk that is full."""

import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import warm
from test_signals import LIMIT, ROOT, alive, needs_proc, until

from lrm.errors import Busy, UserError
from lrm.store import lock
from lrm.store.files import as_json, write_atomic
from lrm.store.lock import holder_of, locked
from lrm.store.log import Log
from lrm.store.rundir import open_run, read_description
from lrm.sweep import runs as stored

SMALL = ("train.steps=6", "train.batch_size=2", "model.num_hidden_layers=1",
         "train.validation_sequences=2", "execution.precision=float32")  # fmt: skip


def sweep(folder, *options, only="FPN S=[14] *"):
    command = [warm.python, "experiments/projector/run.py", "--scale", "smoke", "--workers", "1"]
    command += ["--results", str(folder), "--only", only, *options]
    for override in SMALL:
        command += ["--set", override]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_sweeps_on_one_folder(tmp_path):
    """Both end well when all is trained, whoever has trained what."""
    both = [sweep(tmp_path), sweep(tmp_path)]
    for process in both:
        out, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, out + errors
        assert "error" not in errors
    done = list(tmp_path.glob("runs/projector/*/done.json"))
    assert len(done) == 2
    # No run was begun by the one and gone on with by the other.
    assert not any("resumed" in path.with_name("run.json").read_text() for path in done)


def test_a_run_that_another_process_has_is_waited_for(tmp_path):
    """The others come first. It is trained here if the other process gives it up."""
    whole = sweep(tmp_path)
    assert whole.communicate(timeout=LIMIT) and whole.returncode == 0
    first, second = sorted((tmp_path / "runs" / "projector").iterdir())
    for path in (first, second):
        shutil.rmtree(path)
    first.mkdir()
    with locked(first):
        process = sweep(tmp_path)
        said = ""
        while "another process trains it; waiting for it" not in said:
            said = process.stderr.readline()
            assert said, "it has ended"
        until(lambda: (second / "done.json").exists())
        assert process.poll() is None and not (first / "done.json").exists()
    process.communicate(timeout=LIMIT)
    assert process.returncode == 0 and (first / "done.json").exists()


def test_clean_takes_each_lock(tmp_path, capsys):
    """A run in training stays, and is told of; all others go."""
    for name in "abc":
        with open_run(tmp_path / "runs" / "some" / name) as directory:
            directory.start({"id": name, "kind": "flow", "scale": "smoke", "arm": "A", "grid": {},
                             "seed": 0, "label": "A\x1b[31m", "execution": {}})  # fmt: skip
            directory.finish({"validation_loss": None}, None)
    found = [stored._read(path) for path in sorted((tmp_path / "runs" / "some").iterdir())]
    with locked(found[1].path), pytest.raises(UserError, match="1 run is being trained and was"):
        stored._remove(found, sure=True)
    assert [path.name for path in (tmp_path / "runs" / "some").iterdir()] == ["b"]
    assert read_description(found[1].path)["id"] == "b"
    stored._main(stored.argparse.Namespace(
        results=tmp_path, experiment=None, scale=None, action="list", yes=False))  # fmt: skip
    out = capsys.readouterr().out
    assert "removed 2 runs" in out and "\x1b" not in out and "A\\x1b[31m" in out


def test_clean_without_a_terminal_names_a_call_that_removes_no_more(tmp_path, monkeypatch):
    path = tmp_path / "runs" / "some" / "a"
    path.mkdir(parents=True)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    told = "give the same with --yes .of make: YES=1 beside the same SCALE, EXPERIMENT and RESULTS"
    with pytest.raises(UserError, match=told):
        stored._remove([stored._read(path)], sure=False)
    assert path.is_dir()


def test_clean_that_is_stopped_leaves_no_run(tmp_path, monkeypatch):
    """A run is out of the way before its files go; the next removal finishes it."""
    path = tmp_path / "runs" / "some" / "a"
    path.mkdir(parents=True)
    (path / "run.json").write_bytes(as_json({}))
    (path / "done.json").write_bytes(as_json({"validation_loss": None}))

    def stop(path, ignore_errors):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", stop)
    with pytest.raises(KeyboardInterrupt):
        stored._remove([stored._read(path)], sure=True)
    assert not path.exists() and len(list((tmp_path / "runs").glob(".removed-*/run.json"))) == 1
    monkeypatch.undo()
    path.mkdir()
    stored._remove([stored._read(path)], sure=True)
    assert [each.name for each in tmp_path.iterdir()] == ["runs"] and not path.exists()


def test_a_run_that_cannot_be_removed(tmp_path, monkeypatch):
    path = tmp_path / "runs" / "some" / "a"
    path.mkdir(parents=True)

    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(UserError, match="a cannot be .*Invalid cross-device link"):
        stored._remove([stored._read(path)], sure=True)


def test_a_run_that_cannot_be_removed_keeps_no_other(tmp_path, monkeypatch):
    paths = [tmp_path / "runs" / "some" / name for name in "abc"]
    for path in paths:
        path.mkdir(parents=True)
    renames = Path.rename

    def refuse(path, target):
        if path == paths[0]:
            raise OSError(13, "Permission denied")
        return renames(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(UserError, match="a cannot be removed .Permission denied.; remove it by"):
        stored._remove([stored._read(path) for path in paths], sure=True)
    assert [path.exists() for path in paths] == [True, False, False]


def test_a_list_of_runs_whose_files_come_and_go(tmp_path, monkeypatch):
    (tmp_path / "checkpoint.pt").write_bytes(b"123")
    listed = [(str(tmp_path), [], ["checkpoint.pt", ".checkpoint.pt.4711"])]
    monkeypatch.setattr(os, "walk", lambda path: listed)
    assert stored._read(tmp_path).size == 3


def test_a_lock_holds_though_its_folder_is_removed_and_made_again(tmp_path):
    """Who has waited for the claim of a folder that is gone takes the claim of the new one."""
    path = tmp_path / "run"
    path.mkdir()
    waits = threading.Event()

    def wait():
        with locked(path, waits=True):
            with pytest.raises(Busy), locked(path):
                pass
            return holder_of(path)

    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        with locked(path):
            # It sleeps when it has seen who holds the claim.
            clock = SimpleNamespace(time=time.time, sleep=lambda _: waits.set())
            patch.setattr(lock, "time", clock)
            found = pool.submit(wait)
            assert waits.wait(LIMIT)
            gone = path.rename(tmp_path / "gone")  # in one step: the other thread may write in it
            shutil.rmtree(gone)
        assert found.result(LIMIT).process == str(os.getpid())
    assert holder_of(path) is None


# Who holds a claim, and when it is taken from them.


def pretend(path, **fields):
    """The claim of ``path`` as another process holds it; returns its entry."""
    with locked(path):
        [entry] = (path / ".claim").iterdir()
        holder = lock._read(entry)._replace(**fields)
    name = ",".join(holder)
    return (path / ".claim" / "free").rename(path / ".claim" / name)


def test_a_claim_of_a_process_that_has_ended_is_taken(tmp_path):
    """At once on the same machine, also where another process has its number by now."""
    for number, fields in enumerate([{"process": "4194999"}, {"start": "1"}]):
        pretend(tmp_path / str(number), **fields)
        assert holder_of(tmp_path / str(number)) is None
        with locked(tmp_path / str(number)):
            assert holder_of(tmp_path / str(number)).process == str(os.getpid())
    pretend(tmp_path / "alive")
    told = f"by another process .process {os.getpid()} on "
    with pytest.raises(Busy, match=told), locked(tmp_path / "alive"):
        pass


def test_a_claim_of_another_user_is_taken_after_silence(tmp_path, monkeypatch):
    """Where /proc hides processes of other users: that they run is all that can be known."""
    entry = pretend(tmp_path, process="4194999")

    def kill(pid, number):
        raise PermissionError if pid == 4194999 else ProcessLookupError

    monkeypatch.setattr(lock.os, "kill", kill)
    with pytest.raises(Busy, match="by another process .process 4194999 on"), locked(tmp_path):
        pass
    os.utime(entry, (0, time.time() - lock.SILENCE - 60))
    assert holder_of(tmp_path) is None


def test_a_claim_of_another_machine_is_taken_after_silence(tmp_path):
    entry = pretend(tmp_path, host="node7", machine="another", job="4711")
    with pytest.raises(Busy, match="on node7, job 4711"), locked(tmp_path):
        pass
    os.utime(entry, (0, time.time() - lock.SILENCE - 60))
    assert holder_of(tmp_path) is None
    with locked(tmp_path):
        [own] = (tmp_path / ".claim").iterdir()
        assert own != entry and time.time() - own.stat().st_mtime < lock.SILENCE / 2


def test_silence_is_measured_by_the_clock_of_the_files(tmp_path, monkeypatch):
    """A machine whose clock is an hour ahead takes no run from one that works."""
    pretend(tmp_path, host="node7", machine="another")
    clock = SimpleNamespace(time=lambda: time.time() + 3600, sleep=time.sleep)
    monkeypatch.setattr(lock, "time", clock)
    with pytest.raises(Busy, match="on node7"), locked(tmp_path):
        pass


def test_the_tenth_requeue_takes_what_the_ninth_had(tmp_path, monkeypatch):
    """And the ninth, should it still run, takes nothing from the tenth."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    for before, now, takes in (("9", "10", True), ("10", "9", False)):
        path = tmp_path / now
        monkeypatch.setenv("SLURM_RESTART_COUNT", before)
        pretend(path, host="node7", machine="another")
        monkeypatch.setenv("SLURM_RESTART_COUNT", now)
        assert (holder_of(path) is None) == takes


def test_a_job_that_was_requeued_takes_what_it_had(tmp_path, monkeypatch):
    """The node that had it may be gone, so nobody else can know yet."""
    pretend(tmp_path, host="node7", machine="another", job="4711", restart="000000")
    for job, restart in (("4711", "0"), ("4712", "1")):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURM_RESTART_COUNT", restart)
        with pytest.raises(Busy), locked(tmp_path):
            pass
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with locked(tmp_path):
        pass


def test_a_job_is_named_by_its_array_where_it_is_a_task_of_one(monkeypatch):
    """Scripts that start jobs of their own may hand on the array's number alone."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "4700")
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    assert lock._myself().job == "4711"
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    assert lock._myself().job == "4700_0"


def test_a_claim_that_is_made_though_the_server_says_no(tmp_path, monkeypatch):
    """Else the process would wait for itself."""
    real = Path.rename

    def rename(self, target):
        real(self, target)
        if Path(target).name == ".claim":
            raise FileNotFoundError(2, "No such file or directory", str(self))

    monkeypatch.setattr(Path, "rename", rename)
    with locked(tmp_path / "run"):
        assert holder_of(tmp_path / "run").process == str(os.getpid())


def test_who_waits_for_a_claim_is_told_once(tmp_path, monkeypatch):
    entry = pretend(tmp_path, host="node7", machine="another")
    told, slept = [], []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            entry.rename(entry.with_name("free"))

    monkeypatch.setattr(lock, "time", SimpleNamespace(time=time.time, sleep=sleep))
    with locked(tmp_path, waits=True, note=told.append):
        assert len(slept) == 3
    assert len(told) == 1 and "on node7); waiting for it" in told[0]


def test_a_run_that_is_taken_over_while_a_checkpoint_is_written_keeps_the_new_one(tmp_path):
    """Writing may take minutes: who has the run is asked again before the file is replaced."""
    with pytest.raises(Busy, match="taken over"), open_run(tmp_path) as old:
        old.start({"id": "a", "execution": {}})
        old.save_checkpoint({"step": 1})
        before = old.checkpoint.read_bytes()
        [entry] = (tmp_path / ".claim").iterdir()

        class Slow:
            def __reduce__(self):  # while it is written
                entry.rename(entry.with_name(",".join(lock._read(entry)._replace(host="other"))))
                return dict, ()

        with pytest.raises(Busy, match="taken over"):
            old.save_checkpoint({"step": 2, "slow": Slow()})
        assert old.checkpoint.read_bytes() == before
        assert not list(tmp_path.glob(".checkpoint.pt.*"))
        old.save_checkpoint({"step": 3})


def test_a_holder_touches_its_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.01)
    with locked(tmp_path):
        [entry] = (tmp_path / ".claim").iterdir()
        os.utime(entry, (0, 0))
        until(lambda: entry.stat().st_mtime > 0)


def test_a_run_that_was_taken_over_writes_no_more(tmp_path):
    """As when a machine was suspended: the new holder alone may save and finish."""
    description = {"id": "a", "execution": {}}
    with pytest.raises(Busy, match="taken over by another process"), open_run(tmp_path) as old:
        old.start(description)
        [entry] = (tmp_path / ".claim").iterdir()
        os.utime(entry, (0, 0))
        taken = entry.rename(entry.with_name(",".join(lock._read(entry)._replace(host="node7"))))
        for act in (lambda: old.save_checkpoint({"step": 1}), lambda: old.start(description),
                    lambda: old._mark_done({"validation_loss": None})):  # fmt: skip
            with pytest.raises(Busy, match="taken over"):
                act()
        old.append("metrics.jsonl", {"step": 0})
        old.finish({"validation_loss": None}, None)
    assert {path.name for path in tmp_path.iterdir()} == {".claim", "run.json"} and taken.exists()


def test_lines_of_a_run_that_was_taken_over_reach_no_log(tmp_path):
    """Neither those that wait nor those of a log that is open; so the new holder finishes."""
    description = {"id": "a", "execution": {}}
    with open_run(tmp_path) as old:
        old.start(description)
        old.append("metrics.jsonl", {"step": 1, "train_loss": 1.0})
        old.save_checkpoint({"step": 1})
        old.append("metrics.jsonl", {"step": 2, "train_loss": -1.0})
        [entry] = (tmp_path / ".claim").iterdir()
        entry.rename(entry.with_name("free"))
        with open_run(tmp_path) as new:
            assert new.start(description)["step"] == 1
            new.append("metrics.jsonl", {"step": 2, "train_loss": 2.0})
            new.flush()
            with pytest.raises(Busy, match="taken over"):
                old.flush()
            # As if it had looked just before it was taken over.
            old._logs["metrics.jsonl"]._check = lambda: None
            old.append("metrics.jsonl", {"step": 2, "train_loss": -1.0})
            old.flush()
            new.finish({"validation_loss": None}, None)
    frame = pd.read_parquet(tmp_path / "scalars.parquet")
    assert list(frame["value"]) == [1.0, 2.0]


def test_what_killed_processes_left_goes_when_a_run_finishes(tmp_path):
    for name in (".claim.3f/entry", ".claim.af/entry"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    for name in (".checkpoint.pt.4711", ".clock.0f"):
        (tmp_path / name).touch()
    with open_run(tmp_path) as directory:
        directory.start({"id": "a", "execution": {}})
        directory.finish({"validation_loss": None}, None)
    assert [path.name for path in tmp_path.glob(".*")] == [".claim"]


def test_files_in_a_claim_that_are_no_entry(tmp_path, monkeypatch):
    """File systems and desktops leave some; alone they are no claim that anybody could take."""
    monkeypatch.setattr(lock, "_POLL", 0.001)
    entry = pretend(tmp_path)
    for number in range(9):
        entry.with_name(f".nfs000{number}").touch()
    with pytest.raises(Busy), locked(tmp_path):
        pass
    entry.rename(entry.with_name("free"))
    with locked(tmp_path):
        assert holder_of(tmp_path) is not None
    entry.with_name("free").unlink()
    with pytest.raises(UserError, match=".claim holds no claim; remove it"), locked(tmp_path):
        pass


# Many processes that want the same claims; each writes down what it has got.
CLAIMING = """
import os, sys
from pathlib import Path
from lrm.errors import Busy
from lrm.store import lock
from lrm.store.lock import holder_of, locked

folder = Path(sys.argv[1])
print(flush=True)
sys.stdin.readline()
for number in range(40):
    path = folder / str(number)
    try:
        with locked(path):
            if not (path / "done").exists():
                handle = os.open(path / "inside", os.O_CREAT | os.O_EXCL)
                os.close(handle)
                (folder / "log").open("a").write(f"{number}\\n")
                (path / "done").touch()
                (path / "inside").unlink()
    except Busy:
        pass
"""


def test_many_processes_claim_free_held_and_abandoned_runs(tmp_path):
    """Never two at once, and nothing twice, whatever the state that they find."""
    for number in range(20):
        pretend(tmp_path / str(number), process="4194999")
    both = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [
        subprocess.Popen([warm.python, "-c", CLAIMING, str(tmp_path)], cwd=ROOT, text=True, **both)
        for _ in range(6)
    ]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, errors
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == list(range(40))
    assert not [path for path in tmp_path.glob("*/.claim.*")]


# A parent with a worker that holds the interpreter in one long call.
PARENT = """
import sys, time
from pathlib import Path
from lrm.sweep.process import Process
process = Process("long_call", corpora=Path("."))
for report in process.reports():
    print(report["note"], flush=True)
"""
LONG_CALL = """
import os, re, subprocess

def start(tell):
    own = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
    tell(note=f"{os.getpid()} {own.pid}")
    re.match("(a+)+$", "a" * 200 + "b")
"""


@needs_proc
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no handles of processes")
def test_a_worker_in_a_long_call_ends_with_its_parent(tmp_path):
    (tmp_path / "long_call.py").write_text(LONG_CALL)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    pids = [int(word) for word in parent.stdout.readline().split()]
    try:
        assert alive(*pids) == pids
        parent.kill()
        parent.communicate()
        until(lambda: not alive(*pids))
    finally:
        for pid in alive(*pids):
            os.kill(pid, signal.SIGKILL)


# A run whose log does not fit. The system stops the file from growing, as a full disk would.
LOGGING = """
import sys
from pathlib import Path
from lrm.cli import guarded
from lrm.store.rundir import open_run

def run():
    with open_run(Path(sys.argv[1])) as directory:
        directory.start({"id": "a", "execution": {}})
        for step in range(20_000):
            directory.append("metrics.jsonl", {"step": step, "train_loss": 1.0})
        directory.finish({"validation_loss": None}, None)

guarded(run)
"""


def test_a_disk_that_is_full_while_a_run_logs(tmp_path):
    """One line; and when there is room the same command finishes."""
    command = [sys.executable, "-c", LOGGING, str(tmp_path / "run")]

    def no_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

    done = subprocess.run(command, cwd=ROOT, preexec_fn=no_room, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: cannot write ") and done.stderr.count("\n") == 1
    assert done.stderr.endswith("metrics.jsonl: File too large; make room and run again\n")
    assert not (tmp_path / "run" / "done.json").exists()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "done.json").exists()


def test_a_disk_that_is_full_for_a_moment(tmp_path, monkeypatch):
    """What a log had not written is gone; it ends there, and not with half a line in the middle."""
    log, real = Log(tmp_path / "log"), os.write
    log.append({"step": 0})
    mark = log.mark()
    log.append({"step": 1})

    def full(file, data):
        real(file, data[:4])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UserError, match="log: No space left on device; make room and run again"):
        log.flush()
    monkeypatch.undo()
    log.close()
    again = Log(tmp_path / "log", mark)
    again.append({"step": 1})
    assert again.records() == [{"step": 0}, {"step": 1}]


def test_a_file_is_as_it_was_where_a_disk_is_full(tmp_path, monkeypatch):
    write_atomic(tmp_path / "a", b"before")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="cannot write .*a: No space left on device; make room"):
        write_atomic(tmp_path / "a", b"after")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


def test_names_are_on_disk_after_renames(tmp_path, monkeypatch):
    """The folder is synchronised after the file has its name."""
    order, real, fsync = [], os.replace, os.fsync

    def replace(source, target):
        real(source, target)
        order.append("rename")

    def sync(handle):
        order.append("folder" if Path(f"/proc/self/fd/{handle}").is_dir() else "file")
        fsync(handle)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", sync)
    write_atomic(tmp_path / "a", b"x")
    assert order == ["file", "rename", "folder"]


def test_logs_are_on_disk_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    with open_run(tmp_path / "run") as directory:
        directory.start({"id": "a", "execution": {}})
        directory.append("metrics.jsonl", {"step": 0})
        order, real, fsync = [], os.replace, os.fsync
        monkeypatch.setattr(os, "fsync", lambda handle: (order.append("sync"), fsync(handle)))
        monkeypatch.setattr(os, "replace", lambda a, b: (order.append(Path(b).name), real(a, b)))
        directory.save_checkpoint({"step": 1})
        assert order[:3] == ["sync", "sync", "checkpoint.pt"]


# A command whose libraries take long to load: here until Ctrl-C comes.
@pytest.mark.parametrize("module", ["lrm.sweep.runs", "analysis.figures", "analysis.claims"])
def test_an_interruption_while_a_command_loads(tmp_path, module):
    for name in ("numpy", "pandas", "matplotlib", "pydantic"):
        (tmp_path / f"{name}.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    code = f"import sys\nsys.argv = ['x']\nimport {module}\n"
    if module == "analysis.claims":
        code += "import analysis.claims.ledger\n"
    done = subprocess.run(
        [sys.executable, "-c", code + f"import {module}.__main__\n"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        # What is started in the background of a script ignores the signal from birth.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert done.stderr == "\nstopped\n"
    assert done.returncode in (-signal.SIGINT, 130)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_an_output_that_takes_nothing(tmp_path):
    command = [sys.executable, "-m", "lrm.sweep.runs", "list", "--results", str(tmp_path)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "error: the output cannot be written: No space left on device; make room, or write it "
        "elsewhere\n"
    )
