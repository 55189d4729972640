"""The multipliers of a model as a report, and as norms for a training log."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lrm.errors import UserError
from lrm.multipliers.attach import Multipliers
from lrm.multipliers.multiplier import Target
from lrm.multipliers.precision import HALF
from lrm.multipliers.roles import by_name_alone, by_type_alone, heads_by_shape, roles, said_roles
from lrm.multipliers.saving import HANDLE, save_placement
from lrm.multipliers.sharding import whole
from lrm.multipliers.wiring import check_processes, watch

# Why a parameter of a role has no multipliers, where it has none.
_WITHOUT = {
    "matrix": "none, by the placement",
    "transposed": "none, by the placement",
    "embedding": "none, by the placement",
    "tied": "none, by the placement",
    "head": "none, as heads by default: rows there make training worse",
    "convolution": "none; placement='convolutions' has them",
}


class Attached(Multipliers):
    """Multipliers with what a user asks of them: ``print(handle)`` and ``handle.norms()``.

    ``roles`` has the role of every parameter as it was when they were attached, and ``said`` those
    that the user named by patterns.
    """

    def __init__(
        self,
        model: nn.Module,
        targets: Sequence[Target],
        implementation: str,
        said: Mapping[str, str],
    ):
        self.said = dict(said)
        self.stays = ""  # why it cannot be merged
        self.design = ""  # of scale vectors, if they are some
        self.thawed_by_merging: list[nn.Module] = []
        self.roles = roles(model, said)
        self._by_name = by_name_alone(model, said)
        named = said_roles(model, said)
        self._by_type = [name for name in by_type_alone(model) if name not in named]
        self._by_shape = [name for name in heads_by_shape(model) if name not in named]
        turned = [name for name, role in self.roles.items() if role == "transposed"]
        super().__init__(model, targets, implementation, turned=turned)
        self._shapes = {
            name: tuple(p.shape) for name, p in model.named_parameters() if name in self.roles
        }
        setattr(model, HANDLE, self)
        self._hooks = save_placement(self)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            model.register_forward_pre_hook(_before_first_pass)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of copies and pickles, whose optimizers are checked too."""
        self.__dict__.update({"_by_type": [], "_by_shape": []} | state)  # earlier ones lack these
        self.is_unchanged = self.is_collecting = False  # a copy was made within the block
        watch(self)

    def __repr__(self) -> str:
        if not self.effective:
            return "no multipliers; they were merged"
        added = sum(parameter.numel() for _, _, parameter in self.named())
        entries = sum(map(math.prod, self._shapes.values()))
        covered = sum(math.prod(self._shapes[name]) for name in self.effective)
        lines = [
            f"multipliers ({self.implementation}) on {len(self.effective)} of "
            f"{len(self.roles)} parameters, which hold {covered:,} of {entries:,} entries; "
            f"{added:,} entries added ({added / max(entries, 1):.2%})"
        ]
        given = {name: self._kind(name) for name in self.effective}
        bare = {name: _WITHOUT.get(role, "none") for name, role in self.roles.items()}
        lines += _table(bare | given, self.roles, self._shapes)
        return "\n".join([*lines, *self._odd()])

    def _coarse(self, name: str) -> bool:
        return any(raw.dtype.itemsize < 4 for raw in self.effective[name].learned())

    def _odd(self) -> list[str]:
        """What a user may not have meant, a line each."""
        weights = {name: p for name in self.effective if (p := self.find(name)) is not None}
        found = (
            ([name for name, p in weights.items() if not p.requires_grad],
             "frozen: their multipliers learn and they do not"),
            ([name for name, p in weights.items() if p.dtype in HALF and not self._coarse(name)],
             "in half precision: their multipliers are in float32"),
            ([name for name in weights if self._coarse(name)],
             "whose multipliers are in half precision, too coarse to learn in"),
            ([name for name in self._by_name if self.roles[name] != "vector"],
             "whose role is told by their names alone, matrices as outputs × inputs; role={...} "
             "says another one, such as 'transposed'"),
            ([name for name in self._by_name if self.roles[name] == "vector"],
             "of several rows and columns that their names do not tell: taken for vectors, without "
             "multipliers and decay; role={...: 'matrix'} says otherwise"),
            ([name for name in self._by_type if name not in self.effective],
             "of several rows and columns in bilinear forms or under parametrizations: without "
             "multipliers and decay"),
            ([name for name in self._by_shape if self.roles[name] == "head"],
             "taken for LM heads by their shape alone, an embedding's; role={...: 'matrix'} says "
             "otherwise"),
        )  # fmt: skip
        return [f"{len(names)} {what} (the first is {names[0]})" for names, what in found if names]

    def held_roles(self) -> list[tuple[nn.Parameter, str]]:
        """Every parameter, as it is held now, with its role when multipliers were attached."""
        return [(held, role) for name, role in self.roles.items()
                if (held := self.find(name)) is not None]  # fmt: skip

    def check_merge(self) -> None:
        """As in ``Multipliers``; also where what is attached is no factor (``stays`` says why)."""
        if self.stays:
            raise UserError(self.stays)
        super().check_merge()

    def merge(self) -> nn.Module:
        """As in ``Multipliers``; the model then saves no placement and asks for none."""
        super().merge()
        for module in self.thawed_by_merging:
            module.weight.requires_grad_(True)
        self._leave()
        return self.model

    def discard(self) -> None:
        """Take the multipliers from the model with their values; each W stays as it is."""
        self._take_back()
        self._leave()

    def _leave(self) -> None:
        for hook in self._hooks:
            hook.remove()
        if self.model.__dict__.get(HANDLE) is self:
            delattr(self.model, HANDLE)

    def _kind(self, name: str) -> str:
        """What a parameter has, as ``row + column`` or by rows of a merged matrix."""
        said = []
        for target in self.effective[name].targets:
            axes = " + ".join(multiplier.label for multiplier in target.multipliers)
            said.append(axes if target.rows is None else "[{}:{}] ".format(*target.rows) + axes)
        return ", ".join(said)

    @torch.no_grad()
    def norms(self) -> dict[str, float]:
        """Norms for a training log, by ``<what>/<name>``: root mean squares of entries.

        ``weight_norm`` is that of W, ``effective_norm`` that of W̄, by parameter;
        ``scalar_multiplier``, ``row_multiplier`` and ``column_multiplier`` those of the
        multipliers, by target, and ``row_magnitude_multiplier`` and the like those of magnitudes.
        The parts of a model may lie on several devices. Weights that are sharded over processes are
        gathered one after the other, for which every process has to call it.
        """
        found: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            found[f"weight_norm/{name}"] = _norm(weight)
            found[f"effective_norm/{name}"] = _norm(self.effective[name].write(weight))
        for key, scaling in self.scalings.items():
            for axis, value in scaling.values().items():
                found[f"{axis}_multiplier/{key}"] = _norm(value)
        if any(norm.is_meta for norm in found.values()):
            raise UserError("the model is on the meta device, where nothing has a norm")
        # One transfer from each device: the layers of a model may lie on several.
        by_device: dict[torch.device, dict[str, Tensor]] = {}
        for name, norm in found.items():
            by_device.setdefault(norm.device, {})[name] = norm
        values: dict[str, float] = {}
        for norms in by_device.values():
            values |= zip(norms, torch.stack(list(norms.values())).tolist(), strict=True)
        return {name: values[name] for name in found}


def _before_first_pass(module: nn.Module, *_: Any) -> None:
    """Ask once whether other processes share in the multipliers of ``module``.

    A function of the file, which copies and pickles of a model hold too: each asks of its own.
    """
    for key, hook in list(module._forward_pre_hooks.items()):
        if hook is _before_first_pass:
            del module._forward_pre_hooks[key]
    if (handle := module.__dict__.get(HANDLE)) is not None:
        check_processes(handle)


def _norm(tensor: Tensor) -> Tensor:
    return whole(tensor).float().square().mean().sqrt()


def _table(
    kinds: Mapping[str, str], roles: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """A line for each sort of parameter; layers that are alike share one."""
    counts: dict[tuple[str, ...], int] = {}
    for name in roles:
        # In the order of the model, numbers in names being layers.
        alike = re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
        line = (alike, roles[name], "×".join(map(str, shapes[name])), kinds[name])
        counts[line] = counts.get(line, 0) + 1
    rows = [("parameter", "number", "role", "shape", "multipliers")]
    rows += [(line[0], str(count), *line[1:]) for line, count in counts.items()]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
