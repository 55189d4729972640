"""What the Gated Delta Network declares. No torch here; the module is in ``gdn_module``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lrm.model.blocks.block import Address, Behind, Changes, Constant, Ends, Mixer, Uniform, stream

if TYPE_CHECKING:
    from torch import nn

    from lrm.model.config import ModelConfig

CONVOLVED = ("gdn.q", "gdn.k", "gdn.v")
GATES = ("gdn.alpha", "gdn.beta")


class GatedDeltaNet(Mixer):
    """The gated delta rule behind short convolutions, by its own sizes: those of one head grow.

    Heads have queries and keys of ``key_dim`` and values of ``value_dim``, and their number stays
    at every width. Parameters have the names of flash-linear-attention's ``GatedDeltaNet``.
    """

    name = "gdn"
    module = "linear_attn"
    sizes = {"heads": 6, "key_dim": 128, "value_dim": 256, "kernel": 4, "chunk": 32}
    widths = ("key_dim", "value_dim")
    freedoms = {
        "short_convolution": "gdn.q, k, v against their convolutions",
        "read_norm": "RMSNorm weights of what heads read against columns of gdn.out",
    }
    small = {"mixer_sizes": {"gdn": {"heads": 3, "key_dim": 3, "value_dim": 4, "chunk": 8}}}
    # What the heads read from their states, before its RMSNorm.
    points = ("gdn.read",)
    behind = {"gdn.out": Behind("out_norm")}

    def widths_of(self, config: ModelConfig) -> dict[str, int]:
        """Rows of the three matrices in front of convolutions."""
        sizes = self.sizes_of(config)
        keys = sizes["heads"] * sizes["key_dim"]
        rows = (keys, keys, sizes["heads"] * sizes["value_dim"])
        return dict(zip(CONVOLVED, rows, strict=True))

    def check(self, config: ModelConfig) -> None:
        chunk = self.sizes_of(config)["chunk"]
        if chunk & (chunk - 1):
            raise ValueError(f"mixer_sizes.gdn.chunk = {chunk} must be a power of two")

    def tensors(self, config: ModelConfig) -> list[Address]:
        """As its authors begin them: A in [0, 16], softplus(dt_bias) log-uniform; filters as torch.

        The numbers of a_log and dt_bias are as many as there are heads. Models of different widths
        therefore begin with the same ones.
        """
        d, sizes, rows = config.hidden_size, self.sizes_of(config), self.widths_of(config)
        heads, values, kernel = sizes["heads"], rows["gdn.v"], sizes["kernel"]
        taps = Uniform(-(kernel**-0.5), kernel**-0.5)
        step = Uniform(math.log(1e-3), math.log(0.1), ("exp", "inverse_softplus"))
        found = []
        for name, width in rows.items():
            found.append(Address(name, f"{name[-1]}_proj.weight", (width, d)))
        for name, width in rows.items():
            letter, shape = name[-1], (width, 1, kernel)
            parameter = f"{letter}_conv1d.weight"
            found.append(Address(f"gdn.conv_{letter}", parameter, shape, "conv", taps))
        return [
            *found,
            Address("gdn.gate", "g_proj.weight", (values, d)),
            Address("gdn.alpha", "a_proj.weight", (heads, d)),
            Address("gdn.beta", "b_proj.weight", (heads, d)),
            Address("gdn.a_log", "A_log", (heads,), "vector", Uniform(0, 16, ("log",))),
            Address("gdn.dt_bias", "dt_bias", (heads,), "vector", step),
            Address("norm.gdn", "o_norm.weight", (sizes["value_dim"],), "norm", Constant(),
                    side="input"),
            Address("gdn.out", "o_proj.weight", (d, values)),
        ]  # fmt: skip

    def flops_per_token(self, config: ModelConfig, sequence_length: int) -> float:
        """Three times the products of the chunked rule."""
        sizes = self.sizes_of(config)
        key, value = sizes["key_dim"], sizes["value_dim"]
        chunk = min(sizes["chunk"], sequence_length)
        # Keys against keys and queries; the inverse by halves, and it times keys and values; the
        # read within the chunk. Then what is found in a state, read from it and written to it.
        inside = chunk * (2 * key + chunk / 3 + key + value + value)
        return 3 * 2 * sizes["heads"] * (inside + 3 * key * value)

    def ends(self, config: ModelConfig) -> dict[str, Ends]:
        """q, k and v may change before their convolutions, and the read behind its RMSNorm.

        Convolutions end in a nonlinearity, as gate, alpha and beta do. The RMSNorm's weights are
        one vector for all heads.
        """
        sizes, reads, start = self.sizes_of(config), self.reads(config), 0
        found: dict[str, Ends] = {name: (None, reads) for name in ("gdn.gate", *GATES)}
        for name, width in self.widths_of(config).items():
            channels = range(start, start + width)
            found[name] = Changes("short_convolution", channels), reads
            # The rows of a convolution are channels, which it takes in.
            filters = Changes("short_convolution", channels, -1.0), None
            found[f"gdn.conv_{name[-1]}"] = filters
            start += width
        of_head = range(sizes["value_dim"])
        found["norm.gdn"] = Changes("read_norm", of_head), None
        found["gdn.out"] = stream(config), Changes("read_norm", [*of_head] * sizes["heads"])
        return found

    def build(self, *arguments: Any) -> nn.Module:
        from lrm.model.blocks.gdn_module import GatedDeltaNetModule

        return GatedDeltaNetModule(*arguments)

    def statistics(self, activations: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
        from lrm.model.blocks.gdn_module import statistics

        return statistics(activations)

    def trials(self) -> dict[str, Callable]:
        from lrm.model.blocks.gdn_module import convolution_trial, delta_trial

        return {"convolution": convolution_trial, "delta": delta_trial}
