"""Designs of scale vectors on transformers' decoders: Llama, Qwen, Gemma and their like.

*On Scale Vectors in Large Language Models* (arXiv 2605.26895) puts vectors on the same matrices as
the multipliers do, u on the outputs and v on the inputs: diag(u) W diag(v). They stand behind a
norm, whose own weight they replace. Here they are multipliers, so that all calls of ``lrm`` work.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lrm.errors import UserError, shown
from lrm.multipliers import library
from lrm.multipliers.attach import check_may_learn
from lrm.multipliers.layout import owners, uncompiled
from lrm.multipliers.multiplier import MAGNITUDES
from lrm.multipliers.precision import upcast
from lrm.multipliers.report import Attached
from lrm.multipliers.roles import is_norm, roles

# By design: the kind of vectors on each matrix behind a norm, and whether a norm stands between.
DESIGNS = {
    "hg": ("column", False),
    "ap": ("row", False),
    "dp": ("row_column", False),
    "dnp": ("column", True),
    "unified": ("column", True),
}
# The decay of input vectors in the unified design (individual weight decay, section 2.2).
_INPUT_DECAY = 0.1
# The child under which a linear map holds the norm of its output.
_BEHIND = "norm_behind"
# How many tokens a model gets that no example is given of.
_TOKENS = 4
_BY_HEAD = re.compile(r"(^|[._])(w?[qkv]|query|key|value)(_proj)?$", re.IGNORECASE)
_MERGED = re.compile(
    r"qkv|gate_up|query_key_value|c_attn|(^|\.)w12$|kv_a_proj_with|"
    r"(mixer|mamba|ssm|linear_attn)\.in_proj",
    re.IGNORECASE,
)


class HeadNorm(nn.RMSNorm):
    """An RMSNorm of each ``size`` outputs in turn; its weight has one entry for every output."""

    def __init__(self, outputs: int, size: int, eps: float, like: Tensor):
        super().__init__(outputs, eps=eps, device=like.device, dtype=like.dtype)
        self.size = size

    def forward(self, y: Tensor) -> Tensor:
        """y (..., outputs), same shape back."""
        parts = nn.functional.rms_norm(y.unflatten(-1, (-1, self.size)), (self.size,), eps=self.eps)
        return parts.flatten(-2) * self.weight


def attach_scale_vectors(
    model: nn.Module,
    design: str = "unified",
    *,
    lr: float,
    parametrization: str | None = None,
    input_decay: float | None = None,
    output_decay: float | None = None,
    implementation: str = "forward",
    example: Mapping[str, Any] | None = None,
    head_size: int | None = None,
) -> Attached:
    """Replace the weights of the norms in front of matrices by vectors of ``design``.

    ``hg``: each matrix has a vector of its own on its inputs. ``ap``: on its outputs instead.
    ``dp``: on both. ``dnp``: on both, with an RMSNorm between the matrix and its output vector, per
    head for queries, keys and values; where the model has such a norm already, that one stays.
    ``unified``: as ``dnp``, by ``parametrization`` ``or``, and with decay on input vectors alone.
    The last norm's vector moves to the head's inputs; where the head is tied to the embedding it
    stays in the norm. Norms that no linear map reads are output norms, and stay as they are. So do
    norms that something else reads too (experts, a router, a residual), of which a warning tells.

    ``lr`` is the vectors' LR, by our reading of the paper that of the matrices; ``input_decay``
    (0.1 in ``unified``, else 0) and ``output_decay`` (0) are their weight decays, which is refused
    where there are no output vectors (``hg``). ``parametrization`` is one of
    ``lrm.multipliers.parametrization``. ``example`` are arguments of the model by which it is seen
    what reads what; without them it gets a few tokens, none of them padding.
    ``head_size`` is the number of outputs of each head of queries, keys and values, where no
    transformers configuration of the model says it.

    All but ``dnp`` and ``unified`` leave the output as it was, and ``lrm.merge_multipliers`` folds
    them into the matrices. Those two change the function, and merging raises UserError. So does
    this for an unknown design, merged matrices such as ``qkv_proj``, norms that are none of
    RMSNorm's kind or get zeros alone, a model on the meta device, an output that would change, and
    as ``lrm.attach_multipliers`` does; the model is then as it was. After merging, norms learn
    again that did before.
    """
    if not isinstance(design, str) or design not in DESIGNS:
        raise UserError(f"unknown design {shown(design)}; use one of {', '.join(DESIGNS)}")
    if example is not None and not isinstance(example, Mapping):
        raise UserError(
            f"example is {shown(example)}; give the model's arguments by name, such as "
            "example={'input_ids': tokens}"
        )
    unified = design == "unified"
    parametrization = parametrization or ("or" if unified else "direct")
    decay = (_INPUT_DECAY if unified else 0.0) if input_decay is None else input_decay
    kind, behind = DESIGNS[design]
    if output_decay is not None and design == "hg":
        raise UserError("output_decay: design 'hg' has no vectors on outputs; leave it out")
    output_decay = 0.0 if output_decay is None else output_decay
    library.check_model(model, "attach_scale_vectors")
    check_may_learn("attach_scale_vectors")
    model = uncompiled(model)
    library.check_plain(model)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UserError("the model is on the meta device; load its weights, whose norms are read")
    kind_of = roles(model)
    arguments = dict(example or {"input_ids": _tokens(model, kind_of)})
    seen = _look(model, arguments, bool(example))
    found = [each for each in seen.read if each.readers]
    _check_not_zero(found)
    for norm in found:
        norm.measure(parametrization)
    heads = {name for name, role in kind_of.items() if role in ("head", "tied")}
    free = [norm for norm in found if not any(kind_of[n] == "tied" for n in norm.weights)]
    _check_apart(model, free)
    free = _read_by_linear_maps_alone(model, arguments, free)
    matrices = [name for norm in free for name in norm.weights if name not in heads]
    if not matrices:
        raise _nowhere(type(model).__name__, found, free, bool(example))
    placement: dict[str, str] = dict.fromkeys(matrices, kind)
    placement |= {name: "column" for norm in free for name in norm.weights if name in heads}
    added = []
    if behind:
        paths = [name.removesuffix(".weight") for name in matrices]
        sizes = {path: _size_behind(model, path, head_size) for path in paths}
        for name in matrices:
            path = name.removesuffix(".weight")
            if path not in seen.normalised:
                _add_norm(model, path, free[0].module, sizes[path])
                added.append(path)
                placement[f"{path}.{_BEHIND}.weight"] = "row"
    has_rows = any("row" in each for each in placement.values())
    try:
        handle = library.attach_multipliers(
            model, placement, implementation=implementation, lr=lr, weight_decay=decay,
            parametrization=parametrization,
            row={"weight_decay": output_decay} if has_rows else None,
        )  # fmt: skip
        handle.design = design
        for path in added:
            handle.parameter(f"{path}.{_BEHIND}.weight").requires_grad_(False)
        _hand_over(model, arguments, handle, free, None if behind else seen.given)
    except BaseException:
        for path in added:
            _remove_norm(model, path)
        raise
    if added:
        handle.stays = (
            f"design {design!r} has norms behind matrices, which cannot be folded into them; "
            "keep the model with its vectors"
        )
    return handle


@dataclass
class _Norm:
    """A norm, and the linear maps that read what it gives out, by the names of their weights."""

    module: nn.Module
    path: str
    readers: list[nn.Module] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    neutral: float = 1.0  # the weight at which it only normalises
    sees: bool = False  # whether anything but zeros came in
    # What ``hand_over`` has changed, as it was, by name; and whether the norm learned.
    before: dict[str, Tensor] = field(default_factory=dict)
    learned: bool = False

    @torch.no_grad()
    def measure(self, parametrization: str) -> None:
        """Find ``neutral``; UserError where there is none, or no such vector can be kept."""
        weight, name = self.module.weight, type(self.module).__name__
        if getattr(self.module, "bias", None) is not None:
            raise UserError(f"{name} has a bias; scale vectors replace RMSNorms")
        kept, x = weight.clone(), torch.linspace(-1, 1, weight.numel()).to(weight)
        sizes = {}
        try:
            for neutral in (1.0, 0.0):  # Gemma's norms multiply by one more than their weight
                weight.fill_(neutral)
                sizes[neutral] = self.module(x[None]).float().square().mean().sqrt().item()
        except TypeError:
            raise UserError(f"{name} takes more than x; scale vectors replace RMSNorms") from None
        finally:
            weight.copy_(kept)
        fits = [neutral for neutral, size in sizes.items() if abs(size - 1) < 0.02]
        if len(fits) != 1:
            raise UserError(f"{name} does not normalise to 1; scale vectors replace RMSNorms")
        [self.neutral] = fits
        if parametrization in ("log", "er") and (self.gamma() <= 0).any():
            raise UserError(f"{name} has weights of 0 or less, which {parametrization} cannot hold")
        if parametrization == "or" and not self.gamma().any():
            raise UserError(f"{name} has weights of 0 alone, which have no direction for or")

    def gamma(self) -> Tensor:
        """What it multiplies by."""
        return self.module.weight.detach() + (1.0 - self.neutral)

    @torch.no_grad()
    def hand_over(self, handle: Attached) -> None:
        """Its weight goes to the readers: to their input vectors, or into the matrix itself."""
        gamma = upcast(self.gamma())
        self.learned = self.module.weight.requires_grad
        self.before = {"": self.module.weight.clone()}
        for name in self.weights:
            scaling = handle.scalings[name]
            if (own := scaling.multipliers.get("column")) is None:
                weight = handle.parameter(name)
                self.before[name] = weight.clone()
                weight.copy_(weight * gamma.to(weight))
                continue
            raw = own.parametrization.raw(gamma)
            scaling.column.copy_(raw)
            if (size := scaling.multipliers.get(MAGNITUDES["column"])) is not None:
                # By least squares, since entries may be 0.
                value = own.parametrization.value(raw)
                scale = (gamma * value).sum() / value.square().sum()
                scaling.column_magnitude.copy_(size.parametrization.raw(scale))
        if self.module.weight.requires_grad:
            handle.thawed_by_merging.append(self.module)
        self.module.weight.fill_(self.neutral).requires_grad_(False)

    @torch.no_grad()
    def take_back(self, handle: Attached) -> None:
        """Undo ``hand_over``, as far as it came."""
        for name, values in self.before.items():
            weight = handle.parameter(name) if name else self.module.weight
            weight.copy_(values)
        if self.before:
            self.module.weight.requires_grad_(self.learned)


@dataclass
class _Seen:
    """What one run showed.

    Norms with their readers, the paths of linear maps whose output a norm reads, and what the
    model gave.
    """

    read: list[_Norm]
    normalised: set[str]
    given: list[Tensor]


def _hand_over(
    model: nn.Module,
    arguments: Mapping[str, Any],
    handle: Attached,
    norms: list[_Norm],
    expected: list[Tensor] | None,
) -> None:
    """Have vectors take over from ``norms``; as it was, and UserError, if not ``expected`` comes.

    The trial knows of what modules read. Code may read the weight of one by itself.
    """
    try:
        for norm in norms:
            norm.hand_over(handle)
        if expected is not None and not _are_close(_run(model, arguments), expected):
            raise UserError(
                f"design {handle.design!r} would change the output of {type(model).__name__}, in "
                "which something reads a norm or a weight in other ways than by its module; place "
                "vectors by lrm.attach_multipliers"
            )
    except BaseException:
        for norm in norms:
            norm.take_back(handle)
        handle.discard()
        raise


def _nowhere(model: str, read: list[_Norm], free: list[_Norm], by_example: bool) -> UserError:
    """Why there is no matrix for a vector."""
    remedy = "place vectors by lrm.attach_multipliers"
    if not read:
        remedy = remedy if by_example else f"give an example of its arguments, or {remedy}"
        return UserError(f"no norm of {model} is read by linear maps; {remedy}")
    if not free:
        return UserError(
            f"more than linear maps read each norm of {model} (experts, a router, a residual, a "
            f"tied head), so that all keep their vectors; {remedy}"
        )
    return UserError(f"the head alone reads norms of {model}; {remedy}")


def _check_not_zero(norms: list[_Norm]) -> None:
    """Raise UserError where a run has shown nothing of what reads a norm."""
    for norm in norms:
        if not norm.sees:
            raise UserError(
                f"the input of {norm.path} is all zeros, which shows nothing of what reads it; "
                "give an example whose tokens are no padding, or initialise the layers before it"
            )


def _check_apart(model: nn.Module, norms: list[_Norm]) -> None:
    """Raise UserError where a weight that vectors replace or multiply is another module's too."""
    modules = {id(norm.module) for norm in norms}
    readers = {id(reader) for norm in norms for reader in norm.readers}
    for name, places in owners(model).items():
        if len(places) > 1 and any(id(module) in modules | readers for module, _ in places):
            raise UserError(
                f"{name} is the weight of {len(places)} modules, and vectors are for each of them; "
                "place them by lrm.attach_multipliers"
            )


