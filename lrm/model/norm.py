"""Root-mean-square normalisation with a weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lrm.model import ops
from lrm.model.blocks.block import Block
from lrm.model.config import ModelConfig


class RMSNorm(nn.Module):
    """``weight * x / sqrt(mean(x**2) + eps)``; the mean runs over x's last dimension.

    Where x has groups in its last two dimensions, the weight is spread over both.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) or (..., groups, width / groups); the same shape and dtype back."""
        return ops.rms_norm(x, self.weight.view(-1, x.shape[-1]).squeeze(0), self.eps)


class NormBehind(RMSNorm):
    """An RMSNorm of a matrix's output, in ``groups`` equal parts of its own each."""

    def __init__(self, width: int, eps: float, groups: int) -> None:
        super().__init__(width, eps)
        self.groups = groups

    def forward(self, y: Tensor) -> Tensor:
        """y (..., width); the same shape and dtype back."""
        if self.groups == 1:
            return super().forward(y)
        return super().forward(y.unflatten(-1, (self.groups, -1))).flatten(-2)


def add_norms(module: nn.Module, block: Block, config: ModelConfig) -> None:
    """Put into the torch ``module`` of ``block`` the norms that ``model.norms_behind`` asks for.

    ``module`` has an attribute for each norm that there may be; where there is none it is None.
    """
    rows = {address.name: address.shape[0] for address in block.tensors(config)}
    for name, norm in block.behind.items():
        how = config.norms_behind.get(name)
        found = None
        if how is not None:
            found = NormBehind(rows[name], config.rms_norm_eps, norm.groups(config, how))
        setattr(module, norm.module, found)


def normed(values: dict[str, Tensor], name: str, norm: NormBehind | None) -> Tensor:
    """``values[name]`` behind its norm, which then is in ``values`` too, as ``norm.<name>``."""
    if norm is None:
        return values[name]
    values[f"norm.{name}"] = norm(values[name])
    return values[f"norm.{name}"]
