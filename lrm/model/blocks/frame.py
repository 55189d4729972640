"""What stands around the mixers and the MLP: embedding, norms, projector. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrm.model.blocks.block import Address, Block, Changes, Constant, Ends, stream

if TYPE_CHECKING:
    from lrm.model.config import ModelConfig


class Embedding(Block):
    """The table of tokens, which begins the residual stream."""

    name = "embedding"
    module = "model.embed_tokens"
    widths = ("hidden_size",)
    # Every reader normalises the stream, so that its scale as a whole is free.
    freedoms = {"residual": "scale of the residual stream"}
    # Without eps a normalisation is exact.
    small = {
        "vocab_size": 14,
        "hidden_size": 6,
        "num_hidden_layers": 2,
        "rms_norm_eps": 0.0,
        "initializer_range": "fan_in",
    }

    def tensors(self, config: ModelConfig) -> list[Address]:
        return [Address("embedding", "weight", _table(config), "embedding")]

    def ends(self, config: ModelConfig) -> dict[str, Ends]:
        # Its rows are tokens; what it gives out are its columns.
        return {"embedding": (None, stream(config, -1.0))}


class Norm(Block):
    """An RMSNorm of the stream, whose channels may change against the matrices that read it."""

    def __init__(self, name: str, module: str, freedom: str, text: str):
        self.name, self.module, self.freedoms = name, module, {freedom: text}

    def tensors(self, config: ModelConfig) -> list[Address]:
        size = (config.hidden_size,)
        return [Address(self.name, "weight", size, "norm", Constant(), side="input")]

    def ends(self, config: ModelConfig) -> dict[str, Ends]:
        [freedom] = self.freedoms
        return {self.name: (Changes(freedom, range(config.hidden_size)), None)}


class Projector(Block):
    """The map to the logits, which may not change."""

    name = "projector"
    module = "lm_head"

    def tensors(self, config: ModelConfig) -> list[Address]:
        return [Address("projector", "weight", _table(config))]

    def ends(self, config: ModelConfig) -> dict[str, Ends]:
        return {"projector": (None, Changes("final", range(config.hidden_size)))}


def _table(config: ModelConfig) -> tuple[int, int]:
    return config.vocab_size, config.hidden_size


EMBEDDING = Embedding()
MIXER_NORM = Norm("norm.mixer", "input_layernorm", "mixer_input",
                  "RMSNorm weights against the mixers' first matrices")  # fmt: skip
MLP_NORM = Norm("norm.mlp", "pre_ff_layernorm", "mlp_input",
                "RMSNorm weights against columns of gate and up")  # fmt: skip
FINAL_NORM = Norm("norm.final", "model.final_layernorm", "final",
                  "final RMSNorm weights against columns of the projector")  # fmt: skip
PROJECTOR = Projector()
