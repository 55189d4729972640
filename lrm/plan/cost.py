"""Parameters, tokens, FLOPs, time and money of a run, before it runs. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from lrm.model.config import ModelConfig, Strict
from lrm.model.tensors import addresses
from lrm.plan.config import OptimizerConfig, Settings
from lrm.plan.newton_schulz import noise_draws, step_flops
from lrm.plan.rules import TensorPlan
from lrm.plan.schedule import sequences_before, vector_steps

# Drawing a normal number and the optimizer's step on it, per entry.
NOISE_FLOPS = 60.0
# Seconds, by the estimate, from which ``execution.compile = auto`` compiles a run on a CPU: a
# shorter one does not repay what loading the code takes.
COMPILED_FROM = 15.0


class Cost(Strict):
    """What the scale's machine does, for estimates."""

    device: str = "CPU core"
    devices: int = Field(1, ge=1)  # devices that one run occupies
    flops_per_second: float = Field(2.0e10, gt=0)  # achieved, per device
    # Of noise and theory, which are simulated on one core beside a GPU; null: as training.
    simulated_per_second: float | None = Field(None, gt=0)
    price_per_hour: float = Field(0.0, ge=0)  # US dollars, per device

    @property
    def machine(self) -> str:
        """What one run occupies, in words: ``one CPU core``, ``8 × H100-class GPU``."""
        return f"one {self.device}" if self.devices == 1 else f"{self.devices} × {self.device}"


def price(dollars: float) -> str:
    """``, about $5`` to be added to a line; nothing for what costs nothing."""
    if not dollars:
        return ""
    return f", about ${dollars:,.0f}" if dollars > 0.5 else ", less than $1"


@dataclass(frozen=True)
class Estimate:
    """Costs of one run, which takes ``seconds`` of so many ``devices`` of the scale."""

    parameters: int
    tokens: int
    flops: float
    seconds: float
    devices: int = 1
    # Of the weights that are kept, in bytes.
    disk: int = 0


def flops_per_token(config: ModelConfig, sequence_length: int) -> float:
    """Forward and backward of one token: matrix products only.

    6 per entry of every matrix (the embedding is a look-up) that a token passes through, and what
    the mixers declare.
    """
    matrices = sum(a.size * a.share for a in addresses(config) if a.role == "matrix")
    per_layer = sum(mixer.flops_per_token(config, sequence_length) for mixer in config.mixers)
    return 6.0 * matrices + config.num_hidden_layers * per_layer


def of_training(settings: Settings, plans: Sequence[TensorPlan], cost: Cost) -> Estimate:
    """What training the model costs, with the batches that are read for their gradients alone."""
    train, probes = settings.train, settings.probes
    sequences = sequences_before(settings.schedule, train.batch_size, train.steps)
    tokens = sequences * train.sequence_length
    measured = len(vector_steps(probes, settings.schedule, train.steps)) * probes.gradient_batches
    read = tokens + measured * train.batch_size * train.sequence_length
    flops = read * flops_per_token(settings.model, train.sequence_length)
    iterations = settings.optimizer.newton_schulz_steps
    for matrix in {plan.matrix for plan in plans if plan.matrix}:
        flops += train.steps * step_flops(matrix.rows, matrix.columns, iterations)
    seconds = flops / (cost.flops_per_second * cost.devices)
    parameters = sum(plan.address.size for plan in plans)
    disk = 4 * parameters * max(1, train.snapshots)
    return Estimate(parameters, tokens, flops, seconds, cost.devices, disk)


def times(estimate: Estimate, count: int) -> Estimate:
    """The same done ``count`` times, of which nothing is kept."""
    return replace(
        estimate,
        tokens=count * estimate.tokens,
        flops=count * estimate.flops,
        seconds=count * estimate.seconds,
        disk=0,
    )


def of_one_device(steps: int, flops_per_step: float, cost: Cost) -> Estimate:
    """What an evaluation costs, and what else takes one device."""
    flops = steps * flops_per_step
    return Estimate(0, 0, flops, flops / cost.flops_per_second)


def of_simulation(steps: int, flops_per_step: float, cost: Cost) -> Estimate:
    """What noise or theory costs, which take one device and compute on a core of the CPU."""
    rate = cost.simulated_per_second or cost.flops_per_second
    return of_one_device(steps, flops_per_step, cost.model_copy(update={"flops_per_second": rate}))


def motion_flops(plan: TensorPlan, optimizer: OptimizerConfig, draws: int) -> float:
    """One step of a tensor's Brownian motion."""
    # About 2**14 entries are simulated, whatever the size of the tensor.
    flops = NOISE_FLOPS * 2**14
    if matrix := plan.matrix:
        draws = noise_draws(matrix.rows, matrix.columns, draws)
        flops += draws * step_flops(matrix.rows, matrix.columns, optimizer.newton_schulz_steps)
    return flops


def layer_flops(plan: TensorPlan, optimizer: OptimizerConfig, draws: int) -> float:
    """One step of a linear layer under noise, which is simulated whole, in two cases."""
    flops = NOISE_FLOPS * plan.address.size
    if matrix := plan.matrix:
        flops += step_flops(matrix.rows, matrix.columns, optimizer.newton_schulz_steps)
    return 2 * draws * flops
