"""What one learnable multiplier is: s, r or c of equations (2) and (3). No torch here.

A multiplier always learns. A number that is fixed is a factor (``lrm.model``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lrm.errors import UserError
from lrm.multipliers.parametrization import DIRECT, Parametrization, find_parametrization

# The axes of each kind of multiplier that a tensor may have.
AXES = {
    "none": (),
    "scalar": ("scalar",),
    "row": ("row",),
    "column": ("column",),
    "row_column": ("row", "column"),
}
# The LR of multipliers that the paper states, and its light decay against symmetries (section
# 4.1). The suite's experiments ask for the decay by name, and the library has it by default.
LR = 1.0e-2
LIGHT_DECAY = 2.0e-3


@dataclass(frozen=True)
class Multiplier:
    """One learnable multiplier of a tensor, and how it learns."""

    axis: str  # scalar, row or column
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

    A layer of settings maps lr, weight_decay, init and parametrization to values. Below ``row``
    and ``column`` it may map them once more, for that axis alone. For each axis and field the last
    layer that says something wins. Raises UserError, which begins with ``where``, for an unknown
    kind or parametrization and for an axis that the tensor does not have.
    """
    if kind not in AXES:
        raise UserError(f"{where}: unknown kind {kind!r}; use one of {', '.join(AXES)}")
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
        fields["parametrization"] = find_parametrization(fields["parametrization"])
        found.append(Multiplier(axis, sizes[axis], **fields, in_clip_norm=in_clip_norm))
    return tuple(found)
