"""Recording of activations under the address keys of the tensors that produce them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

Activations = dict[str, Tensor] | None


def record(activations: Activations, layer: int | None, values: Mapping[str, Tensor]) -> None:
    """Store ``values``, detached, under their names (with ``@layer``); None stores nothing."""
    if activations is not None:
        suffix = "" if layer is None else f"@{layer}"
        activations.update({name + suffix: value.detach() for name, value in values.items()})
