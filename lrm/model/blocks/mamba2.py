"""What the Mamba2 mixer declares. No torch here; the module is in ``mamba2_module``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lrm.model.blocks.block import Address, Behind, Changes, Constant, Ends, Mixer, Uniform, stream

if TYPE_CHECKING:
    from torch import nn

    from lrm.model.config import ModelConfig

CONVOLVED = ("ssm.x", "ssm.B", "ssm.C")


def ssm_slices(config: ModelConfig) -> dict[str, int]:
    """Rows of Mamba2's merged ``in_proj``, in their order."""
    state = config.mamba_n_groups * config.mamba_d_state
    return {
        "ssm.z": config.mamba_d_ssm,
        "ssm.x": config.mamba_d_ssm,
        "ssm.B": state,
        "ssm.C": state,
        "ssm.dt": config.mamba_n_heads,
    }


class Mamba2(Mixer):
    """State space duality behind a merged projection, by the model's ``mamba_`` fields."""

    name = "ssm"
    module = "mamba"
    widths = ("mamba_d_ssm", "mamba_n_heads")
    freedoms = {
        "convolution": "x, B, C against conv1d",
        "inner_norm": "inner RMSNorm weights against columns of ssm.out",
    }
    small = {"mamba_d_ssm": 15, "mamba_n_heads": 3, "mamba_d_state": 5, "mamba_chunk_size": 8}
    behind = {"ssm.out": Behind("out_norm")}

    def check(self, config: ModelConfig) -> None:
        config.must_divide("mamba_n_heads", "mamba_d_ssm")
        config.must_divide("mamba_n_groups", "mamba_n_heads")

    def tensors(self, config: ModelConfig) -> list[Address]:
        """As mamba_ssm begins them: A in [1, 16], softplus(dt_bias) log-uniform, D = 1."""
        d, inner = config.hidden_size, config.mamba_d_ssm
        slices, found, start = ssm_slices(config), [], 0
        for name, size in slices.items():
            rows = (start, start + size)
            found.append(Address(name, "in_proj.weight", (size, d), rows=rows))
            start += size
        channels, kernel = sum(slices[name] for name in CONVOLVED), config.mamba_d_conv
        taps = Uniform(-(kernel**-0.5), kernel**-0.5)
        step = Uniform(math.log(1e-3), math.log(0.1), ("exp", "inverse_softplus"))
        heads = (config.mamba_n_heads,)
        return [
            *found,
            Address("ssm.conv", "conv1d.weight", (channels, 1, kernel), "conv", taps),
            Address("ssm.conv_bias", "conv1d.bias", (channels,), "vector", taps),
            Address("ssm.dt_bias", "dt_bias", heads, "vector", step),
            Address("ssm.A_log", "A_log", heads, "vector", Uniform(1, 16, ("log",))),
            Address("ssm.D", "D", heads, "vector", Constant()),
            Address("norm.ssm", "norm.weight", (inner,), "norm", Constant(),
                    present=config.mamba_rms_norm, side="input"),
            Address("ssm.out", "out_proj.weight", (d, inner)),
        ]  # fmt: skip

    def flops_per_token(self, config: ModelConfig, sequence_length: int) -> float:
        """Three times the products of the chunked scan."""
        chunk = min(config.mamba_chunk_size, sequence_length)
        inside = chunk * (config.mamba_n_groups * config.mamba_d_state + config.mamba_d_ssm)
        across = 2 * config.mamba_d_ssm * config.mamba_d_state
        return 3 * 2 * (inside + across)

    def ends(self, config: ModelConfig) -> dict[str, Ends]:
        """x, B and C may change before conv1d, the inner RMSNorm's output before ``out``.

        z, dt and what conv1d gives out pass a nonlinearity and may not. What undoes a change
        before conv1d are multipliers of conv1d, or its filters, if their scales count.
        """
        slices, reads, start = ssm_slices(config), self.reads(config), 0
        found: dict[str, Ends] = {"ssm.z": (None, reads), "ssm.dt": (None, reads)}
        for name in CONVOLVED:
            end = start + slices[name]
            found[name] = Changes("convolution", range(start, end)), reads
            start = end
        # The rows of conv1d are channels, which it takes in.
        found["ssm.conv"] = Changes("convolution", range(start), -1.0), None
        inner = Changes("inner_norm", range(config.mamba_d_ssm)) if config.mamba_rms_norm else None
        return found | {"norm.ssm": (inner, None), "ssm.out": (stream(config), inner)}

    def build(self, *arguments: Any) -> nn.Module:
        from lrm.model.blocks.mamba2_module import Mamba2Module

        return Mamba2Module(*arguments)

    def trials(self) -> dict[str, Callable]:
        from lrm.model.blocks.mamba2_module import convolution_trial, scan_trial

        return {"scan": scan_trial, "convolution": convolution_trial}
