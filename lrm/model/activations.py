"""Recording of activations under the address keys of the tensors that produce them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class WithGradients(dict[str, Tensor]):
    """Activations that are not detached: a backward pass leaves its ``grad`` in each of them.

    In those alone that the loss was computed from: what is recorded beside (a softmax, a state
    that nothing reads) has none.
    """


Activations = dict[str, Tensor] | None


def record(activations: Activations, layer: int | None, values: Mapping[str, Tensor]) -> None:
    """Store ``values`` under their names (with ``@layer``); None stores nothing.

    They are detached, save in ``WithGradients``.
    """
    if activations is not None:
        suffix = "" if layer is None else f"@{layer}"
        keep = _attached if isinstance(activations, WithGradients) else Tensor.detach
        activations.update({name + suffix: keep(value) for name, value in values.items()})


def _attached(value: Tensor) -> Tensor:
    if value.requires_grad:
        value.retain_grad()
    return value
