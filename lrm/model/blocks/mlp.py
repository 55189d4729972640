"""What the gated feed-forward block declares. No torch here; the module is in ``mlp_module``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrm.model.blocks.block import Address, Behind, Block, Changes, Ends, stream

if TYPE_CHECKING:
    from lrm.model.config import ModelConfig


class MLP(Block):
    """``down(up(u) * silu(gate(u)))``; gate passes a nonlinearity and may not change."""

    name = "mlp"
    module = "feed_forward"
    widths = ("intermediate_size",)
    freedoms = {"up_down": "up against columns of down"}
    small = {"intermediate_size": 10}

    behind = {
        "mlp.gate": Behind("gate_norm"),
        "mlp.up": Behind("up_norm"),
        "mlp.down": Behind("down_norm"),
    }

    def tensors(self, config: ModelConfig) -> list[Address]:
        d, width = config.hidden_size, config.intermediate_size
        return [
            Address("mlp.gate", "gate_proj.weight", (width, d)),
            Address("mlp.up", "up_proj.weight", (width, d)),
            Address("mlp.down", "down_proj.weight", (d, width)),
        ]

    def ends(self, config: ModelConfig) -> dict[str, Ends]:
        reads = Changes("mlp_input", range(config.hidden_size))
        inner = Changes("up_down", range(config.intermediate_size))
        return {
            "mlp.gate": (None, reads),
            "mlp.up": (inner, reads),
            "mlp.down": (stream(config), inner),
        }
