"""The loss of an LM head in the worst case over inputs, and the bounds on it (*Beyond MuP 3*).

ℓ(x, t; W) = log Σ_i exp⟨x, w_i⟩ − ⟨x, w_t⟩ with rows w_i of W (tokens, width) and ‖x‖ = 1, where
norms are root mean squares over width. D(W) is ``lrm.optim.criteria.of_head``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lrm.optim.directions import per_token


def losses(inputs: Tensor, targets: Tensor, head: Tensor) -> Tensor:
    """ℓ of (n, width) inputs and (n,) targets: (n,)."""
    return torch.nn.functional.cross_entropy(inputs @ head.mT, targets, reduction="none")


def inputs_of(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Random inputs of norm 1: (count, width)."""
    return per_token(torch.randn(count, width, generator=generator, dtype=torch.float64))


def supremum(
    head: Tensor, starts: int, steps: int, generator: torch.Generator
) -> tuple[float, float]:
    """The largest ℓ that ascent finds: from all starts, and from the random ones alone.

    A step puts x along the gradient. ℓ is convex in x, so that no such step lowers it. Starts are
    ``starts`` random inputs for each token t, and the direction of the row farthest from w_t.
    """
    tokens, width = head.shape
    farthest = torch.cdist(head, head).argmax(-1)
    targets = torch.arange(tokens).repeat(1 + starts)
    near = per_token(head[farthest] - head)
    inputs = torch.cat([near, inputs_of(starts * tokens, width, generator)])
    for _ in range(steps):
        gradient = (inputs @ head.mT).softmax(-1) @ head - head[targets]
        inputs = per_token(gradient)
    found = losses(inputs, targets, head)
    return float(found.max()), float(found[tokens:].max())


def trained(
    head: Tensor, lr: float, steps: int, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """``head`` after steepest descent on inputs and targets, and its last update."""
    update = torch.zeros_like(head)
    for _ in range(steps):
        errors = (inputs @ head.mT).softmax(-1)
        errors[torch.arange(len(targets)), targets] -= 1
        update = -lr * per_token(errors.mT @ inputs) / head.shape[-1]
        head = head + update
    return head, update
