"""To and from transformers' ``FalconH1ForCausalLM``."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from lrm.config import ModelConfig
from lrm.errors import UserError
from lrm.model.falcon_h1 import FalconH1
from lrm.model.tensors import addresses, ssm_slices

# Fields of FalconH1Config with the one value that this suite implements.
FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "projectors_bias": False,
    "mamba_proj_bias": False,
    "mamba_conv_bias": True,
    "attention_dropout": 0.0,
    "time_step_limit": (0.0, float("inf")),
    "tie_word_embeddings": False,
}
# Fields that carry the same name and meaning on both sides.
SHARED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "mamba_n_heads",
    "mamba_d_state",
    "mamba_n_groups",
    "mamba_d_conv",
    "mamba_chunk_size",
    "mamba_rms_norm",
    "mamba_norm_before_gate",
)


def from_transformers(hf: Any) -> FalconH1:
    """The same model as a ``FalconH1ForCausalLM``, with its dtype and device.

    Its multipliers become forward multipliers; the weights are copies. Raises UserError where
    the configuration uses something this suite does not have (biases, tied embeddings, scaled
    rotary embeddings, bounds on dt).
    """
    source = hf.config
    for field, value in FIXED.items():
        if getattr(source, field) != value:
            raise UserError(
                f"cannot import a Falcon-H1 with {field} = {getattr(source, field)!r}; "
                f"only {value!r} is supported"
            )
    rope = source.rope_parameters
    if rope.get("rope_type", "default") != "default":
        raise UserError(
            f"cannot import a Falcon-H1 with rope_type = {rope['rope_type']!r}; "
            "only 'default' is supported"
        )
    width = source.mamba_d_ssm
    config = ModelConfig(
        **{field: getattr(source, field) for field in SHARED},
        head_dim=getattr(source, "head_dim", None)
        or source.hidden_size // source.num_attention_heads,
        mamba_d_ssm=source.mamba_expand * source.hidden_size if width is None else width,
        rope_theta=float(rope["rope_theta"]),
        rms_norm_eps=float(source.rms_norm_eps),
        initializer_range=float(source.initializer_range),
    )
    weight = hf.lm_head.weight
    model = FalconH1(config, _forward_multipliers(source, config))
    model = model.to(device=weight.device, dtype=weight.dtype)
    model.load_state_dict(hf.state_dict())
    return model


def _forward_multipliers(source: Any, config: ModelConfig) -> dict[str, float]:
    gate, down = source.mlp_multipliers
    layered = {
        "attention.q": source.attention_in_multiplier,
        "attention.k": source.attention_in_multiplier * source.key_multiplier,
        "attention.v": source.attention_in_multiplier,
        "attention.out": source.attention_out_multiplier,
        "ssm.out": source.ssm_out_multiplier,
        "mlp.gate": gate,
        "mlp.down": down,
    }
    for name, factor in zip(ssm_slices(config), source.ssm_multipliers, strict=True):
        layered[name] = source.ssm_in_multiplier * factor
    factors = {
        f"{name}@{layer}": factor
        for layer in range(config.num_hidden_layers)
        for name, factor in layered.items()
    }
    factors["embedding"] = source.embedding_multiplier
    factors["projector"] = source.lm_head_multiplier
    return factors


@torch.no_grad()
def to_transformers(model: FalconH1) -> Any:
    """A ``FalconH1ForCausalLM`` with the same logits and all of its multipliers 1.

    Effective weights are exported: learnable and forward multipliers are folded in. Raises
    UserError for ``mixer`` other than "both", and where transformers is missing.
    """
    config = model.config
    if config.mixer != "both":
        raise UserError(
            f"transformers has no Falcon-H1 with mixer = {config.mixer!r}; "
            "export a model with mixer: both"
        )
    library = _transformers()
    target = library.FalconH1Config(
        **{field: getattr(config, field) for field in SHARED},
        **FIXED,
        head_dim=config.head_dim,
        mamba_d_ssm=config.mamba_d_ssm,
        mamba_d_head=config.mamba_d_head,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        rms_norm_eps=config.rms_norm_eps,
        # No special tokens are known here; a padding index would also freeze that embedding.
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    state: dict[str, torch.Tensor] = {}
    for address in addresses(config):
        if address.parameter not in state:
            state[address.parameter] = attrgetter(address.parameter)(model).detach().clone()
        rows = slice(*address.rows) if address.rows else slice(None)
        state[address.parameter][rows] *= model.forward_multipliers.get(address.key, 1.0)
    head = state["lm_head.weight"]
    hf = library.FalconH1ForCausalLM(target).to(device=head.device, dtype=head.dtype)
    hf.load_state_dict(state)
    return hf.train(model.training)


def save_transformers(model: FalconH1, folder: str | Path) -> None:
    """Write ``to_transformers(model)`` for ``from_pretrained``; raises as it does."""
    to_transformers(model).save_pretrained(folder)


def _transformers() -> ModuleType:
    try:
        import transformers
    except ImportError:
        raise UserError("transformers is not installed; run pip install -e .[evaluation]") from None
    return transformers
