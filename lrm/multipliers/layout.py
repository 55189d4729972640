"""Which dimensions of a parameter are rows and columns, and which modules hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from lrm.multipliers.classes import kind


@dataclass(frozen=True)
class Layout:
    """Which dimensions of a parameter are rows and columns; any others count matrices.

    A stack of matrices (experts) has multipliers for each of them. ``whole``: there is one
    multiplier a row and nothing else to count (vectors, convolutions).
    """

    row: int
    column: int | None
    whole: bool = False

    def kept(self, axis: str, shape: Sequence[int]) -> list[int]:
        """The dimensions of ``shape`` along which the multipliers of ``axis`` differ."""
        stack = (
            [] if self.whole else [d for d in range(len(shape)) if d not in (self.row, self.column)]
        )
        return stack + {"row": [self.row], "column": [self.column]}.get(axis, [])

    def size(self, axis: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the multipliers of ``axis``: (stack…, rows), (stack…, columns) or (1,)."""
        return tuple(shape[d] for d in self.kept(axis, shape)) or (1,)

    def spread(self, axis: str, shape: Sequence[int]) -> tuple[int, ...] | None:
        """The shape in which the multipliers of ``axis`` broadcast against ``shape``.

        None where they do so as they are: scalars, and what varies along the last dimension.
        """
        kept = self.kept(axis, shape)
        if kept in ([], [len(shape) - 1]):
            return None
        return tuple(n if d in kept else 1 for d, n in enumerate(shape))


def layout(
    module: nn.Module, attribute: str, weight: Tensor, *, inputs_first: bool = False
) -> Layout:
    """The layout of a parameter ``weight``, which ``module`` holds as ``attribute``.

    Rows are outputs and columns inputs. Rows come first, as in ``nn.Linear``, and last in what
    ``lrm.multipliers.classes`` knows as transposed, and where the user says that inputs come first
    (``inputs_first``, the role ``transposed``). An embedding's rows are its tokens. A
    convolution has a row for each output channel, which comes second in transposed ones; where
    these have groups, the channels at one place of all groups share a row.
    """
    if isinstance(module, nn.modules.conv._ConvTransposeNd) and weight.dim() > 1:
        return Layout(1, None, whole=True)
    if weight.dim() < 2 or isinstance(module, nn.modules.conv._ConvNd):
        return Layout(0, None, whole=True)
    last = weight.dim() - 1
    turned = inputs_first or kind(module, attribute) == "transposed"
    return Layout(last, last - 1) if turned else Layout(last - 1, last)


def owners(model: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Every (module, attribute) that holds each parameter, by the parameter's first name."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    names: dict[int, str] = {}
    for path, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), f"{path}.{attribute}".lstrip("."))
                found.setdefault(id(parameter), []).append((module, attribute))
    return {names[key]: places for key, places in found.items()}


def uncompiled(model: nn.Module) -> nn.Module:
    """What torch.compile has wrapped: its names have no prefix, and it passes attributes on."""
    # Not by getattr: a wrapper around it may pass attributes on too, and is more than it.
    return getattr(model, "_modules", {}).get("_orig_mod", model)
