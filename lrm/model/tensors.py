"""Addresses: the names in which the whole suite speaks of a model's tensors.

An address such as ``attention.q`` or ``ssm.dt`` stands for one matrix or vector of every
layer; ``attention.q@3`` for that of layer 3. Slices of merged matrices (the rows of Mamba2's
``in_proj``) have addresses of their own. Parameter names are those of transformers'
``FalconH1ForCausalLM``. No torch here: the planner lists addresses without loading it.
"""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass

from lrm.config import ModelConfig
from lrm.errors import UserError

# All addresses of the family, in forward order, with their type.
KINDS = {
    "embedding": "embedding",
    "norm.mixer": "norm",
    "attention.q": "matrix",
    "attention.k": "matrix",
    "attention.v": "matrix",
    "attention.out": "matrix",
    "ssm.z": "matrix",
    "ssm.x": "matrix",
    "ssm.B": "matrix",
    "ssm.C": "matrix",
    "ssm.dt": "matrix",
    "ssm.conv": "conv",
    "ssm.conv_bias": "vector",
    "ssm.dt_bias": "vector",
    "ssm.A_log": "vector",
    "ssm.D": "vector",
    "norm.ssm": "norm",
    "ssm.out": "matrix",
    "norm.mlp": "norm",
    "mlp.gate": "matrix",
    "mlp.up": "matrix",
    "mlp.down": "matrix",
    "norm.final": "norm",
    "projector": "matrix",
}
DECAYED = ("matrix", "embedding")


@dataclass(frozen=True)
class Address:
    """One tensor: a parameter, or rows ``[rows[0], rows[1])`` of one."""

    name: str
    layer: int | None
    parameter: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None

    @property
    def key(self) -> str:
        """``name`` for global tensors, ``name@layer`` for those of a layer."""
        return self.name if self.layer is None else f"{self.name}@{self.layer}"

    @property
    def kind(self) -> str:
        """matrix, embedding, norm, conv or vector."""
        return KINDS[self.name]

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


def addresses(config: ModelConfig) -> list[Address]:
    """Every tensor of the model, each entry of every parameter exactly once."""
    d = config.hidden_size
    found = [Address("embedding", None, "model.embed_tokens.weight", (config.vocab_size, d))]
    for layer in range(config.num_hidden_layers):
        found += _layer(config, layer)
    found.append(Address("norm.final", None, "model.final_layernorm.weight", (d,)))
    found.append(Address("projector", None, "lm_head.weight", (config.vocab_size, d)))
    return found


def _layer(config: ModelConfig, layer: int) -> list[Address]:
    d, ff = config.hidden_size, config.intermediate_size
    prefix = f"model.layers.{layer}"
    found: list[Address] = []

    def add(name: str, parameter: str, *shape: int, rows: tuple[int, int] | None = None) -> None:
        found.append(Address(name, layer, f"{prefix}.{parameter}", shape, rows))

    add("norm.mixer", "input_layernorm.weight", d)
    if config.mixer != "ssm":
        width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        add("attention.q", "self_attn.q_proj.weight", width, d)
        add("attention.k", "self_attn.k_proj.weight", kv_width, d)
        add("attention.v", "self_attn.v_proj.weight", kv_width, d)
        add("attention.out", "self_attn.o_proj.weight", d, width)
    if config.mixer != "attention":
        start = 0
        for name, size in ssm_slices(config).items():
            add(name, "mamba.in_proj.weight", size, d, rows=(start, start + size))
            start += size
        channels = config.mamba_d_ssm + 2 * config.mamba_n_groups * config.mamba_d_state
        add("ssm.conv", "mamba.conv1d.weight", channels, 1, config.mamba_d_conv)
        add("ssm.conv_bias", "mamba.conv1d.bias", channels)
        for name in ("dt_bias", "A_log", "D"):
            add(f"ssm.{name}", f"mamba.{name}", config.mamba_n_heads)
        if config.mamba_rms_norm:
            add("norm.ssm", "mamba.norm.weight", config.mamba_d_ssm)
        add("ssm.out", "mamba.out_proj.weight", d, config.mamba_d_ssm)
    add("norm.mlp", "pre_ff_layernorm.weight", d)
    add("mlp.gate", "feed_forward.gate_proj.weight", ff, d)
    add("mlp.up", "feed_forward.up_proj.weight", ff, d)
    add("mlp.down", "feed_forward.down_proj.weight", d, ff)
    return found


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


def matches(pattern: str, address: Address) -> bool:
    """Whether ``pattern`` names ``address``.

    ``mlp.*`` means all layers, ``mlp.down@2`` layer 2, ``mlp.down@4-7`` layers 4 to 7. A bare
    ``*`` matches everything.
    """
    name, _, layers = pattern.partition("@")
    if not fnmatch.fnmatchcase(address.name, name):
        return False
    if not layers:
        return True
    first, _, last = layers.partition("-")
    try:
        low, high = int(first), int(last or first)
    except ValueError:
        raise UserError(
            f"rule {pattern!r}: {layers!r} is no layer; write name@3 or name@2-5"
        ) from None
    return address.layer is not None and low <= address.layer <= high


def check_pattern(pattern: str, present: list[Address], optional: bool) -> None:
    """Raise UserError where ``pattern`` matches nothing (of the family, if ``optional``)."""
    name = pattern.partition("@")[0]
    if not any(fnmatch.fnmatchcase(known, name) for known in KINDS):
        raise UserError(f"rule {pattern!r} matches no tensor; the addresses are {', '.join(KINDS)}")
    if not optional and not any(matches(pattern, address) for address in present):
        have = ", ".join(dict.fromkeys(address.name for address in present))
        raise UserError(f"rule {pattern!r} matches nothing in this model; it has {have}")
