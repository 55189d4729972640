"""Modules whose parameter is read as something else than it is.

The parameter keeps its name and place; the module's class is replaced by a subclass with a
property of that name. Fused kernels that take ``module.weight`` get what a linear map gets.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

# The attribute of a module that maps names of parameters to what reads them.
_READERS = "_readers"


def read_through(module: nn.Module, attribute: str, reader: Any) -> None:
    """From now on ``module.<attribute>`` is ``reader(parameter)``.

    A reader may have a method ``linear(x, parameter, bias)`` that computes an ``nn.Linear`` in
    another way, or returns None.
    """
    readers = {**module.__dict__.get(_READERS, {}), attribute: reader}
    _become(module, readers)


def restore(module: nn.Module, attribute: str) -> None:
    """Have ``module.<attribute>`` be the parameter again."""
    readers = dict(module.__dict__[_READERS])
    del readers[attribute]
    _become(module, readers)


def _become(module: nn.Module, readers: dict[str, Any]) -> None:
    plain = getattr(type(module), "_plain_class", type(module))
    module.__dict__.pop(_READERS, None)
    if readers:
        # Not as submodules: a shared parameter's reader belongs to the first of its modules.
        module.__dict__[_READERS] = readers
        module.__class__ = _reading(plain, tuple(sorted(readers)))
    else:
        module.__class__ = plain


@cache
def _reading(plain: type, attributes: tuple[str, ...]) -> type:
    """The subclass of ``plain`` that reads ``attributes`` through readers."""
    body: dict[str, Any] = {
        "_plain_class": plain,
        "__module__": plain.__module__,
        "__doc__": plain.__doc__,
        # So that copies and pickles find a class that no module holds.
        "__reduce_ex__": lambda self, _: (_empty, (plain, attributes), self.__getstate__()),
    }
    for attribute in attributes:
        body[attribute] = _property(attribute)
    if plain.forward is nn.Linear.forward and "weight" in attributes:
        body["forward"] = _linear
    return type(plain.__name__, (plain,), body)


def _empty(plain: type, attributes: tuple[str, ...]) -> nn.Module:
    found = _reading(plain, attributes)
    return found.__new__(found)


def _property(attribute: str) -> property:
    def read(self) -> Tensor:
        try:
            return self._readers[attribute](self._parameters[attribute])
        except AttributeError as error:
            # Modules would take it for an attribute that is not there, and return the parameter.
            raise RuntimeError(f"{attribute} cannot be read: {error}") from error

    return property(read)


def _linear(self, input: Tensor) -> Tensor:
    found = self._readers["weight"].linear(input, self._parameters["weight"], self.bias)
    return F.linear(input, self.weight, self.bias) if found is None else found
