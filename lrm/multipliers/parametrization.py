"""How a multiplier follows from the tensor that an optimizer moves. No torch here.

A parametrization is one class with an entry in ``PARAMETRIZATIONS``. Settings name it, and the
forward, the gradient relations, Brownian motion and tables ask it for what they need. Its methods
take floats and tensors alike. The last dimension of a tensor is one vector of multipliers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TypeVar

from lrm.errors import UserError

Number = TypeVar("Number")  # a float or a tensor


class Parametrization(ABC):
    """A multiplier as a function of the raw tensor behind it; it has no state of its own.

    With a ``magnitude`` it is a vector beside which stands one number, which learns by the
    parametrization of that name: how large the whole vector is.
    """

    name: str
    # Whether the multiplier is the raw tensor, so that noise in one is noise in the other.
    is_identity = False
    magnitude: str | None = None

    @abstractmethod
    def value(self, raw: Number) -> Number:
        """The multiplier."""

    @abstractmethod
    def raw(self, value: Number) -> Number:
        """What ``value`` is the multiplier of, or its absolute value where there is no other."""

    @abstractmethod
    def relative_step(self, lr: float, value: float) -> float:
        """How far a step of ``lr`` moves a multiplier at ``value``, relative to it."""

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple:
        return find_parametrization, (self.name,)


class Direct(Parametrization):
    """The multiplier itself is learned."""

    name = "direct"
    is_identity = True

    def value(self, raw: Number) -> Number:
        return raw

    def raw(self, value: Number) -> Number:
        return value

    def relative_step(self, lr: float, value: float) -> float:
        return lr / value


class Log(Parametrization):
    """The multiplier's logarithm is learned, so that a step is relative to it (section 2; 4.1 has
    its instability)."""

    name = "log"

    def value(self, raw: Number) -> Number:
        return math.exp(raw) if isinstance(raw, (int, float)) else raw.exp()

    def raw(self, value: Number) -> Number:
        return math.log(abs(value)) if isinstance(value, (int, float)) else value.abs().log()

    def relative_step(self, lr: float, value: float) -> float:
        return lr


class OriginalSpace(Parametrization):
    """Direction of γ = β·Norm(α), where Norm(α) has a root mean square of 1.

    OR, equation (8) of *On Scale Vectors in Large Language Models*.
    """

    name = "or"
    magnitude = "direct"

    def value(self, raw: Number) -> Number:
        if isinstance(raw, (int, float)):  # all entries alike
            return math.copysign(1.0, raw)
        return raw * raw.square().mean(-1, keepdim=True).rsqrt()

    def raw(self, value: Number) -> Number:
        return value

    def relative_step(self, lr: float, value: float) -> float:
        return lr / value


class ExponentialSpace(Parametrization):
    """Direction of γ = e^β·e^(α − mean α), whose geometric mean is 1.

    ER, equation (9) of *On Scale Vectors in Large Language Models*.
    """

    name = "er"
    magnitude = "log"

    def value(self, raw: Number) -> Number:
        if isinstance(raw, (int, float)):  # all entries alike
            return 1.0
        return (raw - raw.mean(-1, keepdim=True)).exp()

    def raw(self, value: Number) -> Number:
        return math.log(abs(value)) if isinstance(value, (int, float)) else value.abs().log()

    def relative_step(self, lr: float, value: float) -> float:
        return lr


class Product(Parametrization):
    """Vector of γ = β·α: a scalar beside a vector, which OR is without its norm (ours)."""

    name = "product"
    magnitude = "direct"

    def value(self, raw: Number) -> Number:
        return raw

    def raw(self, value: Number) -> Number:
        return value

    def relative_step(self, lr: float, value: float) -> float:
        return lr / value


DIRECT = Direct()
PARAMETRIZATIONS: dict[str, Parametrization] = {
    each.name: each for each in (DIRECT, Log(), OriginalSpace(), ExponentialSpace(), Product())
}


def find_parametrization(name: str) -> Parametrization:
    """The parametrization of that name; UserError where there is none."""
    if not isinstance(name, str) or name not in PARAMETRIZATIONS:
        known = ", ".join(PARAMETRIZATIONS)
        raise UserError(f"unknown parametrization {name!r}; use one of {known}")
    return PARAMETRIZATIONS[name]
