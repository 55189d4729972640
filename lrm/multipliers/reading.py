"""Modules whose parameter is read as something else than it is.

The parameter keeps its name and place; the module's class is replaced by a subclass with a
property of that name. Fused kernels that take ``module.weight`` get what a linear map gets.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lrm.errors import UserError
from lrm.multipliers.sharding import is_distributed, is_gathered
from lrm.multipliers.writing import Effective, guarded

# The attribute of a module that maps names of parameters to what reads them.
READERS = "_lrm_readers"
# The attribute that a module has while a state_dict is loaded into it.
_LOADING = "_loading_weights"
# What a class has that ``parametrize`` had put over a module's before its parameters were read so.
_BEFORE = "_lrm_parametrized_before"


def read_through(module: nn.Module, attribute: str, reader: Any) -> None:
    """From now on ``module.<attribute>`` is ``reader(parameter)``.

    A reader has methods ``linear(x, parameter, bias)`` and ``embedding(indices, parameter,
    padding)``, which compute an ``nn.Linear`` and an ``nn.Embedding`` in another way or return
    None, ``solve(parameter, value)``, which has it give ``value``,
    ``reset_parameters()``, after which it gives what is initialised, ``learned()``, the tensors
    that it reads besides, ``last_read()``, the parameter as it was given last, and ``forget()``,
    after which it is none.
    """
    readers = {**module.__dict__.get(READERS, {}), attribute: reader}
    _become(module, readers)


def restore(module: nn.Module, attribute: str) -> None:
    """Have ``module.<attribute>`` be the parameter again."""
    readers = dict(module.__dict__[READERS])
    del readers[attribute]
    _become(module, readers)


def check_restorable(module: nn.Module) -> None:
    """Raise UserError where a parametrization has put its class over the one that reads."""
    # FSDP does so too, and does without it. One that was there before lies over it by our hand.
    own = vars(type(module))
    if parametrize.is_parametrized(module) and not ("_plain_class" in own or _BEFORE in own):
        raise UserError(
            f"{type(module).__name__} was parametrized after lrm.attach_multipliers; undo that "
            "first (torch.nn.utils.parametrize.remove_parametrizations)"
        )


def _become(module: nn.Module, readers: dict[str, Any]) -> None:
    present = type(module)
    plain = getattr(present, "_plain_class", None) or _unparametrized(present)
    module.__dict__.pop(READERS, None)
    if readers:
        # Not as submodules: a shared parameter's reader belongs to the first of its modules.
        module.__dict__[READERS] = readers
        module.__class__ = _beneath(present, plain, _reading(plain, tuple(sorted(readers))))
    else:
        module.__class__ = _beneath(present, plain, plain)
        if isinstance(module, nn.RNNBase):
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


def _unparametrized(present: type) -> type:
    """What lies under the class that ``torch.nn.utils.parametrize`` has made for one module."""
    base = present.__bases__[0]
    return base if present.__name__ == f"Parametrized{base.__name__}" else present


def _beneath(present: type, plain: type, inner: type) -> type:
    """``inner``, under the classes that others have put over ours or over ``plain``.

    ``fully_shard`` does so, and ``parametrize``. The latter takes its class off again, and expects
    beneath it what the module is without it.
    """
    if present is plain or "_plain_class" in vars(present):
        return inner
    if _unparametrized(present) is present:
        return _shared(present, plain, inner)
    return _rebuilt(present, plain, inner, {_BEFORE: True})


def _rebuilt(present: type, plain: type, inner: type, more: dict[str, Any]) -> type:
    bases = tuple(
        _beneath(base, plain, inner) if issubclass(base, plain) else base
        for base in present.__bases__
    )
    body = {k: v for k, v in vars(present).items() if k not in ("__dict__", "__weakref__")}
    return type(present.__name__, bases, {**body, **more})


@cache
def _shared(present: type, plain: type, inner: type) -> type:
    """One class for all modules of a class, for compilers' sake."""
    return _rebuilt(present, plain, inner, {})


