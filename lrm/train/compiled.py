"""Compilation of the layers, where a run is long enough to repay it.

Only a layer's forward and backward are compiled (``torch.compile``, Inductor): every layer and
every arm that multiplies, freezes or scales something outside of the layers shares the code.
Inductor keeps it on disk; ``lrm.sweep`` says where. Validation and probes run uncompiled.
"""

from __future__ import annotations

import contextlib
import fcntl
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from lrm.errors import UserError

# Below this many estimated seconds a run does not repay what loading the code takes.
WORTHWHILE = 15.0
# Each layer's set of multipliers and fixed factors is a variant of its own.
_VARIANTS = 256


def wanted(choice: str, seconds: float, device: torch.device) -> bool:
    """Whether to try, by ``execution.compile`` and the run's estimated length.

    ``auto`` compiles long runs on Linux CPUs with a C++ compiler. On a GPU only ``always`` does.
    """
    if choice != "auto":
        return choice == "always"
    fits = device.type == "cpu" and platform.system() == "Linux"
    return fits and seconds >= WORTHWHILE and any(map(shutil.which, ("g++", "clang++")))


def compile_layers(
    layers: nn.ModuleList, trial: Callable[[], None], required: bool, name: str = "layers"
) -> bool:
    """Compile ``layers`` and call ``trial``, which must run them forward and backward.

    Of processes that do so at once with one ``name``, one compiles and the others take its code.

    Returns whether they are compiled: a compiler that does not work here leaves them as they
    were, or raises UserError if it is ``required``.
    """
    torch._dynamo.config.recompile_limit = _VARIANTS
    torch._dynamo.config.accumulated_recompile_limit = _VARIANTS
    # Beyond the limit layers would run uncompiled without a word.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # On CPUs what calls the kernels is C++ too: 7% off a step at tiny, and sooner compiled. Built
    # apart from the kernels it saves a fifth of the compiling, and steps are as fast as measured.
    on_cpu = next(layers.parameters()).device.type == "cpu"
    options = {"cpp_wrapper": on_cpu, "cpp_wrapper_build_separate": on_cpu}
    for layer in layers:
        layer.compile(dynamic=False, options=options)
    try:
        with _behind_the_first(name):
            trial()
    except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
        for layer in layers:
            layer._compiled_call_impl = None
        if required:
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"execution.compile = always, but the compiler does not work here: {reason}; "
                "set it to auto or never"
            ) from None
        return False
    return True


@contextlib.contextmanager
def _behind_the_first(name: str) -> Iterator[None]:
    """Of several processes that compile the same at once one does, and the others find its code."""
    folder = Path(torch._inductor.runtime.cache_dir_utils.cache_dir())
    with open(folder / f"{name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)  # when the first is done; then all at once
            fcntl.flock(lock, fcntl.LOCK_UN)
        yield


def uncompiled() -> contextlib.AbstractContextManager:
    """Within it compiled layers run as they are written: other shapes cost no compilation."""
    return torch.compiler.set_stance("force_eager")
