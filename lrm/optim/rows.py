"""Rows of a parameter that may lie in parts on several processes (torch's FSDP2, by rows).

An optimizer moves the rows that lie here, as plain tensors, whatever slice of a merged matrix they
belong to. What needs all rows brings them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lrm.multipliers.sharding import is_distributed


class Rows:
    """Rows [rows[0], rows[1]) of the parameter ``base``, or all; those that lie here are a part."""

    def __init__(self, base: Tensor, rows: tuple[int, int] | None = None):
        self.base = base
        self.first, self.last = rows or (0, len(base) if base.dim() else 1)
        self.is_all = rows is None

    @property
    def count(self) -> int:
        """How many rows, wherever they lie."""
        return self.last - self.first

    @property
    def is_shared(self) -> bool:
        """Whether other processes hold the rest."""
        return is_distributed(self.base)

    @property
    def parts(self) -> int:
        """Into how many parts the parameter is cut."""
        return self.base.device_mesh.size(-1) if self.is_shared else 1

    def interval(self, number: int) -> tuple[int, int]:
        """Which of these rows lie in part ``number``, counted from the first of them."""
        if not self.is_shared:
            return 0, self.count
        begin, end = number * self._each, (number + 1) * self._each
        begin, end = (min(max(row, self.first), self.last) for row in (begin, end))
        return begin - self.first, end - self.first

    def take(self, tensor: Tensor) -> Tensor:
        """The part that lies here of a tensor that lies as ``base`` does; a view."""
        if not self.is_shared:
            return tensor if self.is_all else tensor[self.first : self.last]
        begin, end = self.interval(self._number)
        offset = max(self.first - self._number * self._each, 0)
        return tensor.to_local()[offset : offset + end - begin]

    def part(self, whole: Tensor) -> Tensor:
        """The part that lies here of a tensor that holds just these rows; a view."""
        if not self.is_shared:
            return whole
        return whole[slice(*self.interval(self._number))]

    def empty(self) -> Tensor:
        """Zeros that lie as ``base`` does."""
        return torch.zeros_like(self.base, requires_grad=False)

    @property
    def _each(self) -> int:
        """Rows in a part, of which the last may have fewer: as ``torch.chunk`` shares them out."""
        return -(-len(self.base) // self.parts)

    @property
    def _number(self) -> int:
        """Of the part that lies here."""
        mesh = self.base.device_mesh
        return mesh.get_local_rank(mesh.ndim - 1)


def total_norm(gradients: Iterable[tuple[Rows, Tensor]]) -> Tensor:
    """L2 norm of all gradients, of which some lie in parts; the same on every process."""
    whole: list[Tensor] = []
    parts: list[Tensor] = []
    group = None
    for rows, gradient in gradients:
        (parts if rows.is_shared else whole).append(gradient)
        if rows.is_shared:
            group = rows.base.device_mesh.get_group(rows.base.device_mesh.ndim - 1)
    if group is None:
        return torch.nn.utils.get_total_norm(whole)
    squares = _squares(parts)
    dist.all_reduce(squares, group=group)
    return (squares + _squares(whole) if whole else squares).sqrt()


def _squares(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(tensors))).square().sum()
