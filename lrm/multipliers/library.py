"""Multipliers on any torch model, in a few calls; ``import lrm`` has them.

::

    lrm.attach_multipliers(model, placement="all")
    optimizer = torch.optim.AdamW(lrm.build_param_groups(model, lr=1e-3, weight_decay=0.1))
    for batch in batches:
        loss(model, batch).backward()
        lrm.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    lrm.merge_multipliers(model)  # the plain model, with W̄ in place of W
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from lrm.errors import UserError, shown
from lrm.multipliers.attach import CHILD, check_may_learn
from lrm.multipliers.groups import Entry, grouped, multiplier_entries, param_group
from lrm.multipliers.layout import uncompiled
from lrm.multipliers.multiplier import LIGHT_DECAY, LR, MAGNITUDE_RATES, MAGNITUDES, Target
from lrm.multipliers.parametrization import find_parametrization
from lrm.multipliers.placement import PRESET, Placement, targets
from lrm.multipliers.precision import HALF
from lrm.multipliers.reading import READERS
from lrm.multipliers.report import Attached
from lrm.multipliers.roles import is_matrix, matched, roles, said_roles
from lrm.multipliers.saving import HANDLE
from lrm.multipliers.saving import saved_placement as saved_placement
from lrm.multipliers.sharding import by_mesh, is_fsdp, whole
from lrm.multipliers.wiring import counts_gradients, watch, watched

_KINDS = ("matrix", "embedding", "head", "convolution", "vector", "multiplier")


def attach_multipliers(
    model: nn.Module,
    placement: Placement = "all",
    *,
    implementation: str = "forward",
    lr: float = LR,
    weight_decay: float = LIGHT_DECAY,
    parametrization: str = "direct",
    row: Mapping[str, Any] | None = None,
    column: Mapping[str, Any] | None = None,
    role: Mapping[str, str] | None = None,
) -> Attached:
    """Put learnable multipliers, all of them 1, on ``model``; its output stays what it was.

    Of a matrix W (outputs, inputs) the model then computes with W̄ = s·W, s (1,), or with
    W̄_ij = r_i W_ij c_j, r (outputs,) and c (inputs,): equations 2 and 3 of the paper. Matrices in
    one tensor (experts, outputs, inputs) have s, r and c each, in tensors with experts first.

    ``placement``: the preset ``all`` (rows and columns of every matrix and of the embedding;
    nothing on the head, and no rows on an embedding that is tied to it), ``hidden`` (without
    embedding and head), ``scalar`` or ``convolutions`` (as ``hidden``, and each filter of
    convolutions); a mapping from patterns of parameter names to ``scalar``, ``row``, ``column``,
    ``row_column``, ``none``, or to a list of (start, stop, kind) for rows of a merged matrix, which
    are exceptions to a preset where it begins with ``{"preset": "all"}``; or a function of (name,
    module, parameter) that returns one of these or None.

    ``implementation``: ``forward`` has autograd apply the gradient relations at each read of W̄;
    ``optimizer`` applies them once behind all micro-batches within ``same_weights``. ``lr`` and
    ``weight_decay`` are the multipliers' own, the decay being the paper's light one against
    symmetries (section 4.1). ``parametrization`` is ``direct`` or ``log``, and for rows and columns
    also ``or``, ``er`` or ``product`` (``lrm.multipliers.parametrization``). ``row`` and ``column``
    may name another LR, decay or parametrization for that axis alone, e.g. ``row={"lr": 3e-3}``,
    and ``magnitude_lr`` and ``magnitude_weight_decay`` of the one number that the last three
    parametrizations set apart.
    ``role`` maps patterns of parameter names to roles (``lrm.multipliers.roles``) where the types
    of modules and the names do not tell what a parameter is, such as ``transposed`` for matrices
    with inputs first (``x @ self.W``).

    Call it before DistributedDataParallel and ``fully_shard``, and before the optimizer is built.
    At the first step of an optimizer every W and multiplier that learns must be in it or in
    another one, and multipliers in groups of their own; otherwise that step raises UserError.

    ``print`` of what is returned shows what got which multipliers. Raises UserError for a
    placement that does not fit the model, a setting that does not exist or that nothing of the
    placement has, and a model that has multipliers already; the model is then as it was. Warns
    where a preset leaves out convolutions that hold most of the model's weights.
    """
    check_model(model, "attach_multipliers")
    model = uncompiled(model)
    check_plain(model)
    _check_shapes(model, "attach_multipliers")
    check_may_learn("attach_multipliers")
    for module in model.modules():
        if getattr(module.__dict__.get("_hf_hook"), "offload", False):
            raise UserError(
                "accelerate keeps weights of this model elsewhere; call lrm.attach_multipliers, "
                "train or merge, and offload the merged model"
            )
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise UserError("call lrm.attach_multipliers before DistributedDataParallel")
        if type(module).__name__ == "FullyShardedDataParallel":
            raise UserError(
                "FullyShardedDataParallel takes weights away from modules; use "
                "torch.distributed.fsdp.fully_shard, behind lrm.attach_multipliers"
            )
        if is_fsdp(module):
            raise UserError(
                "the model is sharded already; call lrm.attach_multipliers before fully_shard"
            )
    if type(model).get_extra_state is not nn.Module.get_extra_state:
        raise UserError(
            f"{type(model).__name__} saves an extra state, where the placement would be; attach "
            "to a module that holds it"
        )
    settings = {"lr": lr, "weight_decay": weight_decay, "parametrization": parametrization}
    for name, given in (("row", row), ("column", column), ("role", role)):
        if not isinstance(given, (Mapping, NoneType)):
            raise UserError(f"{name} is {shown(given)}; give a mapping, or leave it out")
    own = {"row": dict(row or {}), "column": dict(column or {})}
    known = (*settings, *MAGNITUDE_RATES.values())
    for axis, fields in own.items():
        for name in fields:
            if name not in known:
                raise UserError(f"{axis}: unknown setting {name!r}; use one of {', '.join(known)}")
    for fields in (settings, *own.values()):
        find_parametrization(fields.get("parametrization", "direct"))
        _check_rates(fields)
    own = {axis: _copied(fields) for axis, fields in own.items()}
    placed = targets(model, placement, _copied(settings) | own, role)
    _check_reached(placed, own)
    _check_once(model, placed)
    found = Attached(model, placed, implementation, role or {})
    _warn_of_the_rest(found, placement)
    watch(found, model.parameters())
    return found


def build_param_groups(
    model: nn.Module,
    lr: float,
    weight_decay: float,
    *,
    multiplier_lr: float | None = None,
    multiplier_weight_decay: float | None = None,
    by_kind: Mapping[str, Mapping[str, float]] | None = None,
    no_decay: Sequence[str] = (),
    role: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for any torch optimizer, with the paper's rules of decay (appendix A).

    Matrices, embeddings, heads and convolutions decay, vectors (depthwise convolutions too) do not.
    Multipliers are in groups of their own with the LR and the light decay they were attached with,
    or those given here. Each group has a ``kind``: ``matrix``, ``embedding`` (one that is the head
    too), ``head``, ``convolution``, ``vector`` or ``multiplier``, so that ``torch.optim.Muon`` can
    be given the matrices alone; stacks of them (experts) are in groups apart. ``by_kind`` gives a
    kind an LR or decay of its own, e.g. ``{"embedding": {"lr": 3e-3}}``. What matches a pattern of
    ``no_decay`` does not decay; a pattern reaches multipliers only where ``multipliers`` stands in
    it. ``role`` is as in ``attach_multipliers``, whose roles are known here already. The order of
    parameters is the same in both implementations, and so is an optimizer's state.

    Raises UserError for an unknown kind or setting, a kind of which the model has nothing, rates of
    multipliers where it has none, a pattern that matches nothing, weights that were distributed
    after their multipliers were attached, and where ``model`` is not the whole of what has them.
    Warns where no multiplier learns, as behind tools that freeze what they find.
    """
    check_model(model, "build_param_groups")
    model = uncompiled(model)  # patterns are of the names that the model had
    _check_shapes(model, "build_param_groups")
    _check_rates({"lr": lr, "weight_decay": weight_decay})
    _check_sharding(model)
    for name, told in (("by_kind", by_kind), ("role", role)):
        if not isinstance(told, (Mapping, NoneType)):
            raise UserError(f"{name} is {shown(told)}; give a mapping, or leave it out")
    special: dict[str, Mapping[str, float]] = dict(by_kind or {})
    for kind, fields in special.items():
        fits = isinstance(fields, Mapping)
        if kind not in _KINDS or not fits or not fields.keys() <= {"lr", "weight_decay"}:
            raise UserError(
                f"by_kind: {kind!r} may be one of {', '.join(_KINDS)}, and map to lr and "
                f"weight_decay; not {shown(fields)}"
            )
        _check_rates(fields)
    given = {"lr": multiplier_lr, "weight_decay": multiplier_weight_decay}
    given = {name: value for name, value in given.items() if value is not None}
    _check_rates(given)
    handles = _of_whole(model, "build_param_groups")
    known = _kinds(model, role)
    there = {*known.values(), *(["multiplier"] if handles else [])}
    missing = [kind for kind in special if kind not in there]
    if given and not handles:
        raise UserError(
            f"multiplier_{next(iter(given))}: the model has no multipliers; call "
            "lrm.attach_multipliers before this, or drop it"
        )
    if missing:
        raise UserError(f"by_kind: the model has nothing of the kind {missing[0]!r}; drop it")
    undecayed = _undecayed(model, no_decay)
    names = {id(p): name for name, p in model.named_parameters()}
    entries = []
    for name, parameter in named_weights(model):
        if parameter.requires_grad:
            kind = known[name]
            decay = 0.0 if kind == "vector" else weight_decay
            entry = Entry((name,), parameter, parameter, None, lr, decay, True, kind)
            entries.append(dataclasses.replace(entry, **special.get(kind, {})))
    given = special.get("multiplier", {}) | given
    for handle in handles:
        watch(handle, handle.model.parameters(), grouped=True)
        if not any(parameter.requires_grad for _, _, parameter in handle.named()):
            warnings.warn(
                "no multiplier learns: something froze them behind lrm.attach_multipliers, as "
                "peft.get_peft_model does; attach behind that",
                stacklevel=2,
            )
        for entry in multiplier_entries(handle, "multiplier"):
            if entry.leaf.requires_grad:
                entries.append(dataclasses.replace(entry, **given))
    entries = [
        dataclasses.replace(entry, weight_decay=0.0)
        if names[id(entry.leaf)] in undecayed
        else entry
        for entry in entries
    ]
    return [
        {**param_group(same), "kind": same[0].optimizer}
        for together in grouped(entries)
        for same in _stacks_apart(together)
    ]


