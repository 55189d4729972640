"""CUDA kernels of other packages, in the layouts of ``lrm.model.ops``.

Written against the sources of mamba-ssm 2.3.2.post1, fla-core 0.6.0, flash-attn 2.8.3.post2 and
causal-conv1d 1.7.0. None of them is imported before it is asked for, none is needed. The
adapters expect half precision, autocast switched off, and dt and A in float32; gradients come
from the packages. Some of their backward passes add up in no fixed order, and Triton picks its
tiles by timing: with them, two runs agree to rounding, not bit for bit.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lrm.errors import first_line
from lrm.multipliers.precision import without_autocast


@dataclass(frozen=True)
class Package:
    """Where its functions are found, by the operation that each computes, and how a user gets it.

    A function is written ``module:name``.
    """

    functions: dict[str, str]
    distribution: str
    install: str


PACKAGES = {
    "mamba_ssm": Package(
        {"scan": "mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined"},
        "mamba-ssm",
        "pip install --no-build-isolation mamba-ssm",
    ),
    "fla": Package(
        {
            "scan": "fla.ops.simple_gla:chunk_simple_gla",
            "delta": "fla.ops.gated_delta_rule:chunk_gated_delta_rule",
        },
        "fla-core",
        "pip install fla-core",
    ),
    "flash_attn": Package(
        {"attention": "flash_attn:flash_attn_func"},
        "flash-attn",
        "pip install --no-build-isolation flash-attn",
    ),
    "causal_conv1d": Package(
        {"convolution": "causal_conv1d:causal_conv1d_fn"},
        "causal-conv1d",
        "pip install --no-build-isolation causal-conv1d",
    ),
}


@dataclass(frozen=True)
class Kernels:
    """What computes each costly operation: "torch" or a name of ``PACKAGES``."""

    scan: str = "torch"
    attention: str = "torch"
    convolution: str = "torch"
    delta: str = "torch"

    def record(self) -> dict[str, str]:
        """For ``run.json``: each operation's implementation, packages with their version.

        ``delta`` only where a package computes it: runs that were begun before it was there, and
        are not finished, go on.
        """
        return {kernel: versioned(name) for kernel, name in asdict(self).items()
                if kernel != "delta" or name != "torch"}  # fmt: skip


PLAIN = Kernels()


def versioned(name: str) -> str:
    """What computes an operation; a package with its version."""
    if name == "torch":
        return name
    try:
        return f"{name} {importlib.metadata.version(PACKAGES[name].distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{name} of unknown version"


def missing(package: str, kernel: str) -> str | None:
    """Why ``package`` cannot compute ``kernel``, in one line with a remedy; None where it can."""
    try:
        load(package, kernel)
    except ModuleNotFoundError as error:
        if error.name == package:
            return f"not installed; run {PACKAGES[package].install}"
        if (error.name or "").startswith(f"{package}."):
            return (
                f"installed, but this version has no {error.name}; run {PACKAGES[package].install}"
            )
        return f"installed, but needs {error.name}, which is not; install that"
    except Exception as error:  # a broken binary fails in many ways
        return f"installed, but importing it fails ({kind_and_line(error)}); install it anew"
    return None


def kind_and_line(error: Exception) -> str:
    """The kind of an error and the first line of its text."""
    kind = type(error).__name__
    return f"{kind}: {first_line(error)}" if str(error).strip() else kind


@cache
def load(package: str, kernel: str) -> Callable:
    """The package's own function for ``kernel``; raises whatever importing it raises."""
    module, _, function = PACKAGES[package].functions[kernel].partition(":")
    bring = _bare_import if package == "mamba_ssm" else importlib.import_module
    return getattr(bring(module), function)


def _bare_import(name: str) -> ModuleType:
    """Import a module of a package without running the package's ``__init__``.

    mamba_ssm's ``__init__`` imports its CUDA extension (which a build with
    MAMBA_SKIP_CUDA_BUILD=TRUE has not; up to 2.3.2.post1 the import then fails), tilelang and
    transformers. The Triton scan needs none of them.
    """
    package = name.partition(".")[0]
    if package in sys.modules:
        return importlib.import_module(name)
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        return importlib.import_module(name)
    finally:
        # Whoever imports the package later gets it whole.
        del sys.modules[package]


def scan_mamba_ssm(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk: int, D: Tensor | None
) -> Tensor:
    """``ops.ssd`` by the Triton kernels of Mamba2's authors.

    They index one group's B and C from all of its heads, take any length, and want the chunk to
    be a power of two of at least 16.
    """
    size = max(16, 1 << chunk.bit_length() - 1)
    return load("mamba_ssm", "scan")(x, dt, A, B, C, size, D=D)


def scan_fla(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk: int, D: Tensor | None
) -> Tensor:
    """``ops.ssd`` as simple gated linear attention: q = C, k = B, v = x dt, log gate A dt.

    Queries and keys have one head per value head, so B and C are copied to every head of their
    group; dt x is rounded to x's dtype. The chunk is the package's own, 64.
    """
    share = x.shape[2] // B.shape[2]
    q, k = (t.repeat_interleave(share, 2) if share > 1 else t for t in (C, B))
    v = (x * dt.unsqueeze(-1)).to(x.dtype)
    y, _ = load("fla", "scan")(q=q, k=k, v=v, g=A * dt, scale=1.0)
    return y if D is None else torch.addcmul(y, x, D.to(x.dtype).unsqueeze(-1))


def attention_flash_attn(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """``ops.attention`` by flash-attn, which groups queries itself."""
    mixed = load("flash_attn", "attention")(
        *(t.transpose(1, 2) for t in (q, k, v)),
        softmax_scale=scale,
        causal=True,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    return mixed.transpose(1, 2)


def convolution_causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``ops.causal_conv1d`` with channels last in memory.

    The kernel takes weight and bias in float32 beside x in half precision, kernels of 2 to 4
    and channels that are a multiple of 8.
    """
    convolve = load("causal_conv1d", "convolution")
    return convolve(x.transpose(1, 2), weight.squeeze(1), bias, activation="silu").transpose(1, 2)


def delta_fla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """``ops.gated_delta`` by the Triton kernels of Gated DeltaNet's authors.

    Queries and keys come in v's dtype, gates in float32. The package's state is (dk, dv) and its
    chunk 64; the inverse within a chunk is taken in float32 and rounded to v's dtype.
    """
    o, state = load("fla", "delta")(
        q=q.to(v.dtype), k=k.to(v.dtype), v=v, g=g, beta=beta, scale=1.0, output_final_state=True
    )
    return o, state.transpose(-1, -2)


# In the order in which "auto" tries them.
ADAPTERS: dict[str, dict[str, Callable[..., Tensor]]] = {
    "scan": {"mamba_ssm": scan_mamba_ssm, "fla": scan_fla},
    "attention": {"flash_attn": attention_flash_attn},
    "convolution": {"causal_conv1d": convolution_causal_conv1d},
    "delta": {"fla": delta_fla},
}


@torch.compiler.disable
def call(kernel: str, package: str, *arguments: Any) -> Any:
    """What ``package`` computes for an operation, from the arguments of its adapter.

    Autocast is off. A compiled layer calls it without tracing it: at its first call a package is
    imported, and its kernels tune themselves.
    """
    with without_autocast(arguments[0]):
        return ADAPTERS[kernel][package](*arguments)
