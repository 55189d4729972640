"""The gated feed-forward block."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from lrm.model import ops
from lrm.model.activations import Activations, record
from lrm.model.blocks.mlp import MLP
from lrm.model.config import ModelConfig
from lrm.model.norm import add_norms, normed


class MLPModule(nn.Module):
    """``down(up(u) * silu(gate(u)))``."""

    def __init__(self, config: ModelConfig, layer: int, factors: Mapping[str, float]) -> None:
        super().__init__()
        d, width = config.hidden_size, config.intermediate_size
        self.layer = layer
        self.gate_proj = nn.Linear(d, width, bias=False)
        self.up_proj = nn.Linear(d, width, bias=False)
        self.down_proj = nn.Linear(width, d, bias=False)
        add_norms(self, MLP(), config)
        names = ("mlp.gate", "mlp.up", "mlp.down")
        self.factors = tuple(factors.get(f"{name}@{layer}", 1.0) for name in names)

    def forward(self, u: Tensor, activations: Activations = None) -> Tensor:
        """Map u (batch, length, d) to the block's output of the same shape."""
        values = {
            "mlp.gate": ops.linear(u, self.gate_proj.weight, self.factors[0]),
            "mlp.up": ops.linear(u, self.up_proj.weight, self.factors[1]),
        }
        gate = normed(values, "mlp.gate", self.gate_norm)
        up = normed(values, "mlp.up", self.up_norm)
        inner = up * F.silu(gate)
        values["mlp.down"] = ops.linear(inner, self.down_proj.weight, self.factors[2])
        out = normed(values, "mlp.down", self.down_norm)
        record(activations, self.layer, values)
        return out
