"""A process of ``make gpu``: takes one item after another on command, and answers in plain data."""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import lrm
from lrm.bench.gpu import parity, profile
from lrm.bench.gpu.plan import GpuPlan
from lrm.bench.gpu.whole_logits import whole_logits
from lrm.bench.throughput import throughput
from lrm.errors import UserError, first_line
from lrm.model import falcon_h1
from lrm.model.gpu.adapters import PACKAGES
from lrm.plan.experiment import load
from lrm.store.rundir import is_complete, read_outcome
from lrm.sweep.command import with_corpora
from lrm.train.device import environment

# The tests and the experiments lie beside the package in the repository.
ROOT = Path(lrm.__file__).parents[1]


class Worker:
    """The methods that items name."""

    def __init__(self, results: Path, toy: bool):
        self.results, self.plan = results, GpuPlan(toy)

    def machine(self) -> dict[str, Any]:
        """The device and what is installed; ``device`` is None where there is no GPU to use."""
        return {
            "device": _device(self.plan.toy),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "cuda": torch.version.cuda,
            **{name: _version(name) for name in ("triton", *_distributions())},
            **environment(),
        }

    def tests(self, path: str) -> dict[str, Any]:
        """The tests marked ``cuda`` in a file or folder: how many passed, were skipped or failed.

        Raises UserError where there is no pytest, or where it did not run to its end.
        """
        if importlib.util.find_spec("pytest") is None:
            raise UserError("pytest is not installed; run make setup-dev")
        if not (ROOT / path).exists():
            raise UserError(f"{ROOT} has no {path}; call it in a clone of the repository")
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder) / "tests.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
                       "no:xdist", "-m", "cuda", f"--junitxml={told}", path]  # fmt: skip
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if done.returncode not in (0, 1) or not told.exists():
                said = (done.stdout + done.stderr).strip().splitlines() or ["nothing was said"]
                raise UserError(f"pytest ended with code {done.returncode}: {said[-1]}")
            return _outcomes(told)

    def parity(self, kernel: str, scale: str) -> dict[str, Any]:
        """See ``parity.of_kernel``."""
        run = self.plan.run("bfloat16", scale)
        return parity.of_kernel(kernel, run.settings.model, torch.device(run.execution.device))

    def whole_model(self, variant: str, scale: str) -> dict[str, Any]:
        """See ``parity.of_model``. Raises UserError where memory does not suffice."""
        with _memory_error():
            return parity.of_model(self.plan.run(variant, scale))

    def speed(
        self, variant: str, scale: str | None = None, overrides: tuple[str, ...] = (),
        whole_logits: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """``throughput`` of a variant's step. Raises UserError where memory does not suffice."""
        run, measure = self.plan.run(variant, scale, tuple(overrides)), self.plan.measure
        train = run.settings.train
        with _memory_error(), _logits(whole_logits):
            found = throughput(run, measure.steps, measure.warmup)
        # Of the peak that the record says, which may be said later.
        del found["utilisation"]
        return {"batch": train.batch_size, "length": train.sequence_length, **found}

    def profile(self, variant: str) -> dict[str, Any]:
        """See ``profile.of_step``. Raises UserError where memory does not suffice."""
        measure = self.plan.measure
        with _memory_error():
            return profile.of_step(self.plan.run(variant), measure.steps, measure.warmup)

    def projector(self, S: float) -> dict[str, Any]:
        """The arms of the projector's experiment at one S: what each run has come to.

        By the experiment's own command, so that runs are those of any sweep: they lie with the
        user's others, and go on from their checkpoints. Raises UserError where it fails.
        """
        asked, program = self.plan.measure.projector, ROOT / "experiments" / "projector" / "run.py"
        if not program.exists():
            raise UserError(f"{program} is not there; call it in a clone of the repository")
        sets = [f"data.source={asked.source}"]
        # Often, since a part may end at any time.
        execution = ["execution.checkpoint_every=100", f"execution.device={self._kind}"]
        options = [f"--set={one}" for one in (*sets, *execution)]
        pattern = f"?PN S={S:g} seed=*"
        command = [sys.executable, str(program), "--scale", asked.scale, "--only", pattern,
                   "--workers", str(asked.workers), "--results", str(self.results), "--yes",
                   *options]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"code {done.returncode}"]
            raise UserError(f"the experiment's command: {said[-1].removeprefix('error: ')}")
        runs = load(program.with_name("config.yaml")).runs(asked.scale, [0], sets, [pattern])
        found = {}
        for run in with_corpora(runs, self.results / "data", build=False):
            if not is_complete(path := run.path(self.results)):
                raise UserError(f"{path} is not finished; run it again")
            found[run.arm] = {"id": run.id, **read_outcome(path)}
        return {"S": S, "scale": asked.scale, "source": asked.source, "runs": found}

    @property
    def _kind(self) -> str:
        return "cpu" if self.plan.toy else "cuda"


def _device(toy: bool) -> dict[str, Any] | None:
    if toy:
        return {"name": environment()["processor"], "kind": "cpu"}
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "kind": "cuda",
        "memory_bytes": found.total_memory,
        "capability": f"{found.major}.{found.minor}",
        "processors": found.multi_processor_count,
    }


def _distributions() -> list[str]:
    return [package.distribution for package in PACKAGES.values()]


def _version(distribution: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def _outcomes(told: Path) -> dict[str, Any]:
    """Counts of a JUnit report; of what failed the names, and of what was skipped the reasons."""
    counts = {"passed": 0, "failed": [], "skipped": {}}
    for case in ElementTree.parse(told).iter("testcase"):
        kinds = {child.tag: child for child in case}
        if "failure" in kinds or "error" in kinds:
            counts["failed"].append(case.get("name"))
        elif "skipped" in kinds:
            reason = kinds["skipped"].get("message") or "without a reason"
            counts["skipped"][reason] = counts["skipped"].get(reason, 0) + 1
        else:
            counts["passed"] += 1
    return counts


@contextlib.contextmanager
def _memory_error() -> Iterator[None]:
    """Within it a GPU whose memory does not suffice is a UserError; behind it memory is free."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        # What follows its second sentence, how much was asked for, is advice.
        said = ". ".join(first_line(error).split(". ")[:2])
        # Without the frames that hold what filled it.
        raise UserError(f"memory does not suffice ({said})") from None
    finally:
        torch._dynamo.reset()
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _logits(whole: bool) -> contextlib.AbstractContextManager:
    """Where asked for, the model's loss is torch's, of all logits at once."""
    if not whole:
        return contextlib.nullcontext()
    return mock.patch.object(falcon_h1, "linear_cross_entropy", whole_logits)


def start(
    tell: Callable[..., None], results: str, kind: str
) -> Callable[[str, dict[str, Any]], Any]:
    """What calls the methods that are asked for."""
    torch.set_num_threads(1)
    worker = Worker(Path(results), kind == "toy")
    tell(ready=True)
    return lambda method, arguments: getattr(worker, method)(**arguments)
