"""What happens to writes through ``module.weight``, which is derived: they reach W, or fail.

Tools write where they read: ``nn.init``, ``weight.data += delta`` (merging LoRA) or
``weight[0] = 0``. What they read is W̄. Hence W̄ is given out as a tensor that passes each write on.
W becomes the written values divided by the multipliers (equation 3, solved for W). Entries that a
write leaves as they were keep W's bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lrm.errors import UserError
from lrm.multipliers.equations import is_transformed
from lrm.multipliers.sharding import is_distributed

_MEANT = "merge the multipliers first (lrm.merge_multipliers)"
# Methods that end like writes and leave all values as they are.
_HARMLESS = {"share_memory_", "detach_", "retain_grad", "requires_grad_"}
# What means the parameter where it is asked of all of W̄.
_OF_PARAMETERS = {"requires_grad_", "register_hook", "register_post_accumulate_grad_hook"}
_RESHAPING = {"resize_", "resize_as_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_",
              "as_strided_", "swapaxes_", "swapdims_", "swap_tensors"}  # fmt: skip


class Link:
    """Where the values of a W̄ come from: its module, the parameter's name, and all of W̄."""

    def __init__(self, module: nn.Module, attribute: str, reader: Any, effective: Tensor):
        self.module, self.attribute, self.reader = module, attribute, reader
        self.effective = effective
        self._versions = self._count()

    @property
    def name(self) -> str:
        return f"{type(self.module).__name__}.{self.attribute}"

    @property
    def weight(self) -> nn.Parameter:
        return self.module._parameters[self.attribute]

    def is_of(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is W̄ or a view of it; what transforms wrap has no storage to tell."""
        return (
            not is_transformed()
            and tensor.layout == torch.strided
            and not is_distributed(tensor)
            and tensor.untyped_storage()._cdata == self.effective.untyped_storage()._cdata
        )

    def pass_on(self) -> None:
        """After a write to W̄: have W be what gives it.

        Raises UserError where a multiplier is 0, and where W or a multiplier has changed since W̄
        was read: what is written then is older than what it would replace.
        """
        if self._versions != self._count():
            raise UserError(
                f"{self.name} was read before its weight or multipliers changed; read it again, "
                "and then write"
            )
        if not self.reader.solve(self.weight, self.effective):
            raise UserError(f"{self.name} was written, but a multiplier of it is 0; {_MEANT}")
        self._versions = self._count()

    def _count(self) -> list[int]:
        """How often W and its multipliers were changed in place, and which tensors they are."""
        tensors = [self.weight, *self.reader.learned()]
        # Inference tensors count nothing.
        return [n for t in tensors for n in (id(t), 0 if t.is_inference() else t._version)]


class Effective(Tensor):
    """W̄, or a view of it, as a module gives it to others. Computations with it give tensors."""

    _link: Link
    _plain: Tensor  # the same as torch's own type, which all computations get

    @property
    def _is_param(self) -> bool:
        """W̄ itself is an nn.Parameter to those who ask, as the plain model's would be."""
        return self._plain is self._link.effective

    @_is_param.setter
    def _is_param(self, _: bool) -> None:
        """``nn.Parameter(module.weight.detach())`` would learn, and not be W̄ any more."""
        raise UserError(
            f"{self._link.name} has multipliers and is no parameter for another module; give it "
            f"a copy of the values ({self._link.attribute}.detach().clone()), and parametrize "
            "before lrm.attach_multipliers"
        )

    def is_read_by(self, reader: Any) -> bool:
        """Whether this is W̄, all of it, as ``reader`` gives it."""
        return self._is_param and self._link.reader is reader

    @property
    def weight(self) -> nn.Parameter:
        """The W from which it comes."""
        return self._link.weight

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if torch.compiler.is_compiling():
                return func(*args, **kwargs)
            name = getattr(func, "__name__", "").partition(".")[0]  # of add_.Tensor too
            if name in ("__get__", "__set__"):
                return _attribute(name, func.__self__.__name__, func, args)
            first = args[0] if args else None
            if name == "__deepcopy__":
                found = first._plain.detach().clone()
                return found.requires_grad_(first._link.weight.requires_grad)
            if name in _OF_PARAMETERS and isinstance(first, Effective) and first._is_param:
                found = func(first._link.weight, *args[1:], **kwargs)
                return first if name == "requires_grad_" else found
            if kwargs.get("max_norm") is not None and name.startswith("embedding"):
                raise UserError(
                    f"{_first(args, kwargs)._link.name} has multipliers, and max_norm writes to it "
                    "while it is read; leave max_norm out"
                )
            written = _written(name, args, kwargs)
            if not written:
                found = _called(func, types, _plain(args), _plain(kwargs))
                if name in ("numpy", "__array__") and isinstance(first, Effective):
                    found.flags.writeable = False  # nobody would be told
                return _views(found, first._link) if isinstance(first, Effective) else found
            for each in written:
                if name in _RESHAPING:
                    raise UserError(f"{each._link.name} has multipliers for its shape; {_MEANT}")
                if each.requires_grad and torch.is_grad_enabled() and not _is_init(func):
                    raise UserError(
                        f"{each._link.name} is a parameter that learns; write to it under "
                        "torch.no_grad()"
                    )
            if is_transformed():
                raise UserError(
                    f"{written[0]._link.name} has multipliers, and cannot be written within a "
                    "transform of torch.func or forward-mode differentiation; write outside of it"
                )
            with torch.no_grad():
                found = func(*_plain(args), **_plain(kwargs))
            for each in written:
                each._link.pass_on()
            return written[0] if isinstance(found, Tensor) else found


def guarded(effective: Tensor, module: nn.Module, attribute: str, reader: Any) -> Tensor:
    """``effective`` with writes passed on, where ``module.<attribute>`` is an ordinary parameter.

    Compilers, function transforms and FSDP get it as it is.
    """
    weight = module._parameters[attribute]
    if (
        not issubclass(type(weight), nn.Parameter)
        or effective is weight
        or type(effective) is not Tensor
        or torch.jit.is_tracing()
    ):
        return effective
    return _linked(effective, Link(module, attribute, reader, effective))


def _linked(tensor: Tensor, link: Link) -> Effective:
    found = tensor.as_subclass(Effective)
    found._link, found._plain = link, tensor
    return found


def _plain(value: Any) -> Any:
    """Arguments with torch's own type in place of ``Effective``."""
    if isinstance(value, Effective):
        return value._plain
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {name: _plain(each) for name, each in value.items()}
    return value


def _views(found: Any, link: Link) -> Any:
    """Views of W̄ among results pass writes on too."""
    if type(found) is Tensor:
        return _linked(found, link) if link.is_of(found) else found
    if type(found) in (tuple, list):
        return type(found)(_views(each, link) for each in found)
    return found


def _first(args: tuple, kwargs: dict[str, Any]) -> Effective:
    """The W̄ among the arguments."""
    return next(each for each in (*args, *kwargs.values()) if isinstance(each, Effective))


def _called(func: Any, types: Sequence[type], args: tuple, kwargs: dict[str, Any]) -> Any:
    """What ``func`` gives; other subclasses of tensors make of it what they do with plain weights.

    The caller has switched all of them off.
    """
    if all(issubclass(each, Effective) for each in types):
        return func(*args, **kwargs)
    with torch._C._EnableTorchFunction():
        return func(*args, **kwargs)


def _is_init(func: Any) -> bool:
    return getattr(func, "__module__", "") == "torch.nn.init"


def _written(name: str, args: tuple, kwargs: dict[str, Any]) -> list[Effective]:
    """What a function of that name writes to, as far as it is some W̄."""
    if kwargs.get("out") is not None:
        target = kwargs["out"]
    elif kwargs.get("inplace") is True:  # of nn.functional
        target = args[0] if args else kwargs.get("input")
    elif name == "__setitem__" or (name.startswith("__i") and name in _IN_PLACE):
        target = args[0]
    elif name.endswith("_") and not name.endswith("__") and name not in _HARMLESS:
        target = args[0] if args else kwargs.get("tensor")
    else:
        return []
    several = target if isinstance(target, (tuple, list)) else [target]
    return [each for each in several if isinstance(each, Effective)]


_IN_PLACE = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow",
                                         "and", "or", "xor", "lshift", "rshift")}  # fmt: skip


def _attribute(kind: str, name: str, func: Any, args: tuple) -> Any:
    """Attributes of W̄ that mean the parameter are W's; ``data`` is a view."""
    this, *given = args
    link = this._link
    if name in ("requires_grad", "grad") and this._is_param:
        if kind == "__get__":
            return getattr(link.weight, name)
        setattr(link.weight, name, given[0])
        return None
    if name == "grad_fn" and this._plain is link.effective:  # modules ask before they register
        raise UserError(
            f"{link.name} has multipliers and is no parameter for another module; tie, parametrize "
            "or prune before lrm.attach_multipliers"
        )
    if kind == "__get__":
        return _views(func(this._plain), link)
    if name != "data":
        return func(this._plain, *given)
    [value] = given
    if value.shape != this.shape or value.dtype != this.dtype or value.device != this.device:
        raise UserError(
            f"{link.name} has multipliers for its shape, and its data cannot become "
            f"{tuple(value.shape)} in {value.dtype}; {_MEANT}, or convert by model.to"
        )
    with torch.no_grad():
        # The data itself, after data += …, is there already.
        this._plain.detach().copy_(_plain(value))
    link.pass_on()
    return None
