"""The optimizers of runs that are trained at once: one call of AdamW moves the tensors of all.

Every run keeps its own ``Optimizer``: its groups, its clipping and its state, which is what its
checkpoints hold. Only the updates of AdamW are made together, because a call costs more than what
it computes where tensors are small. Muon's stay those of each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import AdamW

from lrm.optim.optimizer import Optimizer


class OptimizersTogether:
    """``optimizers`` by one step. To be made behind the loading of their states, which it shares.

    AdamW takes one LR for a group, so that a group here is what has the same LR at every step:
    equal rates, betas and schedules, which ``schedules`` tells by anything that can be compared.
    """

    def __init__(self, optimizers: Sequence[Optimizer], schedules: Sequence[Any]):
        self._optimizers = list(optimizers)
        # The group in which it is, its LR and whose factor multiplies that.
        found: dict[tuple, tuple[dict[str, Any], float, int]] = {}
        state = {}
        for number, (optimizer, schedule) in enumerate(zip(optimizers, schedules, strict=True)):
            part = optimizer.parts.get("adamw")
            if part is None:
                continue
            for group, same in zip(part.param_groups, optimizer.groups["adamw"], strict=True):
                rates = {name: group[name] for name in ("weight_decay", "betas", "eps")}
                key = (schedule, same[0].lr, *rates.values())
                place = found.setdefault(key, ({"params": [], **rates}, same[0].lr, number))
                place[0]["params"] += group["params"]
                # One dictionary for each tensor, which both know.
                state |= {leaf: part.state[leaf] for leaf in group["params"]}
        self._rates = [(lr, number) for _, lr, number in found.values()]
        self._adamw: AdamW | None = None
        if found:
            self._adamw = AdamW([group for group, _, _ in found.values()], fused=True)
            self._adamw.state.update(state)

    def step(
        self, lr_factors: Sequence[float], taking_part: Sequence[bool]
    ) -> list[tuple[Tensor, Tensor] | None]:
        """What ``Optimizer.step`` returns for each, with every group's LR times its factor.

        One that is not ``taking_part`` is left as it is, and has None; it has no gradients.
        """
        found = [
            optimizer.clip() if moves else None
            for optimizer, moves in zip(self._optimizers, taking_part, strict=True)
        ]
        if self._adamw is not None:
            groups = zip(self._adamw.param_groups, self._rates, strict=True)
            for group, (lr, number) in groups:
                group["lr"] = lr * lr_factors[number]
            self._adamw.step()
        for optimizer, factor, moves in zip(self._optimizers, lr_factors, taking_part, strict=True):
            for name in optimizer.parts if moves else ():
                if name != "adamw":
                    optimizer.move(name, factor)
        return found
