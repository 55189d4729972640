"""Sweeps by jobs: shared out, submitted, killed, stopped, queued again; ended with the same bits.

Here jobs are submitit's local ones. ``make test-cluster`` runs the same sweep on a real SLURM.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_signals import ROOT, needs_proc, until

from lrm.errors import UserError
from lrm.store.lock import holder_of, locked, start_of
from lrm.store.rundir import note_failure, open_run
from lrm.sweep import dry_run, scheduler
from lrm.sweep import runs as stored
from lrm.sweep.cluster import settings as cluster_settings
from lrm.sweep.cluster import shares, state, submit
from lrm.sweep.cluster.settings import Cluster
from lrm.sweep.scheduler import Shift, Sweep

needs_submitit = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="make setup-dev installs submitit"
)
SMALL = ("train.steps=120", "train.batch_size=2", "model.num_hidden_layers=1",
         "train.validation_sequences=2", "execution.precision=float32", "execution.compile=never",
         "execution.checkpoint_every=10")  # fmt: skip
# Two slots. Two tasks, however little the runs are thought to cost.
CLUSTER = ("{gpus: 0, cpus: 1, most_tasks: 2, at_once: 2, hours: 1, work_hours: 1.0e-9, "
           "notice_seconds: 60}\n")  # fmt: skip


def command(folder, *options, only=("FPN*", "SPN*"), seeds=2, small=SMALL):
    """One that trains twelve runs."""
    found = [sys.executable, "experiments/projector/run.py", "--scale", "smoke", "--seeds",
             str(seeds), "--results", str(folder), *options]  # fmt: skip
    found += [word for pattern in only for word in ("--only", pattern)]
    return found + [word for override in small for word in ("--set", override)]


def call(*words, code=0):
    """What the command says. Not through a pipe, which local jobs would hold open behind it."""
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(words, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, timeout=900)
        said.seek(0)
        out = said.read()
    assert done.returncode == code, out
    return out


def runs(folder):
    """Directories of runs, by their name."""
    return {path.name: path for path in folder.glob("runs/projector/*/")}


def finished(folder):
    return [path for path in runs(folder).values() if (path / "done.json").exists()]


def begun(folder):
    """Runs that are being trained and have a checkpoint, with their holders."""
    found = {path: holder_of(path) for path in runs(folder).values()
             if (path / "checkpoint.pt").exists()}  # fmt: skip
    return {path: holder for path, holder in found.items() if holder is not None}


def assert_same_bits(whole, other, count):
    """All runs, and in each all that was measured and learned."""
    assert runs(whole).keys() == runs(other).keys() and len(runs(whole)) == count
    for name, path in runs(whole).items():
        files = json.loads((path / "done.json").read_text())["files"]
        for file in sorted(files.keys() - {"run.json"}):
            assert (path / file).read_bytes() == (runs(other)[name] / file).read_bytes(), file


def settled(folder):
    """No task is left, and nobody holds a run."""
    return not state.queued(folder) and not any(map(holder_of, runs(folder).values()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The twelve runs, trained by a sweep that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    call(*command(folder, "--workers", "1"))
    return folder


@pytest.fixture(autouse=True)
def nothing_stands_still(tmp_path):
    """Where a test fails that has stopped workers, they end."""
    yield
    for holder in filter(None, map(holder_of, runs(tmp_path / "results").values())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(holder.process), signal.SIGKILL)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


def others_begun(folder, found):
    return {path: holder for path, holder in begun(folder).items() if path not in found}


def frozen(folder, count):
    """So many runs in the middle, with their holders, which stand still until they are sent on."""
    found = {}
    while len(found) < count:
        # Not of those that stand still, or it would take a core from the others.
        for path, holder in until(lambda: others_begun(folder, found)).items():
            if len(found) < count:
                os.kill(int(holder.process), signal.SIGSTOP)
                found[path] = holder
                if holder_of(path) != holder or (path / "done.json").exists():
                    send_on(found.pop(path))
    return found


def send_on(holder):
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(holder.process), signal.SIGCONT)


def is_told(holder):
    """Whether a signal waits for the process that holds a run, or it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{holder.process}/status").read_text().splitlines()
        return any(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd"))
    return True


def finish(by_jobs, folder):
    """Wait for the tasks; how many runs had finished before the command looked is chance."""
    call(*by_jobs)
    assert len(finished(folder)) == 12


def killed_twice_and_finished(by_jobs, folder, interrupt):
    """Submit; ``interrupt`` a task; kill a worker; the same command finishes."""
    out = call(*by_jobs, "--detach")
    assert "12 runs in 2 tasks" in out
    (first, holder), (second, other) = frozen(folder, 2).items()
    # Nothing is submitted twice.
    assert "of them are queued already" in call(*by_jobs, "--detach")
    listed = call(sys.executable, "-m", "lrm.sweep.runs", "list", "--results", str(folder))
    assert listed.count("  running  ") == 2 and "  queued  " in listed, listed
    interrupt(holder)
    until(lambda: is_told(holder))
    send_on(holder)
    until(lambda: holder_of(first) != holder)
    assert (first / "checkpoint.pt").exists() and not (first / "done.json").exists()
    os.kill(int(other.process), signal.SIGKILL)
    until(lambda: (second / "failed.json").exists())
    assert not (second / "done.json").exists()
    listed = call(sys.executable, "-m", "lrm.sweep.runs", "list", "--results", str(folder))
    assert "  failed  " in listed and "its process ended with code -9" in listed
    assert f"{folder}/cluster/" in listed and "_log.err: " in listed
    finish(by_jobs, folder)
    for path in (first, second):
        assert json.loads((path / "run.json").read_text())["resumed"][0]["step"] > 0
    until(lambda: settled(folder))


@needs_submitit
@needs_proc
def test_a_sweep_by_jobs_that_are_stopped_and_killed(tmp_path, file, whole):
    """A task is told to stop, and a worker of the other one is killed."""
    folder = tmp_path / "results"
    by_jobs = command(folder, "--cluster", "local", "--cluster-file", str(file))

    def stop(holder):
        # Its worker's parent is what submitit has started.
        os.kill(parent(int(holder.process)), signal.SIGTERM)

    killed_twice_and_finished(by_jobs, folder, stop)
    assert_same_bits(whole, folder, 12)


@needs_submitit
@needs_proc
def test_a_task_at_its_time_limit_goes_on(tmp_path, file):
    """At submitit's signal the run is saved, and the task is queued again by itself."""
    folder = tmp_path / "results"
    small = (*SMALL[1:], "train.steps=300")
    by_jobs = command(folder, "--cluster", "local", "--cluster-file", str(file), only=["FPN S=1 *"],
                      seeds=1, small=small)  # fmt: skip
    call(*by_jobs, "--detach")
    [(path, holder)] = frozen(folder, 1).items()
    os.kill(parent(int(holder.process)), signal.SIGUSR2)
    until(lambda: is_told(holder))
    send_on(holder)
    until(lambda: holder_of(path) not in (None, holder) or (path / "done.json").exists())
    call(*by_jobs)
    resumed = json.loads((path / "run.json").read_text())["resumed"]
    assert len(resumed) == 1 and 0 < resumed[0]["step"] < 300


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def two_submitters(by_jobs, folder):
    """Both wait until all runs have finished; each run is trained once, from its first step."""
    both = [threading.Thread(target=call, args=by_jobs) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(finished(folder)) == 12
    for path in finished(folder):
        assert "resumed" not in json.loads((path / "run.json").read_text())
    until(lambda: settled(folder))


@needs_submitit
@needs_proc
def test_two_submitters(tmp_path, file, whole):
    folder = tmp_path / "results"
    two_submitters(command(folder, "--cluster", "local", "--cluster-file", str(file)), folder)
    assert_same_bits(whole, folder, 12)


@needs_submitit
def test_a_run_that_fails_is_told_with_its_log(tmp_path, file):
    """The others are trained; no task tries it again; the command ends with one line."""
    folder = tmp_path / "results"
    small = (*SMALL[1:], "train.steps=6")
    call(*command(folder, "--cluster", "local", "--cluster-file", str(file), "--dry-run"))
    by_jobs = command(folder, "--cluster", "local", "--cluster-file", str(file), only=["FPN*"],
                      seeds=1, small=(*small, "optimizer.lr=1.0e+30"))  # fmt: skip
    out = call(*by_jobs, code=2)
    [line] = [line for line in out.splitlines() if line.startswith("error: ")]
    assert "3 runs are not finished: FPN S=" in line and "is not finite at step" in line
    assert "_0_log.err: " in line and line.endswith("The same command submits them again")
    assert "Traceback" not in out


@needs_submitit
def test_a_task_that_dies_before_its_run_is_told_with_its_log(tmp_path, file):
    """And what is SLURM's is left out of a local one, with a line that says so."""
    asked = ('setup=["echo no such module >&2; exit 3"]', "container=[nowhere]")
    words = [word for each in asked for word in ("--cluster-set", each)]
    by_jobs = command(tmp_path, "--cluster", "local", "--cluster-file", str(file), *words,
                      only=["FPN S=1 *"], seeds=1)  # fmt: skip
    out = call(*by_jobs, code=2)
    assert "local tasks leave out what is SLURM's: container" in out
    [line] = [line for line in out.splitlines() if line.startswith("error: ")]
    # submitit's local engine keeps no log of what stands in front of Python.
    assert "ended before it did (" in line and "look at setup and container" in line
    [folder] = tmp_path.glob("cluster/*/")
    (folder / "17_0_log.err").write_text("first\nno such module\n")
    submission = json.loads((folder / "jobs.json").read_text())
    submission["tasks"] = {"17": 0}
    (folder / "jobs.json").write_text(json.dumps(submission))
    [name] = submission["runs"]
    run = SimpleNamespace(experiment=name.partition("/")[0], id=name.partition("/")[2])
    log = state.log_of(run, tmp_path)
    assert log == folder / "17_0_log.err" and state.last_line(log) == "no such module"


def test_local_tasks_take_no_gpus(tmp_path, capsys, monkeypatch):
    """Each would be given the first; and that they leave them idle is told."""
    file = tmp_path / "cluster.yaml"
    file.write_text("gpus: 1\n")
    assert cluster_settings.read("local", file, ["gpus=2"]).gpus == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    submit.submit([], tmp_path, "local", Cluster(gpus=0))
    assert "local tasks compute on CPUs; without --cluster a sweep takes" in capsys.readouterr().out


def test_what_workers_tell_at_the_end_is_shown(tmp_path, smoke_runs, capsys):
    """As that a run could not be saved when it was asked to stop."""
    job = (dataclasses.replace(smoke_runs("projector")[0], corpus="a"), tmp_path / "run")
    sweep = Sweep([job], tmp_path, 1)
    sweep.messages.put((None, {"step": 3}))
    sweep.messages.put((None, {"note": "a is not saved (no space)"}))
    sweep.end()
    assert "a is not saved (no space)" in "".join(capsys.readouterr())


# How runs are shared out, without any job.


def test_runs_of_one_shape_share_jobs(smoke_runs):
    """By shape; the estimates say how many tasks; each task begins with another run."""
    found = [(run, None) for run in smoke_runs("projector") + smoke_runs("width_scaling")]
    seconds = sum(run.estimate().seconds for run, _ in found)
    one = shares.shares(found, Cluster(gpus=1))
    assert sum(len(share.jobs) for share in one) == len(found)
    assert all(share.tasks == 1 for share in one)
    kinds = {(run.trains, run.settings.model) for share in one for run, _ in share.jobs}
    assert len(kinds) == len(one) > 1
    assert sum(share.seconds for share in one) == pytest.approx(seconds)
    one = [share for share in one if share.jobs[0][0].trains]
    hours = one[0].seconds / 3600
    [three] = shares.shares(one[0].jobs, Cluster(gpus=2, work_hours=hours / 5.5))
    assert (three.tasks, three.workers) == (3, 2)
    orders = [three.of_task(number) for number in range(3)]
    assert len({order[0][0].label for order in orders}) == 3
    assert all(sorted(map(id, order)) == sorted(map(id, one[0].jobs)) for order in orders)


def test_noise_that_would_begin_again_at_each_limit_is_told(smoke_runs):
    """It is not saved; a dry run says so, and nothing is submitted."""
    noise = [(run, None) for run in smoke_runs("projector") if not run.trains]
    [share] = shares.shares(noise, Cluster())
    long = dataclasses.replace(share, unsaved=(share.unsaved[0], 25 * 3600.0))
    shares.check_noise([share], Cluster(hours=24))
    with pytest.raises(UserError, match="ABM .* about 25.0 hours, is not saved.*--only"):
        shares.check_noise([long], Cluster(hours=24))
    assert "not as it stands: projector ABM" in shares.text([long], Cluster(hours=24))[-1]
    # A training that begins with what noise has left is saved, however long it takes.
    found = shares.shares([(run, None) for run in smoke_runs("frozen_multipliers")], Cluster())
    [both] = [one for one in found if one.unsaved and any(run.trains for run, _ in one.jobs)]
    assert both.unsaved[1] < both.longest and not both.unsaved[0].trains


def test_a_task_of_several_gpus_that_would_wait_for_its_last_run_is_told(smoke_runs):
    trained = [(run, None) for run in smoke_runs("projector") if run.trains]
    for gpus, odd in ((1, False), (len(trained), False), (len(trained) + 1, True)):
        cluster = Cluster(gpus=gpus)
        lines = shares.text(shares.shares(trained, cluster), cluster)
        assert any("keeps all of its GPUs" in line for line in lines) == odd


def test_shares_go_by_the_measured_speed(tmp_path, smoke_runs):
    """As the dry run does, also of the longest run."""
    run = dataclasses.replace(smoke_runs("projector")[0], corpus="a")
    done = tmp_path / "runs" / "projector" / "finished"
    with open_run(done) as directory:
        directory.start({**run.describe(), "execution": {}})
        directory.finish({"validation_loss": 1.0, "tokens_per_second": 10.0}, None)
    [found] = shares.shares([(run, None)], Cluster(), tmp_path)
    assert found.seconds == found.longest == run.estimate().tokens / 10.0
    [planned] = shares.shares([(run, None)], Cluster())
    assert planned.longest == run.estimate().seconds != found.longest


def test_jobs_of_a_dry_run_are_those_that_are_submitted(tmp_path, smoke_runs):
    """Of runs that compute the same one; all, before a corpus tells which do."""
    runs = smoke_runs("projector")[:2]
    runs += [dataclasses.replace(run, arm="ANOTHER") for run in runs]
    for number, known in ((2, [dataclasses.replace(run, corpus="a") for run in runs]), (4, runs)):
        lines = dry_run.of_cluster(known, tmp_path, Cluster(gpus=0)).splitlines()
        assert sum(int(line.split()[1]) for line in lines[3:-1]) == number


def test_hours_of_another_kind_of_device_are_told(smoke_runs):
    """Those of a scale that is planned for CPUs say nothing of tasks with GPUs, unless measured."""
    [share, *_] = shares.shares([(run, None) for run in smoke_runs("projector")], Cluster())
    for gpus, measured, told in ((1, False, True), (0, False, False), (1, True, False)):
        lines = shares.text([dataclasses.replace(share, measured=measured)], Cluster(gpus=gpus))
        assert lines[-1].startswith("hours are those of a CPU core, and tasks have GPUs") == told


def test_a_broken_gpu_fails_its_task_and_no_run(tmp_path, smoke_runs, monkeypatch):
    """Else the task would take one run after another, and mark it as failed for all tasks."""
    job = pytest.importorskip("lrm.sweep.cluster.job")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    runs = [dataclasses.replace(run, corpus="a") for run in smoke_runs("projector") if run.trains]
    jobs = [(run, tmp_path / str(number)) for number, run in enumerate(runs)]
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES = '0' names a GPU that torch cannot"):
        job.Task(jobs, tmp_path, 1, 1.0)()
    assert not list(tmp_path.iterdir())


def test_all_tasks_of_an_array_run_at_once_where_asked_to():
    """submitit's own limit is 256."""
    for at_once, most in ((64, 64), (None, 1000)):
        given = submit._parameters("slurm", Cluster(at_once=at_once), "projector")
        assert given["array_parallelism"] == most


def test_a_run_and_the_one_it_begins_with_share_jobs(smoke_runs):
    for found in shares.shares([(run, None) for run in smoke_runs("scale_diversity")], Cluster()):
        inside = [run for run, _ in found.jobs]
        assert all(run.after is None or run.after in inside for run in inside)


def test_the_dry_run_prints_jobs_hours_and_price(tmp_path):
    """The price is that of the cluster where it says one. It needs no submitit."""
    by_jobs = [sys.executable, "experiments/projector/run.py", "--scale", "paper", "--results",
               str(tmp_path), "--dry-run", "--cluster", "slurm"]  # fmt: skip
    lines = call(*by_jobs).splitlines()
    # A task for each training, and one for all noise.
    assert lines[-6].startswith("jobs: 19 array tasks of 1 GPUs, 4 CPUs and at most 24 hours each")
    assert lines[-1].startswith("7,017.1 GPU hours, about $21,051; ")
    lines = call(*by_jobs, "--cluster-set", "price_per_hour=1").splitlines()
    assert lines[-1].startswith("7,017.1 GPU hours, about $7,017; ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("partitoin: gpu", "unknown key partitoin; did you mean partition?"),
        ("hours: 0", "hours"),
        ("gpus: many", "gpus"),
        ("{hours: 0.1, notice_seconds: 600}", "hours = 0.1 leaves no time .* notice_seconds = 600"),
    ],
)
def test_cluster_settings_that_are_wrong(tmp_path, text, said):
    file = tmp_path / "cluster.yaml"
    file.write_text(text + "\n")
    with pytest.raises(UserError, match=f"cluster.yaml.*{said}"):
        cluster_settings.read("slurm", file, [])


def test_cluster_options_that_do_not_fit():
    with pytest.raises(UserError, match="is not there; write it"):
        cluster_settings.read("slurm", Path("no such file"), [])
    with pytest.raises(UserError, match="--cluster-set 'hours': write it as key=value"):
        cluster_settings.read("slurm", None, ["hours"])
    assert cluster_settings.read("slurm", None, ["hours=2", "sbatch.nice=5"]).hours == 2.0
    words = [sys.executable, "experiments/projector/run.py", "--detach"]
    assert "add --cluster slurm" in call(*words, code=2)


# What make list shows.


def test_states_of_runs(tmp_path, monkeypatch):
    """Queued, running, failed and unfinished ones; SLURM is asked once."""
    names = [f"some/{name}" for name in ("failed", "running", "waiting", "left", "new")]
    submission = state.Submission(
        tmp_path / "cluster" / "one", "slurm", {"7_0": 0, "7_1": 0, "8": 1},
        [names[:3] + names[4:], names[3:4]], {n: {"scale": "tiny", "label": n} for n in names},
        by=state.here(),
    )  # fmt: skip
    submission.folder.mkdir(parents=True)
    submission.write()
    for name in names[:4]:
        (tmp_path / "runs" / name).mkdir(parents=True)
    log = tmp_path / "log"
    log.write_text("first\nthe last words\n\n")
    note_failure(tmp_path / "runs" / "some" / "failed", "out of luck", log)
    squeue, asked = tmp_path / "squeue", tmp_path / "asked"
    squeue.write_text(f"#!/bin/sh\necho >> {asked}\necho 7_0 RUNNING\necho 7_1 PENDING\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with locked(tmp_path / "runs" / "some" / "running"):
        waiting = state.queued(tmp_path)
        assert asked.read_text() == "\n"
        found = {path.name: stored._read(path, waiting)
                 for path in tmp_path.glob("runs/some/*/")}  # fmt: skip
        new = stored._not_begun(tmp_path, waiting, {run.path for run in found.values()})
    states = {name: run.state for name, run in found.items()}
    assert states == {"failed": "failed", "running": "running", "waiting": "queued",
                      "left": "unfinished"}  # fmt: skip
    assert found["failed"].told == ("out of luck", f"{log}: the last words")
    assert found["waiting"].told == ("in 2 tasks (1 running, 1 pending), such as 7_0",)
    assert [(run.state, run.label) for run in new] == [("queued", "some/new")]
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert set(state.queued(tmp_path)[names[3]].values()) == {"submitted"}
    (submission.folder / "8_0_result.pkl").touch()
    assert names[3] not in state.queued(tmp_path)
    # When SLURM knows none of its tasks any more, it is asked about them for the last time.
    squeue.write_text(f"#!/bin/sh\necho >> {asked}\n")
    assert state.submissions(tmp_path) and state.queued(tmp_path) == {}
    assert not state.submissions(tmp_path)
    asked.unlink()
    assert state.queued(tmp_path) == {} and not asked.exists()


def test_a_task_of_this_machine_that_has_ended(tmp_path):
    """Also where another process has its number by now."""
    own, pid = {"some/a": {"scale": "tiny", "label": "a"}}, str(os.getpid())
    for start, active in ((start_of(int(pid)), {pid: "running"}), ("1", {}), ("", {})):
        found = state.Submission(tmp_path, "local", {pid: 0}, [["some/a"]], own, {pid: start})
        assert found.active(None) == active


class Arrays:
    """An executor of submitit's kind; what it was given, as one list for each array job."""

    found, refuses = [], 99

    def __init__(self, *_, **__):
        pass

    def update_parameters(self, **_):
        pass

    @contextlib.contextmanager
    def batch(self):
        self.found.append([])
        yield
        if len(self.found) > self.refuses:
            raise RuntimeError("too many")

    def submit(self, call):
        job = Submitted(f"{len(self.found)}_{len(self.found[-1])}")
        self.found[-1].append((call, job))
        return job


class Submitted:
    def __init__(self, job_id):
        self.job_id, self.cancelled = job_id, False

    def cancel(self, check):
        self.cancelled = True


@needs_submitit
@pytest.mark.parametrize("refuses", [99, 1])
def test_each_share_is_an_array_job(tmp_path, monkeypatch, smoke_runs, refuses):
    """SLURM limits the tasks of each. Where one is refused, those before it are cancelled."""
    import submitit

    monkeypatch.setattr(submitit, "SlurmExecutor", Arrays)
    monkeypatch.setattr(Arrays, "found", [])
    monkeypatch.setattr(Arrays, "refuses", refuses)
    runs = [dataclasses.replace(run, corpus="a") if run.reads_corpus else run
            for run in smoke_runs("width_scaling")]  # fmt: skip
    jobs = [(run, run.path(tmp_path)) for run in runs]
    cluster = Cluster(most_tasks=2, work_hours=1e-9)
    if refuses == 1:
        with pytest.raises(UserError, match="not submitted .too many"):
            submit.submit(jobs, tmp_path, "slurm", cluster)
        assert [job.cancelled for _, job in Arrays.found[0]] == [True, True]
        assert not list(tmp_path.glob("cluster/*/jobs.json"))
        return
    submit.submit(jobs, tmp_path, "slurm", cluster)
    [found] = state.submissions(tmp_path)
    assert len(Arrays.found) == len(found.shares) > 1
    for number, array in enumerate(Arrays.found):
        assert len(array) <= 2
        for call, job in array:
            assert found.tasks[job.job_id] == number
            assert {state.name_of(run) for run, _ in call.given[0]} == set(found.shares[number])


@needs_submitit
def test_what_sbatch_refuses_is_told_by_its_last_line(tmp_path, monkeypatch, smoke_runs):
    """Nothing of the submission stays."""
    import submitit

    def refuse(call):
        raise RuntimeError("sbatch: error: fetch_config: DNS SRV lookup failed\n"
                           "sbatch: fatal: Could not establish a configuration source")  # fmt: skip

    monkeypatch.setattr(submitit, "SlurmExecutor", Arrays)
    monkeypatch.setattr(Arrays, "found", [])
    monkeypatch.setattr(Arrays, "submit", staticmethod(refuse))
    run = dataclasses.replace(smoke_runs("width_scaling")[0], corpus="a")
    told = (r"not submitted \(sbatch: fatal: Could not establish a configuration source\); "
            "see whether sinfo works here; .* else use --cluster local")  # fmt: skip
    with pytest.raises(UserError, match=told):
        submit.submit([(run, run.path(tmp_path))], tmp_path, "slurm", Cluster())
    assert not list(tmp_path.glob("cluster/*"))


def test_a_run_that_others_train_is_tried_again_ever_later(tmp_path, smoke_runs, monkeypatch):
    """On a shift alone: other tasks may train it for days, and each try asks the file system."""
    job = (dataclasses.replace(smoke_runs("projector")[0], corpus="a"), tmp_path / "run")
    monkeypatch.setattr(scheduler.time, "monotonic", lambda: 0.0)
    for shift, last in ((Shift(1.0, tmp_path / "log"), 60.0), (None, 2.0)):
        sweep = Sweep([job], tmp_path, 1, shift=shift)
        pauses = []
        for _ in range(7):
            sweep._note_end_of(job, {"busy": True})
            pauses.append(sweep.busy[job[1]])
        assert pauses[0] == 2.0 and pauses == sorted(pauses) and pauses[-1] == last


def test_a_process_in_which_a_run_crashed_gets_no_other(tmp_path, smoke_runs):
    """What a fault of a GPU leaves behind stays with the process, and would fail the next run."""
    runs = [dataclasses.replace(run, corpus="a") for run in smoke_runs("projector")][:2]
    jobs = [(run, tmp_path / str(number)) for number, run in enumerate(runs)]
    for _, path in jobs:
        path.mkdir()
    sweep = Sweep(jobs, tmp_path, 1)
    started = []

    class Process:
        def __init__(self):
            started.append(self)
            self.sent, self.killed = [], False

        def send(self, order):
            self.sent.append(order)

        def kill(self):
            self.killed = True

    def start(number):
        return SimpleNamespace(number=number, jobs=[], ready=True, spent=False, step=0, loss=0.0,
                               process=Process(), give=lambda jobs: given.append(jobs))  # fmt: skip

    given = []
    sweep._start = start
    sweep.workers = [start(0)]
    first = sweep.workers[0]
    first.jobs = [sweep.waiting.pop(0)]
    sweep._note_end(first, {"crash": "AcceleratorError: an illegal memory access"})
    sweep._hand_out()
    assert first.process.killed and not given and len(sweep.crashes) == 1
    sweep._note_end(first, {"gone": -9})
    sweep._hand_out()
    assert len(started) == 2 and given == [jobs[1:]] and len(sweep.crashes) == 1


def test_what_others_have_trained_or_not_is_left(tmp_path, smoke_runs):
    """Both count as progress; one that failed is not counted among those that are done."""
    runs = [dataclasses.replace(run, corpus="a") for run in smoke_runs("projector")][:3]
    jobs = [(run, tmp_path / str(number)) for number, run in enumerate(runs)]
    sweep = Sweep(jobs, tmp_path, 1, shift=Shift(1.0, tmp_path / "log"))
    jobs[0][1].mkdir()
    (jobs[0][1] / "done.json").touch()
    jobs[1][1].mkdir()
    note_failure(jobs[1][1], "out of luck")
    sweep._hand_out()  # no worker is idle, so nobody looks
    assert len(sweep.waiting) == 3
    sweep._leave_settled()
    assert sweep.waiting == jobs[2:] and sweep.done == 1
    assert sweep.finished == pytest.approx(sweep.total - sweep.weights[runs[2].id])
