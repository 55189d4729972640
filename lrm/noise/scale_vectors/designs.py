"""Designs of scale vectors on one matrix, A = diag(u) W diag(v), and their gradients.

u scales the outputs and v the inputs. Each is frozen at 1, or follows from what is learned by a
parametrization (section 3.3). A state is (W, raw u, raw v), of shapes (…, c, d), (…, c or c + 1)
and (…, d or d + 1), in float64; whatever stands before is a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

State = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Parametrization:
    """How n scales follow from what is learned.

    ``start(n)`` is what is learned where all scales are 1. ``value`` maps it to the scales, and
    ``pull`` maps it and the gradient of the scales to its own gradient.
    """

    start: Callable[[int], np.ndarray]
    value: Callable[[np.ndarray], np.ndarray]
    pull: Callable[[np.ndarray, np.ndarray], np.ndarray]


def _pull_frozen(raw: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    return np.zeros_like(raw)


def _pull_direct(raw: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    return gradient


def _direction(alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """α/‖α‖ and √n/‖α‖."""
    norm = np.sqrt((alpha * alpha).sum(-1, keepdims=True))
    return alpha / norm, alpha.shape[-1] ** 0.5 / norm


def _value_or(raw: np.ndarray) -> np.ndarray:
    return raw[..., :1] * (raw.shape[-1] - 1) ** 0.5 * _direction(raw[..., 1:])[0]


def _pull_or(raw: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    along, stretch = _direction(raw[..., 1:])
    share = (along * gradient).sum(-1, keepdims=True)
    of_beta = (raw.shape[-1] - 1) ** 0.5 * share
    return np.concatenate((of_beta, raw[..., :1] * stretch * (gradient - share * along)), axis=-1)


def _value_er(raw: np.ndarray) -> np.ndarray:
    alpha = raw[..., 1:]
    return np.exp(raw[..., :1] + alpha - alpha.mean(-1, keepdims=True))


def _pull_er(raw: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    scaled = _value_er(raw) * gradient
    of_beta = scaled.sum(-1, keepdims=True)
    return np.concatenate((of_beta, scaled - of_beta / scaled.shape[-1]), axis=-1)


def _identity(raw: np.ndarray) -> np.ndarray:
    return raw


FROZEN = Parametrization(np.ones, _identity, _pull_frozen)
DIRECT = Parametrization(np.ones, _identity, _pull_direct)
# What is learned is (β, α): γ = β Norm(α), and γ = exp(β) exp(α − mean α).
OR = Parametrization(lambda n: np.ones(n + 1), _value_or, _pull_or)
ER = Parametrization(lambda n: np.zeros(n + 1), _value_er, _pull_er)


@dataclass(frozen=True)
class Design:
    """What scales the outputs and the inputs of a matrix."""

    outputs: Parametrization
    inputs: Parametrization

    def start(self, matrix: np.ndarray) -> State:
        """The state with W = ``matrix`` (…, c, d) and all scales 1."""
        batch = matrix.shape[:-2]
        raw = (self.outputs.start(matrix.shape[-2]), self.inputs.start(matrix.shape[-1]))
        return matrix, *(np.broadcast_to(one, (*batch, one.size)).copy() for one in raw)

    def scales(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """u (…, c) and v (…, d)."""
        return self.outputs.value(state[1]), self.inputs.value(state[2])

    def effective(self, state: State) -> np.ndarray:
        """A = diag(u) W diag(v), (…, c, d)."""
        u, v = self.scales(state)
        return u[..., None] * state[0] * v[..., None, :]

    def gradient(self, state: State, of_effective: np.ndarray) -> State:
        """The gradient of the state, given that of A (…, c, d)."""
        u, v = self.scales(state)
        scaled = of_effective * v[..., None, :]
        of_u = (scaled * state[0]).sum(-1)
        of_v = (u[..., None] * of_effective * state[0]).sum(-2)
        pulled = (self.outputs.pull(state[1], of_u), self.inputs.pull(state[2], of_v))
        return u[..., None] * scaled, *pulled

    def rate(self, state: State, residual: np.ndarray) -> np.ndarray:
        """−dL/dt under gradient flow, (…), where W⋆ − A is ``residual`` (…, c, d)."""
        of_matrix, of_u, of_v = self.gradient(state, residual)
        return (of_matrix**2).sum((-2, -1)) + (of_u**2).sum(-1) + (of_v**2).sum(-1)


DESIGNS = {
    "none": Design(FROZEN, FROZEN),
    "standard": Design(FROZEN, DIRECT),
    "ap": Design(DIRECT, FROZEN),
    "dp": Design(DIRECT, DIRECT),
    "or": Design(FROZEN, OR),
    "er": Design(FROZEN, ER),
    # One branch of several, each with a standard vector of its own; see ``flows.shared``.
    "hg": Design(FROZEN, DIRECT),
}
# What the theorems compare each with.
REFERENCES = {
    "standard": "none", "ap": "none", "dp": "standard", "or": "standard", "er": "standard",
    "hg": "standard",
}  # fmt: skip


def at_same_state(design: str, state: State) -> State:
    """The state of the reference with the same effective matrix and, where it has one, the same v.

    As theorems 3.1, 3.2, 9.1 and 9.2 pair them.
    """
    u, v = DESIGNS[design].scales(state)
    matrix = u[..., None] * state[0]
    if REFERENCES[design] == "none":
        return DESIGNS["none"].start(matrix * v[..., None, :])
    return matrix, np.ones_like(u), v
