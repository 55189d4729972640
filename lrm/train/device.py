"""The machine that a run is computed on: device, precision, kernels, and what is on record."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import lrm
from lrm.errors import UserError, first_line
from lrm.model.config import ModelConfig
from lrm.model.gpu import selection
from lrm.model.gpu.adapters import Kernels
from lrm.plan.config import Execution
from lrm.plan.identity import NUMERICS_VERSION
from lrm.store.digests import running
from lrm.train.distributed import ALONE, Group


@dataclass(frozen=True)
class Equipment:
    """What a run is computed with; ``summary`` says it in one line."""

    device: torch.device
    precision: str
    kernels: Kernels
    summary: str

    @property
    def autocast(self) -> Any:
        """The context in which models compute in ``precision``; None leaves all as it is."""
        if self.precision == "float32":
            return None
        return torch.autocast(self.device.type, getattr(torch, self.precision))


def equip(execution: Execution, config: ModelConfig, group: Group = ALONE) -> Equipment:
    """Device, precision and kernels of a run.

    Raises UserError where something that is asked for by name is not usable here.
    """
    device = device_of(execution.device, group)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # whom torch asks for names and for what is supported
    precision = _precision(execution.precision, device)
    # Else convolutions round float32 to 10 bits on GPUs; products of matrices do not by default.
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = precision != "float32"
    kernels = selection.select(execution.kernels, config, device, precision)
    summary = selection.summary(kernels, execution.kernels, config, device, precision)
    return Equipment(device, precision, kernels, summary)


def device_of(name: str, group: Group = ALONE) -> torch.device:
    """What ``execution.device`` stands for here; UserError where that is not usable."""
    if group.world > 1 and name not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"execution.device = {name} is one device for {group.world} processes; write auto, "
            "cuda or cpu"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        # A cluster's job that has a GPU must not train on a core of its CPU for days.
        named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if name == "cpu" and re.match(r"\d|GPU-|MIG-", named):
            raise UserError(
                f"CUDA_VISIBLE_DEVICES = {named!r} names a GPU that torch cannot use here; see "
                "whether torch is built with CUDA and the driver is new enough, or write "
                "execution.device=cpu"
            )
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else math.inf
    if group.world > 1 and name == "cuda" and group.local_rank >= gpus:
        raise UserError(
            f"process {group.local_rank} of this machine sees {gpus} GPUs; start as many processes "
            "as there are GPUs and let each see all of them, or set execution.device=cpu"
        )
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"execution.device = {name!r} is not usable here ({first_line(error)}); write auto"
        ) from None


def _precision(name: str, device: torch.device) -> str:
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    native = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    return "bfloat16" if native else "float32"


def environment() -> dict[str, Any]:
    """Versions, commit, processor and GPU, for the record."""
    found = {
        "lrm": lrm.__version__,
        "numerics": NUMERICS_VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _commit(),
        "code": _code(),
        "processor": _processor(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if torch.cuda.is_initialized():
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return found


@functools.cache
def _commit() -> str | None:
    """Of the code that this process has loaded: later commits do not change it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


@functools.cache
def _code() -> str:
    """Digest of the suite's own files: what is not committed counts too."""
    root = Path(lrm.__file__).parent
    found = running()
    for path in sorted(root.rglob("*.py")):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


@functools.cache
def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
