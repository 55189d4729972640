"""Where multipliers go on a model that is not this suite's: presets, patterns, a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lrm.errors import UserError, shown
from lrm.multipliers.layout import Layout, layout, owners
from lrm.multipliers.multiplier import AXES, Multiplier, Target, of_kind
from lrm.multipliers.roles import is_matrix, is_renormed, matched, roles
from lrm.multipliers.sharding import is_distributed

# A kind (scalar, row, column, row_column, none), or several for rows [start, stop) each.
Kind = str | Sequence[tuple[int, int, str]]
Placement = str | Mapping[str, Kind] | Callable[[str, nn.Module, nn.Parameter], Kind | None]

# Roles of what patterns with wildcards mean.
_WILD = ("matrix", "transposed", "embedding", "tied", "head")
# By role of a parameter; roles that are not named have no multipliers. Row multipliers on the
# head make training worse (section 4.4, claim PR1), and its columns are the final norm's weights
# already. A tied embedding is a head too: it has columns only.
PRESETS: dict[str, dict[str, str]] = {
    "all": {"embedding": "row_column", "tied": "column", "matrix": "row_column"},
    "hidden": {"matrix": "row_column"},
    "scalar": {"embedding": "scalar", "tied": "scalar", "matrix": "scalar", "head": "scalar"},
    "convolutions": {"matrix": "row_column", "convolution": "row"},
}
# The key of a mapping that names the preset to which its patterns are exceptions.
PRESET = "preset"


def targets(
    model: nn.Module,
    placement: Placement,
    settings: Mapping[str, Any],
    said: Mapping[str, str] | None = None,
) -> list[Target]:
    """What to multiply, for ``lrm.multipliers.attach.Multipliers``.

    ``placement`` is the name of a preset; a mapping of patterns of parameter names to kinds, the
    last match winning, where a pattern with wildcards means the matrices among its matches, and
    ``{"preset": "all", …}`` begins with a preset; or a function of (name, module, parameter). A
    shared parameter goes by any of its names. ``settings`` is a layer of
    ``lrm.multipliers.multiplier.of_kind``, for all of them. ``said`` is as in ``roles``.

    Raises UserError for an unknown preset or kind, a pattern that matches nothing, a column
    multiplier on what has no columns, rows that overlap or are not there, and weights that
    cannot be multiplied (integers, quantized, 8 bits, sparse gradients).
    """
    places, parameters = owners(model), dict(model.named_parameters())
    kind_of = roles(model, said)
    kinds: dict[str, Kind | None] = {}
    if callable(placement):
        for name, parameter in parameters.items():
            kinds[name] = placement(name, places[name][0][0], parameter)
    elif isinstance(placement, (str, Mapping)):
        exceptions = {PRESET: placement} if isinstance(placement, str) else placement
        if (preset := exceptions.get(PRESET)) is not None:
            kinds = _of_preset(preset, kind_of)
        patterns = {pattern: kind for pattern, kind in exceptions.items() if pattern != PRESET}
        kinds |= _matched(model, patterns, kind_of)
    else:
        raise UserError(
            f"placement {shown(placement)} is none; give a preset ({', '.join(PRESETS)}), a "
            "mapping of patterns to kinds, or a function of (name, module, parameter)"
        )
    found: list[Target] = []
    for name in parameters:  # in the model's order, whatever that of the patterns
        kind = kinds.get(name)
        if kind is None or kind == "none":
            continue
        if isinstance(kind, bool) or not isinstance(kind, (str, Sequence)):
            raise UserError(
                f"{name}: {shown(kind)} is no kind of multipliers; use one of {', '.join(AXES)}"
            )
        module, attribute = places[name][0]
        if reason := _unfit(module, attribute, parameters[name]):
            raise UserError(f"{name} {reason}, or give it 'none'")
        turned = kind_of[name] == "transposed"
        form = layout(module, attribute, parameters[name], inputs_first=turned)
        found += _targets(name, kind, form, parameters[name], settings)
    if not found:
        said = "" if isinstance(placement, Mapping) or callable(placement) else f" {placement!r}"
        raise UserError(
            f"placement{said} leaves every parameter without multipliers; name parameters by "
            "patterns, tell by role={...} which are matrices, or use placement='convolutions'"
        )
    return found


def _of_preset(preset: Any, kind_of: Mapping[str, str]) -> dict[str, Kind | None]:
    if not isinstance(preset, str) or preset not in PRESETS:
        raise UserError(f"unknown placement {shown(preset)}; use one of {', '.join(PRESETS)}")
    by_role = PRESETS[preset]
    return {
        name: by_role.get("matrix" if is_matrix(role) else role) for name, role in kind_of.items()
    }


def _unfit(module: nn.Module, attribute: str, weight: nn.Parameter) -> str | None:
    """Why ``weight`` cannot be multiplied, and the remedy."""
    ordinary = type(weight.data) is Tensor or isinstance(weight.data, nn.Parameter)
    if not (ordinary or is_distributed(weight)):
        return f"is of type {type(weight.data).__name__}; attach before it is made one"
    if weight.dim() == 0:
        return "has no dimensions and is a multiplier itself"
    if isinstance(module, torch.jit.ScriptModule):
        return "belongs to a scripted module, whose code is fixed; train, merge, and then script"
    if isinstance(module, nn.utils.parametrize.ParametrizationList):
        return ("is parametrized; take that away first (torch.nn.utils.parametrize."
                "remove_parametrizations)")  # fmt: skip
    if is_renormed(module, attribute):
        return ("has a norm divided out, and a multiplier with it; take that away first "
                "(torch.nn.utils.remove_spectral_norm, remove_weight_norm)")  # fmt: skip
    if isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
        return "belongs to a module that counts its children; give it a module of its own"
    if weight.layout != torch.strided:
        return f"is sparse ({weight.layout}), with no rows and columns to scale"
    if weight.is_complex():
        return "is complex, for which there are no gradient relations"
    if not weight.is_floating_point():
        return f"holds integers ({weight.dtype}); attach before quantizing"
    if weight.dtype.itemsize == 1:
        return f"is in {weight.dtype}, too coarse to learn in; keep it in bfloat16 or float32"
    if getattr(module, "sparse", False):
        return "has sparse gradients; build its module with sparse=False"
    if getattr(module, "max_norm", None) is not None:
        return "is written while it is read (max_norm); build its module without max_norm"
    return None


def _matched(
    model: nn.Module, placement: Mapping[str, Kind], kind_of: Mapping[str, str]
) -> dict[str, Kind | None]:
    """The kind of each parameter that a pattern matches, by its first name."""
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    found: dict[str, Kind | None] = {}
    for pattern, kind in placement.items():
        names = matched(model, pattern)
        if pattern not in every:
            names = [name for name in names if kind_of[name] in _WILD]
        if not names:
            if other := matched(model, pattern):
                raise UserError(
                    f"pattern {pattern!r} matches no matrix of the model; write {other[0]} and the "
                    "like out in full"
                )
            raise UserError(
                f"pattern {pattern!r} matches no parameter's name; model.named_parameters() has "
                "them"
            )
        found |= dict.fromkeys(names, kind)
    return found


def _targets(
    name: str, kind: Kind, form: Layout, weight: Tensor, settings: Mapping[str, Any]
) -> list[Target]:
    if isinstance(kind, str):
        found = _multipliers(name, kind, form, weight, settings)
        return [Target(name, name, None, found)] if found else []
    targets, end, dim = [], 0, form.row
    if not all(isinstance(each, (tuple, list)) and len(each) == 3 for each in kind):
        raise UserError(f"{name}: {shown(kind)} is no list of (start, stop, kind)")
    for start, stop, _ in kind:
        if not all(hasattr(type(bound), "__index__") and not isinstance(bound, bool)
                   for bound in (start, stop)):  # fmt: skip
            raise UserError(f"{name}: rows {shown(start)} to {shown(stop)} are no whole numbers")
    for start, stop, of_rows in sorted(kind, key=lambda each: tuple(each[:2])):
        if not end <= start < stop <= weight.shape[dim]:
            raise UserError(
                f"{name}: rows {start} to {stop} overlap others or are not among its "
                f"{weight.shape[dim]}"
            )
        end = stop
        part = weight.narrow(dim, start, stop - start)
        if found := _multipliers(name, of_rows, form, part, settings):
            targets.append(Target(f"{name}[{start}:{stop}]", name, (start, stop), found))
    return targets


def _multipliers(
    name: str, kind: str, form: Layout, weight: Tensor, settings: Mapping[str, Any]
) -> tuple[Multiplier, ...]:
    axes = ("scalar", "row") if form.column is None else ("scalar", "row", "column")
    sizes = {axis: math.prod(form.size(axis, weight.shape)) for axis in axes}
    return of_kind(kind, weight.shape, sizes, [settings], name)
