"""The Mamba2 mixer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrm.config import ModelConfig
from lrm.model import kernels
from lrm.model.gpu import Kernels
from lrm.model.norm import RMSNorm
from lrm.model.taps import Taps, keep
from lrm.model.tensors import ssm_slices


class Mamba2(nn.Module):
    """Merged input projection, causal convolution, state space duality, gate, projection.

    ``[z | x | B | C | dt] = in_proj(u)``; x, B and C pass a causal convolution and SiLU;
    ``y = SSD(x, softplus(dt + dt_bias), -exp(A_log), B, C) + D x``; then ``y * silu(z)``, or
    an RMSNorm over each group before or after that gate (``mamba_rms_norm``).
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        factors: Mapping[str, float],
        implementations: Kernels,
    ) -> None:
        super().__init__()
        d, inner, heads = config.hidden_size, config.mamba_d_ssm, config.mamba_n_heads
        self.layer = layer
        self.implementations = implementations
        self.heads = heads
        self.groups = config.mamba_n_groups
        self.chunk = config.mamba_chunk_size
        self.norm_before_gate = config.mamba_norm_before_gate
        self.slices = ssm_slices(config)
        convolved = sum(self.slices[name] for name in ("ssm.x", "ssm.B", "ssm.C"))
        kernel = config.mamba_d_conv
        self.in_proj = nn.Linear(d, sum(self.slices.values()), bias=False)
        self.conv1d = nn.Conv1d(convolved, convolved, kernel, groups=convolved, padding=kernel - 1)
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = RMSNorm(inner, config.rms_norm_eps) if config.mamba_rms_norm else None
        self.out_proj = nn.Linear(inner, d, bias=False)
        self.in_factors = tuple(factors.get(f"{name}@{layer}", 1.0) for name in self.slices)
        self.out_factor = factors.get(f"ssm.out@{layer}", 1.0)

    def forward(self, u: Tensor, taps: Taps = None) -> Tensor:
        """Map u (batch, length, d) to the mixer's output of the same shape."""
        batch, length, _ = u.shape
        sizes = list(self.slices.values())
        # The weight is split, not the activations: its gradient is the smaller to put together.
        weights = self._in_weight().split([sizes[0], sum(sizes[1:4]), sizes[4]])
        z, xbc, dt = (F.linear(u, weight) for weight in weights)
        conv = kernels.causal_conv1d(
            xbc, self.conv1d.weight, self.conv1d.bias, self.implementations.convolution
        )
        x, B, C = conv.split(sizes[1:4], -1)
        y = kernels.ssd(
            x.view(batch, length, self.heads, -1),
            F.softplus(kernels.upcast(dt) + kernels.upcast(self.dt_bias)),
            -torch.exp(kernels.upcast(self.A_log)),
            B.view(batch, length, self.groups, -1),
            C.view(batch, length, self.groups, -1),
            self.chunk,
            self.D,
            self.implementations.scan,
        )
        y = self._gate(y, F.silu(z))
        out = kernels.linear(y, self.out_proj.weight, self.out_factor)
        if taps is not None:
            parts = dict(zip(("ssm.x", "ssm.B", "ssm.C"), xbc.split(sizes[1:4], -1), strict=True))
            values = {"ssm.z": z, **parts, "ssm.dt": dt, "ssm.conv": conv, "ssm.out": out}
            keep(taps, self.layer, values)
        return out

    def _in_weight(self) -> Tensor:
        weight = self.in_proj.weight
        if all(factor == 1.0 for factor in self.in_factors):
            return weight
        rows = [
            weight.new_full((size, 1), factor)
            for size, factor in zip(self.slices.values(), self.in_factors, strict=True)
        ]
        return weight * torch.cat(rows)

    def _gate(self, y: Tensor, gate: Tensor) -> Tensor:
        """y (batch, length, heads, p) times gate (batch, length, heads * p), normed or not."""
        if self.norm is None:
            # The gate first: the product then comes out contiguous whatever y's strides are.
            return (gate.view(y.shape) * y).view(gate.shape)
        grouped = (*gate.shape[:2], self.groups, -1)
        y, gate = y.reshape(grouped), gate.view(grouped)
        y = self.norm(y) * gate if self.norm_before_gate else self.norm(gate * y)
        return y.reshape(*gate.shape[:2], -1)
