"""Learnable multipliers: the method, the model and the experiments of the paper.

Importing this package costs nothing. The calls below load torch, and nothing heavier, when they are
first used. ``lrm/multipliers/README.md`` is about them.
"""

# What users of other models call; ``lrm.multipliers.library`` has them.
_CALLS = (
    "Attached",
    "attach_multipliers",
    "attach_scale_vectors",
    "attached_multipliers",
    "build_param_groups",
    "clip_grad_norm_",
    "effective_weights",
    "merge_multipliers",
    "same_weights",
    "saved_placement",
)
__all__ = [*_CALLS, "UserError"]


def __getattr__(name: str):
    if name == "attach_scale_vectors":
        from lrm.multipliers.scale_vectors import attach_scale_vectors

        return attach_scale_vectors
    if name in _CALLS:
        from lrm.multipliers import library

        return getattr(library, name)
    if name == "optim":
        import importlib

        return importlib.import_module("lrm.optim")
    if name == "UserError":
        from lrm.errors import UserError

        return UserError
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("lrm-suite")
        except PackageNotFoundError:  # a clone that is not installed
            return "not installed"
    raise AttributeError(f"module 'lrm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__, "optim"]
