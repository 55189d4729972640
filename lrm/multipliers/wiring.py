"""Whether the optimizers of a training script move what learns, asked at their first steps.

Torch tells of every step of every optimizer, and nobody has to wrap one. What is wrong stops the
step with one line that names the culprit and the remedy.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lrm.errors import UserError
from lrm.multipliers.attach import Multipliers

_REMEDY = "build it behind lrm.attach_multipliers from lrm.build_param_groups(model, lr, ...)"


class _Seen:
    """What is known of the optimizers of one model."""

    def __init__(self) -> None:
        self.checked: weakref.WeakSet = weakref.WeakSet()  # optimizers that have stepped
        self.movers: weakref.WeakSet = weakref.WeakSet()  # those among them that move the model
        self.moved: set[int] = set()  # ids of the parameters that they move
        self.grouped = False  # whether the groups came from ``build_param_groups``
        self.complete = False


_models: weakref.WeakKeyDictionary[Multipliers, _Seen] = weakref.WeakKeyDictionary()
_hooks: list[Any] = []


def watch(handle: Multipliers, grouped: bool = False) -> None:
    """From now on check the optimizers that move parameters of the model of ``handle``.

    ``grouped``: its parameters have just been handed out in groups, perhaps for a new optimizer.
    """
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_before_step))
    if grouped or handle not in _models:
        _models[handle] = _Seen()
        _models[handle].grouped = grouped


@torch.no_grad()
def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for handle, seen in list(_models.items()):
        if handle.is_unchanged or optimizer not in seen.checked:
            _check(optimizer, handle, seen)
        elif not seen.complete and optimizer in seen.movers:
            _complain(handle, seen)  # its second step, and still nobody moves the rest


def _check(optimizer: torch.optim.Optimizer, handle: Multipliers, seen: _Seen) -> None:
    multipliers = {id(parameter) for _, _, parameter in handle.named()}
    names = _learning(handle)
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if moved.isdisjoint(names):
        seen.checked.add(optimizer)
        return
    handle.check_late()
    if handle.is_unchanged:
        raise UserError("optimizer.step() within lrm.same_weights; end the with block before it")
    for group in optimizer.param_groups:
        of_multipliers = [id(p) in multipliers for p in group["params"] if p.requires_grad]
        if any(of_multipliers) and not all(of_multipliers):
            raise UserError(
                "the optimizer moves multipliers and weights in one group, with one learning rate "
                f"and weight decay for both; {_REMEDY}"
            )
    seen.checked.add(optimizer)
    seen.movers.add(optimizer)
    seen.moved |= moved
    seen.complete = seen.moved >= names.keys()
    # Of groups in several optimizers the others step behind this one.
    if not seen.complete and not seen.grouped:
        _complain(handle, seen)


def _learning(handle: Multipliers, with_gradient: bool = False) -> dict[int, str]:
    """The name of every W and multiplier that learns, or of those that have a gradient, by id."""
    every = {name: parameter for name, _, parameter in handle.named()} | handle.weights
    return {
        id(parameter): name
        for name, parameter in every.items()
        if parameter.requires_grad and not (with_gradient and parameter.grad is None)
    }


def _complain(handle: Multipliers, seen: _Seen) -> None:
    """UserError where something has a gradient that no optimizer takes.

    What has none may wait: the generator's part of a model, while the critic makes several steps.
    """
    names = _learning(handle)
    seen.complete = seen.moved >= names.keys()
    given = _learning(handle, with_gradient=True)
    missing = [name for key, name in given.items() if key not in seen.moved]
    if not missing:
        return
    raise UserError(
        f"the optimizer lacks {len(missing)} of {len(names)} weights and multipliers that learn "
        f"(the first is {missing[0]}); {_REMEDY}, or freeze them by requires_grad_(False)"
    )
