"""To and from transformers' ``FalconH1ForCausalLM``."""

from __future__ import annotations

import math
import os
import re
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from pydantic import ValidationError

from lrm.errors import UserError, first_line
from lrm.model.blocks.mamba2 import ssm_slices
from lrm.model.config import ModelConfig
from lrm.model.falcon_h1 import FalconH1
from lrm.model.tensors import addresses
from lrm.multipliers.attach import is_multiplier

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
# Fields that do not change what a model computes.
INERT = ("mamba_chunk_size", "initializer_range")
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
    rotary embeddings, bounds on dt), and where it has learnable multipliers.
    """
    if added := [name for name, _ in hf.named_parameters() if is_multiplier(name)]:
        raise UserError(f"the model has multipliers ({added[0]}); call lrm.merge_multipliers first")
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
    fields = {field: getattr(source, field) for field in SHARED} | {
        "head_dim": getattr(source, "head_dim", None)
        or source.hidden_size // source.num_attention_heads,
        "mamba_d_ssm": source.mamba_expand * source.hidden_size if width is None else width,
        "rope_theta": float(rope["rope_theta"]),
        "rms_norm_eps": float(source.rms_norm_eps),
        "initializer_range": float(source.initializer_range),
    }
    try:
        config = ModelConfig(**fields)
    except ValidationError as error:
        [first, *_] = error.errors()
        field = ".".join(map(str, first["loc"])) or "its configuration"
        raise UserError(
            f"cannot import a Falcon-H1 with {field} = {first['input']!r}: {first['msg']}"
        ) from None
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
def to_transformers(model: FalconH1, keep: bool = False) -> Any:
    """A ``FalconH1ForCausalLM`` with the same logits, all of its multipliers 1.

    Effective weights are exported: learnable and forward multipliers are folded in. With
    ``keep`` forward multipliers stay what they are where the configuration has a field for them:
    then they must be the same on every layer, and those of queries and values the same; the
    others are folded. Raises UserError for ``mixer`` other than "both", and where transformers
    is missing.
    """
    config = model.config
    if config.mixer != "both":
        raise UserError(
            f"transformers has no Falcon-H1 with mixer = {config.mixer!r}; "
            "export a model with mixer: both"
        )
    if config.experts is not None:
        raise UserError(
            "transformers has no Falcon-H1 with a mixture of experts (model.experts); such a model "
            "stays here"
        )
    if config.norms_behind:
        raise UserError(
            "transformers has no Falcon-H1 with an RMSNorm behind a matrix "
            f"(model.norms_behind: {', '.join(config.norms_behind)}); such a model stays here"
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
        **(_configured(model) if keep else {}),
    )
    kept = _forward_multipliers(target, config)
    state: dict[str, torch.Tensor] = {}
    for address in addresses(config):
        if address.parameter not in state:
            state[address.parameter] = attrgetter(address.parameter)(model).detach().clone()
        rows = slice(*address.rows) if address.rows else slice(None)
        factor = model.forward_multipliers.get(address.key, 1.0) / kept.get(address.key, 1.0)
        if factor != 1.0:
            state[address.parameter][rows] *= factor
    head = state["lm_head.weight"]
    hf = library.FalconH1ForCausalLM(target).to(device=head.device, dtype=head.dtype)
    hf.load_state_dict(state)
    return hf.train(model.training)


def _configured(model: FalconH1) -> dict[str, Any]:
    """Fields of FalconH1Config that hold forward multipliers of ``model``."""

    def everywhere(name: str) -> float:
        layers = range(model.config.num_hidden_layers)
        values = {model.forward_multipliers.get(f"{name}@{layer}", 1.0) for layer in layers}
        return values.pop() if len(values) == 1 else 1.0

    queries, keys, values = (everywhere(f"attention.{name}") for name in "qkv")
    inputs = queries if queries == values else 1.0
    return {
        "embedding_multiplier": model.forward_multipliers.get("embedding", 1.0),
        "lm_head_multiplier": model.forward_multipliers.get("projector", 1.0),
        "attention_in_multiplier": inputs,
        "key_multiplier": _quotient(keys, inputs),
        "attention_out_multiplier": everywhere("attention.out"),
        "ssm_in_multiplier": 1.0,
        "ssm_multipliers": [everywhere(name) for name in ssm_slices(model.config)],
        "ssm_out_multiplier": everywhere("ssm.out"),
        "mlp_multipliers": [everywhere("mlp.gate"), everywhere("mlp.down")],
    }


def _quotient(product: float, factor: float) -> float:
    """What times ``factor`` is ``product`` to the last bit, if there is such a number."""
    nearest = product / factor
    for found in (nearest, math.nextafter(nearest, 0.0), math.nextafter(nearest, math.inf)):
        if found * factor == product:
            return found
    return nearest


def load_transformers(folder: str | Path) -> FalconH1:
    """``from_transformers`` of a folder that ``save_pretrained`` wrote, in float32.

    Raises UserError where there is no such model, and as ``from_transformers`` does.
    """
    config = _config_of(folder)
    if config.model_type != "falcon_h1":
        raise UserError(f"{folder} holds a {config.model_type}, not a falcon_h1")
    return from_transformers(_whole(folder, _transformers().FalconH1ForCausalLM))


def check_transformers(folder: str | Path) -> None:
    """Raise UserError unless transformers finds all weights of the model in ``folder``.

    By itself it draws those that it lacks, leaves out multipliers that were not merged, and tells
    of both in its log alone. Models with an encoder, and those that model no language, are not
    checked.
    """
    library = _transformers()
    of = type(_config_of(folder))
    with_encoder = of in library.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    if of in library.MODEL_FOR_CAUSAL_LM_MAPPING and not with_encoder:
        _whole(folder, library.AutoModelForCausalLM)


def load_errors() -> tuple[type[Exception], ...]:
    """What transformers raises of a folder that it cannot load."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    return (OSError, ValueError, KeyError, RuntimeError, SafetensorError, StrictDataclassError)


