"""Arms of an experiment, one by one or combined from axes of named layers.

An arm's name may hold axes in braces. It then stands for every combination of their names:

    axes: {optimizer: {ADAM: {}, MUON: {use: [optimizer/muon]}}}
    arms: {"{optimizer}": {}, "{optimizer}_LRM": {use: [placement/all]}}

are the arms ``ADAM``, ``MUON``, ``ADAM_LRM`` and ``MUON_LRM``. What the arm itself says comes
first, then the layers of its axes, from left to right.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from lrm.errors import UserError
from lrm.plan.yaml import LAYER, layer_of, mapping

_AXIS = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Arm:
    """What the YAML says of one arm, and its layers of settings, each with its place."""

    said: dict[str, Any]
    layers: tuple[tuple[dict[str, Any], str], ...]


def read_arms(body: dict[str, Any], place: str) -> dict[str, Arm]:
    """The arms of a YAML file by their full names; one called ``base`` where it has none.

    Raises UserError for an axis that is not there or is used nowhere, and where two arms come to
    have one name.
    """
    axes = _axes(body, place)
    found: dict[str, Arm] = {}
    unused = set(axes)
    for name, said in (mapping(body, "arms", place) or {"base": {}}).items():
        where = f"{place}: arms.{name}"
        used = list(dict.fromkeys(_AXIS.findall(name)))
        for axis in used:
            if axis not in axes:
                known = ", ".join(axes) or "none"
                raise UserError(f"{where}: {{{axis}}} is no axis; the axes are {known}")
        unused -= set(used)
        for choice in itertools.product(*(axes[axis].items() for axis in used)):
            names = {axis: value for axis, (value, _) in zip(used, choice, strict=True)}
            full = _AXIS.sub(lambda match, names=names: names[match[1]], name)
            if full in found:
                raise UserError(f"{where}: there are two arms {full}; give one another name")
            found[full] = Arm(said or {}, ((said or {}, where), *(layer for _, layer in choice)))
    if unused:
        axis = min(unused)
        raise UserError(
            f"{place}: axes.{axis} is in no arm's name; write '{{{axis}}}' there, or remove it"
        )
    return found


def _axes(body: dict[str, Any], place: str) -> dict[str, dict[str, tuple[dict[str, Any], str]]]:
    """By axis and name a layer of settings with its place."""
    found: dict[str, dict[str, tuple[dict[str, Any], str]]] = {}
    axes = mapping(body, "axes", place)
    for axis in axes:
        found[axis] = {}
        for name, layer in mapping(axes, axis, f"{place}: axes").items():
            where = f"{place}: axes.{axis}.{name}"
            found[axis][name] = (layer_of(layer, LAYER[:-1], where), where)
        if not found[axis]:
            raise UserError(f"{place}: axes.{axis} is empty; map names to settings, or remove it")
    return found
