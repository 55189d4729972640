"""What a step of SGD changes of the gates of a Gated Delta Network.

A gate's matrix W maps the input u_t of token t to z_t = W u_t. The gradient of the batch is G = Σ_s
δ_s u_sᵀ with δ_s = ∂L/∂z_s, and a step changes z_t by Δz_t = −η Σ_s δ_s ⟨u_s, u_t⟩.
"""

from __future__ import annotations

from torch import Tensor

from lrm.model.blocks.gdn import GATES
from lrm.noise.gated_delta.network import Network, rms

VECTORS = ("gdn.a_log", "gdn.dt_bias")


def start(network: Network) -> dict[str, Tensor]:
    """The gates' parameters as they are, by address with its layer."""
    return {
        plan.key: network.model.get_parameter(plan.address.parameter).detach().clone()
        for plan in network.run.plans
        if plan.address.name in (*GATES, *VECTORS)
    }


def change(
    network: Network, before: dict[str, Tensor], inputs: dict[str, Tensor]
) -> dict[tuple[str, str], float]:
    """``change`` since ``before``, root mean squares: of z on the tokens of ``inputs``, and of
    what has one number for each head.

    ``inputs`` has the u of each layer, (batch, length, d).
    """
    found = {}
    for key, now in start(network).items():
        moved, name = now - before[key], key.partition("@")[0]
        u = inputs[f"norm.mixer@{key.partition('@')[2]}"].detach()
        found["change", key] = rms(u @ moved.mT if name in GATES else moved)
    return found


def sources(activations: dict[str, Tensor], lr: dict[str, float]) -> dict[tuple[str, str], float]:
    """Where Δz of one step comes from, root mean squares over tokens and heads.

    ``own``: from the token itself (s = t), which is what the paper derives. ``common``: from the
    mean of δ over tokens. ``apart``: from what is left of δ without that mean. ``lr`` is that of
    each gate, by address with its layer.
    """
    found = {}
    for key, rate in lr.items():
        delta = activations[key].grad.flatten(0, 1)
        u = activations[f"norm.mixer@{key.partition('@')[2]}"].detach().flatten(0, 1)
        mean = delta.mean(0, keepdim=True)
        found["own", key] = rate * rms(delta * u.square().sum(-1, keepdim=True))
        found["common", key] = rate * rms((u @ u.sum(0))[:, None] * mean)
        found["apart", key] = rate * rms(u @ (u.mT @ (delta - mean)))
    return found
