"""What noise is fed to: a tensor that an optimizer moves and nothing else does."""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from lrm.optim import Entry
from lrm.rules import Matrix


@dataclasses.dataclass(frozen=True)
class Walker:
    """One tensor to simulate: ``start`` is the RMS of normal entries, or a constant.

    With ``log`` the walk is that of the logarithm, and norms are those of its exponential. With
    ``matrix`` the tensor is that, or rows of that, and Muon moves it.
    """

    key: str
    size: int
    lr: float
    weight_decay: float
    start: float
    constant: bool
    log: bool = False
    matrix: Matrix | None = None


def entries_of(walker: Walker, values: Tensor, noise: Tensor) -> list[Entry]:
    """What the optimizer moves: all of ``values`` at once, or for Muon matrix by matrix.

    Leaves and their gradients share the memory of ``values`` and ``noise``.
    """
    parts = zip(values, noise, strict=True) if walker.matrix else [(values, noise)]
    found = []
    for number, (value, gradient) in enumerate(parts):
        leaf = nn.Parameter(value)
        leaf.grad = gradient
        entry = Entry((walker.key,), leaf, leaf, None, walker.lr, walker.weight_decay, False)
        if walker.matrix:
            entry = dataclasses.replace(entry, optimizer="muon", matrix=str(number))
        found.append(entry)
    return found
