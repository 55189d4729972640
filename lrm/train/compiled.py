"""Compilation of the layers, where a run is long enough to repay it.

Only a layer's forward and backward are compiled (``torch.compile``, Inductor): every layer and
every arm that multiplies, freezes or scales something outside of the layers shares the code.
Inductor keeps it on disk; ``lrm.sweep`` says where. Validation and probes run uncompiled.

On CUDA the kernels of a layer can be recorded once and then launched as one (CUDA graphs), which
pays where kernels are shorter than their launches.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from lrm.errors import UserError, first_line
from lrm.plan.cost import COMPILED_FROM
from lrm.store.cache import checked
from lrm.store.flock import release, take

# Each layer's set of multipliers and fixed factors is a variant of its own.
_VARIANTS = 256


def wanted(choice: str, seconds: float, device: torch.device) -> bool:
    """Whether to try, by ``execution.compile`` and the run's estimated length.

    ``auto`` compiles long runs on Linux CPUs with a C++ compiler. On a GPU only ``always`` and
    ``graphs`` do. Raises UserError for ``graphs`` on another device than CUDA.
    """
    if choice == "graphs" and device.type != "cuda":
        raise UserError(
            f"execution.compile = graphs needs CUDA, and the device is {device.type}; write always"
        )
    if choice != "auto":
        return choice != "never"
    fits = device.type == "cpu" and platform.system() == "Linux"
    return fits and seconds >= COMPILED_FROM and any(map(shutil.which, ("g++", "clang++")))


class Code(NamedTuple):
    """What became of compiling: whether layers are ``compiled``, whether their code was ``made``
    because the folder did not hold it, the ``problem`` for which they are not compiled, and the
    file of the folder that was found ``damaged`` and removed, with a word on how many more."""

    compiled: bool = False
    made: bool = False
    problem: str = ""
    damaged: str = ""


def folder() -> Path:
    """Where compiled code is kept between processes."""
    return Path(torch._inductor.runtime.cache_dir_utils.cache_dir())


# Whether the layers that were compiled last are replayed; a process trains one model, or one stack.
_replaying = False


def begin_step() -> None:
    """To be called behind ``zero_grad``: what CUDA graphs returned for the last step is let go."""
    if _replaying:
        torch.compiler.cudagraph_mark_step_begin()


def compile_layers(
    layers: nn.ModuleList, trial: Callable[[], None], choice: str, name: str = "layers"
) -> Code:
    """Compile ``layers`` and call ``trial``, which must run them forward and backward.

    ``choice`` is that of ``execution.compile``, for which ``wanted`` is true.

    Of processes that do so at once with one ``name``, one compiles and the others take its code.

    Damaged files of compiled code are removed, and made anew. A compiler that does not work here
    leaves the layers as they were, or raises UserError unless ``choice`` is ``auto``.
    """
    global _replaying
    torch._dynamo.config.recompile_limit = _VARIANTS
    torch._dynamo.config.accumulated_recompile_limit = _VARIANTS
    # Beyond the limit layers would run uncompiled without a word.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # On CPUs what calls the kernels is C++ too: 7% off a step at tiny, and sooner compiled. Built
    # apart from the kernels it saves a fifth of the compiling, and steps are as fast as measured.
    on_cpu = next(layers.parameters()).device.type == "cpu"
    options = {"cpp_wrapper": on_cpu, "cpp_wrapper_build_separate": on_cpu}
    _replaying = choice == "graphs"
    options |= {"triton.cudagraphs": True} if _replaying else {}
    for layer in layers:
        layer.compile(dynamic=False, options=options)
    missed, damaged = _missed(), ""
    try:
        with _behind_the_first(name), checked(folder()) as removed:
            if removed:
                more = f" (and {len(removed) - 1} more)" if len(removed) > 1 else ""
                damaged = f"{folder() / removed[0]}{more}"
            trial()
    except (
        torch._dynamo.exc.TorchDynamoException,
        torch._dynamo.exc.FailOnRecompileLimitHit,  # which is of no family
        torch._inductor.exc.InductorError,
    ) as error:
        for layer in layers:
            layer._compiled_call_impl = None
        _replaying, reason = False, first_line(error)
        if choice != "auto":
            raise UserError(
                f"execution.compile = {choice}, but the compiler does not work here: {reason}; "
                f"remove {folder()} in case a file there is damaged, or set it to auto or never"
            ) from None
        return Code(problem=reason, damaged=damaged)
    return Code(compiled=True, made=_missed() > missed or bool(damaged), damaged=damaged)


def _missed() -> int:
    """How often this process has not found code that it looked for in the folder."""
    return torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"]


@contextlib.contextmanager
def _behind_the_first(name: str) -> Iterator[None]:
    """Of several processes that compile the same at once one does, and the others find its code."""
    with open(folder() / f"{name}.lock", "a") as lock:
        late: list[bool] = []
        if take(lock, lambda: late.append(True)) and late:
            release(lock)  # the first is done; then all at once
        yield


def uncompiled() -> contextlib.AbstractContextManager:
    """Within it compiled layers run as they are written: other shapes cost no compilation."""
    return torch.compiler.set_stance("force_eager")
