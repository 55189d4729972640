"""How large activations and gradients of a Gated Delta Network are as it begins.

Heads are sorted by what they would remember if their inputs said nothing: ᾱ = exp(−e^a_log
softplus(dt_bias)), which depends on no width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lrm.model.activations import WithGradients
from lrm.model.blocks.gdn_module import GatedDeltaNetModule
from lrm.noise.gated_delta.network import Network, rms

# Heads by 1 − ᾱ², the share of a state's square that a step forgets: at most, and the name.
MEMORIES = {"long": 0.03, "middle": 0.5, "short": 1.0}
# Of these the gradient is that of what the model computes, in front of the factor on the read.
_READ = "gdn.read"


def sizes(network: Network, found: WithGradients) -> dict[tuple[str, str], float]:
    """(stat, tensor with its layer) → a root mean square over tokens and entries.

    ``size`` of an activation and ``gradient`` of the loss by it, and ``weight_gradient`` by a
    parameter of the mixer. ``block.in`` is what a layer reads from the residual stream, and
    ``cosine`` of ``gdn.q`` is ⟨q, k⟩ at one token. States and reads have ``size`` and
    ``gradient`` also by memory, as ``gdn.read.short``: geometric means over the heads.
    """
    values: dict[tuple[str, str], float] = {}
    for layer, mixer in enumerate(network.mixers):
        factor = mixer.factors[_READ]
        of_layer = {key.removesuffix(f"@{layer}"): value for key, value in found.items()
                    if key.endswith(f"@{layer}")}  # fmt: skip
        of_layer["block.in"] = found[f"residual@{layer - 1}" if layer else "embedding"]
        for name, value in of_layer.items():
            grown = factor if name == _READ else 1.0
            values["size", f"{name}@{layer}"] = rms(value) / grown
            if value.grad is not None:
                values["gradient", f"{name}@{layer}"] = rms(value.grad) * grown
        q, k = (torch.nn.functional.normalize(of_layer[f"gdn.conv_{x}"], dim=-1) for x in "qk")
        values["cosine", f"gdn.q@{layer}"] = rms((q * k).sum(-1))
        for memory, heads in _by_memory(mixer).items():
            if heads:
                state, read = of_layer["gdn.state"], of_layer[_READ]
                for stat, name, value in (
                    ("size", "gdn.state", state.transpose(0, 1)),
                    ("size", _READ, read.movedim(2, 0) / factor),
                    ("gradient", _READ, read.grad.movedim(2, 0) * factor),
                ):
                    values[stat, f"{name}.{memory}@{layer}"] = _typical(value[heads])
    for plan in network.run.plans:
        if plan.address.name.startswith("gdn."):
            parameter = network.model.get_parameter(plan.address.parameter)
            values["weight_gradient", plan.key] = rms(parameter.grad)
    return values


def _by_memory(mixer: GatedDeltaNetModule) -> dict[str, list[int]]:
    """The heads of each of ``MEMORIES``."""
    rate = mixer.A_log.detach().exp() * torch.nn.functional.softplus(mixer.dt_bias.detach())
    forgotten = -torch.expm1(-2 * rate)
    found, least = {}, 0.0
    for name, most in MEMORIES.items():
        inside = (forgotten > least) & (forgotten <= most)
        found[name], least = inside.nonzero().flatten().tolist(), most
    return found


def _typical(heads: Tensor) -> float:
    """Geometric mean over the first dimension of root mean squares over the others."""
    return float(heads.detach().double().square().flatten(1).mean(1).sqrt().log().mean().exp())
