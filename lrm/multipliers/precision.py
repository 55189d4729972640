"""In which dtype things are computed: half precision where autocast says so, never the rest."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.amp import is_autocast_available

HALF = (torch.bfloat16, torch.float16)


# Asked before anything is compiled. The compiler of torch 2.11 cannot trace the question: it met a
# new context at each call of ``without_autocast``, and compiled anew what stood within.
_AUTOCAST = {
    kind: is_autocast_available(kind)
    for kind in ("cpu", "cuda", "hpu", "meta", "mps", "xla", "xpu")
}


def has_autocast(device: str) -> bool:
    """Whether a device knows autocast at all; the meta device does not."""
    known = _AUTOCAST.get(device)
    return is_autocast_available(device) if known is None else known


def upcast(x: Tensor) -> Tensor:
    """``x`` in float32 if it is in half precision, else ``x`` itself."""
    return x.float() if x.dtype in HALF else x


def to_compute(x: Tensor) -> Tensor:
    """``x`` in the dtype in which autocast multiplies matrices.

    Several projections read one activation; casting it here makes one cast of many.
    """
    device = x.device.type
    if x.dtype != torch.float32 or not has_autocast(device):
        return x
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Leave all dtypes as they are; the meta device knows no autocast."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if has_autocast(device) else nullcontext()
