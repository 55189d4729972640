"""What grouped-query attention declares. No torch here; the module is in ``attention_module``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lrm.model.blocks.block import Address, Behind, Changes, Ends, Mixer, stream

if TYPE_CHECKING:
    from torch import nn

    from lrm.model.config import ModelConfig


class Attention(Mixer):
    """Causal attention with rotary positions, by the model's fields for heads."""

    name = "attention"
    module = "self_attn"
    widths = ("num_attention_heads", "num_key_value_heads")
    freedoms = {"query_key": "q against k", "value": "v against columns of attention.out"}
    # With a small theta every pair is rotated by all angles.
    small = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "rope_theta": 10.0}

    behind = {
        "attention.q": Behind("q_norm", "num_attention_heads"),
        "attention.k": Behind("k_norm", "num_key_value_heads"),
        "attention.v": Behind("v_norm", "num_key_value_heads"),
        "attention.out": Behind("o_norm"),
    }

    def check(self, config: ModelConfig) -> None:
        config.must_divide("num_key_value_heads", "num_attention_heads")
        if config.head_dim % 2:
            raise ValueError(f"head_dim = {config.head_dim} must be even for rotary embeddings")

    def tensors(self, config: ModelConfig) -> list[Address]:
        d = config.hidden_size
        width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        return [
            Address("attention.q", "q_proj.weight", (width, d)),
            Address("attention.k", "k_proj.weight", (kv_width, d)),
            Address("attention.v", "v_proj.weight", (kv_width, d)),
            Address("attention.out", "o_proj.weight", (d, width)),
        ]

    def flops_per_token(self, config: ModelConfig, sequence_length: int) -> float:
        """Causal, so that half of the scores count."""
        return 6 * sequence_length * config.num_attention_heads * config.head_dim

    def ends(self, config: ModelConfig) -> dict[str, Ends]:
        """q against k by pair, v against out by channel; alike in heads that share a key."""
        keys, width, reads = config.num_key_value_heads, config.head_dim, self.reads(config)
        share = config.num_attention_heads // keys
        pairs, channels = [*range(width // 2)] * 2, [*range(width)]

        def by_key(freedom: str, of_head: list[int], heads: int, sign: float = 1.0) -> Changes:
            size = max(of_head) + 1
            found = [key * size + one for key in range(keys) for one in of_head * heads]
            return Changes(freedom, found, sign)

        return {
            "attention.q": (by_key("query_key", pairs, share), reads),
            "attention.k": (by_key("query_key", pairs, 1, -1.0), reads),
            "attention.v": (by_key("value", channels, 1), reads),
            "attention.out": (stream(config), by_key("value", channels, share)),
        }

    def build(self, *arguments: Any) -> nn.Module:
        from lrm.model.blocks.attention_module import AttentionModule

        return AttentionModule(*arguments)

    def trials(self) -> dict[str, Callable]:
        from lrm.model.blocks.attention_module import attention_trial

        return {"attention": attention_trial}
