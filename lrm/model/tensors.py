"""Addresses: the names in which the whole suite speaks of a model's tensors.

An address such as ``attention.q`` or ``ssm.dt`` stands for one matrix or vector of every
layer; ``attention.q@3`` for that of layer 3. Slices of merged matrices (the rows of Mamba2's
``in_proj``) have addresses of their own. Parameter names are those of transformers'
``FalconH1ForCausalLM``. No torch here: the planner lists addresses without loading it.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Sequence
from dataclasses import replace

from lrm.errors import UserError, nearest
from lrm.model import blocks
from lrm.model.blocks.block import Address, Block, Mixer
from lrm.model.config import ModelConfig

# Tensors in these roles decay by default, and take forward multipliers and initial scales.
DECAYED = ("matrix", "embedding")
# What a pattern may say in place of a name: all tensors of one role, whatever the model.
ROLES = {"matrices": "matrix", "embeddings": "embedding", "norms": "norm",
         "convolutions": "conv", "vectors": "vector"}  # fmt: skip
# The same for norms of one side: in front of a matrix, or behind it.
SIDES = {"norms.input": "input", "norms.output": "output"}


def addresses(config: ModelConfig) -> tuple[Address, ...]:
    """Every tensor of the model in forward order, each entry of every parameter exactly once."""
    return _addresses(config, tuple(blocks.MIXERS.values()))


# A planner asks for the same few models again and again. What a name of ``config`` means, and the
# order, follow from ``registry``.
@functools.lru_cache(maxsize=64)
def _addresses(config: ModelConfig, registry: tuple[Mixer, ...]) -> tuple[Address, ...]:
    layered = [each for block in blocks.of_layer(config.mixers) for each in _present(block, config)]
    found = _present(blocks.EMBEDDING, config)
    for layer in range(config.num_hidden_layers):
        place = f"model.layers.{layer}."
        found += [replace(a, parameter=place + a.parameter, layer=layer) for a in layered]
    return (*found, *_present(blocks.FINAL_NORM, config), *_present(blocks.PROJECTOR, config))


def _present(block: Block, config: ModelConfig) -> list[Address]:
    return [
        replace(address, parameter=f"{block.module}.{address.parameter}")
        for address in block.every_tensor(config)
        if address.present
    ]


def roles() -> dict[str, str]:
    """The role of every address of the family, in forward order."""
    return {address.name: address.role for address in _family(tuple(blocks.MIXERS.values()))}


@functools.cache
def _family(mixers: tuple[Mixer, ...]) -> tuple[Address, ...]:
    return tuple(a for block in blocks.every(mixers) for a in block.every_tensor(ModelConfig()))


def points(config: ModelConfig) -> tuple[str, ...]:
    """The keys of activations that no tensor gives out alone and that take a forward factor."""
    names = [name for block in blocks.of_layer(config.mixers) for name in block.points]
    return tuple(f"{name}@{layer}" for layer in range(config.num_hidden_layers) for name in names)


def is_point(pattern: str) -> bool:
    """Whether ``pattern`` is the name of a point; a pattern such as ``gdn.*`` is for tensors."""
    return any(_parts(pattern)[0] in block.points for block in blocks.every())


def matches_point(pattern: str, point: str) -> bool:
    """Whether ``pattern``, which may choose layers, names the ``point`` of that key."""
    wanted, first, last = _parts(pattern)
    name, layer, _ = _parts(point)
    return name == wanted and (first is None or first <= layer <= last)


def matches(pattern: str, address: Address) -> bool:
    """Whether ``pattern`` names ``address``.

    ``mlp.*`` means all layers, ``mlp.down@2`` layer 2, ``mlp.down@4-7`` layers 4 to 7. A bare
    ``*`` matches everything, ``norms`` all norms (``ROLES``), and ``norms.input`` those in front of
    matrices (``SIDES``).
    """
    name, first, last = _parts(pattern)
    if not _names(name, address.name, address.role, address.side):
        return False
    return first is None or (address.layer is not None and first <= address.layer <= last)


# A planner asks for the same few patterns and names many thousand times.
@functools.lru_cache(maxsize=1 << 14)
def _parts(pattern: str) -> tuple[str, int | None, int | None]:
    name, _, layers = pattern.partition("@")
    if not layers:
        return name, None, None
    first, _, last = layers.partition("-")
    try:
        return name, int(first), int(last or first)
    except ValueError:
        raise UserError(
            f"rule {pattern!r}: {layers!r} is no layer; write name@3 or name@2-5"
        ) from None


@functools.lru_cache(maxsize=1 << 14)
def _names(pattern: str, name: str, role: str, side: str | None) -> bool:
    if pattern in SIDES:
        return side == SIDES[pattern]
    wanted = ROLES.get(pattern)
    return role == wanted if wanted else fnmatch.fnmatchcase(name, pattern)


def check_pattern(pattern: str, present: Sequence[Address], optional: bool) -> None:
    """Raise UserError where ``pattern`` matches nothing (of the family, if ``optional``)."""
    name = pattern.partition("@")[0]
    family = (*_family(tuple(blocks.MIXERS.values())), *present)
    if not any(_names(name, a.name, a.role, a.side) for a in family):
        raise UserError(
            f"rule {pattern!r} matches no tensor; the addresses are {nearest(name, roles())}; the "
            f"roles are {', '.join([*ROLES, *SIDES])}"
        )
    if not optional and not any(matches(pattern, address) for address in present):
        have = ", ".join(dict.fromkeys(address.name for address in present))
        raise UserError(f"rule {pattern!r} matches nothing in this model; it has {have}")
