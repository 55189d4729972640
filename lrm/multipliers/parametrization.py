"""How a multiplier follows from the tensor that an optimizer moves. No torch here.

A parametrization is one class with an entry in ``PARAMETRIZATIONS``. Settings name it, and the
forward, the gradient relations, Brownian motion and tables ask it for what they need. Its methods
take floats and tensors alike, entry by entry.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, TypeVar

from lrm.errors import UserError

Number = TypeVar("Number")  # a float or a tensor


class Parametrization(ABC):
    """A multiplier as a function of the raw tensor behind it; it has no state of its own."""

    name: str
    # Whether the multiplier is the raw tensor, so that noise in one is noise in the other.
    is_identity = False

    @abstractmethod
    def value(self, raw: Number) -> Number:
        """The multiplier."""

    @abstractmethod
    def raw(self, value: Number) -> Number:
        """What ``value`` is the multiplier of, or its absolute value where there is no other."""

    @abstractmethod
    def chain(self, raw: Number, gradient: Any) -> Any:
        """The gradient of ``raw`` from that of the multiplier, by the chain rule."""

    def by_logarithm(self, raw: Number, gradient: Any) -> Any:
        """∂L/∂ln(multiplier) from the gradient of ``raw``."""
        return gradient * self.value(raw) / self.chain(raw, 1.0)

    def relative_step(self, lr: float, value: float) -> float:
        """How far a step of ``lr`` moves a multiplier at ``value``, relative to it."""
        return lr * self.chain(self.raw(value), 1.0) / value

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

    def chain(self, raw: Number, gradient: Any) -> Any:
        return gradient


class Log(Parametrization):
    """The multiplier's logarithm is learned, so that a step is relative to it (section 4.1)."""

    name = "log"

    def value(self, raw: Number) -> Number:
        return math.exp(raw) if isinstance(raw, (int, float)) else raw.exp()

    def raw(self, value: Number) -> Number:
        return math.log(abs(value)) if isinstance(value, (int, float)) else value.abs().log()

    def chain(self, raw: Number, gradient: Any) -> Any:
        return gradient * self.value(raw)


DIRECT = Direct()
PARAMETRIZATIONS: dict[str, Parametrization] = {each.name: each for each in (DIRECT, Log())}


def find_parametrization(name: str) -> Parametrization:
    """The parametrization of that name; UserError where there is none."""
    if name not in PARAMETRIZATIONS:
        known = ", ".join(PARAMETRIZATIONS)
        raise UserError(f"unknown parametrization {name!r}; use one of {known}")
    return PARAMETRIZATIONS[name]