def _undecayed(model: nn.Module, patterns: Sequence[str]) -> set[str]:
    """The parameters that match one of ``patterns``, by their first names."""
    patterns = [patterns] if isinstance(patterns, str) else patterns or ()
    if not isinstance(patterns, Iterable) or not all(isinstance(one, str) for one in patterns):
        raise UserError(f"no_decay is {shown(patterns)}; give patterns of parameter names")
    found: set[str] = set()
    weights = {name for name, _ in named_weights(model)}
    for pattern in patterns:
        if not (names := set(matched(model, pattern))):
            raise UserError(f"no_decay: no parameter's name matches {pattern!r}")
        # "*emb*" matches those of the embedding too, whose decay nobody meant to switch off.
        if CHILD not in pattern and not (names := names & weights):
            raise UserError(
                f"no_decay: {pattern!r} matches multipliers alone; write {CHILD!r} in the pattern "
                "to reach them"
            )
        found |= names
    return found


def _stacks_apart(members: list[Entry]) -> list[list[Entry]]:
    """Matrices, and behind them stacks of them (experts), which Muon does not take."""
    if members[0].optimizer != "matrix":
        return [members]
    flat = [entry for entry in members if entry.leaf.dim() == 2]
    stacks = [entry for entry in members if entry.leaf.dim() != 2]
    return [part for part in (flat, stacks) if part]


