"""Torch's SGD with momentum, and weight decay that is decoupled as AdamW's is.

W <- W − lr λ W,   B <- μ B + G (G at the first step),   W <- W − lr (G + μ B) (Nesterov) or B
"""

from __future__ import annotations

from typing import Any

import torch


class SGD(torch.optim.SGD):
    """``groups`` as for any torch optimizer, each with its lr, weight_decay and momentum."""

    def __init__(self, groups: list[dict[str, Any]], nesterov: bool):
        # Torch adds its weight decay to the gradient, and so to the momentum.
        found = [
            {
                **group,
                "weight_decay": 0.0,
                "decoupled_weight_decay": group["weight_decay"],
                "nesterov": nesterov and group["momentum"] > 0,
            }
            for group in groups
        ]
        # Not foreach: with Nesterov that adds the momentum to the gradients, which probes read.
        super().__init__(found, foreach=False)

    @torch.no_grad()
    def step(self) -> None:
        """One update of every leaf that has a gradient."""
        for group in self.param_groups:
            leaves = [leaf for leaf in group["params"] if leaf.grad is not None]
            if leaves and group["decoupled_weight_decay"]:
                torch._foreach_mul_(leaves, 1 - group["lr"] * group["decoupled_weight_decay"])
        super().step()
