"""What torch.distributed has made of tensors and modules.

Nothing of it is imported before it is used: its tensors take seconds to import, and only a user
who has imported them has any.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)


def is_distributed(tensor: Any) -> bool:
    """Whether ``tensor`` lies on a mesh of devices (DTensor)."""
    # Asked many times a step, and a missing attribute is slow to miss.
    return type(tensor) not in _PLAIN and hasattr(tensor, "device_mesh")


def mesh_dimensions(tensor: Tensor) -> int:
    """On how many dimensions of a mesh ``tensor`` lies; 0 for an ordinary tensor."""
    return tensor.device_mesh.ndim if is_distributed(tensor) else 0


def whole(tensor: Tensor) -> Tensor:
    """All of ``tensor``, as an ordinary tensor."""
    return tensor.full_tensor() if is_distributed(tensor) else tensor


def by_mesh(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """``parameters`` with those apart whose gradients lie on different meshes of devices."""
    found: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        mesh = gradient.device_mesh if is_distributed(gradient) else None
        found.setdefault(mesh, []).append(parameter)
    return list(found.values())


def replicated_like(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor`` on the mesh of ``like`` where that lies on one, whole on each device."""
    if not is_distributed(like):
        return tensor
    from torch.distributed.tensor import Replicate, distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, [Replicate()] * like.device_mesh.ndim)


def is_fsdp(module: nn.Module) -> bool:
    """Whether ``fully_shard`` (FSDP2) was called on ``module``."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def reshard(model: nn.Module) -> None:
    """Have FSDP let go of what it gathered for the last forward pass.

    Without a backward pass behind it, what the outermost module holds stays gathered, and a
    parameter is a copy that is thrown away later.
    """
    for module in model.modules():
        if is_fsdp(module):
            module.reshard()


def is_gathered(module: nn.Module, tensor: Tensor) -> bool:
    """Whether ``tensor`` of ``module`` lies on a mesh, or FSDP gathers it for each use."""
    # Not by getattr, which goes through all of a module before it finds nothing.
    return is_distributed(tensor) or module.__dict__.get("_is_fsdp_managed_module", False)
