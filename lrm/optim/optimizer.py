"""AdamW beside Muon, SGD and steepest descent, and clipping.

Which optimizer moves a tensor is said by its plan (``lrm.plan.rules``). The schedule multiplies
each group's initial LR. Weight decay is decoupled and multiplied by the raw LR:
``W <- W - lr * weight_decay * W`` before the step (torch's AdamW).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from lrm.errors import UserError
from lrm.multipliers.groups import Entry, grouped, param_group
from lrm.optim.muon import Muon
from lrm.optim.rows import Rows, total_norm
from lrm.optim.sgd import SGD
from lrm.optim.steepest import Steepest
from lrm.plan.config import OptimizerConfig, TrainConfig

# An entry, and where its rows lie.
Member = tuple[Entry, Rows]
# Of parameters.
Names = Mapping[Tensor, str]
Slot = tuple[str, Rows, dict[str, Any], str]


def _adamw(groups: list[dict], members: list[Member], config: OptimizerConfig) -> AdamW:
    betas = (config.beta1, config.beta2)
    return AdamW(groups, betas=betas, eps=config.eps, fused=True)


def _muon(groups: list[dict], members: list[Member], config: OptimizerConfig) -> Muon:
    matrices: dict[str | None, list] = {}
    for entry, rows in members:
        matrices.setdefault(entry.matrix, []).append((entry.leaf, rows))
    return Muon(groups, list(matrices.values()), config)


def _sgd(groups: list[dict], members: list[Member], config: OptimizerConfig) -> SGD:
    return SGD(groups, config.nesterov)


def _steepest(groups: list[dict], members: list[Member], config: OptimizerConfig) -> Steepest:
    placed = {entry.leaf: rows for entry, rows in members}

    def norm(leaf: Tensor, moment: Tensor) -> tuple[Tensor, int]:
        rows = placed[leaf]
        return total_norm([(rows, moment)]), rows.count * math.prod(rows.base.shape[1:])

    direction = members[0][0].optimizer
    return Steepest([{**each, "direction": direction} for each in groups], config.nesterov, norm)


_BUILDERS = {
    "adamw": _adamw, "muon": _muon, "sgd": _sgd, "sign": _steepest, "normalized": _steepest,
    "per_token": _steepest,
}  # fmt: skip


class Optimizer:
    """Side by side the optimizers of the entries; clipping leaves multipliers out (section 4.3).

    ``parts`` holds torch's optimizer of each name that an entry asks for.

    The clipping norm is the global L2 norm of the gradients of all entries with
    ``in_clip_norm``, and only those are scaled: what is not in the norm is not clipped.
    """

    def __init__(self, found: Sequence[Entry], config: OptimizerConfig, train: TrainConfig):
        self.entries = list(found)
        if not self.entries:
            raise UserError("the rules freeze every tensor; leave something to train")
        self._configs = config, train
        self.clip_norm = train.clip_norm
        self.parts: dict[str, torch.optim.Optimizer] = {}
        self.groups: dict[str, list[list[Entry]]] = {}
        self._rows = {entry.leaf: Rows(entry.base, entry.rows) for entry in self.entries}
        for name in dict.fromkeys(entry.optimizer for entry in self.entries):
            members = [entry for entry in self.entries if entry.optimizer == name]
            self.groups[name] = grouped(members)
            groups = [param_group(same) for same in self.groups[name]]
            placed = [(entry, self._rows[entry.leaf]) for entry in members]
            self.parts[name] = _BUILDERS[name](groups, placed, config)
        self._clipped = [entry.leaf for entry in self.entries if entry.in_clip_norm]
        self._views = [entry for entry in self.entries if entry.leaf is not entry.base]

    def of(self, found: Sequence[Entry]) -> Optimizer:
        """Another with the same settings, over ``found``."""
        return Optimizer(found, *self._configs)

    def table(self) -> list[dict]:
        """The groups as records: optimizer, LR, weight decay, their product, members, size."""
        return [
            {
                "optimizer": name,
                **dict(same[0].options),
                "lr": same[0].lr,
                "weight_decay": same[0].weight_decay,
                "lr_wd": same[0].lr * same[0].weight_decay,
                "parameters": sum(entry.leaf.numel() for entry in same),
                "tensors": [key for entry in same for key in entry.keys],
            }
            for name, groups in self.groups.items()
            for same in groups
        ]

    def step(self, lr_factor: float) -> tuple[Tensor, Tensor]:
        """Clip and update with every group's LR times ``lr_factor``.

        Returns (global gradient norm before clipping, whether it was clipped), both scalars.
        """
        norm, clipped = self.clip()
        for name in self.parts:
            self.move(name, lr_factor)
        return norm, clipped

    def clip(self) -> tuple[Tensor, Tensor]:
        """The first half of a step: take the gradients that are there, and clip them."""
        for entry in self._views:
            entry.leaf.grad = self._rows[entry.leaf].take(entry.base.grad)
        there = [leaf for leaf in self._clipped if leaf.grad is not None]
        norm = total_norm((self._rows[leaf], leaf.grad) for leaf in there)
        if not there:  # torch's zero lies on the CPU
            norm = norm.to(next(iter(self._rows)).device)
        # Where asking costs nothing a factor of 1 is not multiplied by.
        if self.clip_norm and (norm.is_cuda or norm > self.clip_norm - 1e-5):
            torch.nn.utils.clip_grads_with_norm_(self._clipped, self.clip_norm, norm)
        return norm, norm > self.clip_norm if self.clip_norm else torch.zeros_like(norm, dtype=bool)

    def move(self, name: str, lr_factor: float) -> None:
        """The second half, of the part of that name: update by the gradients as they are."""
        part = self.parts[name]
        for group, same in zip(part.param_groups, self.groups[name], strict=True):
            group["lr"] = same[0].lr * lr_factor
        part.step()

    def state(self) -> dict[str, Any]:
        """Of every part, by name, as torch gives it: its tensors are those of the rows here."""
        return {name: _copied(part.state_dict()) for name, part in self.parts.items()}

    def load(self, state: dict[str, Any]) -> None:
        """Take what ``state`` gave where all rows lay on one process."""
        state = {name: _copied(of_part) for name, of_part in state.items()}
        for _, rows, values, key in self._slots(state):
            if values[key].dim():
                values[key] = rows.part(values[key])
        self._load(state)

    def spread(self, names: Names) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """``state`` in two: an outline, with None for each tensor, and the tensors by name.

        Each lies as its parameter does, so that any number of processes may read it; ``names`` has
        the parameters'. Slices of one parameter share a tensor.
        """
        outline, found = self.state(), {}
        for label, rows, values, key in self._slots(outline, names):
            value = values[key]
            if value.dim():
                if label not in found:
                    found[label] = rows.empty()
                rows.take(found[label]).copy_(value)
            values[key] = None if value.dim() else value.cpu()
        return outline, found

    def blank(self, outline: dict[str, Any], names: Names) -> dict[str, Tensor]:
        """Tensors of which nothing is known yet but what ``spread`` said of them."""
        slots = self._slots(outline, names)
        return {label: rows.empty() for label, rows, values, key in slots if values[key] is None}

    def load_spread(
        self, outline: dict[str, Any], tensors: dict[str, Tensor], names: Names
    ) -> None:
        """Take what ``spread`` gave, on whatever number of processes."""
        state = {name: _copied(of_part) for name, of_part in outline.items()}
        for label, rows, values, key in self._slots(state, names):
            if values[key] is None:
                values[key] = rows.take(tensors[label]).clone()
        self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])

    def _slots(self, state: dict[str, Any], names: Names | None = None) -> Iterator[Slot]:
        """Every value in ``state``: its name, the rows of its leaf, and where it stands."""
        for name, part in self.parts.items():
            leaves = [leaf for group in part.param_groups for leaf in group["params"]]
            for number, values in state[name]["state"].items():
                rows = self._rows[leaves[number]]
                for key in values:
                    label = f"{name}.{key}.{names[rows.base]}" if names else ""
                    yield label, rows, values, key

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for entry in self.entries:
            entry.base.grad = None
            entry.leaf.grad = None


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """A part's state whose values may be replaced without changing the part's."""
    return {**state, "state": {number: dict(values) for number, values in state["state"].items()}}
