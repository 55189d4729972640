"""Shared settings of the tests: everything small, one thread a process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
from filelock import FileLock  # noqa: E402

from lrm.compose import Run, load  # noqa: E402
from lrm.config import Settings, validate  # noqa: E402

needs_a_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"
)
EXPERIMENTS = Path(__file__).parents[1] / "experiments"
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


@pytest.fixture(scope="session")
def smoke_results(tmp_path_factory):
    """Results of every experiment at the smoke scale, one seed; the projector's with two.

    Trained once for all processes of pytest; whoever writes there copies it first.
    """
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, done = root / "smoke", root / "smoke_is_trained"
    with FileLock(root / "smoke.lock"):
        if not done.exists():
            for path in sorted(EXPERIMENTS.glob("*/run.py")):
                command = [sys.executable, path, "--scale", "smoke", "--results", folder]
                command += ["--seeds", 2 if path.parent.name == "projector" else 1]
                found = subprocess.run(list(map(str, command)), capture_output=True, text=True)
                assert found.returncode == 0, found.stdout + found.stderr
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
