"""Whether the optimizers of a training script move what learns, asked at their first steps.

They are asked again where groups were added, or something began to learn.

Torch tells of every step of every optimizer, and nobody has to wrap one. What is wrong stops the
step with one line that names the culprit and the remedy.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lrm.errors import UserError
from lrm.multipliers.attach import Multipliers
from lrm.multipliers.layout import uncompiled
from lrm.multipliers.sharding import is_fsdp, whole

_REMEDY = "build it behind lrm.attach_multipliers from lrm.build_param_groups(model, lr, ...)"


# The attribute of parameters that a watched model has or had: whose, and which object it was. No
# weak references, which torch.utils.swap_tensors refuses (fully_shard's conversions use it).
_MARK = "_lrm_watched"


class _Seen:
    """What is known of the optimizers of one model."""

    def __init__(self, mark: str | None = None, handed: bool = False) -> None:
        # Of the parameters that the model has had since this began: others may take their place.
        self.mark = mark or uuid.uuid4().hex
        # Optimizers that have stepped, and how they and the model stood then (``_state``).
        self.checked: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self.movers: weakref.WeakSet = weakref.WeakSet()  # those among them that move the model
        self.handed = handed  # whether ``build_param_groups`` has given groups out
        self.places: list[tuple[dict, str]] = []  # of weights and multipliers, as they were checked
        self.complete = False
        # Whether gradients of what none moves were finite when each optimizer last stepped.
        self.finite: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def note(self, parameters: Iterable[nn.Parameter]) -> None:
        """Mark parameters of the model."""
        for parameter in parameters:
            setattr(parameter, _MARK, (self.mark, id(parameter)))

    def had(self, parameter: nn.Parameter) -> bool:
        """Whether the model has or had it. Copies have other ids than their marks say."""
        return getattr(parameter, _MARK, None) == (self.mark, id(parameter))

    def moved(self) -> set[int]:
        """The ids of all that the optimizers move which there still are."""
        groups = (group for optimizer in self.movers for group in optimizer.param_groups)
        return {id(parameter) for group in groups for parameter in group["params"]}


_models: weakref.WeakKeyDictionary[Multipliers, _Seen] = weakref.WeakKeyDictionary()
_hooks: list[Any] = []


def watch(
    handle: Multipliers, parameters: Iterable[nn.Parameter] = (), grouped: bool = False
) -> None:
    """From now on check the optimizers that move parameters of the model of ``handle``.

    ``parameters``: those of the model, as far as it is whole. ``grouped``: they have just been
    handed out in groups, perhaps for a new optimizer.
    """
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_before_step))
    if grouped:
        _models[handle] = _Seen(_models[handle].mark if handle in _models else None, handed=True)
        _models[handle].note(_every(handle).values())
    elif handle not in _models:
        _models[handle] = _Seen()
    _models[handle].note(parameters)


def check_processes(handle: Multipliers) -> None:
    """UserError where DistributedDataParallel, at work now, does not know of the multipliers.

    It reduces the gradients of the parameters that its module had when it was built. Where it
    counts them, those that come at the end of ``same_weights`` are too late (``is_counted``).
    """
    wrapper = DistributedDataParallel._get_active_ddp_module()
    if wrapper is None:
        return
    reduced = {id(parameter) for parameter in wrapper._module_parameters}
    for name, _, parameter in handle.named():
        if parameter.requires_grad and id(parameter) not in reduced:
            raise UserError(
                f"DistributedDataParallel does not know of {name}; call lrm.attach_multipliers "
                "before it is built"
            )
    handle.is_counted = counts_gradients(wrapper)
    if handle.is_counted and handle.is_collecting:
        raise UserError(
            "DistributedDataParallel with find_unused_parameters or static_graph counts gradients "
            "in the backward pass; give lrm.same_weights the wrapped model"
        )


def counts_gradients(model: nn.Module) -> bool:
    """Whether gradients that come behind the backward pass are too late for ``model``."""
    model = uncompiled(model)
    of_processes = isinstance(model, DistributedDataParallel)
    return of_processes and (model.find_unused_parameters or model.static_graph)


def watched() -> list[Multipliers]:
    """All that are attached to some model and not merged."""
    return [handle for handle in list(_models) if handle.effective]


@torch.no_grad()
def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for handle, seen in list(_models.items()):
        if handle.is_unchanged or seen.checked.get(optimizer) != _state(optimizer, seen):
            _check(optimizer, handle, seen)
        elif not seen.complete and optimizer in seen.movers:
            # Its second step, and still nobody moves the rest: a GradScaler skips the step of an
            # optimizer where gradients are not finite.
            before, now = seen.finite[optimizer], _is_finite(handle, _missing(handle, seen))
            seen.finite[optimizer] = now
            if before and now:
                _complain(handle, seen)


def _state(optimizer: torch.optim.Optimizer, seen: _Seen) -> tuple[list[int], int, list[int]]:
    """What changes where groups are added, weights begin or cease to learn, or others come."""
    found = [mapping.get(name) for mapping, name in seen.places]
    learn = sum(parameter.requires_grad for parameter in found if parameter is not None)
    lengths = [len(group["params"]) for group in optimizer.param_groups]
    return lengths, learn, list(map(id, found))


def _check(optimizer: torch.optim.Optimizer, handle: Multipliers, seen: _Seen) -> None:
    seen.places = handle.places()
    names = _learning(handle)
    every = [p for group in optimizer.param_groups for p in group["params"]]
    moved = {id(p) for p in every}
    present = {id(parameter) for parameter in handle.model.parameters()}
    if handle.effective:
        _check_current(every, present, seen, any(map(is_fsdp, handle.model.modules())))
    if handle.is_unchanged and not moved.isdisjoint(present):
        raise UserError("optimizer.step() within lrm.same_weights; end the with block before it")
    if moved.isdisjoint(names):
        seen.checked[optimizer] = _state(optimizer, seen)
        if handle.effective and not moved.isdisjoint(present):
            # Of its vectors alone: at its second step another one should have moved the rest.
            seen.movers.add(optimizer)
            _look(optimizer, handle, seen)
        return
    handle.check_late()
    _check_reached(handle, moved)
    multipliers = {id(parameter) for each in watched() for _, _, parameter in each.named()}
    for group in optimizer.param_groups:
        of_multipliers = [id(p) in multipliers for p in group["params"] if p.requires_grad]
        if any(of_multipliers) and not all(of_multipliers):
            raise UserError(
                "the optimizer moves multipliers and weights in one group, with one learning rate "
                f"and weight decay for both; {_REMEDY}"
            )
    seen.checked[optimizer] = _state(optimizer, seen)
    seen.movers.add(optimizer)
    _look(optimizer, handle, seen)
    # Of groups in several optimizers the others step behind this one.
    if not seen.complete and not seen.handed:
        _complain(handle, seen)


def _look(optimizer: torch.optim.Optimizer, handle: Multipliers, seen: _Seen) -> None:
    """Note what is moved now, and how gradients of the rest are."""
    seen.complete = seen.moved() >= _learning(handle).keys()
    seen.finite[optimizer] = seen.complete or _is_finite(handle, _missing(handle, seen))


def _check_reached(handle: Multipliers, moved: set[int]) -> None:
    """UserError where multipliers that are ``moved`` cannot learn as they should.

    Their module has lost W (``prune.remove``) or computes with W itself, or they were converted to
    half precision one by one.
    """
    for name, found in handle.effective.items():
        weight = handle.parameter(name)
        mine = [raw for raw in found.learned() if raw.requires_grad and id(raw) in moved]
        if any(raw.dtype.itemsize < 4 for raw in mine):
            raise UserError(
                f"the multipliers of {name} are in {mine[0].dtype}, too coarse to learn in; "
                "convert by model.to(dtype), which leaves them in float32"
            )
        if weight.grad is None:
            continue
        if any(raw.grad is None for raw in mine):
            raise UserError(
                f"{name} has a gradient and its multipliers have none: something computes with the "
                "parameter itself (a list or a functools.partial that holds it, named_parameters); "
                f"read it as an attribute of its module, or give it none: {{{name!r}: 'none'}}"
            )


def _check_current(
    every: list[nn.Parameter], present: set[int], seen: _Seen, gathered: bool
) -> None:
    """UserError where an optimizer holds parameters that the model had before others came.

    ``gathered``: FSDP may have put others there, for the time of a pass.
    """
    for parameter in every:
        if seen.had(parameter) and id(parameter) not in present:
            if gathered:
                raise UserError(
                    "FSDP holds weights gathered since a forward pass that no backward pass "
                    "followed: call model.reshard() before the optimizer's step; or others took "
                    "their place: then build the optimizer anew"
                )
            raise UserError(
                "the optimizer moves weights that the model had before others took their place "
                "(load_state_dict(..., assign=True), to_empty); build it behind that from "
                "lrm.build_param_groups(model, lr, ...)"
            )


def _every(handle: Multipliers) -> dict[str, nn.Parameter]:
    """Every multiplier, and every W that is there, by name."""
    found = {name: parameter for name, _, parameter in handle.named()}
    weights = {name: handle.find(name) for name in handle.effective}
    return found | {name: weight for name, weight in weights.items() if weight is not None}


def _learning(handle: Multipliers, with_gradient: bool = False) -> dict[int, str]:
    """The name of every W and multiplier that learns, or of those that have a gradient, by id."""
    return {
        id(parameter): name
        for name, parameter in _every(handle).items()
        if parameter.requires_grad and not (with_gradient and parameter.grad is None)
    }


def _missing(handle: Multipliers, seen: _Seen) -> list[str]:
    """What has a gradient that no optimizer takes."""
    moved = seen.moved()
    given = _learning(handle, with_gradient=True)
    return [name for key, name in given.items() if key not in moved]


def _is_finite(handle: Multipliers, names: list[str]) -> bool:
    found = _every(handle)
    return all(bool(whole(found[name].grad.isfinite().all())) for name in names)


def _complain(handle: Multipliers, seen: _Seen) -> None:
    """UserError where something has a gradient that no optimizer takes.

    What has none may wait: the generator's part of a model, while the critic makes several steps.
    """
    names = _learning(handle)
    seen.complete = seen.moved() >= names.keys()
    missing = _missing(handle, seen)
    if not missing:
        return
    raise UserError(
        f"the optimizer lacks {len(missing)} of {len(names)} weights and multipliers that learn "
        f"(the first is {missing[0]}); {_REMEDY}, or freeze them by requires_grad_(False)"
    )
