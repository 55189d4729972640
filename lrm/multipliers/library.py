"""Multipliers on any torch model, in five calls; ``import lrm`` has them.

::

    lrm.attach_multipliers(model, placement="all")
    optimizer = torch.optim.AdamW(lrm.build_param_groups(model, lr=1e-3, weight_decay=0.1))
    for batch in batches:
        loss(model, batch).backward()
        lrm.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    lrm.merge_multipliers(model)  # the plain model, with W̄ in place of W

With ``implementation="optimizer"`` the optimizer is wrapped, ``lrm.wrap_optimizer(optimizer,
model)``; nothing else changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from lrm.errors import UserError
from lrm.multipliers.attach import Multipliers
from lrm.multipliers.groups import Entry, grouped, multiplier_entries, param_group
from lrm.multipliers.multiplier import LIGHT_DECAY, LR
from lrm.multipliers.placement import Placement, roles, targets

_HANDLE = "_learnable_multipliers"


def attach_multipliers(
    model: nn.Module,
    placement: Placement = "all",
    *,
    implementation: str = "forward",
    lr: float = LR,
    weight_decay: float = LIGHT_DECAY,
    parametrization: str = "direct",
    row: Mapping[str, Any] | None = None,
    column: Mapping[str, Any] | None = None,
) -> Multipliers:
    """Put learnable multipliers, all of them 1, on ``model``; its output stays what it was.

    ``placement``: the preset ``all`` (rows and columns of every matrix and of the embedding; no
    rows on the head or on an embedding that is tied to it), ``hidden`` (without embedding and
    head) or ``scalar``; a mapping from patterns of parameter names to ``scalar``, ``row``,
    ``column``, ``row_column``, ``none``, or to a list of (start, stop, kind) for rows of a merged
    matrix; or a function of (name, module, parameter) that returns one of these or None.

    ``implementation``: ``forward`` computes W̄ where the weight is read; ``optimizer`` keeps W̄ in
    the model, and W beside it. ``lr`` and ``weight_decay`` are the multipliers' own, the decay
    being the paper's light one against symmetries (section 4.1), and ``parametrization`` is
    ``direct`` or ``log``. ``row`` and ``column`` may name another of these three for that axis
    alone, e.g. ``row={"lr": 3e-3}``.

    Call it before DistributedDataParallel; before ``fully_shard`` in ``forward``, after it in
    ``optimizer``. Raises UserError for a placement that does not fit the model, a setting that
    does not exist and a model that has multipliers already.
    """
    if _handles(model):
        raise UserError("the model has multipliers already; merge them first")
    settings = {"lr": lr, "weight_decay": weight_decay, "parametrization": parametrization}
    own = {"row": dict(row or {}), "column": dict(column or {})}
    for axis, fields in own.items():
        for name in fields:
            if name not in settings:
                raise UserError(
                    f"{axis}: unknown setting {name!r}; use one of {', '.join(settings)}"
                )
    found = Multipliers(model, targets(model, placement, settings | own), implementation)
    setattr(model, _HANDLE, found)
    return found


def build_param_groups(
    model: nn.Module,
    lr: float,
    weight_decay: float,
    *,
    multiplier_lr: float | None = None,
    multiplier_weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for any torch optimizer, with the paper's rules of decay (appendix A).

    Matrices and embeddings decay, vectors and convolutions do not, and multipliers are in groups
    of their own with the LR and the light decay they were attached with, or those given here.
    Each group has a ``kind``: ``matrix``, ``embedding`` (heads too), ``vector`` or
    ``multiplier``, so that ``torch.optim.Muon`` can be given the matrices alone. The order of
    parameters is the same in both implementations, and so is an optimizer's state.
    """
    _check_sharding(model)
    known = roles(model)
    entries = []
    for name, parameter in _named_weights(model):
        if parameter.requires_grad:
            kind = "embedding" if known[name] in ("tied", "head") else known[name]
            decay = 0.0 if kind == "vector" else weight_decay
            entries.append(Entry((name,), parameter, parameter, None, lr, decay, True, kind))
    given = {"lr": multiplier_lr, "weight_decay": multiplier_weight_decay}
    given = {name: value for name, value in given.items() if value is not None}
    for handle in _handles(model):
        for entry in multiplier_entries(handle, "multiplier"):
            entries.append(dataclasses.replace(entry, **given))
    return [{**param_group(same), "kind": same[0].optimizer} for same in grouped(entries)]


