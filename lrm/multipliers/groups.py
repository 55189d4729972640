"""Learnable tensors as an optimizer sees them, and the groups that they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lrm.multipliers.attach import Multipliers


@dataclass(frozen=True)
class Entry:
    """One learnable tensor.

    ``leaf`` is the parameter, or a view of its rows with memory of its own for the state;
    ``base`` is where backward leaves the gradient. ``optimizer`` names what moves it. The library
    knows no optimizers, and names the kind of tensor by which a user may choose one.
    """

    keys: tuple[str, ...]  # addresses, with ``.row`` etc. for a multiplier
    leaf: nn.Parameter
    base: nn.Parameter
    rows: tuple[int, int] | None
    lr: float
    weight_decay: float
    in_clip_norm: bool
    optimizer: str = "adamw"
    matrix: str | None = None  # entries of one name are orthogonalised as one matrix by Muon
    options: tuple[tuple[str, Any], ...] = ()  # what else the optimizer's group says


def multiplier_entries(multipliers: Multipliers, optimizer: str = "adamw") -> Iterator[Entry]:
    """An entry for every multiplier, with the LR and decay that it was attached with."""
    for name, multiplier, raw in multipliers.named():
        rates = (multiplier.lr, multiplier.weight_decay)
        yield Entry((name,), raw, raw, None, *rates, multiplier.in_clip_norm, optimizer)


def grouped(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Entries of one optimizer with the same settings together, in the order of their first."""
    found: dict[tuple, list[Entry]] = {}
    for entry in entries:
        settings = (entry.optimizer, entry.lr, entry.weight_decay, entry.options)
        found.setdefault(settings, []).append(entry)
    return list(found.values())


def param_group(members: list[Entry]) -> dict[str, Any]:
    """Torch's parameter group of entries that ``grouped`` put together."""
    first = members[0]
    leaves = [entry.leaf for entry in members]
    rates = {"lr": first.lr, "weight_decay": first.weight_decay}
    return {"params": leaves, **of_its_own(rates), **dict(first.options)}


def of_its_own(settings: dict[str, Any]) -> dict[str, Any]:
    """With a copy of each tensor: schedulers change it in place, and each group has its factor."""
    return {name: v.clone() if isinstance(v, Tensor) else v for name, v in settings.items()}
