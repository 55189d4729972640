"""Parameters, tokens, FLOPs, time and money of a run, before it runs. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lrm.compose import Run
from lrm.config import ModelConfig
from lrm.model.tensors import addresses, matches
from lrm.muon_theory import noise_draws, step_flops
from lrm.rules import resolve
from lrm.schedule import sequences_before


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
    iterations = run.settings.optimizer.newton_schulz_steps
    matrices = {plan.key: plan.matrix for plan in resolve(run.settings) if plan.matrix}
    if run.kind == "brownian":
        # Drawing a normal and Adam's step cost some 60 operations an entry; about 2**14 of them.
        # A linear layer is moved whole, in two cases.
        layers = run.brownian.linear_layers
        per_step = 0.0
        for address in addresses(model):
            if any(matches(pattern, address) for pattern in run.brownian.match):
                draws = run.brownian.draws
                per_step += 60.0 * (draws * math.prod(address.shape) if layers else 2**14)
                if matrix := matrices.get(address.key):
                    if not layers:
                        draws = noise_draws(matrix.rows, matrix.columns, draws)
                    per_step += draws * step_flops(matrix.rows, matrix.columns, iterations)
        flops = per_step * train.steps * (2 if layers else 1)
        return Estimate(0, 0, flops, flops / run.cost.flops_per_second, 0.0)
    sequences = sequences_before(run.settings.schedule, train.batch_size, train.steps)
    tokens = sequences * train.sequence_length
    flops = tokens * flops_per_token(model, train.sequence_length)
    for matrix in set(matrices.values()):
        flops += train.steps * step_flops(matrix.rows, matrix.columns, iterations)
    seconds = flops / (run.cost.flops_per_second * run.cost.devices)
    dollars = seconds / 3600 * run.cost.devices * run.cost.price_per_hour
    return Estimate(parameters(model), tokens, flops, seconds, dollars)