@cache
def _reading(plain: type, attributes: tuple[str, ...]) -> type:
    """The subclass of ``plain`` that reads ``attributes`` through readers."""

    def set_attribute(self, name: str, value: Any) -> None:
        if name not in attributes:
            super(found, self).__setattr__(name, value)
        elif self.__dict__.get("_is_replica"):
            raise UserError(
                f"{plain.__name__}.{name} has multipliers, and nn.DataParallel copies modules by "
                "setting their weights; use DistributedDataParallel, or one GPU "
                "(CUDA_VISIBLE_DEVICES)"
            )
        elif _may_replace(self, value):
            self._parameters[name] = value
            self._lrm_readers[name].forget()
        elif isinstance(value, Effective) and value.is_read_by(self._lrm_readers[name]):
            # Tied once more; after loading with assign the two may be different tensors.
            self._parameters[name] = value.weight
        elif is_distributed(value):
            raise UserError(
                f"{plain.__name__}.{name} has multipliers; call lrm.attach_multipliers behind "
                "parallelize_module"
            )
        else:
            raise _replaced(plain, name)

    def delete_attribute(self, name: str) -> None:
        if name in attributes:
            raise _parametrized(plain, name)
        super(found, self).__delattr__(name)

    def register_parameter(self, name: str, value: Any) -> None:
        for attribute in attributes:
            # The older weight_norm has deleted it by now, and has not let go of it.
            if attribute not in self._parameters and name.startswith(f"{attribute}_"):
                lost = self._lrm_readers[attribute].last_read()
                if isinstance(lost, nn.Parameter):
                    self._parameters[attribute] = lost
                    raise _parametrized(plain, attribute)
        if isinstance(value, Effective):
            raise _parametrized(plain, name)
        if name in attributes and name in self._parameters:
            set_attribute(self, name, value)
            return
        super(found, self).register_parameter(name, value)

    def load(self, *arguments: Any, **named: Any) -> None:
        self.__dict__[_LOADING] = True
        try:
            super(found, self)._load_from_state_dict(*arguments, **named)
        finally:
            del self.__dict__[_LOADING]

    def initialise(self, *arguments: Any, **named: Any) -> None:
        # Whoever builds another module of this one's class means the class as it was.
        self.__class__ = plain
        plain.__init__(self, *arguments, **named)

    def reset_parameters(self) -> None:
        for reader in self._lrm_readers.values():
            reader.reset_parameters()
        super(found, self).reset_parameters()

    body: dict[str, Any] = {
        "_plain_class": plain,
        "__module__": plain.__module__,
        "__doc__": plain.__doc__,
        # So that copies and pickles find a class that no module holds.
        "__reduce_ex__": lambda self, _: (_empty, (plain, attributes), self.__getstate__()),
        "__init__": initialise,
        "__setattr__": set_attribute,
        "__delattr__": delete_attribute,
        "register_parameter": register_parameter,
        "_load_from_state_dict": load,
    }
    for attribute in attributes:
        body[attribute] = _property(attribute)
    if plain.forward is nn.Linear.forward and "weight" in attributes:
        body["forward"] = _linear
    if plain.forward is nn.Embedding.forward and "weight" in attributes:
        body["forward"] = _embedding
    if hasattr(plain, "reset_parameters"):
        body["reset_parameters"] = reset_parameters
    if issubclass(plain, nn.RNNBase):
        body["_flat_weights"] = property(_flat_weights, lambda self, value: None)
    try:
        found = type(plain.__name__, (plain,), body)
    except Exception as error:
        # Classes may ask more of their subclasses, or refuse two of one name.
        raise UserError(
            f"{plain.__name__} cannot have a subclass that reads its multipliers ({error}); give "
            "its parameters 'none'"
        ) from error
    return found


def _may_replace(module: nn.Module, value: Any) -> bool:
    """Loading with ``assign`` and sharding put W in another tensor; all others mean W̄."""
    return is_gathered(module, value) or _LOADING in module.__dict__


def _replaced(plain: type, name: str) -> UserError:
    return UserError(
        f"{plain.__name__}.{name} has multipliers and cannot be replaced; copy into it "
        "under torch.no_grad(), or merge the multipliers first (lrm.merge_multipliers)"
    )


def _parametrized(plain: type, name: str) -> UserError:
    return UserError(
        f"{plain.__name__}: {name} cannot be taken away from under its multipliers; parametrize or "
        "prune before lrm.attach_multipliers, or merge first (lrm.merge_multipliers); in place of "
        "FullyShardedDataParallel take fully_shard"
    )


def _empty(plain: type, attributes: tuple[str, ...]) -> nn.Module:
    found = _reading(plain, attributes)
    return found.__new__(found)


def _property(attribute: str) -> property:
    def read(self) -> Tensor:
        try:
            reader = self._lrm_readers[attribute]
            found = reader(self._parameters[attribute])
            if torch.compiler.is_compiling():
                return found
            return guarded(found, self, attribute, reader)
        except AttributeError as error:
            # Modules would take it for an attribute that is not there, and return the parameter.
            raise RuntimeError(f"{attribute} cannot be read: {error}") from error

    return property(read)


def _linear(self, input: Tensor) -> Tensor:
    reader, weight = self._lrm_readers["weight"], self._parameters["weight"]
    bias = self.bias
    found = reader.linear(input, weight, bias)
    return F.linear(input, reader(weight), bias) if found is None else found


def _embedding(self, input: Tensor) -> Tensor:
    reader, weight = self._lrm_readers["weight"], self._parameters["weight"]
    plain = self.max_norm is None and not (self.scale_grad_by_freq or self.sparse)
    found = reader.embedding(input, weight, self.padding_idx) if plain else None
    if found is not None:
        return found
    return F.embedding(input, reader(weight), self.padding_idx, self.max_norm, self.norm_type,
                       self.scale_grad_by_freq, self.sparse)  # fmt: skip


def _flat_weights(self) -> list[Tensor]:
    """What recurrent layers compute with."""
    return [
        self._lrm_readers[name](self._parameters[name])
        if name in self._lrm_readers
        else getattr(self, name)
        for name in self._flat_weights_names
    ]
