"""What a ``state_dict`` holds where the model computes with W̄: W and the multipliers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from lrm.multipliers.effective import EffectiveWeight

# The name under which a module holds the multipliers of its parameters.
CHILD = "multipliers"


class Saved:
    """State-dict hooks of a module whose parameter is W̄: W and the multipliers take its place."""

    def __init__(self, found: EffectiveWeight, weight: nn.Parameter, attribute: str, first: bool):
        self.found, self.weight, self.attribute, self.first = found, weight, attribute, first

    def _multipliers(self, prefix: str) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.found.named_parameters():
            yield f"{prefix}{CHILD}.{self.attribute}.{name}", parameter

    def __call__(self, module: nn.Module, state: dict, prefix: str, metadata: Any) -> None:
        state[prefix + self.attribute] = self.weight.detach()
        if self.first:
            for key, parameter in self._multipliers(prefix):
                state[key] = parameter.detach()

    @torch.no_grad()
    def load(
        self, module: nn.Module, state: dict, prefix: str, metadata: Any, strict: bool,
        missing: list[str], unexpected: list[str], errors: list[str],
    ) -> None:  # fmt: skip
        name = prefix + self.attribute
        multipliers = dict(self._multipliers(prefix)) if self.first else {}
        missing += [key for key in multipliers if key not in state]
        for key, parameter in {name: self.weight, **multipliers}.items():
            value = state.pop(key, None)
            if value is None:
                continue
            if value.shape != parameter.shape:
                errors.append(
                    f"size mismatch for {key}: {tuple(value.shape)} in the checkpoint, "
                    f"{tuple(parameter.shape)} in the model"
                )
                return
            parameter.copy_(value)
        state[name] = self.found.write(self.weight)
