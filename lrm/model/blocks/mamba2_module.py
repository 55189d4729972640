"""The Mamba2 mixer, and what tries its kernels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrm.model import ops
from lrm.model.activations import Activations, record
from lrm.model.blocks.mamba2 import CONVOLVED, Mamba2, ssm_slices
from lrm.model.config import ModelConfig
from lrm.model.gpu.adapters import Kernels
from lrm.model.gpu.selection import draw
from lrm.model.norm import RMSNorm, add_norms, normed
from lrm.multipliers.precision import upcast


class Mamba2Module(nn.Module):
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
        convolved = sum(self.slices[name] for name in CONVOLVED)
        kernel = config.mamba_d_conv
        self.in_proj = nn.Linear(d, sum(self.slices.values()), bias=False)
        self.conv1d = nn.Conv1d(convolved, convolved, kernel, groups=convolved, padding=kernel - 1)
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = RMSNorm(inner, config.rms_norm_eps) if config.mamba_rms_norm else None
        self.out_proj = nn.Linear(inner, d, bias=False)
        add_norms(self, Mamba2(), config)
        self.in_factors = tuple(factors.get(f"{name}@{layer}", 1.0) for name in self.slices)
        self.out_factor = factors.get(f"ssm.out@{layer}", 1.0)

    def forward(self, u: Tensor, activations: Activations = None) -> Tensor:
        """Map u (batch, length, d) to the mixer's output of the same shape."""
        batch, length, _ = u.shape
        sizes = list(self.slices.values())
        # The weight is split, not the activations: its gradient is the smaller to put together.
        weights = self._in_weight().split([sizes[0], sum(sizes[1:4]), sizes[4]])
        z, xbc, dt = (F.linear(u, weight) for weight in weights)
        conv = ops.causal_conv1d(
            xbc, self.conv1d.weight, self.conv1d.bias, self.implementations.convolution
        )
        x, B, C = conv.split(sizes[1:4], -1)
        y = ops.ssd(
            x.view(batch, length, self.heads, -1),
            F.softplus(upcast(dt) + upcast(self.dt_bias)),
            -torch.exp(upcast(self.A_log)),
            B.view(batch, length, self.groups, -1),
            C.view(batch, length, self.groups, -1),
            self.chunk,
            self.D,
            self.implementations.scan,
        )
        y = self._gate(y, F.silu(z))
        values = {"ssm.out": ops.linear(y, self.out_proj.weight, self.out_factor)}
        out = normed(values, "ssm.out", self.out_norm)
        if activations is not None:
            parts = dict(zip(CONVOLVED, xbc.split(sizes[1:4], -1), strict=True))
            values |= {"ssm.z": z, **parts, "ssm.dt": dt, "ssm.conv": conv}
            record(activations, self.layer, values)
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


def scan_trial(config: ModelConfig, device: torch.device, dtype: torch.dtype):
    """Inputs of the scan at this model's shapes, and the scan as a function of them."""
    heads, groups, state = config.mamba_n_heads, config.mamba_n_groups, config.mamba_d_state
    sizes = [config.mamba_d_ssm, groups * state, groups * state]
    length = 2 * config.mamba_chunk_size + 13
    leaves = {
        "x|B|C": draw(2, 2, length, sum(sizes)).to(device, dtype),
        # With A in -[1, 16] some heads remember for long and some forget at once.
        "dt": F.softplus(draw(3, 2, length, heads) - 3).to(device),
        "A": -torch.linspace(1, 16, heads, device=device),
        "D": draw(4, heads).to(device),
    }

    def function(implementation: str = "torch", **inputs: Tensor) -> Tensor:
        # Slices of one tensor, as in the model.
        x, B, C = inputs["x|B|C"].split(sizes, -1)
        return ops.ssd(
            x.unflatten(-1, (heads, -1)),
            inputs["dt"],
            inputs["A"],
            B.unflatten(-1, (groups, -1)),
            C.unflatten(-1, (groups, -1)),
            config.mamba_chunk_size,
            inputs["D"],
            implementation,
        )

    return leaves, function


def convolution_trial(config: ModelConfig, device: torch.device, dtype: torch.dtype):
    """Inputs of the convolution at this model's shapes, and the convolution."""
    channels = config.mamba_d_ssm + 2 * config.mamba_n_groups * config.mamba_d_state
    leaves = {
        "x": draw(2, 2, 141, channels).to(device, dtype),
        "weight": draw(3, channels, 1, config.mamba_d_conv).to(device),
        "bias": draw(4, channels).to(device),
    }
    return leaves, ops.causal_conv1d
