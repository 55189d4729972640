"""The machine that the numbers were taken on. No torch here."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lrm.sweep.process import ENVIRONMENT
from lrm.sweep.scheduler import available_cores

# Instruction sets that decide how fast matrices are multiplied.
_FLAGS = ("avx", "fma", "amx", "asimd", "sve", "sme", "bf16", "i8mm", "f16c")


def describe() -> dict[str, Any]:
    """Cores, instruction sets, memory, system, and how the processes are started."""
    flags: list[str] = []
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.partition(":")[0].strip() in ("flags", "Features"):
                flags = [f for f in line.split() if any(name in f for name in _FLAGS)]
                break
    memory = None
    with suppress(ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    peer = None
    with suppress(PackageNotFoundError):
        peer = version("transformers")
    return {
        "cores": available_cores(),
        "flags": sorted(flags),
        "memory_bytes": memory,
        "system": platform.platform(),
        "transformers": peer,
        "process_environment": ENVIRONMENT,
    }


def load() -> list[float] | None:
    """Load averages over 1, 5 and 15 minutes, where the system has them."""
    with suppress(OSError, AttributeError):
        return [round(value, 2) for value in os.getloadavg()]
    return None