def _tokens(model: nn.Module, kind_of: Mapping[str, str]) -> Tensor:
    """Some that differ, none of them padding: what norms make of zeros shows nothing.

    Equal ones would hide what acts by the weights of attention alone.
    """
    tables = [
        module
        for path, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        and kind_of.get(f"{path}.weight", "tied") != "vector"
    ]
    number = max((table.num_embeddings for table in tables), default=_TOKENS)
    padding = {table.padding_idx for table in tables}
    padding.add(getattr(getattr(model, "config", None), "pad_token_id", None))
    found = [token for token in range(number) if token not in padding][:_TOKENS]
    return torch.tensor([found or [0]], device=next(model.parameters()).device)


@torch.no_grad()
def _run(model: nn.Module, arguments: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that ``model`` gives in evaluation, which is ended as it was for each module."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        leaves = torch.utils._pytree.tree_leaves(model(**arguments))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    finally:
        for module in training:
            module.training = True


def _read_by_linear_maps_alone(
    model: nn.Module, arguments: Mapping[str, Any], norms: list[_Norm]
) -> list[_Norm]:
    """Those whose vector may move to the linear maps that were seen to read them; warns of others.

    Experts, routers and residuals read norms without a module that could be seen.
    """
    if _is_the_same(model, arguments, norms):
        return norms
    fits: list[_Norm] = []
    others = []
    for norm in norms:
        if _is_the_same(model, arguments, [*fits, norm]):
            fits.append(norm)
        else:
            others.append(norm.path)
    warnings.warn(
        f"{len(others)} norms keep their vector, since more than linear maps read them (experts, a "
        f"router, a residual); the first is {others[0]}",
        stacklevel=3,
    )
    return fits


@torch.no_grad()
def _is_the_same(model: nn.Module, arguments: Mapping[str, Any], norms: list[_Norm]) -> bool:
    """Whether the output is that of vectors on the readers' inputs."""

    def scaled(vector: Tensor):
        def hook(_: nn.Module, given: tuple, named: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            if given:
                return (given[0] * vector.to(given[0]), *given[1:]), named
            return given, {**named, "input": named["input"] * vector.to(named["input"])}

        return hook

    kept, hooks = [norm.module.weight.clone() for norm in norms], []
    vectors = [_trial(norm) for norm in norms]
    try:
        for norm, vector in zip(norms, vectors, strict=True):
            norm.module.weight.copy_(vector + (norm.neutral - 1.0))
        expected = _run(model, arguments)
        for norm, vector in zip(norms, vectors, strict=True):
            norm.module.weight.fill_(norm.neutral)
            hooks += [
                reader.register_forward_pre_hook(scaled(vector), with_kwargs=True)
                for reader in norm.readers
            ]
        found = _run(model, arguments)
    finally:
        for hook in hooks:
            hook.remove()
        for norm, weight in zip(norms, kept, strict=True):
            norm.module.weight.copy_(weight)
    return _are_close(found, expected)


def _trial(norm: _Norm) -> Tensor:
    """A vector of both signs, with which a ReLU between fails, and as large as the norm's own."""
    gamma = norm.gamma().abs().clamp(min=0.5)
    found = gamma * torch.linspace(0.5, 1.5, len(gamma)).to(gamma)
    found[1::2] *= -1
    return found


def _are_close(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(_close, found, expected))


def _close(found: Tensor, expected: Tensor) -> bool:
    """Up to rounding, of which many layers make more than one; norms may compute in float32.

    By 1% at most: a norm that a router or experts read beside linear maps changes an output by some
    percent, which the rounding of half precision must not cover.
    """
    eps = max(torch.finfo(dtype).eps for dtype in (expected.dtype, torch.float32))
    tolerance = min(4 * eps**0.5, 0.01)
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def _look(model: nn.Module, arguments: Mapping[str, Any], by_example: bool) -> _Seen:
    """Run ``model`` once, and see by the memory of tensors what reads what."""
    first = {id(p): name for name, p in model.named_parameters()}
    norms: dict[int, _Norm] = {}
    by_memory: dict[int, _Norm] = {}
    outputs: dict[int, tuple[str, int]] = {}
    normalised, kept, hooks = set(), [], []
    sizes: dict[str, int] = {}

    def memory(tensor: Tensor) -> int:
        kept.append(tensor)  # so that nothing else comes to lie there
        return tensor.untyped_storage().data_ptr()

    def of_norm(path: str, module: nn.Module, arguments: tuple, output: Tensor) -> None:
        if not isinstance(output, Tensor):
            return
        x = arguments[0] if arguments else None
        if isinstance(x, Tensor):
            before, version = outputs.get(memory(x), ("", 0))
            # A residual that was added in place makes it another tensor in the same memory, and a
            # part of an output lies there too.
            if before and version == x._version and x.numel() == sizes[before]:
                normalised.add(before)
        norm = norms.setdefault(id(module), _Norm(module, path))
        norm.sees |= not isinstance(x, Tensor) or bool(x.any())
        by_memory[memory(output)] = norm

    def of_linear(
        path: str, module: nn.Module, arguments: tuple, named: dict[str, Any], output: Tensor
    ) -> None:
        x = arguments[0] if arguments else next(iter(named.values()), None)
        if not isinstance(x, Tensor) or not isinstance(output, Tensor):
            return
        norm = by_memory.get(memory(x))
        if norm is not None and norm.module.weight.numel() != module.in_features:
            norm = None  # it reads a part: the trial tells
        if norm is not None and module not in norm.readers:
            if _MERGED.search(path):
                raise UserError(f"{path} merges several matrices; place vectors by "
                                "lrm.attach_multipliers, which takes rows")  # fmt: skip
            if any(module in other.readers for other in norms.values()):
                raise UserError(f"{path} reads two norms, whose vectors it cannot hold both; place "
                                "vectors by lrm.attach_multipliers")  # fmt: skip
            norm.readers.append(module)
            norm.weights.append(first[id(module.weight)])
        outputs[memory(output)], sizes[path] = (path, output._version), output.numel()

    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            hooks.append(module.register_forward_hook(
                lambda m, a, k, o, path=path: of_linear(path, m, a, k, o),
                with_kwargs=True))  # fmt: skip
        elif is_norm(module) and isinstance(getattr(module, "weight", None), nn.Parameter):
            hooks.append(module.register_forward_hook(
                lambda m, a, o, path=path: of_norm(path, m, a, o)))  # fmt: skip
    try:
        given = _run(model, arguments)
    except (TypeError, ValueError) as error:  # ValueError: transformers' word for what is missing
        remedy = "have the example name" if by_example else "give an example of"
        raise UserError(
            f"{type(model).__name__} does not take {', '.join(map(str, arguments))} ({error}); "
            f"{remedy} its arguments"
        ) from None
    finally:
        for hook in hooks:
            hook.remove()
    if not given:
        raise UserError(
            f"{type(model).__name__} gives nothing in which tensors are found, by which to see "
            "whether its output stays; have it return tensors, in a tuple, a dict or a ModelOutput"
        )
    return _Seen(list(norms.values()), normalised, given)


def _size_behind(model: nn.Module, path: str, head_size: int | None) -> int:
    """How many outputs of a linear map are normalised together."""
    outputs = model.get_submodule(path).out_features
    if not _BY_HEAD.search(path):
        return outputs
    if head_size is None:
        config = getattr(model, "config", None)
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        heads, width = (
            getattr(config, name, None) for name in ("num_attention_heads", "hidden_size")
        )
        head_size = getattr(config, "head_dim", None)
        head_size = head_size or (width // heads if width and heads else None)
    if not isinstance(head_size, int) or head_size < 1 or outputs % head_size:
        raise UserError(
            f"{path} has {outputs} outputs, and heads of {shown(head_size)} do not divide them; "
            "give attach_scale_vectors the head_size"
        )
    return head_size


def _add_norm(model: nn.Module, path: str, like: nn.Module, size: int) -> None:
    linear = model.get_submodule(path)
    eps = getattr(like, "variance_epsilon", None) or getattr(like, "eps", None) or 1e-6
    linear.add_module(_BEHIND, HeadNorm(linear.out_features, size, eps, linear.weight))
    # The hook is found again by copies and pickles, since it belongs to no model.
    linear.register_forward_hook(_normalise)


def _normalise(linear: nn.Module, _: tuple, output: Tensor) -> Tensor:
    return getattr(linear, _BEHIND)(output)


def _remove_norm(model: nn.Module, path: str) -> None:
    linear = model.get_submodule(path)
    delattr(linear, _BEHIND)
    for key, hook in list(linear._forward_hooks.items()):
        if hook is _normalise:
            del linear._forward_hooks[key]
