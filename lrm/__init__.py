"""Learnable multipliers: the method, the model and the experiments of the paper.

Importing this package costs nothing. The calls below load torch, and nothing heavier, when they are
first used.
"""

# What users of other models call; ``lrm.multipliers.library`` has them.
_CALLS = (
    "attach_multipliers",
    "build_param_groups",
    "clip_grad_norm_",
    "effective_weights",
    "merge_multipliers",
    "same_weights",
    "wrap_optimizer",
)


def __getattr__(name: str):
    if name in _CALLS:
        from lrm.multipliers import library

        return getattr(library, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("lrm-suite")
    raise AttributeError(f"module 'lrm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_CALLS]
