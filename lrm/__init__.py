"""Learnable multipliers: the method, the model and the experiments of the paper.

Importing this package costs nothing: torch is only imported by the modules that train.
"""

__version__ = "0.1.0"

# What users of other models call, from ``lrm.api``; looked up when first used.
_CALLS = (
    "attach_multipliers",
    "build_param_groups",
    "clip_grad_norm_",
    "effective_weights",
    "merge_multipliers",
    "same_weights",
    "wrap_optimizer",
)

# Raised by hand whenever a change alters what a run computes; part of every run's identity.
NUMERICS_VERSION = 1


def __getattr__(name: str):
    if name in _CALLS:
        from lrm import api

        return getattr(api, name)
    raise AttributeError(f"module 'lrm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_CALLS]
