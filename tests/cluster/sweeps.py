"""The sweeps of ``test_cluster.py`` on a real SLURM with two slots, which this file starts.

``make test-cluster`` calls it. pytest does not collect it otherwise.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from test_cluster import (
    CLUSTER,
    assert_same_bits,
    call,
    command,
    finish,
    frozen,
    is_told,
    killed_twice_and_finished,
    needs_submitit,
    nothing_stands_still,  # noqa: F401
    send_on,
    two_submitters,
    whole,  # noqa: F401
)
from test_signals import until

from lrm.store.lock import holder_of

SCRIPT = Path(__file__).with_name("slurm.sh")
missing = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if not shutil.which(name)]
why = f"{', '.join(missing)} not installed" if missing else "only root can start SLURM"
# Marks, since a module that is skipped as a whole counts as a failure: no test was found.
pytestmark = [
    needs_submitit,
    pytest.mark.skipif(
        bool(missing) or os.geteuid() != 0,
        reason=f"NOT RUN: sweeps on a real SLURM ({why}; apt-get install slurm-wlm munge, as root)",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def slurm(tmp_path_factory):
    """SLURM on this machine, for as long as these tests take."""
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([SCRIPT, "start", folder], check=True, stdout=subprocess.DEVNULL)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    yield folder
    subprocess.run([SCRIPT, "stop", folder], check=True)
    if before is None:
        del os.environ["SLURM_CONF"]
    else:
        os.environ["SLURM_CONF"] = before
    assert not list(folder.glob("*.pid"))


@pytest.fixture
def by_jobs(tmp_path):
    """The command that trains twelve runs by jobs."""
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    return command(tmp_path / "results", "--cluster", "slurm", "--cluster-file", str(file))


def test_a_sweep_killed_by_scancel_and_by_kill(tmp_path, by_jobs, whole):  # noqa: F811
    folder = tmp_path / "results"
    killed_twice_and_finished(by_jobs, folder, lambda holder: call("scancel", holder.job))
    assert_same_bits(whole, folder, 12)


def test_a_sweep_preempted_and_out_of_time(tmp_path, by_jobs, whole):  # noqa: F811
    """A job of a higher partition takes both slots; later one task gets its notice of the limit.

    Nobody submits again: the tasks are queued by themselves.
    """
    folder = tmp_path / "results"
    call(*by_jobs, "--detach")
    held = frozen(folder, 2)
    call("sbatch", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1")
    for path, holder in held.items():
        until(lambda path=path, holder=holder: holder_of(path) != holder)
        assert not (path / "done.json").exists()
    [(path, holder)] = frozen(folder, 1).items()
    call("scancel", "--signal=USR2", holder.job)
    until(lambda: is_told(holder))
    send_on(holder)
    until(lambda: holder_of(path) != holder)
    finish(by_jobs, folder)
    # Two tasks in all: nobody has submitted a third.
    assert len(list(folder.glob("cluster/*/*_submitted.pkl"))) == 2
    assert_same_bits(whole, folder, 12)


def test_two_submitters_on_slurm(tmp_path, by_jobs, whole):  # noqa: F811
    two_submitters(by_jobs, tmp_path / "results")
    assert_same_bits(whole, tmp_path / "results", 12)
