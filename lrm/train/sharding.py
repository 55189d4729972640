"""One model whose parameters lie in parts on several processes: torch's FSDP2.

Every layer is gathered for its forward and its backward pass, and so are the embedding and the
projector. Multipliers lie whole on each process, and their gradients are averaged. Each process
updates its rows of every parameter. Norms over all gradients, and whole matrices for Muon, are
brought together (``lrm.optim.rows``).

For a checkpoint each process writes its part of every tensor (``lrm.store.parts``), and any number
of processes may resume it; they may also resume the whole checkpoint of one process. What is
measured is measured on a whole copy, which the first process has. Tensors are gathered one at a
time, and the first process alone keeps them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from lrm.errors import UserError
from lrm.model.activations import WithGradients
from lrm.multipliers.attach import Multipliers
from lrm.multipliers.sharding import whole
from lrm.optim.rows import Rows
from lrm.plan.config import Parallel


def shard(model: nn.Module, multipliers: Multipliers, parallel: Parallel) -> None:
    """Share out the parameters of ``model``, but for its multipliers, over all processes.

    ``parallel.replicate`` copies of the model lie in ``parallel.shard`` parts each. Raises
    UserError where there are not as many processes.
    """
    parallel.check(dist.get_world_size())
    device = next(model.parameters()).device.type
    sizes = (parallel.replicate, parallel.shard)
    mesh = init_device_mesh(device, sizes, mesh_dim_names=("replicate", "shard"))
    if parallel.replicate == 1:
        mesh = mesh["shard"]
    ignored = {parameter for _, _, parameter in multipliers.named()}
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh, ignored_params=ignored)


def average_gradients(multipliers: Multipliers) -> None:
    """Those of multipliers, which FSDP leaves alone; all of them are sent at once."""
    found = [parameter.grad for _, _, parameter in multipliers.named()]
    gradients = [gradient for gradient in found if gradient is not None]
    if not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = flat.split([gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(parts, gradients, strict=True)])


@torch.no_grad()
def load_whole(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Take the state of a whole model, into whatever part of it lies here.

    Raises UserError where it is that of another model.
    """
    own = model.state_dict()
    if own.keys() != state.keys():
        raise UserError("the checkpoint is that of another model; remove it and start again")
    for name, tensor in own.items():
        rows = Rows(tensor)
        rows.take(tensor).copy_(rows.part(state[name]))


@torch.no_grad()
def copy_whole(source: nn.Module, copy: nn.Module | None) -> None:
    """Give ``copy``, which lies whole here, the values and the gradients of ``source``.

    All processes call this alike; those without a copy only help.
    """
    parameters = {} if copy is None else dict(copy.named_parameters())
    values = {} if copy is None else copy.state_dict()
    for name, tensor in source.state_dict().items():
        found = whole(tensor)
        if copy is not None:
            values[name].copy_(found)
    for name, parameter in source.named_parameters():
        found = None if parameter.grad is None else whole(parameter.grad)
        if copy is not None:
            parameters[name].grad = found


def recompute(layers: nn.ModuleList) -> None:
    """Have each layer keep its input alone, and compute the rest again for the backward pass."""

    def wrapped(forward: Any, *inputs: Any) -> Any:
        # What is recorded of a pass with gradients must be that pass's, and not the second's.
        records = any(isinstance(each, WithGradients) for each in inputs)
        if not torch.is_grad_enabled() or records:
            return forward(*inputs)
        return checkpoint(forward, *inputs, use_reentrant=False)

    for layer in layers:
        layer.forward = functools.partial(wrapped, layer.forward)
