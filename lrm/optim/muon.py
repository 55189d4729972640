"""Muon: momentum, orthogonalised by Newton–Schulz iterations, times a shape factor.

    B <- μ B + (1 − μ) G,   N = μ B + (1 − μ) G (Nesterov) or B,
    W <- W − lr λ W − lr · shape_factor · NewtonSchulz(N)

as in ``torch.optim.Muon``: weight decay is decoupled and multiplied by the raw LR, before the
shape factor. Matrices of one shape are orthogonalised in one batch, and rows that differ in LR
or weight decay may belong to one matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lrm.optim.directions import moments, newton_schulz
from lrm.optim.exchange import Exchange
from lrm.optim.rows import Rows
from lrm.plan.config import OptimizerConfig
from lrm.plan.msign import shape_factor


class Muon(torch.optim.Optimizer):
    """``groups`` as for any torch optimizer, each with its lr and weight_decay.

    ``matrices`` lists the same leaves, each with the rows that it is, by the matrix that is
    orthogonalised as one: its rows, in the order given. The shape factor is that of the whole.
    Of several processes that hold its rows one orthogonalises it (``lrm.optim.exchange``).
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        matrices: Sequence[Sequence[tuple[nn.Parameter, Rows]]],
        config: OptimizerConfig,
    ):
        super().__init__(groups, {})
        self._config = config
        # All matrices in parts are exchanged at once. Of those that lie whole here one shape at a
        # time is taken, so that not all momenta are there twice.
        lots: dict[tuple[int, int] | None, list] = {}
        for matrix in matrices:
            shape = (sum(rows.count for _, rows in matrix), matrix[0][0].shape[1])
            lots.setdefault(None if matrix[0][1].is_shared else shape, []).append(matrix)
        self._exchanges = [Exchange(lot) for lot in lots.values()]

    @torch.no_grad()
    def step(self) -> None:
        """One update of every leaf; each must have a gradient."""
        updates: dict[nn.Parameter, Tensor] = {}
        for exchange in self._exchanges:
            updates.update(zip(exchange.leaves, self._updates(exchange), strict=True))
        for group in self.param_groups:
            leaves = group["params"]
            torch._foreach_mul_(leaves, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(leaves, [updates[leaf] for leaf in leaves], alpha=-group["lr"])

    def _updates(self, exchange: Exchange) -> list[Tensor]:
        """What lies here of the update of every leaf: the LR is all that it lacks."""
        config = self._config
        directions = self._directions(exchange.leaves)
        whole = dict(zip(exchange.own, exchange.gather(directions), strict=True))
        shapes = [exchange.shapes[number] for number in exchange.own]
        for shape in dict.fromkeys(shapes):
            same = [n for n in exchange.own if exchange.shapes[n] == shape]
            stacked = torch.stack([whole.pop(number) for number in same])
            orthogonal = newton_schulz(
                stacked, config.newton_schulz_steps, config.newton_schulz_eps
            )
            whole.update(zip(same, orthogonal, strict=True))
        own = [whole[number] for number in exchange.own]
        parts = exchange.scatter(own, directions[0])
        parts = [part.to(leaf) for part, leaf in zip(parts, exchange.leaves, strict=True)]
        factors = [shape_factor(config.shape_factor, *shape) for shape in exchange.matrix_shapes]
        return torch._foreach_mul(parts, factors)

    def _directions(self, leaves: list[nn.Parameter]) -> list[Tensor]:
        """What lies here of the momenta to orthogonalise, in the precision for that."""
        config = self._config
        found = moments(self.state, leaves, config.muon_momentum, config.muon_nesterov)
        if leaves[0].dtype != torch.float64:
            precision = getattr(torch, config.newton_schulz_precision)
            found = [direction.to(precision) for direction in found]
        return found
