"""The gated feed-forward block."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from lrm.model import ops
from lrm.model.activations import Activations, record
from lrm.model.config import ModelConfig


class MLPModule(nn.Module):
    """``down(up(u) * silu(gate(u)))``."""

    def __init__(self, config: ModelConfig, layer: int, factors: Mapping[str, float]) -> None:
        super().__init__()
        d, width = config.hidden_size, config.intermediate_size
        self.layer = layer
        self.gate_proj = nn.Linear(d, width, bias=False)
        self.up_proj = nn.Linear(d, width, bias=False)
        self.down_proj = nn.Linear(width, d, bias=False)
        names = ("mlp.gate", "mlp.up", "mlp.down")
        self.factors = tuple(factors.get(f"{name}@{layer}", 1.0) for name in names)

    def forward(self, u: Tensor, activations: Activations = None) -> Tensor:
        """Map u (batch, length, d) to the block's output of the same shape."""
        gate = ops.linear(u, self.gate_proj.weight, self.factors[0])
        up = ops.linear(u, self.up_proj.weight, self.factors[1])
        out = ops.linear(up * F.silu(gate), self.down_proj.weight, self.factors[2])
        record(activations, self.layer, {"mlp.gate": gate, "mlp.up": up, "mlp.down": out})
        return out
