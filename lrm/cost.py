"""Parameters, tokens, FLOPs, time and money of a run, before it runs. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from lrm.compose import Run
from lrm.config import ModelConfig
from lrm.model.tensors import addresses, matches


@dataclass(frozen=True)
class Estimate:
    """Costs of one run; ``seconds`` on the scale's device, ``dollars`` for all its devices."""

    parameters: int
    tokens: int
    flops: float
    seconds: float
    dollars: float


def parameters(config: ModelConfig) -> int:
    """Learnable entries of the plain model."""
    return sum(address.size for address in addresses(config))


def flops_per_token(config: ModelConfig, sequence_length: int) -> float:
    """Forward and backward of one token: matrix products only, causal attention counted half.

    6 per entry of every matrix (the embedding is a look-up), 6·L·width per attention layer, and
    three times the chunked SSD's products.
    """
    matrices = sum(a.size for a in addresses(config) if a.kind == "matrix")
    per_layer = 0.0
    if config.mixer != "ssm":
        per_layer += 6 * sequence_length * config.num_attention_heads * config.head_dim
    if config.mixer != "attention":
        chunk = min(config.mamba_chunk_size, sequence_length)
        inside = chunk * (config.mamba_n_groups * config.mamba_d_state + config.mamba_d_ssm)
        across = 2 * config.mamba_d_ssm * config.mamba_d_state
        per_layer += 3 * 2 * (inside + across)
    return 6 * matrices + config.num_hidden_layers * per_layer


def estimate(run: Run) -> Estimate:
    """Costs of one run from its settings and the scale's ``cost`` block."""
    train, model = run.settings.train, run.settings.model
    if run.kind == "brownian":
        # Drawing a normal and Adam's step cost some 60 operations an entry; about 2**14 of them.
        walked = sum(
            any(matches(pattern, a) for pattern in run.brownian.match) for a in addresses(model)
        )
        flops = 60.0 * 2**14 * train.steps * walked
        return Estimate(0, 0, flops, flops / run.cost.flops_per_second, 0.0)
    tokens = train.steps * train.batch_size * train.sequence_length
    flops = tokens * flops_per_token(model, train.sequence_length)
    seconds = flops / (run.cost.flops_per_second * run.cost.devices)
    dollars = seconds / 3600 * run.cost.devices * run.cost.price_per_hour
    return Estimate(parameters(model), tokens, flops, seconds, dollars)
