"""What a factor in front of the RMSNorm of the read does to a Gated Delta Network."""

from __future__ import annotations

import torch

from lrm.noise.gated_delta.network import Network, rms

Course = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def course(network: Network, factor: float, eps: float) -> Course:
    """(loss, all gradients, all parameters after the update) of each step of ``train.steps``.

    The RMSNorm of the read has ``eps``, and ``factor`` stands in front of it.
    """
    for mixer in network.mixers:
        mixer.factors["gdn.read"], mixer.o_norm.eps = factor, eps
    parameters, found = list(network.model.parameters()), []
    for step in range(network.run.settings.train.steps):
        loss, _ = network.gradients(step)
        gradients = torch.cat([each.grad.flatten() for each in parameters])
        network.move(step)
        found.append((loss, gradients, torch.nn.utils.parameters_to_vector(parameters).detach()))
    return found


def distance(course: Course, other: Course) -> dict[str, float]:
    """The largest relative difference over steps; ``first_gradient`` is that of the first one."""
    pairs = [[_relative(a, b) for a, b in zip(*both, strict=True)]
             for both in zip(course, other, strict=True)]  # fmt: skip
    loss, gradient, weight = (max(each) for each in zip(*pairs, strict=True))
    return {"loss": loss, "gradient": gradient, "weight": weight, "first_gradient": pairs[0][1]}


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def mean_square(network: Network) -> float:
    """Of what heads read, over tokens, heads, entries and layers, before any factor."""
    _, found = network.gradients(0)
    each = [
        rms(found[f"gdn.read@{layer}"]) / mixer.factors.get("gdn.read", 1.0)
        for layer, mixer in enumerate(network.mixers)
    ]
    return sum(size**2 for size in each) / len(each)
