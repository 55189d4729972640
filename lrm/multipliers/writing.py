"""What happens to writes through ``module.weight``, which is derived: they reach W, or fail.

Tools write where they read: ``nn.init``, ``weight.data += delta`` (merging LoRA) or
``weight[0] = 0``. What they read is W̄. Hence W̄ is given out as a tensor that passes each write on.
W becomes the written values divided by the multipliers (equation 3, solved for W). Entries that a
write leaves as they were keep W's bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lrm.errors import UserError
from lrm.multipliers.sharding import is_distributed

_MEANT = "merge the multipliers first (lrm.merge_multipliers)"
# Methods that end like writes and leave all values as they are.
_HARMLESS = {"share_memory_", "detach_", "retain_grad"}
_RESHAPING = {"resize_", "resize_as_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_",
              "as_strided_", "swapaxes_", "swapdims_", "swap_tensors"}  # fmt: skip


class Link:
    """Where the values of a W̄ come from: its module, the parameter's name, and all of W̄."""

    def __init__(self, module: nn.Module, attribute: str, reader: Any, effective: Tensor):
        self.module, self.attribute, self.reader = module, attribute, reader
        self.effective = effective

    @property
    def name(self) -> str:
        return f"{type(self.module).__name__}.{self.attribute}"

    @property
    def weight(self) -> nn.Parameter:
        return self.module._parameters[self.attribute]

    def is_of(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is W̄ or a view of it."""
        return (
            tensor.layout == torch.strided
            and not is_distributed(tensor)
            and tensor.untyped_storage()._cdata == self.effective.untyped_storage()._cdata
        )

    def pass_on(self) -> None:
        """After a write to W̄: have W be what gives it. UserError where a multiplier is 0."""
        if not self.reader.solve(self.weight, self.effective):
            raise UserError(f"{self.name} was written, but a multiplier of it is 0; {_MEANT}")


class Effective(Tensor):
    """W̄, or a view of it, as a module gives it to others. Computations with it give tensors."""

    _is_param = True  # an nn.Parameter to those who ask, as the plain model's would be
    _link: Link
    _plain: Tensor  # the same as torch's own type, which all computations get

    def is_of(self, weight: Tensor) -> bool:
        """Whether this is the W̄ of ``weight``: tying once more what is tied changes nothing."""
        return self._link.weight is weight

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if torch.compiler.is_compiling():
                return func(*args, **kwargs)
            name = getattr(func, "__name__", "").partition(".")[0]  # of add_.Tensor too
            if name in ("__get__", "__set__"):
                return _attribute(name, func.__self__.__name__, func, args)
            written = _written(name, args, kwargs)
            if written is None:
                found = func(*_plain(args), **_plain(kwargs))
                first = args[0] if args else None
                return _views(found, first._link) if isinstance(first, Effective) else found
            if name == "requires_grad_":
                written._link.weight.requires_grad_(*args[1:], **kwargs)
                return written
            if name in _RESHAPING:
                raise UserError(f"{written._link.name} has multipliers for its shape; {_MEANT}")
            if written.requires_grad and torch.is_grad_enabled() and not _is_init(func):
                raise UserError(
                    f"{written._link.name} is a parameter that learns; write to it under "
                    "torch.no_grad()"
                )
            with torch.no_grad():
                func(*_plain(args), **_plain(kwargs))
            written._link.pass_on()
            return written


def guarded(effective: Tensor, module: nn.Module, attribute: str, reader: Any) -> Tensor:
    """``effective`` with writes passed on, where ``module.<attribute>`` is an ordinary parameter.

    Compilers, function transforms and FSDP get it as it is.
    """
    weight = module._parameters[attribute]
    if (
        type(weight) is not nn.Parameter
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


def _is_init(func: Any) -> bool:
    return getattr(func, "__module__", "") == "torch.nn.init"


def _written(name: str, args: tuple, kwargs: dict[str, Any]) -> Effective | None:
    """What a function of that name writes to, if it is W̄."""
    if "out" in kwargs:
        target = kwargs["out"]
    elif name == "__setitem__" or (name.startswith("__i") and name in _IN_PLACE):
        target = args[0]
    elif name.endswith("_") and not name.endswith("__") and name not in _HARMLESS:
        target = args[0] if args else kwargs.get("tensor")
    else:
        return None
    several = target if isinstance(target, (tuple, list)) else [target]
    return next((each for each in several if isinstance(each, Effective)), None)


_IN_PLACE = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow",
                                         "and", "or", "xor", "lshift", "rshift")}  # fmt: skip


def _attribute(kind: str, name: str, func: Any, args: tuple) -> Any:
    """Attributes of W̄ that mean the parameter are W's; ``data`` is a view."""
    this, *given = args
    link = this._link
    if name in ("requires_grad", "grad"):
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
