"""Momentum, and then the direction of steepest descent: sign, normalized and per_token.

    B <- μ B + (1 − μ) G,   N = μ B + (1 − μ) G (Nesterov) or B,
    W <- W − lr λ W − lr · direction(N)

as in ``lrm.optim.muon``. A direction is as long however small N is. Therefore a row of an embedding
moves as far in steps that do not see its token, along a momentum that grows stale, until that is
zero to the last bit. With ``rows: seen`` such a row stays in place (but for its decay) while its
momentum fades, so that the next gradient counts most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lrm.errors import UserError
from lrm.optim.directions import moments, normalized, per_token

# The L2 norm of a tensor of which the leaf's part lies here, and of how many entries.
Norm = Callable[[nn.Parameter, Tensor], tuple[Tensor, int]]


class Steepest(torch.optim.Optimizer):
    """``groups`` as for any torch optimizer, each with its lr, weight_decay and momentum.

    The ``direction`` of a group is ``sign``, ``normalized`` or ``per_token``, and its ``rows`` are
    ``all`` or ``seen``; ``normalized`` has none. ``norm`` is what it is normalised by.
    """

    def __init__(self, groups: list[dict[str, Any]], nesterov: bool, norm: Norm | None = None):
        shared = {name: groups[0][name] for name in ("lr", "weight_decay", "momentum")}
        super().__init__(groups, {**shared, "nesterov": nesterov, "rows": "all"})
        self._norm = norm or _norm

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, of which torch leaves out all but its own."""
        return {**super().__getstate__(), "_norm": self._norm}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch. Raises UserError for a group without ``direction``."""
        if "direction" not in param_group:
            raise UserError(
                "this group has no direction; build a new optimizer from the model, which finds it"
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every leaf that has a gradient; what ``closure`` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            leaves = [leaf for leaf in group["params"] if leaf.grad is not None]
            if not leaves:
                continue
            updates = [
                self._direction(group, leaf, moment)
                for leaf, moment in zip(leaves, self._moments(group, leaves), strict=True)
            ]
            if group["rows"] == "seen":
                for leaf, update in zip(leaves, updates, strict=True):
                    update.mul_((leaf.grad != 0).any(self._inputs_axis(leaf), keepdim=True))
            torch._foreach_mul_(leaves, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(leaves, updates, alpha=-group["lr"])
        return loss

    def _inputs_axis(self, leaf: nn.Parameter) -> int:
        """Over which axis a row of a table lies."""
        return -1

    def _moments(self, group: dict[str, Any], leaves: list[nn.Parameter]) -> list[Tensor]:
        if group["momentum"] == 0:
            return [leaf.grad for leaf in leaves]
        return moments(self.state, leaves, group["momentum"], group["nesterov"])

    def _direction(self, group: dict[str, Any], leaf: nn.Parameter, moment: Tensor) -> Tensor:
        """What the LR multiplies; a tensor of its own."""
        if group["direction"] == "sign":
            return torch.sign(moment)
        if group["direction"] == "per_token":
            return per_token(moment)
        return normalized(moment, *self._norm(leaf, moment))


def _norm(leaf: nn.Parameter, moment: Tensor) -> tuple[Tensor, int]:
    return torch.linalg.vector_norm(moment), moment.numel()
