"""The curvature of the loss: the largest eigenvalue of its Hessian (claim SV7 of the second paper).

Nothing is differentiated twice, which the fused operations could not be: a product of the Hessian
with a vector is a difference of two gradients.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lrm.errors import UserError
from lrm.model.gpu.adapters import PLAIN, Kernels
from lrm.model.init import named_generator
from lrm.plan.config import Settings
from lrm.train import compiled
from lrm.train.distributed import ALONE
from lrm.train.learner import Learner
from lrm.train.step import backward

# Length of a difference's arms over that of all parameters. Ten times more would bend the loss
# along its steepest directions, ten times less would lose digits in float32.
_REACH = 1.0e-4
Vector = Sequence[Tensor]


def check_kernels(kernels: Kernels) -> None:
    """UserError for GPU kernels, which take half precision alone: curvature needs float32."""
    if kernels != PLAIN:
        plain = ", ".join(f"{kernel}: torch" for kernel in dataclasses.asdict(PLAIN))
        raise UserError(
            "probes.curvature needs float32, which GPU kernels do not take; write "
            f"execution.kernels={{{plain}}}, or leave it out"
        )


def largest_eigenvalue(
    product: Callable[[Vector], Vector], start: Vector, iterations: int
) -> float:
    """Of a symmetric matrix, by Lanczos' three-term recurrence, whose products are ``product``.

    ``start`` has the shapes of a vector and is not 0. It holds three vectors at a time: rounding
    then repeats eigenvalues that it has found, which leaves the largest as it is.
    """
    length = _norm(start)
    last, now = [torch.zeros_like(each) for each in start], [each / length for each in start]
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(iterations):
        turned = product(now)
        diagonal.append(_dot(now, turned))
        before = beside[-1] if beside else 0.0
        rest = [
            each - diagonal[-1] * own - before * old
            for each, own, old in zip(turned, now, last, strict=True)
        ]
        beside.append(_norm(rest))
        if not beside[-1] > 1e-10 * abs(diagonal[0]):  # all of the space that the start reaches
            break
        last, now = now, [each / beside[-1] for each in rest]
    if not all(map(math.isfinite, diagonal)):
        return math.nan
    beside = beside[: len(diagonal) - 1]
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for offset in (-1, 1):
        matrix += torch.diag(torch.tensor(beside, dtype=torch.float64), offset)
    return torch.linalg.eigvalsh(matrix)[-1].item()


def largest_curvature(
    learner: Learner, batch: Tensor, settings: Settings, iterations: int, micro_batch: int = 0
) -> float:
    """The largest eigenvalue of the Hessian of the objective on ``batch`` (sequences, length).

    Inputs are all tokens but the last, targets all but the first.

    In all that learns, multipliers too, as the optimizer has it. Leaves parameters as they were,
    to the bit, and no gradients. Not in autocast, whose rounding would drown the differences.
    """
    # The one process that measures does not wait for others.
    alone = dataclasses.replace(learner, call=learner.model, group=ALONE)
    named = [(n, p) for n, p in learner.model.named_parameters() if p.requires_grad]
    parameters = [parameter for _, parameter in named]
    kept = [parameter.detach().clone() for parameter in parameters]
    reach = _REACH * _norm(kept)

    def gradient(direction: Vector, reach: float) -> list[Tensor]:
        with torch.no_grad():
            for parameter, own, way in zip(parameters, kept, direction, strict=True):
                parameter.copy_(own + reach * way)
        backward(alone, batch, settings, micro_batch=micro_batch)
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]

    def product(direction: Vector) -> list[Tensor]:
        ahead, behind = gradient(direction, reach), gradient(direction, -reach)
        return [(a - b) / (2 * reach) for a, b in zip(ahead, behind, strict=True)]

    start = [
        torch.randn(p.shape, generator=named_generator(0, name)).to(p) for name, p in named
    ]  # fmt: skip
    try:
        with compiled.uncompiled():
            return largest_eigenvalue(product, start, iterations)
    finally:
        with torch.no_grad():
            for parameter, own in zip(parameters, kept, strict=True):
                parameter.copy_(own)
        learner.zero_grad()


def _dot(one: Vector, other: Vector) -> float:
    products = (a.double() * b.double() for a, b in zip(one, other, strict=True))
    return sum(each.sum().item() for each in products)


def _norm(vector: Vector) -> float:
    return math.sqrt(_dot(vector, vector))
