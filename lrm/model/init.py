"""Initial values; every address draws from a stream of its own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from lrm.config import ModelConfig
from lrm.errors import UserError
from lrm.model.falcon_h1 import SCALABLE, FalconH1
from lrm.model.tensors import Address, addresses


@torch.no_grad()
def initialize(
    model: FalconH1, config: ModelConfig, seed: int, scales: Mapping[str, float] | None = None
) -> None:
    """Set every parameter of ``model`` in place, in any dtype and on any device.

    Matrices and the embedding: N(0, initializer_range), or columns ** -0.5 for "fan_in", times
    ``scales[key]``. Norms and D: 1. A: uniform on [1, 16]. dt_bias: inverse softplus of a
    log-uniform value on [1e-3, 0.1]. Convolution: uniform within kernel ** -0.5 of 0. A
    tensor's values depend on the seed, its address and its shape only, so that adding or
    removing other tensors shifts nothing. Must run before parametrizations are registered.

    Raises UserError where ``scales`` names no matrix or embedding of the model.
    """
    scales = scales or {}
    found = addresses(config)
    unknown = sorted(set(scales) - {a.key for a in found if a.kind in SCALABLE})
    if unknown:
        raise UserError(
            f"initial scale {unknown[0]!r} names no matrix of this model; write an address "
            "such as mlp.gate@0 or projector"
        )
    parameters = dict(model.named_parameters())
    for address in found:
        target = parameters[address.parameter]
        if address.rows:
            target = target[slice(*address.rows)]
        target.copy_(_values(address, config, seed) * scales.get(address.key, 1.0))


def named_generator(seed: int, name: str) -> torch.Generator:
    """The same numbers for the same name, whatever else is drawn."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _values(address: Address, config: ModelConfig, seed: int) -> Tensor:
    """Initial values in float64, on the CPU: the same numbers for every dtype and device."""
    generator = named_generator(seed, address.key)
    shape = address.shape

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(shape, dtype=torch.float64).uniform_(low, high, generator=generator)

    if address.kind in SCALABLE:
        std = config.initializer_range
        std = shape[-1] ** -0.5 if std == "fan_in" else std
        return torch.randn(shape, dtype=torch.float64, generator=generator).mul_(std)
    if address.name in ("ssm.conv", "ssm.conv_bias"):
        bound = config.mamba_d_conv**-0.5
        return uniform(-bound, bound)
    if address.name == "ssm.A_log":
        return uniform(1, 16).log_()
    if address.name == "ssm.dt_bias":
        dt = uniform(math.log(1e-3), math.log(0.1)).exp_()
        return dt + torch.log(-torch.expm1(-dt))
    return torch.ones(shape, dtype=torch.float64)
