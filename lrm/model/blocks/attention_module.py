"""Grouped-query attention with rotary positions, and what tries its kernels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lrm.model import ops
from lrm.model.activations import Activations, record
from lrm.model.blocks.attention import Attention
from lrm.model.config import ModelConfig
from lrm.model.gpu.adapters import Kernels
from lrm.model.gpu.selection import draw
from lrm.model.norm import add_norms, normed


class AttentionModule(nn.Module):
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
        add_norms(self, Attention(), config)
        names = ("attention.q", "attention.k", "attention.v", "attention.out")
        self.factors = tuple(factors.get(f"{name}@{layer}", 1.0) for name in names)

    def forward(self, u: Tensor, activations: Activations = None) -> Tensor:
        """Map u (batch, length, d) to the mixer's output of the same shape."""
        batch, length, _ = u.shape
        values = {
            "attention.q": ops.linear(u, self.q_proj.weight, self.factors[0]),
            "attention.k": ops.linear(u, self.k_proj.weight, self.factors[1]),
            "attention.v": ops.linear(u, self.v_proj.weight, self.factors[2]),
        }
        q = normed(values, "attention.q", self.q_norm)
        k = normed(values, "attention.k", self.k_norm)
        v = normed(values, "attention.v", self.v_norm)
        split = (batch, length, -1, self.head_dim)
        mixed = ops.attention(
            ops.rope(q.view(split), self.theta),
            ops.rope(k.view(split), self.theta),
            v.view(split).transpose(1, 2),
            self.head_dim**-0.5,
            self.implementation,
        )
        mixed = mixed.transpose(1, 2).reshape(batch, length, -1)
        values["attention.out"] = ops.linear(mixed, self.o_proj.weight, self.factors[3])
        out = normed(values, "attention.out", self.o_norm)
        record(activations, self.layer, values)
        return out


def attention_trial(config: ModelConfig, device: torch.device, dtype: torch.dtype):
    """Inputs of attention at this model's shapes, and attention as a function of them."""
    width, length = config.head_dim, 141
    heads = {
        "q": config.num_attention_heads,
        "k": config.num_key_value_heads,
        "v": config.num_key_value_heads,
    }
    leaves = {
        name: draw(seed, 2, length, count, width).to(device, dtype)
        for seed, (name, count) in enumerate(heads.items(), 2)
    }

    def function(q: Tensor, k: Tensor, v: Tensor, implementation: str = "torch") -> Tensor:
        q, k = (t.transpose(1, 2).contiguous() for t in (q, k))
        return ops.attention(q, k, v.transpose(1, 2), width**-0.5, implementation)

    return leaves, function
