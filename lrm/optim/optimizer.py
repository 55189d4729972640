"""AdamW beside Muon, and clipping.

Which optimizer moves a tensor is said by its plan (``lrm.plan.rules``). The schedule multiplies
each group's initial LR. Weight decay is decoupled and multiplied by the raw LR:
``W <- W - lr * weight_decay * W`` before the step (torch's AdamW).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from lrm.errors import UserError
from lrm.multipliers.groups import Entry, grouped, param_group
from lrm.optim.muon import Muon
from lrm.plan.config import OptimizerConfig, TrainConfig


def _adamw(groups: list[dict], members: list[Entry], config: OptimizerConfig) -> AdamW:
    betas = (config.beta1, config.beta2)
    return AdamW(groups, betas=betas, eps=config.eps, fused=True)


def _muon(groups: list[dict], members: list[Entry], config: OptimizerConfig) -> Muon:
    matrices: dict[str | None, list[nn.Parameter]] = {}
    for entry in members:
        matrices.setdefault(entry.matrix, []).append(entry.leaf)
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
        self.clip_norm = train.clip_norm
        self.parts: dict[str, torch.optim.Optimizer] = {}
        self.groups: dict[str, list[list[Entry]]] = {}
        for name in dict.fromkeys(entry.optimizer for entry in self.entries):
            members = [entry for entry in self.entries if entry.optimizer == name]
            self.groups[name] = grouped(members)
            groups = [param_group(same) for same in self.groups[name]]
            self.parts[name] = _BUILDERS[name](groups, members, config)
        self._clipped = [entry.leaf for entry in self.entries if entry.in_clip_norm]
        self._views = [entry for entry in self.entries if entry.rows is not None]

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
        for entry in self._views:
            entry.leaf.grad = entry.base.grad[entry.rows[0] : entry.rows[1]]
        gradients = [leaf.grad for leaf in self._clipped if leaf.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        # Where asking costs nothing a factor of 1 is not multiplied by.
        if self.clip_norm and (norm.is_cuda or norm > self.clip_norm - 1e-5):
            torch.nn.utils.clip_grads_with_norm_(self._clipped, self.clip_norm, norm)
        for name, part in self.parts.items():
            for group, same in zip(part.param_groups, self.groups[name], strict=True):
                group["lr"] = same[0].lr * lr_factor
            part.step()
        return norm, norm > self.clip_norm if self.clip_norm else torch.zeros_like(norm, dtype=bool)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for entry in self.entries:
            entry.base.grad = None
            entry.leaf.grad = None
