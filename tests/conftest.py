"""Shared settings of the tests: everything small, one thread a process."""

import gc
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
# Only tests that are marked so are for GPUs (make gpu, and pytest -m cuda). Workers take it over.
if "PYTEST_XDIST_WORKER" not in os.environ and "cuda" not in sys.argv:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest  # noqa: E402
import warm  # noqa: E402
from filelock import FileLock  # noqa: E402

from lrm.plan.config import Settings, validate
from lrm.plan.experiment import Experiment, load
from lrm.plan.run import Run

gc.set_threshold(*warm.COLLECTOR)

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def missing_at(experiment: Experiment, scale: str) -> str | None:
    """What an experiment that cannot be planned at ``scale`` says of it; None if it can be."""
    if scale not in experiment.header.at:
        return f"there are no runs at {scale}; use"
    if len(experiment.untuned(scale)) == len(experiment.arms_at(scale)):
        return f"run make tune SCALE={scale} PUBLISH=1"
    return None


# Models of the second paper, by what ends an arm's name; all others are of 0.12B.
SECOND_PAPERS_SIZES = {"0.25B": 0.254e9, "0.5B": 0.48e9, "0.75B": 0.75e9, "1B": 1_028_065_024}


def of_second_paper(run: Run) -> tuple[float, float]:
    """Parameters and tokens that the second paper has for a run of an ``sv_`` experiment."""
    arm = run.arm
    if run.experiment == "sv_decay" and not arm.startswith("DNP"):  # steps of two million tokens
        return 0.48e9, (25_000 if arm.startswith("LONG") else 5000) * 2**21
    if arm.startswith("MOE"):  # of 0.25 billion parameters a token passes through 0.11
        return 0.25e9, 100 * 0.11e9
    parameters = SECOND_PAPERS_SIZES.get(arm.rpartition("_")[2], 119_744_256)
    longer = float(arm.rpartition("_")[2]) if arm[-2] == "." else 1.0
    return parameters, 100 * parameters * longer


TINY_MODEL = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "mamba_d_ssm": 16,
    "mamba_n_heads": 2,
    "mamba_d_state": 4,
    "mamba_chunk_size": 8,
    "initializer_range": 0.1,
}
# Changes of it that make it a Gated Delta Network.
TINY_DELTA = {
    "mixer": "gdn",
    "mixer_sizes": {"gdn": {"heads": 2, "key_dim": 4, "value_dim": 6, "chunk": 8}},
}


def pytest_configure(config):
    """The servers of commands and one folder of compiled layers for all processes of pytest."""
    for kind in warm.MODULES:
        if not hasattr(config, "workerinput"):
            server = warm.Server(kind)
            config.add_cleanup(server.close)
            called = str(server.python)
        else:
            called = config.workerinput[kind]
        setattr(warm, kind, called)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(warm.python).with_name("compiled"))
    # Else every process that compiles starts another, which imports torch, to compile for it.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a process of pytest-xdist of the servers."""
    node.workerinput |= {kind: getattr(warm, kind) for kind in warm.MODULES}


def pytest_runtest_setup(item):
    """Tests marked ``cuda`` need a GPU, those marked ``compiles`` a C++ compiler."""
    if item.get_closest_marker("cuda") and not importlib.import_module("torch").cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    if item.get_closest_marker("compiles") and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no C++ compiler")


@pytest.fixture(autouse=True)
def denormal_numbers():
    """A run that is trained in this process flushes them to 0, for all tests that follow it."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """The folder of what is made once for all processes of pytest."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@pytest.fixture(scope="session")
def smoke_results(shared):
    """Results of every experiment at the smoke scale, one seed; the projector's with two.

    Searches for hyperparameters are left out: what they run follows from what they find.

    Whoever writes there copies it first. They are trained in one sweep by the programs that a user
    starts; then every ``run.py`` finds its own finished, but for the projector's second seed.
    """
    folder, done = shared / "smoke", shared / "smoke_is_trained"

    def call(*command):
        command = [*map(str, command), "--scale", "smoke", "--results", str(folder)]
        found = subprocess.run(command, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    with FileLock(shared / "smoke.lock"):
        if not done.exists():
            every = sorted(EXPERIMENTS.glob("*/run.py"))
            programs = [p for p in every if not load(p.with_name("config.yaml")).header.search]
            # A worker for each core may take more memory than a machine of many cores has.
            folders = [path.parent for path in programs]
            call(sys.executable, "-m", "lrm.sweep", *folders, "--workers", "2")
            for path in programs:
                assert ": 0 to train" in call(warm.python, path)
            call(warm.python, EXPERIMENTS / "projector" / "run.py", "--seeds", "2")
            done.touch()
    return folder


@pytest.fixture
def settings():
    """A function from overrides to complete small settings."""

    def make(**sections) -> Settings:
        data = {
            "model": TINY_MODEL,
            "data": {"source": "synthetic", "synthetic_documents": 60, "validation_fraction": 0.2},
            "train": {
                "steps": 12,
                "batch_size": 4,
                "sequence_length": 16,
                "validation_sequences": 8,
            },
            "optimizer": {"lr": 0.01, "weight_decay": 0.1},
            "schedule": {"warmup_steps": 2, "decay_steps": 4},
            "probes": {"every": 4, "vectors_every": 8, "sequences": 2},
            "base_width": 16,
        }
        for name, section in sections.items():
            merged = isinstance(section, dict) and isinstance(data.get(name), dict)
            data[name] = {**data[name], **section} if merged else section
        return validate(Settings, data, "the test")

    return make


@pytest.fixture
def smoke_runs():
    """A function from an experiment's name to its runs at the smoke scale."""

    def make(name: str, **options) -> list[Run]:
        experiment = load(EXPERIMENTS / name / "config.yaml")
        return experiment.runs("smoke", [0], **options)

    return make
