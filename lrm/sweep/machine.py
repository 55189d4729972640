"""What this machine has, and what a plan asks of it, checked before a worker starts. No torch."""

from __future__ import annotations

import itertools
import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lrm.errors import UserError, shown
from lrm.plan.memory import of_process
from lrm.plan.run import Run

# There CUDA may be usable although no /dev/nvidia0 is: Windows' subsystem, ROCm, Jetson.
_OTHER_GPUS = ("/dev/dxg", "/dev/kfd", "/dev/nvmap")
_PATIENCE = 300  # seconds; torch may come from a slow disk
_ASK = """
import sys
from lrm.errors import UserError
from lrm.train.device import device_of
try:
    device_of(sys.argv[1])
except UserError as error:
    sys.exit(str(error))
"""
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes.

    Raises UserError where that variable holds other names. As in CUDA, -1 ends its list.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        # CUDA counts those that it sees; a container may have /dev/nvidia3 alone.
        return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    for name in names:
        if not re.fullmatch(r"-1|[0-9]{1,3}|(GPU|MIG)-[\w/-]+|NoDevFiles|none|void", name):
            raise UserError(
                f"CUDA_VISIBLE_DEVICES = {shown(visible)}: {shown(name)} is no GPU; write "
                "numbers such as 0,1"
            )
    return list(itertools.takewhile(lambda name: name[0] in "0123456789GM", names))


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_workers(runs: Sequence[Run]) -> int:
    """One worker a GPU that the runs may use, else one for every ``threads`` cores."""
    devices = {run.execution.device for run in runs}
    if devices & {"auto", "cuda"} and gpus():
        return len(gpus())
    if numbered := {device for device in devices if device.startswith("cuda:")}:
        return len(numbered)
    return max(1, available_cores() // max(run.execution.threads for run in runs))


def check_places() -> None:
    """UserError where the variables that torchrun sets are no places among its processes."""
    world = _place("WORLD_SIZE", 1, 1 << 20)
    for name, most in (("RANK", world - 1), ("LOCAL_RANK", world - 1), ("MASTER_PORT", 65535)):
        if name in os.environ:
            _place(name, 0, most)


def _place(name: str, least: int, most: int) -> int:
    text = os.environ[name]
    if text.isdecimal() and len(text) < 10 and least <= int(text) <= most:
        return int(text)
    raise UserError(
        f"{name} = {shown(text)} is no number from {least} to {most}; start by torchrun, or "
        "unset it"
    )


def check_devices(runs: Sequence[Run]) -> None:
    """UserError where a run names a device that this machine does not have, as far as is seen."""
    count = len(gpus())
    for name in sorted({run.execution.device for run in runs}):
        kind, _, number = name.partition(":")
        if kind != "cuda" or any(map(os.path.exists, _OTHER_GPUS)):
            continue
        if int(number or 0) >= count:
            raise UserError(
                f"execution.device = {name}, but there are {count} GPUs here; write auto, which "
                "takes what is there"
            )


def check_device_by_torch(name: str) -> None:
    """UserError where ``execution.device`` = ``name`` is a GPU that is not usable here.

    Each of the GPUs that workers are given, where no number is named. Other processes ask torch:
    this one would keep a part of the GPU's memory.
    """
    if name == "cpu" or (name == "auto" and not gpus()):
        return
    command = [sys.executable, "-c", _ASK, name]
    cards = [{"CUDA_VISIBLE_DEVICES": card} for card in gpus()] if ":" not in name else []
    asked = [
        subprocess.Popen(command, env=os.environ | card, stderr=subprocess.PIPE, text=True)
        for card in cards or [{}]
    ]
    try:
        for process in asked:
            _, said = process.communicate(timeout=_PATIENCE)
            if process.returncode:
                lines = said.strip().splitlines() or [f"code {process.returncode}"]
                raise UserError(lines[-1])
    except subprocess.TimeoutExpired:
        raise UserError(f"torch does not say within {_PATIENCE} seconds whether execution.device = "
                        f"{name} is usable; see whether the driver hangs") from None  # fmt: skip
    finally:
        for process in asked:
            process.kill()


def check_memory(runs: Sequence[Run], workers: int, at_once: int = 1) -> None:
    """UserError where runs on the CPU need more memory than there is, by a low estimate.

    ``workers`` train ``at_once`` runs each.
    """
    available = check_memory_of_one(runs)
    if available is None:
        return
    sizes = sorted((of_process(run).least if run.trains else 0, run.label) for run in runs)
    largest, _ = sizes[-1]
    together = sum(size for size, _ in sizes[-workers * at_once :])
    if together > available and at_once > 1:
        raise UserError(
            f"{workers} workers with {at_once} runs at once need at least {together / 1e9:,.0f} GB "
            f"of memory, and there are {available / 1e9:,.0f}; lower execution.batch_runs"
        )
    if together > available:
        raise UserError(
            f"{workers} workers need at least {together / 1e9:,.0f} GB of memory, and there are "
            f"{available / 1e9:,.0f}; use --workers {max(1, int(available // largest))}"
        )


def check_memory_of_one(runs: Sequence[Run], processes: int = 1) -> int | None:
    """``check_memory`` where each run is trained alone, by ``processes`` together.

    Returns the memory that there is; None where that, or what is needed of it, is not known.
    """
    available = memory()
    if available is None or gpus() or not runs:
        return None
    several = processes > 1 and "LOCAL_WORLD_SIZE" in os.environ
    here = _place("LOCAL_WORLD_SIZE", 1, processes) if several else 1
    largest, label = max((here * of_process(run, processes).least if run.trains else 0, run.label)
                         for run in runs)  # fmt: skip
    if largest > available:
        raise UserError(
            f"{label} needs at least {largest / 1e9:,.0f} GB of memory, and there are "
            f"{available / 1e9:,.0f}; make model or train.batch_size smaller, or set "
            "execution.micro_batch"
        )
    return available


def _own_limits() -> list[Path]:
    """Files of the limits of the group that this process is in, and of those above it (SLURM)."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = Path("/sys/fs/cgroup", "memory" if controllers else "")
            own = root / path.lstrip("/")
            file = "memory.limit_in_bytes" if controllers else "memory.max"
            found += [each / file for each in (own, *own.parents) if each.is_relative_to(root)]
    return found


def memory() -> int | None:
    """Bytes that this process may use: of the machine, its container and its limits."""
    limits = []
    with suppress(ValueError, OSError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in (*_LIMITS, *_own_limits()):
        with suppress(ValueError, OSError):
            limits.append(int(Path(path).read_text()))
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits, default=None)
