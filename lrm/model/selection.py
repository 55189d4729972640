"""Which kernels a run uses: what is wanted, what is usable here, and why not.

A kernel of another package is used on CUDA and in half precision only (in float32 Triton's
products may be rounded to tf32), and only after it has agreed with plain torch, forward and
backward, on this device and at this model's shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lrm.config import KernelConfig, ModelConfig
from lrm.errors import UserError
from lrm.model import gpu, kernels

USED = {
    "both": ("scan", "attention", "convolution"),
    "attention": ("attention",),
    "ssm": ("scan", "convolution"),
}
# Relative distance from torch in float32. Half precision alone makes up to 0.02, a wrong layout,
# scale or sign about 1.
TOLERANCE = 0.1


def select(
    wanted: KernelConfig, config: ModelConfig, device: torch.device, precision: str
) -> gpu.Kernels:
    """The kernels of a run; operations that the model does not have stay at "torch".

    Raises UserError where a package that is asked for by name is not usable.
    """
    chosen: dict[str, str] = {}
    for kernel in USED[config.mixer]:
        setting = getattr(wanted, kernel)
        if setting == "auto":
            usable = (
                p
                for p in gpu.ADAPTERS[kernel]
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
    return gpu.Kernels(**chosen)


def summary(
    chosen: gpu.Kernels,
    wanted: KernelConfig,
    config: ModelConfig,
    device: torch.device,
    precision: str,
) -> str:
    """One line for the log: what is in use and, on a GPU, why not what "auto" tried first."""
    parts = []
    for kernel in USED[config.mixer]:
        name = getattr(chosen, kernel)
        part = f"{kernel} {chosen.record()[kernel]}"
        if device.type == "cuda" and getattr(wanted, kernel) == "auto":
            for package in gpu.ADAPTERS[kernel]:
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
    return gpu.missing(package) or trial(kernel, package, config, device, torch.bfloat16)


def trial(
    kernel: str, package: str, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> str | None:
    """What is wrong with a package's result and gradients at this model's shapes, or None."""
    leaves, function = _TRIALS[kernel](config, device, dtype)
    with torch.enable_grad():
        try:
            found = _results(partial(function, implementation=package), leaves)
        except Exception as error:  # a compiler, a driver or a check of the package
            return f"it fails at these shapes ({gpu.first_line(error)})"
        exact = _results(function, {name: leaf.float() for name, leaf in leaves.items()})
    far = {
        name: ((found[name].float() - value).norm() / value.norm()).item()
        for name, value in exact.items()
    }
    worst = max(far, key=lambda name: far[name] if far[name] == far[name] else float("inf"))
    if far[worst] <= TOLERANCE:
        return None
    return f"it disagrees with torch by {far[worst]:.0%} in {worst}; install another version"


def _results(function: Callable[..., Tensor], leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """Output and the gradient of every leaf for a fixed random gradient of the output."""
    inputs = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    out = function(**inputs)
    weight = _draw(1, *out.shape).to(out.device, out.dtype)
    grads = torch.autograd.grad(out, list(inputs.values()), weight)
    named = zip(inputs, grads, strict=True)
    return {"output": out.detach(), **{f"gradient of {name}": grad for name, grad in named}}


def _draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _scan_trial(config: ModelConfig, device: torch.device, dtype: torch.dtype):
    heads, groups, state = config.mamba_n_heads, config.mamba_n_groups, config.mamba_d_state
    sizes = [config.mamba_d_ssm, groups * state, groups * state]
    length = 2 * config.mamba_chunk_size + 13
    leaves = {
        "x|B|C": _draw(2, 2, length, sum(sizes)).to(device, dtype),
        # With A in -[1, 16] some heads remember for long and some forget at once.
        "dt": F.softplus(_draw(3, 2, length, heads) - 3).to(device),
        "A": -torch.linspace(1, 16, heads, device=device),
        "D": _draw(4, heads).to(device),
    }

    def function(implementation: str = "torch", **inputs: Tensor) -> Tensor:
        # Slices of one tensor, as in the model.
        x, B, C = inputs["x|B|C"].split(sizes, -1)
        return kernels.ssd(
            x.unflatten(-1, (heads, -1)),
            inputs["dt"],
            inputs["A"],
            B.unflatten(-1, (groups, -1)),
            C.unflatten(-1, (groups, -1)),
            config.mamba_chunk_size,
            inputs["D"],
            implementation,
        )

    return leaves, function


def _attention_trial(config: ModelConfig, device: torch.device, dtype: torch.dtype):
    width, length = config.head_dim, 141
    heads = {
        "q": config.num_attention_heads,
        "k": config.num_key_value_heads,
        "v": config.num_key_value_heads,
    }
    leaves = {
        name: _draw(seed, 2, length, count, width).to(device, dtype)
        for seed, (name, count) in enumerate(heads.items(), 2)
    }

    def function(q: Tensor, k: Tensor, v: Tensor, implementation: str = "torch") -> Tensor:
        q, k = (t.transpose(1, 2).contiguous() for t in (q, k))
        return kernels.attention(q, k, v.transpose(1, 2), width**-0.5, implementation)

    return leaves, function


def _convolution_trial(config: ModelConfig, device: torch.device, dtype: torch.dtype):
    channels = config.mamba_d_ssm + 2 * config.mamba_n_groups * config.mamba_d_state
    leaves = {
        "x": _draw(2, 2, 141, channels).to(device, dtype),
        "weight": _draw(3, channels, 1, config.mamba_d_conv).to(device),
        "bias": _draw(4, channels).to(device),
    }
    return leaves, kernels.causal_conv1d


_TRIALS = {
    "scan": _scan_trial,
    "attention": _attention_trial,
    "convolution": _convolution_trial,
}
