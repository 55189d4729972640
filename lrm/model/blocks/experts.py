"""What the mixture of experts declares. No torch here; the module is in ``experts_module``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lrm.model.blocks.block import (
    NORMALISED,
    NORMS_APART,
    Address,
    Block,
    Changes,
    Constant,
    Ends,
    stream,
)

if TYPE_CHECKING:
    from lrm.model.config import ModelConfig

KINDS = ("gate", "up", "down")


class Experts(Block):
    """Gated feed-forwards beside the MLP, of which a router chooses some for each token.

    The MLP is the expert that all tokens share. The experts' matrices lie one behind another in
    three parameters, and each has an address of its own, ``mlp.gate.5``: rules for ``mlp.*`` are
    for experts too. A norm that ``model.norms_behind`` puts behind ``mlp.gate`` stands behind the
    gate of every expert.
    """

    name = "experts"
    module = "feed_forward"
    widths = ("experts.size",)
    freedoms = {"expert_up_down": "up against columns of down, in each expert"}

    def tensors(self, config: ModelConfig) -> list[Address]:
        experts, d = config.experts, config.hidden_size
        present = experts is not None
        # Of a model without any the tensors of the first expert are named, in the least size.
        count, share, size = (
            (experts.count, experts.active / experts.count, experts.size)
            if experts
            else (2, 0.5, 1)
        )
        found = [Address("mlp.router", "router.weight", (count, d), present=present)]
        for kind in KINDS:
            shape = (d, size) if kind == "down" else (size, d)
            matrix = Address(
                f"mlp.{kind}", f"experts.{kind}_proj", shape,
                present=present, apart=True, share=share,
            )  # fmt: skip
            for number, place in _places(count if present else 1, shape[0]):
                found.append(replace(matrix, name=f"{matrix.name}.{number}", rows=place))
        return found

    def every_tensor(self, config: ModelConfig) -> list[Address]:
        found = []
        for address in self.tensors(config):
            found.append(address)
            kind = address.name.split(".")[1]
            if kind in KINDS:
                present = address.present and f"mlp.{kind}" in config.norms_behind
                found.append(
                    Address(f"norm.{address.name}", f"experts.{kind}_norm", address.shape[:1],
                            "norm", Constant(), address.rows, present, side="output")
                )  # fmt: skip
        return found

    def ends(self, config: ModelConfig) -> dict[str, Ends]:
        if config.experts is None:
            return {}
        reads = Changes("mlp_input", range(config.hidden_size))
        # What the router gives out passes a softmax, and gate a nonlinearity: they may not change.
        found: dict[str, Ends] = {"mlp.router": (None, reads)}
        for number, place in _places(config.experts.count, config.experts.size):
            inner = Changes("expert_up_down", range(*place))
            found |= {
                f"mlp.gate.{number}": (None, reads),
                f"mlp.up.{number}": (inner, reads),
                f"mlp.down.{number}": (stream(config), inner),
            }
        return found

    def every_end(self, config: ModelConfig) -> dict[str, Ends]:
        found = self.ends(config)
        for channel, name in enumerate(list(found), start=NORMS_APART):
            address = name.rpartition(".")[0]
            if address not in config.norms_behind:
                continue
            out, into = found[name]
            kind = address.removeprefix("mlp.")
            rows = config.hidden_size if kind == "down" else config.experts.size
            changes = Changes(NORMALISED, [channel] * rows)
            found |= {name: (changes, into), f"norm.{name}": (out, None)}
        return found


def _places(count: int, rows: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Every expert with its rows of a parameter."""
    for number in range(count):
        yield number, (number * rows, (number + 1) * rows)
