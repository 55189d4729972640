"""Recording of activations under the address keys of the tensors that produce them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

Taps = dict[str, Tensor] | None


def keep(taps: Taps, layer: int | None, values: Mapping[str, Tensor]) -> None:
    """Store ``values``, detached, under their names (with ``@layer``); None stores nothing."""
    if taps is not None:
        suffix = "" if layer is None else f"@{layer}"
        taps.update({name + suffix: value.detach() for name, value in values.items()})