def _config_of(folder: str | Path) -> Any:
    if not Path(folder, "config.json").is_file():
        raise UserError(f"{folder} has no config.json; give a folder that save_pretrained wrote")
    try:
        return _transformers().AutoConfig.from_pretrained(folder)
    except load_errors() as error:
        raise UserError(f"{folder} cannot be loaded: {first_line(error)}") from None


def _whole(folder: str | Path, library_class: Any) -> Any:
    """The model of transformers in ``folder``, float32, with all its weights from there."""
    try:
        hf, told = library_class.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except load_errors() as error:
        raise UserError(f"{folder} cannot be loaded: {first_line(error)}") from None
    if any(map(is_multiplier, told["unexpected_keys"])):
        raise UserError(
            f"{folder} holds multipliers beside its weights; merge them (lrm.merge_multipliers) "
            "and save the model again"
        )
    # Either would be drawn at random.
    if lacking := sorted([*told["missing_keys"], *(name for name, *_ in told["mismatched_keys"])]):
        raise UserError(
            f"{folder} lacks {len(lacking)} weights of its model, or has them in other shapes (the "
            f"first is {lacking[0]}); save the whole model again"
        )
    return hf


@torch.no_grad()
def take_weights(model: FalconH1, folder: str | Path) -> None:
    """Give ``model``, which has no multipliers yet, the weights of the Falcon-H1 in ``folder``.

    Its forward multipliers stay: weights are scaled so that the model computes what that one
    does. Raises UserError where the two have other shapes or constants, and as
    ``load_transformers`` does.
    """
    source = load_transformers(folder)
    given = source.config.model_dump()
    for name, value in sorted(model.config.model_dump().items()):
        if name not in INERT and value != given[name]:
            raise UserError(
                f"train.start: {folder} has model.{name} = {given[name]!r}, the settings "
                f"{value!r}; lrm adopt {folder} prints what to write"
            )
    for address in addresses(model.config):
        rows = slice(*address.rows) if address.rows else slice(None)
        given = attrgetter(address.parameter)(source)[rows]
        factor = source.forward_multipliers.get(address.key, 1.0)
        factor /= model.forward_multipliers.get(address.key, 1.0)
        target = attrgetter(address.parameter)(model)[rows]
        target.copy_(given if factor == 1.0 else given * factor)


def save_transformers(
    model: FalconH1,
    folder: str | Path,
    tokenizer: Path | None = None,
    end_of_text: str | None = None,
    keep: bool = True,
) -> None:
    """Write ``to_transformers(model, keep)`` for ``AutoModelForCausalLM``; raises as it does.

    And OSError where the folder cannot be written. ``tokenizer`` is a ``tokenizer.json``, which
    then is there for ``AutoTokenizer``, with its token ``end_of_text``.
    """
    library = _transformers()
    from safetensors import SafetensorError

    hf = to_transformers(model, keep)
    try:
        if tokenizer is not None:
            words = library.PreTrainedTokenizerFast(
                tokenizer_file=str(tokenizer), eos_token=end_of_text,
                clean_up_tokenization_spaces=False,
            )  # fmt: skip
            words.save_pretrained(folder)
            hf.config.eos_token_id = hf.generation_config.eos_token_id = words.eos_token_id
        hf.save_pretrained(folder)
    except SafetensorError as error:
        # Its words for what the system said, such as "... (os error 28)".
        if (said := re.search(r"os error (\d+)", str(error))) is None:
            raise
        raise OSError(int(said[1]), os.strerror(int(said[1]))) from None
    # They are written for their owner alone; the configuration has the mode that was asked for.
    mode = Path(folder, "config.json").stat().st_mode
    for weights in Path(folder).glob("*.safetensors"):
        weights.chmod(mode)


def _transformers() -> ModuleType:
    try:
        import transformers
    except ImportError:
        raise UserError(
            "transformers is not installed; run pip install 'lrm-suite[evaluation]'"
        ) from None
    return transformers
