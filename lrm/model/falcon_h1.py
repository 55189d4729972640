"""Falcon-H1: layers with mixers side by side (attention and Mamba2), then a gated MLP.

Beside the MLP there may be a mixture of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch
from torch import Tensor, nn

from lrm.errors import UserError
from lrm.model import ops
from lrm.model.activations import Activations, record
from lrm.model.blocks.experts_module import ExpertsModule
from lrm.model.blocks.mlp_module import MLPModule
from lrm.model.config import ModelConfig
from lrm.model.gpu.adapters import PLAIN, Kernels
from lrm.model.loss import linear_cross_entropy
from lrm.model.norm import RMSNorm
from lrm.model.tensors import DECAYED, addresses, points, roles
from lrm.multipliers.precision import to_compute


class FalconH1(nn.Module):
    """The hybrid language model, with the parameter names of ``FalconH1ForCausalLM``.

    Weights are read as attributes at every call, so parametrizations may be registered on any
    of them. Values are torch's defaults until ``lrm.model.init.initialize`` sets them.

    ``forward_multipliers`` maps address keys (``attention.k@1``, ``projector``) to fixed
    factors of the output of that tensor's linear map, or of a point (``Block.points``). Raises
    UserError for a key that names no matrix, embedding or point of this model.
    ``implementations`` says what computes the costly operations (``lrm.model.gpu.selection``).
    """

    def __init__(
        self,
        config: ModelConfig,
        forward_multipliers: Mapping[str, float] | None = None,
        implementations: Kernels = PLAIN,
    ) -> None:
        super().__init__()
        self.config = config
        self.forward_multipliers = _checked(config, forward_multipliers or {})
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(
            Layer(config, layer, self.forward_multipliers, implementations)
            for layer in range(config.num_hidden_layers)
        )
        self.model.final_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        z_loss: float = 0.0,
        activations: Activations = None,
        counted: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (batch, length, vocabulary) of tokens (batch, length), int64.

        With ``targets`` (batch, length) instead (cross-entropy, objective) of
        ``lrm.model.loss.linear_cross_entropy``, for which the logits are never held whole. With
        experts the objective has their imbalance as well (``ExpertsConfig``). Both are means over
        the targets that are ``counted`` (batch, length; bool), by default all.
        A dict passed as ``activations`` receives every activation, after forward multipliers and
        detached, under the key of the tensor that produced it: ``attention.k`` before the
        rotation, ``ssm.*`` right behind ``in_proj``, ``ssm.conv`` behind the SiLU,
        ``projector`` for the logits; and ``residual@l`` for the stream after layer l.
        """
        hidden, imbalance = self.hidden(tokens, activations)
        if targets is None:
            return self.logits(hidden, activations)
        if counted is not None:
            hidden, targets = hidden[counted], targets[counted]
        factor = self.forward_multipliers.get("projector", 1.0)
        weight = self.lm_head.weight
        loss, objective = linear_cross_entropy(hidden, weight, targets, z_loss, factor)
        if imbalance is not None:
            objective = objective + self.config.experts.balance * imbalance
        return loss, objective

    def hidden(
        self, tokens: Tensor, activations: Activations = None
    ) -> tuple[Tensor, Tensor | None]:
        """Final normalised states (batch, length, d) of tokens (batch, length).

        And the mean imbalance of the layers' experts, where they have any.
        """
        factor = self.forward_multipliers.get("embedding", 1.0)
        stream = ops.embedding(tokens, self.model.embed_tokens.weight, factor)
        record(activations, None, {"embedding": stream})
        imbalances = []
        for layer in self.model.layers:
            stream = layer(stream, activations)
            if self.config.experts is not None:
                stream, imbalance = stream
                imbalances.append(imbalance)
        hidden = self.model.final_layernorm(stream)
        record(activations, None, {"norm.final": hidden})
        return hidden, torch.stack(imbalances).mean() if imbalances else None

    def logits(self, hidden: Tensor, activations: Activations = None) -> Tensor:
        """Projector's output (..., vocabulary) for the final states (..., d)."""
        factor = self.forward_multipliers.get("projector", 1.0)
        logits = ops.linear(hidden, self.lm_head.weight, factor)
        record(activations, None, {"projector": logits})
        return logits


class Layer(nn.Module):
    """``h += sum of mixer(norm(h))``, then ``h += mlp(norm(h))``, which may have experts."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        factors: Mapping[str, float],
        implementations: Kernels,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.mixers = tuple(mixer.module for mixer in config.mixers)
        for mixer in config.mixers:
            module = mixer.build(config, layer, factors, implementations)
            self.add_module(mixer.module, module)
        self.has_experts = config.experts is not None
        build = ExpertsModule if self.has_experts else MLPModule
        self.feed_forward = build(config, layer, factors)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.pre_ff_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, stream: Tensor, activations: Activations = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Map the residual stream (batch, length, d) to that after this layer.

        With experts their imbalance comes with it, a scalar.
        """
        u = to_compute(self.input_layernorm(stream))
        mixed = (getattr(self, name)(u, activations) for name in self.mixers)
        # Not sum(), whose 0 + x would be one more pass.
        stream = stream + reduce(torch.add, mixed)
        v = to_compute(self.pre_ff_layernorm(stream))
        out = self.feed_forward(v, activations)
        out, imbalance = out if self.has_experts else (out, None)
        stream = stream + out
        record(activations, self.layer, {"norm.mixer": u, "norm.mlp": v, "residual": stream})
        return stream if imbalance is None else (stream, imbalance)


def _checked(config: ModelConfig, factors: Mapping[str, float]) -> dict[str, float]:
    scalable = {a.key: a for a in addresses(config) if a.role in DECAYED}
    between = points(config)
    for key in factors:
        if key not in scalable and key not in between:
            name = key.partition("@")[0]
            if roles().get(name, "matrix") not in DECAYED:
                raise UserError(
                    f"forward multiplier {key!r}: {name} is no linear map; only matrices and "
                    "the embedding take one"
                )
            have = ", ".join(dict.fromkeys(a.name for a in scalable.values()))
            raise UserError(
                f"forward multiplier {key!r} names no tensor of this model of "
                f"{config.num_hidden_layers} layers; write name or name@layer of {have}"
            )
    return {key: float(factor) for key, factor in factors.items() if factor != 1}