def wrap_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Have ``optimizer`` work for multipliers in either implementation; returns it.

    In ``optimizer`` gradients are pulled from W̄ before each step, also behind a closure, W̄ is
    written back after it, and ``zero_grad`` forgets W̄'s too. In ``forward`` there is nothing to
    do. With a ``GradScaler`` call ``multipliers.pull_gradients()`` before ``unscale_``.
    """
    for handle in _handles(model):
        if handle.implementation == "optimizer":
            optimizer.register_step_pre_hook(functools.partial(_before_step, handle))
            optimizer.register_step_post_hook(functools.partial(_after_step, handle))
            optimizer.zero_grad = functools.partial(_zero_grad, handle, optimizer.zero_grad)
    return optimizer


def _before_step(handle: Multipliers, optimizer: Any, arguments: tuple, named: dict) -> Any:
    handle.pull_gradients()
    closures = [a for a in (*arguments[1:], named.get("closure")) if a is not None]
    if not closures:
        return None
    closure: Callable[[], Any] = closures[0]

    def pulled() -> Any:
        loss = closure()
        handle.pull_gradients()
        return loss

    return (arguments[0], pulled), {k: v for k, v in named.items() if k != "closure"}


def _after_step(handle: Multipliers, *_: Any) -> None:
    handle.push_weights()


def _zero_grad(handle: Multipliers, plain: Callable[..., None], *arguments: Any, **named: Any):
    plain(*arguments, **named)
    for name in handle.effective:
        handle.parameter(name).grad = None


@torch.no_grad()
def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Clip the gradients of everything but the multipliers by their global norm (section 4.3).

    In both implementations the norm is that of the gradients of W, not of W̄. Returns it, before
    clipping, a scalar.
    """
    for handle in _handles(model):
        handle.pull_gradients()
    parameters = [p for _, p in _named_weights(model) if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters], norm_type)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def merge_multipliers(model: nn.Module) -> nn.Module:
    """Fold the multipliers into the weights and remove them; returns ``model``.

    Parameters, their names and the output are then those of a model that never had any. Build a
    new optimizer to train it further.
    """
    for handle in _handles(model):
        handle.merge()
        delattr(handle.model, _HANDLE)
    return model


def effective_weights(model: nn.Module) -> dict[str, Tensor]:
    """W̄ of every parameter that has multipliers, by the parameter's name; copies."""
    return {k: v for handle in _handles(model) for k, v in handle.effective_weights().items()}


@contextlib.contextmanager
def same_weights(model: nn.Module) -> Iterator[None]:
    """Around the micro-batches of one step: W̄ is built once for all of them.

    Nothing may change a weight within it. Compiled modules build W̄ each time all the same.
    """
    with contextlib.ExitStack() as stack:
        for handle in _handles(model):
            stack.enter_context(handle.unchanged())
        yield


def _handles(model: nn.Module) -> list[Multipliers]:
    """Those attached to ``model`` or to what it wraps (DistributedDataParallel, a compiler)."""
    return [m.__dict__[_HANDLE] for m in model.modules() if _HANDLE in m.__dict__]


def _check_sharding(model: nn.Module) -> None:
    """Weights sharded after their multipliers were attached must be FSDP's, which alone gives them
    whole to whoever computes with them."""
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        return
    for handle in _handles(model):
        for name, weight in handle.weights.items():
            if handle.effective[name].is_sharded(weight):
                raise UserError(
                    f"{name} was distributed after its multipliers were attached; call "
                    "lrm.attach_multipliers behind parallelize_module"
                )


def _named_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """(name, parameter) of all that is no multiplier, W where there are any."""
    behind: dict[int, nn.Parameter] = {}
    added: set[int] = set()
    for handle in _handles(model):
        added |= {id(parameter) for _, _, parameter in handle.named()}
        behind |= {id(handle.parameter(name)): w for name, w in handle.weights.items()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in added:
            yield name, behind.get(id(parameter), parameter)
