"""Which kernels a run uses: what is wanted, what is usable here, and why not.

A kernel of another package is used on CUDA and in half precision only (in float32 Triton's
products may be rounded to tf32), and only after it has agreed with plain torch, forward and
backward, on this device and at this model's shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from lrm.errors import UserError
from lrm.model.config import KernelConfig, ModelConfig
from lrm.model.gpu import adapters

# Relative distance from torch in float32. Half precision alone makes up to 0.02, a wrong layout,
# scale or sign about 1.
TOLERANCE = 0.1


def used(config: ModelConfig) -> list[str]:
    """The kernels that the model's mixers use, in the order of ``KernelConfig``."""
    names = {name for mixer in config.mixers for name in mixer.trials()}
    return [name for name in KernelConfig.model_fields if name in names]


def select(
    wanted: KernelConfig, config: ModelConfig, device: torch.device, precision: str
) -> adapters.Kernels:
    """The kernels of a run; operations that the model does not have stay at "torch".

    Raises UserError where a package that is asked for by name is not usable.
    """
    chosen: dict[str, str] = {}
    for kernel in used(config):
        setting = getattr(wanted, kernel)
        if setting == "auto":
            usable = (
                p
                for p in adapters.ADAPTERS[kernel]
                if not unusable(kernel, p, config, device, precision)
            )
            chosen[kernel] = next(usable, "torch")
            continue
        chosen[kernel] = setting
        if setting != "torch" and (why := unusable(kernel, setting, config, device, precision)):
            raise UserError(
                f"execution.kernels.{kernel} = {setting!r} is not usable here: {why}; "
                "or set it to auto or torch"
            )
    return adapters.Kernels(**chosen)


def summary(
    chosen: adapters.Kernels,
    wanted: KernelConfig,
    config: ModelConfig,
    device: torch.device,
    precision: str,
) -> str:
    """One line for the log: what is in use and, on a GPU, why not what "auto" tried first."""
    parts = []
    for kernel in used(config):
        name = getattr(chosen, kernel)
        part = f"{kernel} {adapters.versioned(name)}"
        if device.type == "cuda" and getattr(wanted, kernel) == "auto":
            for package in adapters.ADAPTERS[kernel]:
                if package == name:
                    break
                part += f" ({package}: {unusable(kernel, package, config, device, precision)})"
        parts.append(part)
    return f"kernels on {device.type} in {precision}: {', '.join(parts)}"


@lru_cache(maxsize=64)
def unusable(
    kernel: str, package: str, config: ModelConfig, device: torch.device, precision: str
) -> str | None:
    """Why ``package`` cannot compute ``kernel`` for this model here, with a remedy, or None."""
    if device.type != "cuda":
        return f"it runs on CUDA only, and this is {device.type}; choose another execution.device"
    if precision == "float32":
        return "it is used in half precision only; set execution.precision to bfloat16"
    dtype = getattr(torch, precision)
    return adapters.missing(package, kernel) or trial(kernel, package, config, device, dtype)


def trial(
    kernel: str, package: str, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> str | None:
    """What is wrong with a package's result and gradients at this model's shapes, or None."""
    for mixer in config.mixers:
        if make := mixer.trials().get(kernel):
            leaves, function = make(config, device, dtype)
            if why := _disagreement(package, leaves, function):
                return why
    return None


def _disagreement(
    package: str, leaves: dict[str, Tensor], function: Callable[..., Tensor]
) -> str | None:
    try:
        found = results(partial(function, implementation=package), leaves)
    except Exception as error:  # a compiler, a driver or a check of the package
        return f"it fails at these shapes ({adapters.kind_and_line(error)})"
    far = distances(found, results(function, {n: leaf.float() for n, leaf in leaves.items()}))
    worst = max(far, key=lambda name: far[name] if far[name] == far[name] else float("inf"))
    if far[worst] <= TOLERANCE:
        return None
    return f"it disagrees with torch by {far[worst]:.0%} in {worst}; install another version"


@torch.enable_grad()
def results(function: Callable[..., Tensor], leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """Output and the gradient of every leaf for a fixed random gradient of the output."""
    inputs = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    out = function(**inputs)
    weight = draw(1, *out.shape).to(out.device, out.dtype)
    grads = torch.autograd.grad(out, list(inputs.values()), weight)
    named = zip(inputs, grads, strict=True)
    return {"output": out.detach(), **{f"gradient of {name}": grad for name, grad in named}}


def distances(found: dict[str, Tensor], true: dict[str, Tensor]) -> dict[str, float]:
    """How far ``results`` are from the true ones, relative to those, in their precision."""
    return {
        name: ((found[name].to(value) - value).norm() / value.norm()).item()
        for name, value in true.items()
    }


def draw(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers in float32, for trials."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
