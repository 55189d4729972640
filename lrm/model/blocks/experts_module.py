"""A mixture of experts beside the gated feed-forward block."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lrm.model import ops
from lrm.model.activations import Activations, record
from lrm.model.blocks.experts import KINDS
from lrm.model.blocks.mlp_module import MLPModule
from lrm.model.config import ModelConfig


class _Stacks(nn.Module):
    """The matrices of all experts, one behind another, and the weights of norms behind them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        count, size, d = config.experts.count, config.experts.size, config.hidden_size
        for kind in KINDS:
            rows, columns = (d, size) if kind == "down" else (size, d)
            weight = torch.empty(count * rows, columns).normal_()
            self.register_parameter(f"{kind}_proj", nn.Parameter(weight))
            has_norm = f"mlp.{kind}" in config.norms_behind
            norm = nn.Parameter(torch.ones(count * rows)) if has_norm else None
            self.register_parameter(f"{kind}_norm", norm)


class ExpertsModule(MLPModule):
    """``mlp(u) + Σ_e p_e expert_e(u)`` over the experts that the router chooses for a token.

    p is the softmax of the router's logits over all experts, divided by its sum over the chosen.
    """

    def __init__(self, config: ModelConfig, layer: int, factors: Mapping[str, float]) -> None:
        super().__init__(config, layer, factors)
        self.count, self.active = config.experts.count, config.experts.active
        self.eps = config.rms_norm_eps
        self.router = nn.Linear(config.hidden_size, self.count, bias=False)
        self.experts = _Stacks(config)
        self.router_factor = factors.get(f"mlp.router@{layer}", 1.0)
        # By kind of matrix the factors of all experts; None where all are 1.
        self.expert_factors: dict[str, list[float] | None] = {}
        for kind in KINDS:
            keys = (f"mlp.{kind}.{number}@{layer}" for number in range(self.count))
            own = [factors.get(key, 1.0) for key in keys]
            self.expert_factors[kind] = own if set(own) != {1.0} else None

    def forward(self, u: Tensor, activations: Activations = None) -> tuple[Tensor, Tensor]:
        """Map u (batch, length, d) to the block's output of the same shape, and the imbalance.

        That is count · Σ_e (share of all choices that fell on e) · (mean of p_e over the tokens):
        1 where all experts are alike (Fedus et al., 2021, *Switch Transformers*, equation 4).
        """
        shared = super().forward(u, activations)
        x = u.flatten(0, -2)
        logits = ops.linear(x, self.router.weight, self.router_factor)
        record(activations, self.layer, {"mlp.router": logits.view(*u.shape[:-1], self.count)})
        choice, weight, imbalance = ops.route(logits, self.active)
        routed = ops.experts(x, choice, weight, *map(self._linear, KINDS), self.eps)
        return shared + routed.view_as(shared), imbalance

    def _linear(self, kind: str) -> tuple[Tensor, Tensor | None]:
        """The experts' matrices of a kind (experts, rows, columns), and norms (experts, rows)."""
        stack = getattr(self.experts, f"{kind}_proj").unflatten(0, (self.count, -1))
        if (factors := self.expert_factors[kind]) is not None:
            stack = stack * stack.new_tensor(factors)[:, None, None]
        norm = getattr(self.experts, f"{kind}_norm")
        return stack, None if norm is None else norm.unflatten(0, (self.count, -1))
