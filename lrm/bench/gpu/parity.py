"""Kernels and whole models against plain torch in float64 on the CPU, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lrm.bench.trainers import SuiteTrainer
from lrm.model import blocks, ops
from lrm.model.config import ModelConfig
from lrm.model.gpu import adapters, selection
from lrm.model.loss import linear_cross_entropy
from lrm.plan.run import TrainRun
from lrm.train.device import equip
from lrm.train.learner import build
from lrm.train.step import backward

# Relative distances up to which results agree: in half precision that of ``selection``; TF32 may
# round products to 1e-3, and other orders of summation make less.
LIMITS = {"float32": 5e-3, "bfloat16": selection.TOLERANCE}
# Not a multiple of any tile, so that what is left over counts too.
_LENGTH = 141

Trial = tuple[dict[str, Tensor], Callable[..., Tensor]]


def norm_trial(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Trial:
    """Inputs of an RMSNorm of the stream at this model's width, and the norm."""
    width = config.hidden_size
    leaves = {
        "x": selection.draw(2, 2, _LENGTH, width).to(device, dtype),
        "weight": (1 + 0.1 * selection.draw(3, width)).to(device),
    }

    def function(x: Tensor, weight: Tensor, implementation: str = "torch") -> Tensor:
        return ops.rms_norm(x, weight, config.rms_norm_eps)

    return leaves, function


def rotation_trial(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Trial:
    """Inputs of the rotary embedding at this model's heads, and the embedding."""
    shape = (2, _LENGTH, config.num_attention_heads, config.head_dim)
    leaves = {"x": selection.draw(2, *shape).to(device, dtype)}

    def function(x: Tensor, implementation: str = "torch") -> Tensor:
        return ops.rope(x, config.rope_theta)

    return leaves, function


def loss_trial(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Trial:
    """Inputs of the projector's cross-entropy with a z-loss, and the objective."""
    width, vocabulary = config.hidden_size, config.vocab_size
    leaves = {
        "hidden": selection.draw(2, 2, _LENGTH, width).to(device, dtype),
        "weight": (width**-0.5 * selection.draw(3, vocabulary, width)).to(device),
    }
    drawn = torch.Generator().manual_seed(4)
    targets = torch.randint(vocabulary, (2, _LENGTH), generator=drawn)

    def function(hidden: Tensor, weight: Tensor, implementation: str = "torch") -> Tensor:
        aims = targets.to(hidden.device)
        return linear_cross_entropy(hidden, weight, aims, z_loss=1e-4)[1]

    return leaves, function


# What computes the rest of a layer, in torch alone.
_TRIALS = {"norm": norm_trial, "rotation": rotation_trial, "cross-entropy": loss_trial}


def of_kernel(kernel: str, config: ModelConfig, device: torch.device) -> dict[str, Any]:
    """Every implementation of an operation that is installed, at this model's shapes.

    By "implementation precision": relative distances of the output and of each gradient from
    float64 on the CPU, and whether all are within the limit; or why it is left out. An operation
    that no mixer of the model has is tried at the sizes that others have by default.
    """
    make = _TRIALS.get(kernel)
    for mixer in (*config.mixers, *blocks.MIXERS.values()):
        make = make or mixer.trials().get(kernel)
    asked = [("torch", precision) for precision in LIMITS]
    asked += [(package, "bfloat16") for package in adapters.ADAPTERS.get(kernel, {})]
    return {
        f"{name} {precision}": _measured(kernel, name, precision, make, config, device)
        for name, precision in asked
    }


def _measured(
    kernel: str, name: str, precision: str, make: Callable[..., Trial], config: ModelConfig,
    device: torch.device,
) -> dict[str, Any]:  # fmt: skip
    if name != "torch":
        if device.type != "cuda":
            return {"left_out": f"it runs on CUDA only, and this is {device.type}"}
        if why := adapters.missing(name, kernel):
            return {"left_out": why}
    leaves, function = make(config, device, getattr(torch, precision))
    try:
        found = selection.results(partial(function, implementation=name), leaves)
    except Exception as error:  # a compiler, a driver or a check of the package
        return {"agrees": False, "fails": adapters.kind_and_line(error)}
    true = selection.results(function, {name: _exact(leaf) for name, leaf in leaves.items()})
    far = selection.distances(found, true)
    return {"distances": far, "agrees": all(one <= LIMITS[precision] for one in far.values())}


def _exact(leaf: Tensor) -> Tensor:
    return leaf.double().cpu()


def of_model(run: TrainRun) -> dict[str, Any]:
    """Loss and gradients of one batch as ``run`` computes them, from float64 on the CPU.

    ``gradient`` is the relative distance of all gradients together. ``worst`` names the tensor
    whose own is largest, among those whose gradient is not a rounding error of the whole.
    """
    settings = run.settings
    equipment = equip(run.execution, settings.model)
    trainer = SuiteTrainer(run, 0, equipment)
    reference = build(settings, 0, "cpu", torch.float64, plans=run.plans)
    reference.model.load_state_dict(trainer.model.state_dict())
    shape = (settings.train.batch_size, settings.train.sequence_length + 1)
    drawn = torch.Generator().manual_seed(1)
    batch = torch.randint(settings.model.vocab_size, shape, generator=drawn)
    loss = backward(trainer.learner, batch.to(equipment.device), settings, equipment.autocast)
    exact = backward(reference, batch, settings)
    wanted = {name: p.grad for name, p in reference.model.named_parameters()}
    found = {name: _exact(p.grad) for name, p in trainer.model.named_parameters()}
    sizes = {name: grad.square().sum().item() for name, grad in wanted.items()}
    apart = {name: (found[name] - g).square().sum().item() for name, g in wanted.items()}
    whole = sum(sizes.values())
    own = {n: (apart[n] / sizes[n]) ** 0.5 for n in sizes if sizes[n] > 1e-8 * whole}
    worst = max(own, key=own.__getitem__)
    gradient = (sum(apart.values()) / whole) ** 0.5
    limit = LIMITS[equipment.precision]
    off = abs(loss.item() - exact.item()) / abs(exact.item())
    return {
        "precision": equipment.precision,
        "kernels": equipment.kernels.record(),
        "compiled": trainer.is_compiled,
        "loss": off,
        "gradient": gradient,
        "worst": {"tensor": worst, "distance": own[worst]},
        "agrees": off <= limit and gradient <= limit,
    }
