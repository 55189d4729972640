"""AdamW beside Muon, and clipping.

Which optimizer moves a tensor is said by its plan (``lrm.plan.rules``). The schedule multiplies
each group's initial LR. Weight decay is decoupled and multiplied by the raw LR:
``W <- W - lr * weight_decay * W`` before the step (torch's AdamW).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from lrm.errors import UserError
from lrm.multipliers.groups import Entry, grouped, param_group
from lrm.optim.muon import Muon
from lrm.optim.rows import Rows, on_first, total_norm
from lrm.plan.config import OptimizerConfig, TrainConfig

# An entry, and where its rows lie.
Member = tuple[Entry, Rows]
Change = Callable[[Rows, Tensor], Tensor | None]


def _adamw(groups: list[dict], members: list[Member], config: OptimizerConfig) -> AdamW:
    betas = (config.beta1, config.beta2)
    return AdamW(groups, betas=betas, eps=config.eps, fused=True)


def _muon(groups: list[dict], members: list[Member], config: OptimizerConfig) -> Muon:
    matrices: dict[str | None, list] = {}
    for entry, rows in members:
        matrices.setdefault(entry.matrix, []).append((entry.leaf, rows))
    return Muon(groups, list(matrices.values()), config)


_BUILDERS = {"adamw": _adamw, "muon": _muon}


class Optimizer:
    """AdamW and Muon over the entries, with clipping that leaves multipliers out (section 4.3).

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
        norm = total_norm(
            (self._rows[leaf], leaf.grad) for leaf in self._clipped if leaf.grad is not None
        )
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
        """Of every part; all processes that share a model call this alike.

        The first process then holds whole tensors on its CPU, and the others None for each.
        """

        def kept(rows: Rows, part: Tensor) -> Tensor | None:
            return on_first(rows.whole(part))

        return {name: self._mapped(part, part.state_dict(), kept)
                for name, part in self.parts.items()}  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        """Take what ``state`` gave."""
        for name, part in self.parts.items():
            part.load_state_dict(self._mapped(part, state[name], Rows.part))

    def _mapped(self, part: torch.optim.Optimizer, state: dict[str, Any], change: Change) -> dict:
        """``state`` with ``change`` of its tensors; as it is, where no leaf lies in parts."""
        leaves = [leaf for group in part.param_groups for leaf in group["params"]]
        if not any(self._rows[leaf].is_shared for leaf in leaves):
            return state
        found = {}
        for number, values in state["state"].items():
            rows = self._rows[leaves[number]]
            found[number] = {key: change(rows, value) if value.dim() else value
                             for key, value in values.items()}  # fmt: skip
        return {**state, "state": found}

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for entry in self.entries:
            entry.base.grad = None
            entry.leaf.grad = None
