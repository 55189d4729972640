"""Initial values; every address draws from a stream of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from lrm.errors import UserError
from lrm.model.blocks.block import Address, Constant, Normal, Uniform
from lrm.model.config import ModelConfig
from lrm.model.falcon_h1 import FalconH1
from lrm.model.tensors import DECAYED, addresses


def initialize(
    model: FalconH1, config: ModelConfig, seed: int, scales: Mapping[str, float] | None = None,
    seeds: Mapping[str, int] | None = None,
) -> None:  # fmt: skip
    """Set every parameter of ``model`` in place, in any dtype and on any device.

    Each tensor by the law that its block declares, ``Address.initial``. Of normal entries the
    standard deviation is initializer_range, or columns ** -0.5 for "fan_in", times
    ``scales[key]``. A tensor's values depend on its address, its shape and the seed only, or
    ``seeds[key]`` where that is given, so that adding or removing other tensors shifts nothing.
    Must run before parametrizations are registered. As many tensors are drawn at once as torch has
    threads, since torch draws each by one.

    Raises UserError where ``scales`` names no matrix or embedding of the model.
    """
    scales, seeds = scales or {}, seeds or {}
    found = addresses(config)
    unknown = sorted(set(scales) - {a.key for a in found if a.role in DECAYED})
    if unknown:
        raise UserError(
            f"initial scale {unknown[0]!r} names no matrix of this model; write an address "
            "such as mlp.gate@0 or projector"
        )
    parameters = dict(model.named_parameters())

    @torch.no_grad()  # of this thread, hence here
    def fill(address: Address) -> None:
        target = parameters[address.parameter]
        if address.rows:
            target = target[slice(*address.rows)]
        values = _values(address, config, seeds.get(address.key, seed))
        target.copy_(values.mul_(scales.get(address.key, 1.0)))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for _ in pool.map(fill, found):
            pass


def named_generator(seed: int, name: str) -> torch.Generator:
    """The same numbers for the same name, whatever else is drawn."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _values(address: Address, config: ModelConfig, seed: int) -> Tensor:
    """Initial values in float64, on the CPU: the same numbers for every dtype and device."""
    generator = named_generator(seed, address.key)
    values = torch.empty(address.shape, dtype=torch.float64)
    match address.initial:
        case Normal():
            std = config.initializer_range
            std = address.shape[-1] ** -0.5 if std == "fan_in" else std
            return values.normal_(generator=generator).mul_(std)
        case Uniform(low, high, through):
            values.uniform_(low, high, generator=generator)
            for name in through:
                values = _THROUGH[name](values)
            return values
        case Constant(value):
            return values.fill_(value)


_THROUGH = {
    "log": torch.log,
    "exp": torch.exp,
    "inverse_softplus": lambda x: x + torch.log(-torch.expm1(-x)),
}
