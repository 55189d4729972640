"""Grouped-query attention with rotary positions."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from lrm.config import ModelConfig
from lrm.model import kernels
from lrm.model.gpu import Kernels
from lrm.model.taps import Taps, keep


class Attention(nn.Module):
    """Causal attention without biases, scaled by ``head_dim ** -0.5``."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        factors: Mapping[str, float],
        implementations: Kernels,
    ) -> None:
        super().__init__()
        d, self.head_dim = config.hidden_size, config.head_dim
        width = config.num_attention_heads * self.head_dim
        kv_width = config.num_key_value_heads * self.head_dim
        self.layer = layer
        self.implementation = implementations.attention
        self.theta = config.rope_theta
        self.q_proj = nn.Linear(d, width, bias=False)
        self.k_proj = nn.Linear(d, kv_width, bias=False)
        self.v_proj = nn.Linear(d, kv_width, bias=False)
        self.o_proj = nn.Linear(width, d, bias=False)
        names = ("attention.q", "attention.k", "attention.v", "attention.out")
        self.factors = tuple(factors.get(f"{name}@{layer}", 1.0) for name in names)

    def forward(self, u: Tensor, taps: Taps = None) -> Tensor:
        """Map u (batch, length, d) to the mixer's output of the same shape."""
        batch, length, _ = u.shape
        q = kernels.linear(u, self.q_proj.weight, self.factors[0])
        k = kernels.linear(u, self.k_proj.weight, self.factors[1])
        v = kernels.linear(u, self.v_proj.weight, self.factors[2])
        split = (batch, length, -1, self.head_dim)
        mixed = kernels.attention(
            kernels.rope(q.view(split), self.theta),
            kernels.rope(k.view(split), self.theta),
            v.view(split).transpose(1, 2),
            self.head_dim**-0.5,
            self.implementation,
        )
        mixed = mixed.transpose(1, 2).reshape(batch, length, -1)
        out = kernels.linear(mixed, self.o_proj.weight, self.factors[3])
        values = {"attention.q": q, "attention.k": k, "attention.v": v, "attention.out": out}
        keep(taps, self.layer, values)
        return out
