"""Criteria of layers, their dual norms, and five directions (*Beyond MuP 3*), in float64.

A layer's gradient is a matrix as torch stores it: (outputs, inputs), or (tokens, width) of an
embedding and a head. A vector is a row (1, width). Norms are those of ``LAYERS``; the slope of a
direction Δ is ⟨G, Δ⟩ (what a step −Δ gains) for Δ scaled to a criterion of 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lrm.optim import criteria
from lrm.optim.directions import per_token

# Singular values below this share of the largest are rounding.
_ZERO = 1e-12


@dataclass(frozen=True)
class Layer:
    """The ``criterion`` of an update, its ``dual`` norm (the largest slope), and who reaches it."""

    criterion: Callable[[Tensor], Tensor]
    dual: Callable[[Tensor], Tensor]
    own: str
    # Its gradient is a vector.
    is_vector: bool = False


def _lengths(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=-1)


def _dual_of_linear(gradient: Tensor) -> Tensor:
    outputs, inputs = gradient.shape
    return torch.linalg.svdvals(gradient).sum() * (outputs / inputs) ** 0.5


LAYERS = {
    "linear": Layer(criteria.of_linear, _dual_of_linear, "msign"),
    "embedding": Layer(
        criteria.of_embedding, lambda g: _lengths(g).sum() * g.shape[-1] ** 0.5, "row"
    ),
    "head": Layer(
        criteria.of_rows_of_head, lambda g: _lengths(g).sum() * g.shape[-1] ** -0.5, "row"
    ),
    "gain": Layer(criteria.of_gain, lambda g: g.abs().sum(), "sign", is_vector=True),
    "bias": Layer(
        criteria.of_bias, lambda g: _lengths(g)[0] * g.shape[-1] ** 0.5, "row", is_vector=True
    ),
}


def msign(matrix: Tensor) -> Tensor:
    """U Vᵀ of matrix = U S Vᵀ over the singular values that are not 0; exact up to rounding."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return (u * (s > _ZERO * s[0])) @ vh


# Rows and columns are torch's. On a row vector ``row`` is its direction and ``column`` its sign.
DIRECTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "raw": lambda g: g,
    "sign": torch.sign,
    "row": per_token,
    "column": lambda g: per_token(g.mT).mT,
    "msign": msign,
}


def slope(layer: Layer, gradient: Tensor, direction: Tensor) -> float:
    """⟨G, Δ⟩ of ``direction`` scaled to a criterion of 1, over the dual norm: at most 1."""
    size = layer.criterion(direction)
    return float((gradient * direction).sum() / (size * layer.dual(gradient)))


def steepest_in_differences(gradient: Tensor, steps: int) -> float:
    """How much larger ⟨G, Δ⟩ / D(Δ) can at least be than that of rows over their norms; 0: not.

    Found by ascent from those rows on D with a soft maximum, so that it is a lower bound.
    """
    begin = per_token(gradient)
    rows = begin.clone().requires_grad_()
    adam = torch.optim.Adam([rows], lr=0.02)
    reached = start = float((gradient * begin).sum() / criteria.of_head(begin))
    for _ in range(steps):
        adam.zero_grad()
        distances = torch.pdist(rows)
        sharp = 60.0 / distances.detach().max()
        soft = torch.logsumexp(sharp * distances, 0) / sharp
        (-(gradient * rows).sum() / soft).backward()
        adam.step()
        with torch.no_grad():
            reached = max(reached, float((gradient * rows).sum() / criteria.of_head(rows)))
    return reached / start - 1


# Gradients, as matrices of any shape.


def _gaussian(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _low_rank(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return _gaussian((shape[0], 2), generator) @ _gaussian((2, shape[1]), generator)


def _uneven(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Rows and columns of log-normal sizes."""
    rows, columns = _gaussian((shape[0], 1), generator), _gaussian((1, shape[1]), generator)
    return _gaussian(shape, generator) * (rows + columns).exp()


def _rare(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Every second row is zero, as of tokens that a batch lacks."""
    found = _uneven(shape, generator)
    found[1::2] = 0.0
    return found


def _heavy(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Entries with heavy tails: cubes of normal ones."""
    return _gaussian(shape, generator) ** 3


def _softmax(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """(P − Y)ᵀ X of a cross-entropy over the rows: its columns sum to zero."""
    points = 4 * shape[0]
    scores = _gaussian((points, shape[0]), generator)
    targets = torch.randint(shape[0], (points,), generator=generator)
    errors = scores.softmax(-1) - torch.nn.functional.one_hot(targets, shape[0])
    return errors.mT @ _gaussian((points, shape[1]), generator) / points


GRADIENTS = {"gaussian": _gaussian, "low_rank": _low_rank, "uneven": _uneven, "rare": _rare,
             "heavy": _heavy, "softmax": _softmax}  # fmt: skip


def gradient_of(
    layer: Layer, kind: str, shape: tuple[int, int], generator: torch.Generator
) -> Tensor:
    """A gradient of ``GRADIENTS`` for the layer; (1, width) of a vector."""
    if layer.is_vector:
        return GRADIENTS[kind]((shape[1], 1), generator).mT
    return GRADIENTS[kind](shape, generator)
