"""What a plan asks of this machine, checked before a worker starts. No torch here."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lrm.errors import UserError, shown
from lrm.plan.run import Run
from lrm.sweep.scheduler import gpus

# There CUDA may be usable although no /dev/nvidia0 is: Windows' subsystem, ROCm, Jetson.
_OTHER_GPUS = ("/dev/dxg", "/dev/kfd", "/dev/nvmap")
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_places() -> None:
    """UserError where the variables that torchrun sets are no places among its processes."""
    world = _place("WORLD_SIZE", 1, 1 << 20)
    for name, most in (("RANK", world - 1), ("LOCAL_RANK", world - 1), ("MASTER_PORT", 65535)):
        if name in os.environ:
            _place(name, 0, most)


def _place(name: str, least: int, most: int) -> int:
    said = os.environ[name]
    if said.isdecimal() and len(said) < 10 and least <= int(said) <= most:
        return int(said)
    raise UserError(
        f"{name} = {shown(said)} is no number from {least} to {most}; start by torchrun, or "
        "unset it"
    )


def check_devices(runs: Sequence[Run]) -> None:
    """UserError where a run names a device that this machine does not have, as far as is seen."""
    count = len(gpus())
    for name in sorted({run.execution.device for run in runs}):
        kind, _, number = name.partition(":")
        if kind == "mps" and sys.platform != "darwin":
            raise UserError("execution.device = mps is for Macs; write auto")
        if kind != "cuda" or any(map(os.path.exists, _OTHER_GPUS)):
            continue
        if int(number or 0) >= count:
            raise UserError(
                f"execution.device = {name}, but there are {count} GPUs here; write auto, which "
                "takes what is there"
            )


def check_memory(runs: Sequence[Run], workers: int, processes: int) -> None:
    """UserError where runs on the CPU need more memory than there is, by a low estimate.

    ``workers`` runs at a time, each by ``processes``, of which this one counts.
    """
    there = memory()
    if there is None or gpus() or not runs:
        return
    sizes = sorted((needed(run, processes), run.label) for run in runs)
    largest, label = sizes[-1]
    if largest > there:
        raise UserError(
            f"{label} needs at least {largest / 1e9:,.0f} GB of memory, and there are "
            f"{there / 1e9:,.0f}; make model or train.batch_size smaller, or set "
            "execution.micro_batch"
        )
    together = sum(size for size, _ in sizes[-workers:])
    if together > there:
        raise UserError(
            f"{workers} workers need at least {together / 1e9:,.0f} GB of memory, and there are "
            f"{there / 1e9:,.0f}; use --workers {max(1, int(there // largest))}"
        )


def needed(run: Run, processes: int = 1) -> int:
    """Bytes without which ``run`` cannot be: what Adam keeps, and what enters each layer."""
    if not run.trains:
        return 0
    train, model = run.settings.train, run.settings.model
    parameters = sum(plan.address.size for plan in run.plans)
    rows = run.execution.micro_batch or max(1, train.batch_size // processes)
    entering = rows * train.sequence_length * model.hidden_size * model.num_hidden_layers
    # In float32: weights, gradients and two moments; Muon has one.
    return 4 * (3 * parameters + entering)


def memory() -> int | None:
    """Bytes that this process may use: of the machine, its container and its limits."""
    found = []
    with suppress(ValueError, OSError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _LIMITS:
        with suppress(ValueError, OSError):
            found.append(int(Path(path).read_text()))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        found.append(limit)
    return min(found, default=None)
