"""The placement in a checkpoint, beside W and the multipliers, and how it is used in loading one.

Names and shapes do not tell a multiplier from its logarithm, and loaders that are not strict pass
over what is missing. Hence the placement is saved, and compared before anything is loaded.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lrm.errors import UserError
from lrm.multipliers.attach import Multipliers, is_multiplier
from lrm.multipliers.multiplier import AXES, MAGNITUDE_RATES, MAGNITUDES, Multiplier, Target

# The attribute of a model that holds its multipliers.
HANDLE = "_learnable_multipliers"
# Torch's name for what a module saves beside its tensors; other tools let it through.
_KEY = "_extra_state"
_RATES = ("lr", "weight_decay", *MAGNITUDE_RATES.values())
_KINDS = {axes: kind for kind, axes in AXES.items()}


def save_placement(handle: Multipliers) -> list[RemovableHandle]:
    """From now on the model's ``state_dict`` has the placement, and loading one compares it."""
    return [
        handle.model.register_state_dict_post_hook(_after_saving),
        handle.model.register_load_state_dict_pre_hook(_before_loading),
    ]


def saved_placement(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``attach_multipliers`` with which the model of a checkpoint was prepared.

    They are ``placement`` by full names, how scalars, rows and columns learn, and ``role``; but
    not ``implementation``, which may differ. Raises UserError where ``state_dict`` holds no
    placement, or several, and for designs of scale vectors, which change more than they place.
    """
    if not isinstance(state_dict, Mapping):
        raise UserError(f"saved_placement takes a state_dict, not {type(state_dict).__name__}")
    extra = (value for key, value in state_dict.items() if key.rpartition(".")[2] == _KEY)
    found = [arguments for value in extra if (arguments := _decoded(value)) is not None]
    if len(found) != 1:
        raise UserError(
            f"the state_dict holds {len(found)} placements; give that of the model on which "
            "lrm.attach_multipliers was called"
        )
    if design := found[0].get("design"):
        raise UserError(
            f"the model of this checkpoint was made by lrm.attach_scale_vectors(model, {design!r}, "
            "lr=...); call that, and then load"
        )
    return found[0]


def _decoded(extra: Any) -> dict[str, Any] | None:
    """The arguments in what a module has saved; None of other modules' own."""
    if not isinstance(extra, Tensor) or extra.dim() != 1 or extra.is_meta:
        return None
    try:
        found = json.loads(bytes(extra.float().round().int().tolist()))
    except (TypeError, ValueError):
        return None
    if not isinstance(found, dict) or "placement" not in found:
        return None
    for settings in (found, found.get("row", {}), found.get("column", {})):
        settings |= {name: float(settings[name]) for name in _RATES if name in settings}
    return found


def _after_saving(module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    text = json.dumps(_arguments(module.__dict__[HANDLE]))
    # A tensor, which is all that safetensors take, of a dtype in which weights can be averaged.
    state_dict[prefix + _KEY] = torch.tensor(list(text.encode()), dtype=torch.float32)


def _before_loading(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    handle = module.__dict__[HANDLE]
    if handle.is_unchanged:
        raise UserError("weights are built already, and stay until the block of same_weights ends; "
                        "load before or behind it")  # fmt: skip
    here = _arguments(handle)
    there = saved = _decoded(state_dict.pop(prefix + _KEY, None))
    if there is None:
        named = {key.removeprefix(prefix) for key in state_dict}
        there = {**here, "placement": _told_by_names(handle, here["placement"], named)}
    ours, theirs = _compared(here), _compared(there)
    for name in {**ours, **theirs}:
        kinds = theirs.get(name, "none"), ours.get(name, "none")
        if kinds[0] != kinds[1]:
            remedy = "attach by lrm.attach_multipliers(model, **lrm.saved_placement(state_dict))"
            if design := there.get("design"):
                remedy = f"attach by lrm.attach_scale_vectors(model, {design!r}, lr=...)"
            if not there["placement"]:
                remedy = "load the weights of a plain model before lrm.attach_multipliers"
            elif saved is None:
                remedy = ("attach with the placement with which it was made, or load the parts of "
                          "a checkpoint together")  # fmt: skip
            raise UserError(
                f"the checkpoint's multipliers are not the model's: {name} has {kinds[0]} there "
                f"and {kinds[1]} here; {remedy}"
            )


def _arguments(handle: Multipliers) -> dict[str, Any]:
    placement: dict[str, Any] = {}
    settings: dict[str, dict[str, Any]] = {}  # by axis; all multipliers of one share them
    left = set(handle.left())
    for name, found in handle.effective.items():
        if name in left:
            continue  # its layer was taken out of the model
        parts = []
        for target in found.targets:
            found_here = _by_axis(target)
            parts.append([*map(int, target.rows or ()), _KINDS[tuple(found_here)]])
            settings |= found_here
        placement[name] = parts[0][0] if found.targets[0].rows is None else parts
    said: dict[str, Any] = {"role": handle.said} if handle.said else {}
    said |= {"design": handle.design} if handle.design else {}
    return {"placement": placement, **settings.pop("scalar", {}), **settings, **said}


def _by_axis(target: Target) -> dict[str, dict[str, Any]]:
    """The settings of each axis, those of its magnitude among them."""
    every = {each.axis: each for each in target.multipliers}
    return {
        axis: _settings(each, every.get(MAGNITUDES.get(axis, "")))
        for axis, each in every.items()
        if axis not in MAGNITUDES.values()
    }


def _settings(multiplier: Multiplier, magnitude: Multiplier | None) -> dict[str, Any]:
    found = {name: getattr(multiplier, name) for name in MAGNITUDE_RATES}
    if magnitude is not None:
        found |= {key: getattr(magnitude, name) for name, key in MAGNITUDE_RATES.items()}
    # Of one length: torch.distributed.checkpoint compares the sizes of tensors.
    rates = {name: f"{float(value):.16e}" for name, value in found.items()}
    return {**rates, "parametrization": multiplier.parametrization.name}


def _compared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared: the kind of each parameter, and the parametrization of each axis.

    The kind says too of what the user calls transposed: in a square matrix shapes do not tell.
    """
    axes = {"scalar": arguments, "row": arguments.get("row"), "column": arguments.get("column")}
    learned = {
        f"every {axis}": settings["parametrization"]
        for axis, settings in axes.items()
        if settings and "parametrization" in settings
    }
    turned = {
        name: f"{kind}, transposed,"
        for name, kind in arguments["placement"].items()
        if kind != "scalar" and _said(arguments, name) == "transposed"
    }
    return arguments["placement"] | turned | learned


def _said(arguments: Mapping[str, Any], name: str) -> str | None:
    """The role that the last pattern gives ``name``, as in ``lrm.multipliers.roles``."""
    found = [
        role
        for pattern, role in arguments.get("role", {}).items()
        if pattern == name or fnmatch.fnmatch(name, pattern)
    ]
    return found[-1] if found else None


def _told_by_names(
    handle: Multipliers, placement: Mapping[str, Any], saved: set[str]
) -> dict[str, Any]:
    """The placement of a checkpoint that holds none, as far as its names ``saved`` tell.

    Of parameters that are not in it nothing is asked, since parts of a model are loaded alone.
    """
    names = {id(parameter): name for name, parameter in handle.model.named_parameters()}
    found = {}
    for name, kind in placement.items():
        added = {names[id(p)] for p in handle.effective[name].parameters()}
        if added <= saved or not saved & (added | {name}):
            found[name] = kind
    others = sorted(saved - set(names.values()))
    return found | {name: "multipliers" for name in others if is_multiplier(name)}
