"""Where multipliers go on a model that is not this suite's: presets, patterns, a function."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lrm.errors import UserError
from lrm.multipliers.layout import layout, owners
from lrm.multipliers.multiplier import Multiplier, Target, of_kind

# A kind (scalar, row, column, row_column, none), or several for rows [start, stop) each.
Kind = str | Sequence[tuple[int, int, str]]
Placement = str | Mapping[str, Kind] | Callable[[str, nn.Module, nn.Parameter], Kind | None]

# By role of a parameter; roles that are not named have no multipliers. Row multipliers on the
# head make training worse (section 4.4, claim PR1), and its columns are the final norm's weights
# already. A tied embedding is a head too: it has columns only.
PRESETS: dict[str, dict[str, str]] = {
    "all": {"embedding": "row_column", "tied": "column", "matrix": "row_column"},
    "hidden": {"matrix": "row_column"},
    "scalar": {"embedding": "scalar", "tied": "scalar", "matrix": "scalar", "head": "scalar"},
}
# Names of the last linear map of a language model, where the model itself does not tell.
_HEADS = ("lm_head", "head", "embed_out", "output_projection", "unembed")


def roles(model: nn.Module) -> dict[str, str]:
    """``embedding``, ``head``, ``tied`` (both), ``matrix`` or ``vector``, by parameter.

    Convolutions are vectors: they have one filter a channel. A stack of matrices is a matrix.
    """
    heads = _heads(model)
    parameters = dict(model.named_parameters())
    found = {}
    for name, places in owners(model).items():
        modules = [module for module, _ in places]
        is_head = any(module is head for module in modules for head in heads)
        if layout(modules[0], parameters[name]).column is None:
            found[name] = "vector"
        elif any(isinstance(module, nn.Embedding) for module in modules):
            found[name] = "tied" if is_head or len(modules) > 1 else "embedding"
        else:
            found[name] = "head" if is_head else "matrix"
    return found


def _heads(model: nn.Module) -> list[nn.Module]:
    for module in model.modules():
        if (getter := getattr(module, "get_output_embeddings", None)) is not None:
            return [found] if (found := getter()) is not None else []
    named = model.named_modules()
    return [m for path, m in named if path.rpartition(".")[2] in _HEADS and hasattr(m, "weight")]


def targets(model: nn.Module, placement: Placement, settings: Mapping[str, Any]) -> list[Target]:
    """What to multiply, for ``lrm.multipliers.attach.Multipliers``.

    ``placement`` is the name of a preset; a mapping of patterns of parameter names to kinds, the
    last match winning, where a pattern with wildcards means the matrices among its matches; or a
    function of (name, module, parameter). A shared parameter goes by any of its names.
    ``settings`` is a layer of ``lrm.multipliers.multiplier.of_kind``, for all of them.

    Raises UserError for an unknown preset or kind, a pattern that matches nothing, a column
    multiplier on what has no columns, and rows that overlap or are not there.
    """
    places, parameters = owners(model), dict(model.named_parameters())
    kind_of = roles(model)
    kinds: dict[str, Kind | None]
    if callable(placement):
        kinds = {n: placement(n, places[n][0][0], parameter) for n, parameter in parameters.items()}
    elif isinstance(placement, str):
        if placement not in PRESETS:
            raise UserError(f"unknown placement {placement!r}; use one of {', '.join(PRESETS)}")
        kinds = {name: PRESETS[placement].get(kind) for name, kind in kind_of.items()}
    else:
        kinds = _matched(model, placement, kind_of)
    found: list[Target] = []
    for name, kind in kinds.items():
        module = places[name][0][0]
        found += _targets(name, kind, module, parameters[name], settings)
    if not found:
        raise UserError("this placement leaves every parameter without multipliers")
    return found


def _matched(
    model: nn.Module, placement: Mapping[str, Kind], kind_of: Mapping[str, str]
) -> dict[str, Kind | None]:
    """The kind of each parameter that a pattern matches, by its first name."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    canonical = {name: first[id(parameter)] for name, parameter in every}
    found: dict[str, Kind | None] = {}
    for pattern, kind in placement.items():
        if pattern in canonical:
            names = [canonical[pattern]]
        else:
            matches = fnmatch.filter(canonical, pattern)
            names = [canonical[name] for name in matches if kind_of[canonical[name]] != "vector"]
        if not names:
            raise UserError(
                f"pattern {pattern!r} matches no matrix of the model; write vectors out in full"
            )
        found |= dict.fromkeys(names, kind)
    return found


def _targets(
    name: str, kind: Kind | None, module: nn.Module, weight: Tensor, settings: Mapping[str, Any]
) -> list[Target]:
    if kind is None:
        return []
    if isinstance(kind, str):
        found = _multipliers(name, kind, module, weight, settings)
        return [Target(name, name, None, found)] if found else []
    targets, end, dim = [], 0, layout(module, weight).row
    for start, stop, of_rows in sorted(kind):
        if not end <= start < stop <= weight.shape[dim]:
            raise UserError(
                f"{name}: rows {start} to {stop} overlap others or are not among its "
                f"{weight.shape[dim]}"
            )
        end = stop
        part = weight.narrow(dim, start, stop - start)
        if found := _multipliers(name, of_rows, module, part, settings):
            targets.append(Target(f"{name}[{start}:{stop}]", name, (start, stop), found))
    return targets


def _multipliers(
    name: str, kind: str, module: nn.Module, weight: Tensor, settings: Mapping[str, Any]
) -> tuple[Multiplier, ...]:
    form = layout(module, weight)
    axes = ("scalar", "row") if form.column is None else ("scalar", "row", "column")
    sizes = {axis: math.prod(form.size(axis, weight.shape)) for axis in axes}
    return of_kind(kind, weight.shape, sizes, [settings], name)
