"""Root-mean-square normalisation with a weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lrm.model import ops


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
