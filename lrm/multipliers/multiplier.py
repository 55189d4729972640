"""What one learnable multiplier is: s, r or c of equations (2) and (3). No torch here.

A vector whose parametrization learns a direction has two multipliers: the direction, and its
magnitude, one number on an axis of its own.

A multiplier always learns. A number that is fixed is a factor (``lrm.model``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lrm.errors import UserError, shown
from lrm.multipliers.parametrization import DIRECT, Parametrization, find_parametrization

# The axes of each kind of multiplier that a tensor may have.
AXES = {
    "none": (),
    "scalar": ("scalar",),
    "row": ("row",),
    "column": ("column",),
    "row_column": ("row", "column"),
}
# The axis of the magnitude of each vector that may be kept as direction and magnitude.
MAGNITUDES = {axis: f"{axis}_magnitude" for axis in ("row", "column")}
# What is said of a magnitude by itself.
MAGNITUDE_RATES = {name: f"magnitude_{name}" for name in ("lr", "weight_decay")}
# The LR of multipliers that the paper states, and its light decay against symmetries (section
# 4.1). The suite's experiments ask for the decay by name, and the library has it by default.
LR = 1.0e-2
LIGHT_DECAY = 2.0e-3


@dataclass(frozen=True)
class Multiplier:
    """One learnable multiplier of a tensor, and how it learns."""

    axis: str  # scalar, row, column, or the magnitude of one of these two
    size: int
    lr: float
    weight_decay: float
    init: float = 1.0
    parametrization: Parametrization = DIRECT
    in_clip_norm: bool = False

    @property
    def label(self) -> str:
        """The axis, and the parametrization where it is not the direct one."""
        direct = self.parametrization.is_identity
        return self.axis if direct else f"{self.axis} ({self.parametrization.name})"


@dataclass(frozen=True)
class Target:
    """What to multiply: a parameter by its name, or rows [rows[0], rows[1]) of it."""

    key: str
    parameter: str
    rows: tuple[int, int] | None
    multipliers: tuple[Multiplier, ...]


def of_kind(
    kind: str,
    shape: Sequence[int],
    sizes: Mapping[str, int],
    layers: Iterable[Mapping[str, Any]],
    where: str,
    in_clip_norm: bool = False,
) -> tuple[Multiplier, ...]:
    """The multipliers of a tensor of ``shape``, of each axis as many as ``sizes`` says.

    A layer of settings maps lr, weight_decay, init and parametrization to values. magnitude_lr and
    magnitude_weight_decay are those of a magnitude, which has the vector's without them. Below
    ``row`` and ``column`` a layer may map all of them once more, for that axis alone. For each axis
    and field the last layer that says something wins. Raises UserError, which begins with
    ``where``, for an unknown kind or parametrization, for a scalar with a direction, and for an
    axis that the tensor does not have.
    """
    if not isinstance(kind, str) or kind not in AXES:
        raise UserError(f"{where}: unknown kind {shown(kind)}; use one of {', '.join(AXES)}")
    said: dict[str, dict[str, Any]] = {axis: {} for axis in AXES[kind]}
    for layer in layers:
        common = {name: v for name, v in layer.items() if name not in ("row", "column")}
        for axis, fields in said.items():
            fields |= common | layer.get(axis, {})
    found = []
    for axis, fields in said.items():
        if axis not in sizes:
            raise UserError(
                f"{where}: a {axis} multiplier needs a matrix, this tensor has shape "
                f"{tuple(shape)}; use scalar or row"
            )
        chosen = find_parametrization(fields.pop("parametrization"))
        rates = {name: fields.pop(key, fields[name]) for name, key in MAGNITUDE_RATES.items()}
        if chosen.magnitude is not None:
            if axis not in MAGNITUDES:
                raise UserError(
                    f"{where}: parametrization = {chosen.name} is for rows and columns, a scalar "
                    "has no direction; use direct or log"
                )
            of_size = {
                "init": fields.pop("init", 1.0),
                "parametrization": find_parametrization(chosen.magnitude),
            }
            size = Multiplier(MAGNITUDES[axis], sizes["scalar"], **rates, **of_size)
            found.append(replace(size, in_clip_norm=in_clip_norm))
        vector = Multiplier(axis, sizes[axis], **fields, parametrization=chosen)
        found.append(replace(vector, in_clip_norm=in_clip_norm))
    return tuple(found)