@torch.no_grad()
def clip_grad_norm_(
    model: nn.Module,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Clip the gradients of everything but the multipliers by their global norm (section 4.3).

    That is the norm of all entries together, as torch has it, and no root mean square. In both
    implementations the gradients are those of W, not of W̄. Returns it, before clipping, a scalar; 0
    where multipliers alone have gradients. All arguments but the first are
    those of torch's function, and a ``max_norm`` of inf measures only. Raises UserError for one
    that is not positive, where there are no gradients, and in ``optimizer`` within
    ``same_weights``, where they are not there yet.
    """
    check_model(model, "clip_grad_norm_")
    if not _is_number(max_norm) or not bool(max_norm > 0):
        raise UserError(
            f"lrm.clip_grad_norm_: max_norm is {shown(max_norm)}; give a positive number, or inf "
            "to measure the norm alone"
        )
    if any(handle.is_collecting for handle in _of_whole(model, "clip_grad_norm_")):
        raise UserError(
            "lrm.clip_grad_norm_ within lrm.same_weights, where gradients of weights are not there "
            "yet; end the with block before it"
        )
    parameters = [p for _, p in named_weights(model) if p.grad is not None]
    if not parameters:
        given = [p.grad for p in model.parameters() if p.grad is not None]
        if given:
            return given[0].new_zeros(())
        raise UserError("there are no gradients to clip; call lrm.clip_grad_norm_ after backward()")
    # Torch has no operation on tensors of several meshes of devices.
    apart = by_mesh(parameters)
    norms = [
        whole(torch.nn.utils.get_total_norm(grads, norm_type, error_if_nonfinite, foreach))
        for grads in ([parameter.grad for parameter in part] for part in apart)
    ]
    norm = norms[0]
    if len(norms) > 1:
        norm = torch.linalg.vector_norm(torch.stack([n.to(norm) for n in norms]), norm_type)
    if bool(max_norm < math.inf):  # torch's factor of inf / inf would write NaN into all gradients
        for part in apart:
            torch.nn.utils.clip_grads_with_norm_(part, max_norm, norm, foreach)
    return norm


def merge_multipliers(model: nn.Module) -> nn.Module:
    """Fold the multipliers into the weights and remove them (section 2); returns ``model``.

    Parameters, their names and the output are then those of a model that never had any. Build a
    new optimizer to train it further. A model without multipliers stays as it is. Raises UserError
    where they belong to a larger model, where modules outside of theirs share a weight, where a
    module was parametrized or lost its weight since, for designs of scale vectors that are no
    factor of a weight, and within ``torch.inference_mode()``.
    """
    check_model(model, "merge_multipliers")
    handles = _of_whole(model, "merge_multipliers")
    for handle in handles:
        handle.check_merge()
    for handle in handles:
        handle.merge()
    return model


def attached_multipliers(model: nn.Module) -> Attached:
    """What ``attach_multipliers`` returned: of a copy of a model, or of one that was unpickled.

    Raises UserError where ``model`` has none, where several parts of it have some, and where they
    belong to a larger model.
    """
    check_model(model, "attached_multipliers")
    found = _of_whole(model, "attached_multipliers")
    if len(found) != 1:
        raise UserError(
            f"{type(model).__name__} has no multipliers; attach some (lrm.attach_multipliers)"
            if not found
            else f"{len(found)} parts of this model have multipliers each; ask one of them"
        )
    _path(model, found[0])  # refuses a shallow copy
    return found[0]


def effective_weights(model: nn.Module) -> dict[str, Tensor]:
    """W̄ (equations 2 and 3) of every parameter that has multipliers, by its name; copies.

    Each has the shape and dtype of its W, and no graph. Of weights that are sharded it is sharded
    too. Raises UserError where the multipliers belong to a larger model.
    """
    check_model(model, "effective_weights")
    found = {}
    for handle in _of_whole(model, "effective_weights"):
        path = _path(model, handle)
        found |= {f"{path}{name}": value for name, value in handle.effective_weights().items()}
    return found


@contextlib.contextmanager
def same_weights(model: nn.Module) -> Iterator[None]:
    """Around the micro-batches of one step: W̄ is built once for all of them.

    Nothing may change a weight within it, and in ``optimizer`` the gradients are there when it
    ends: what backward() has given cannot be dropped by zero_grad() before that. A step of an
    optimizer within it raises UserError. So does reading a weight that was changed in place, as by
    the exchange for an average. In ``optimizer`` so does a backward() behind it, at the next step.
    Only writes by ``.data`` go unseen.
    With DistributedDataParallel give it the wrapped model, and have all micro-batches but the last
    in its ``no_sync()``. Compiled modules build W̄ each time in ``forward``.
    """
    check_model(model, "same_weights")
    with contextlib.ExitStack() as stack:
        for handle in _of_whole(model, "same_weights"):
            late = handle.is_counted or counts_gradients(model)
            stack.enter_context(handle.unchanged(by_step=not late))
        yield


def _handles(model: nn.Module) -> list[Attached]:
    """Those attached to ``model`` or to what it wraps (DistributedDataParallel, a compiler)."""
    return [m.__dict__[HANDLE] for m in model.modules() if HANDLE in m.__dict__]


def _of_whole(model: nn.Module, call: str) -> list[Attached]:
    """``_handles`` where all that is multiplied in ``model`` is known to them, for ``lrm.<call>``.

    Raises UserError for a part of what has multipliers, for layers that were copied from such a
    part, for a weight that modules outside of it share, and, but for merging, where layers that
    have multipliers were taken out of the model.
    """
    found = _handles(model)
    left = [name for handle in found for name in handle.left()]
    if left and call != "merge_multipliers":
        raise UserError(
            f"{left[0]} has multipliers, and its layer is no part of the model any more; fold them "
            "in (lrm.merge_multipliers), and attach again"
        )
    known = {id(reader) for handle in found for reader in handle.effective.values()}
    multiplied = {id(p): name for handle in found for name, p in handle.weights.items()}
    for path, module in model.named_modules():
        readers = module.__dict__.get(READERS, {})
        if any(id(reader) not in known for reader in readers.values()):
            if not found:
                raise UserError(
                    f"{type(model).__name__} is part of the model that has the multipliers; call "
                    f"lrm.{call} on that one"
                )
            raise UserError(
                f"{path} is a copy of a layer that has multipliers, and no part of the model to "
                "which they were attached; merge before copying or adding layers"
            )
        for attribute, parameter in module._parameters.items():
            if id(parameter) in multiplied and attribute not in readers:
                raise UserError(
                    f"{path}.{attribute} is the weight {multiplied[id(parameter)]} of the part "
                    "that has multipliers, and lies outside of it; attach to the whole model"
                )
    return found


def check_model(model: Any, call: str) -> None:
    """Raise UserError where ``model`` is none; ``call`` is what was asked of it."""
    if not isinstance(model, nn.Module):
        raise UserError(
            f"lrm.{call} takes the model, not {type(model).__name__}; pass model, not "
            "model.parameters()"
        )


def _check_shapes(model: nn.Module, call: str) -> None:
    """Raise UserError where parameters have no shapes yet."""
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise UserError(
                f"{name} has no shape yet; pass a batch through the model before lrm.{call}"
            )


def check_plain(model: nn.Module) -> None:
    """Raise UserError where ``model`` has multipliers."""
    if _handles(model) or any(READERS in module.__dict__ for module in model.modules()):
        raise UserError("the model has multipliers already; merge them first")


def _check_once(model: nn.Module, placed: Sequence[Target]) -> None:
    """Raise UserError where a part outside of ``model`` shares a weight, and multiplies it."""
    multiplied = {id(handle.find(name)) for handle in watched() for name in handle.effective}
    parameters = dict(model.named_parameters())
    for target in placed:
        if id(parameters[target.parameter]) in multiplied:
            raise UserError(
                f"{target.parameter} is a weight of another part too, which has multipliers; "
                "attach to the whole model"
            )


def _check_reached(placed: Sequence[Target], own: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UserError where what is said of rows or columns alone (``own``) reaches none."""
    axes = {multiplier.axis for target in placed for multiplier in target.multipliers}
    for axis, fields in own.items():
        if fields and axis not in axes:
            raise UserError(f"{axis}: this placement has no {axis} multipliers; drop it")
        of_magnitude = [name for name in MAGNITUDE_RATES.values() if name in fields]
        if of_magnitude and MAGNITUDES[axis] not in axes:
            raise UserError(
                f"{axis}: {of_magnitude[0]} is of a magnitude, and this parametrization has none; "
                "drop it, or take or, er or product"
            )


def _check_rates(fields: Mapping[str, Any]) -> None:
    for name in (*MAGNITUDE_RATES, *MAGNITUDE_RATES.values()):
        if not is_rate(value := fields.get(name, 0.0)):
            raise UserError(
                f"{name} is {shown(value)}; give a number that is not negative, and finite"
            )


def is_rate(value: Any) -> bool:
    """Whether ``value`` is a finite number that is not negative, or a tensor that holds one."""
    return _is_number(value) and bool(value >= 0) and bool(value < math.inf)


def _is_number(value: Any) -> bool:
    """Whether ``value`` is a real number, or a tensor that holds one; truth values are none."""
    if isinstance(value, Tensor):
        has_order = not value.is_complex() and value.dtype != torch.bool
        return value.numel() == 1 and not value.is_meta and has_order
    return isinstance(value, Real) and not isinstance(value, bool)


def _copied(fields: Mapping[str, Any]) -> dict[str, Any]:
    """With numbers in place of tensors, which a scheduler changes in place."""
    return {
        name: float(value) if isinstance(value, Tensor) else value for name, value in fields.items()
    }


def _warn_of_the_rest(found: Attached, placement: Placement) -> None:
    """Where a preset covers little of the model: convolutions, and weights that are no parameters.

    Quantized layers hold theirs as buffers.
    """
    preset = placement if isinstance(placement, str) else None
    if isinstance(placement, Mapping):
        preset = placement.get(PRESET)
    if preset is None or preset == "convolutions":
        return
    sizes = {name: weight.numel() for name, weight in found.model.named_parameters()}
    left_out = sum(sizes[name] for name, role in found.roles.items() if role == "convolution")
    if left_out > sum(sizes[name] for name in found.effective):
        warnings.warn(
            f"placement {preset!r} leaves out convolutions, which hold most weights of this "
            "model; placement='convolutions' has multipliers for their filters",
            stacklevel=3,
        )
    elif not any(is_matrix(found.roles[name]) for name in found.effective):
        warnings.warn(
            f"placement {preset!r} found no matrix in the layers of this model; print of what is "
            "returned says why each has none. Those of quantized layers are no parameters, and "
            "parametrized ones are left out: attach before quantizing or parametrizing",
            stacklevel=3,
        )


def known_roles(model: nn.Module, said: Mapping[str, str] | None = None) -> dict[str, str]:
    """The role of every parameter, by its name in ``model``, as it was before multipliers.

    Roles that are ``said`` here stand above all.
    """
    known = roles(model)
    # By the parameter itself: layers that were wrapped since (compiled, checkpointed) are called
    # otherwise.
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for handle in _handles(model):
        _path(model, handle)  # refuses a shallow copy
        inner = {names.get(id(held)): role for held, role in handle.held_roles()}
        known |= {name: role for name, role in inner.items() if name in known}
    return known | said_roles(model, said or {})


def _path(model: nn.Module, handle: Attached) -> str:
    """What stands in ``model`` before the names of the parameters of ``handle``."""
    for path, module in model.named_modules():
        if module is handle.model:
            return f"{path}." if path else ""
    raise UserError(
        f"{type(model).__name__} is a shallow copy of the model that has the multipliers; use "
        "copy.deepcopy"
    )


def _kinds(model: nn.Module, said: Mapping[str, str] | None) -> dict[str, str]:
    """The kind of group of every parameter."""
    known = known_roles(model, said)
    other = {"tied": "embedding", "transposed": "matrix"}
    return {name: other.get(role, role) for name, role in known.items()}


def _check_sharding(model: nn.Module) -> None:
    """Raise UserError where what is sharded cannot be trained.

    Weights sharded after their multipliers were attached must be FSDP's, which alone gives them
    whole to whoever computes with them; and FSDP wants one dtype of what it shards together.
    """
    if any(map(is_fsdp, model.modules())):
        # FSDP asks it of what learns; which parameters it has in one group is not seen here.
        multipliers = [p for handle in _handles(model) for _, _, p in handle.named()]
        own = {p.dtype for p in multipliers if p.requires_grad}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.dtype in HALF and own - {parameter.dtype}:
                raise UserError(
                    f"{name} learns in {parameter.dtype} and multipliers in float32, and "
                    "fully_shard takes one dtype; keep the weights in float32 and give it a "
                    "MixedPrecisionPolicy(param_dtype=...)"
                )
        return
    for handle in _handles(model):
        for name, weight in handle.weights.items():
            if handle.effective[name].is_sharded(weight):
                raise UserError(
                    f"{name} was distributed after its multipliers were attached; call "
                    "lrm.attach_multipliers behind parallelize_module"
                )


def named_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """(name, parameter) of all that is no multiplier."""
    added = {id(p) for handle in _handles(model) for _, _, p in handle.named()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in added:
            yield name, parameter
