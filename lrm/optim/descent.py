"""Steepest descent of each layer of any torch model, in the norm that its own criterion sets."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from lrm.errors import UserError, shown
from lrm.multipliers.groups import of_its_own
from lrm.multipliers.layout import layout, owners, uncompiled
from lrm.multipliers.library import check_model, is_rate, known_roles, named_weights
from lrm.multipliers.roles import is_matrix, is_norm, matched
from lrm.multipliers.sharding import is_distributed
from lrm.optim.directions import newton_schulz, per_token
from lrm.optim.steepest import Steepest
from lrm.plan.msign import shape_factor

_DIRECTIONS = {"linear": "msign", "embedding": "per_token", "head": "per_token", "gain": "sign",
               "bias": "normalized"}  # fmt: skip
_DECAYED = ("linear", "embedding", "head")
_SETTINGS = ("lr", "weight_decay", "momentum", "rows")
_ITERATIONS, _SMALLEST = 5, 1e-7  # of Newton–Schulz, as torch.optim.Muon has them


class SteepestDescent(Steepest):
    """Each layer moves by its LR η along the steepest direction of its own update criterion.

    After *Beyond MuP 3. Special Cases Require Special Handling* (Su,
    https://kexue.fm/archives/11647). The article bounds by η how much an update changes the output
    of a layer in the worst case over its inputs, max_x ‖f(x; ω + Δω) − f(x; ω)‖ ≤ η, and Δω
    minimises ⟨N, Δω⟩ under that bound. Here N is the momentum. Norms are root mean squares, but for
    ‖·‖₂, the largest singular value; d is the width, and i runs over tokens.

    ========= ========================== ========================= ============================
    kind      parameters                 criterion of an update    Δω / −η
    ========= ========================== ========================= ============================
    linear    matrices; inputs of RMS 1  ‖ΔW‖₂ sqrt(d_in / d_out)  sqrt(d_out / d_in) msign(N)
    embedding tables read by an index    max_i ‖ΔE_i‖              N_i / ‖N_i‖
    head      LM head with the loss      d max_i ‖Δw_i‖            N_i / (d ‖N_i‖)
    gain      weights γ of norms         max_j |Δγ_j|              sign(N)
    bias      biases                     ‖Δb‖                      N / ‖N‖
    ========= ========================== ========================= ============================

    The equations are those of its sections "The Embedding Layer", "Update Stability" (of the head:
    the loss changes by at most twice the criterion), "Hadamard Product" (a gain is the linear layer
    diag(γ)) and "Linear Bias Term". The linear layer is quoted from the second article. msign is
    U Vᵀ of N = U S Vᵀ, here by five Newton–Schulz iterations in bfloat16, whose singular values lie
    between 0.7 and 1.2. One ``lr`` keeps its meaning at any width. The article has no momentum, no
    weight decay and no constants between kinds: tune those at one width by ``by_kind``.

    Kinds follow from the types of modules, and from names where these do not tell
    (``lrm.multipliers.roles``). ``kind`` maps patterns of names to kinds and stands above that, the
    last match winning; ``none`` leaves a parameter to another optimizer. ``role`` is that of
    ``lrm.attach_multipliers``, whose roles are known here already; ``transposed`` says that a
    matrix has inputs first. A matrix that holds several (QKV) is one, and a stack of matrices
    (experts) is several. Frozen parameters are left out, and so are multipliers, which AdamW moves.

    ``by_kind`` gives a kind its own ``lr``, ``weight_decay`` or ``momentum``, and the embedding
    ``rows``: with ``seen`` only rows with a gradient move. With ``all``, the default, each row
    moves as far as any other once it has had a gradient. ``weight_decay`` is that of matrices,
    embedding and head, decoupled and multiplied by the LR.

    There is one group a kind, with its name as ``kind``. Raises UserError for parameters of no kind
    that the article treats (convolutions, a tied embedding, ``A_log``), for unknown kinds and
    settings, and for parameters in parts (FSDP).
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        by_kind: Mapping[str, Mapping[str, Any]] | None = None,
        kind: Mapping[str, str] | None = None,
        role: Mapping[str, str] | None = None,
    ):
        check_model(model, "optim.SteepestDescent")
        model = uncompiled(model)  # patterns are of the names that the model had
        _check_mappings(by_kind, kind, role)
        special = {name: dict(fields) for name, fields in (by_kind or {}).items()}
        general = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        for name, fields in ({"": general} | special).items():
            _check(name, fields)
        known = known_roles(model, role)
        found = _kinds(model, known, kind or {})
        missing = [name for name in special if name not in found.values()]
        if missing:
            raise UserError(f"by_kind: the model has nothing of the kind {missing[0]!r}; drop it")
        places, parameters = owners(model), dict(named_weights(model))
        # Stored with inputs first: rows of an output or a token are torch's columns.
        self._turned: set[nn.Parameter] = set()
        groups: dict[str, dict[str, Any]] = {}
        for name, own in found.items():
            parameter, (module, attribute) = parameters[name], places[name][0]
            if parameter.dim() > 1 and own in _DECAYED:
                turned = known[name] == "transposed"
                axes = layout(module, attribute, parameter, inputs_first=turned)
                if axes.column is not None and axes.row > axes.column:
                    self._turned.add(parameter)
            if own not in groups:
                decay = weight_decay if own in _DECAYED else 0.0
                settings = {**general, "weight_decay": decay, "rows": "all"}
                settings |= {"kind": own, "direction": _DIRECTIONS[own]} | special.get(own, {})
                groups[own] = {"params": [], **of_its_own(settings)}
            groups[own]["params"].append(parameter)
        if not groups:
            raise UserError("SteepestDescent: the model has nothing that learns")
        super().__init__(list(groups.values()), nesterov)

    def __getstate__(self) -> dict[str, Any]:
        """As that of ``Steepest``."""
        return {**super().__getstate__(), "_turned": self._turned}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch. Raises UserError for a group without the direction of its kind."""
        kind, direction = param_group.get("kind"), param_group.get("direction")
        if direction is not None and _DIRECTIONS.get(kind) != direction:
            raise UserError(
                f"this group has the direction {shown(direction)} and the kind {shown(kind)}, "
                "which do not belong together; build a new optimizer from the model, which finds "
                "both"
            )
        super().add_param_group(param_group)

    def _inputs_axis(self, leaf: nn.Parameter) -> int:
        return -2 if leaf in self._turned else -1

    def _direction(self, group: dict[str, Any], leaf: nn.Parameter, moment: Tensor) -> Tensor:
        if group["kind"] not in _DECAYED:
            return super()._direction(group, leaf, moment)
        rows = moment.mT if leaf in self._turned else moment
        if group["kind"] == "linear":
            found = _msign(rows) * shape_factor("spectral", *rows.shape[-2:])
        elif group["kind"] == "head":
            found = per_token(rows) / rows.shape[-1]
        else:
            found = per_token(rows)
        return found.mT if leaf in self._turned else found


def _msign(matrices: Tensor) -> Tensor:
    """Of (rows, columns), or of each in a stack; in bfloat16, as torch.optim.Muon."""
    stack = matrices.reshape(-1, *matrices.shape[-2:])
    if stack.dtype != torch.float64:
        stack = stack.bfloat16()
    return newton_schulz(stack, _ITERATIONS, _SMALLEST).to(matrices.dtype).view(matrices.shape)


def _check_mappings(by_kind: Any, kind: Any, role: Any) -> None:
    for name, given in (("kind", kind), ("role", role)):
        if not isinstance(given, (Mapping, NoneType)):
            raise UserError(f"{name} is {shown(given)}; give a mapping of patterns to {name}s")
    fields = by_kind.values() if isinstance(by_kind, Mapping) else [by_kind]
    if by_kind is not None and not all(isinstance(each, Mapping) for each in fields):
        raise UserError(f"by_kind is {shown(by_kind)}; give a mapping of kinds to settings")


def _check(kind: str, fields: dict[str, Any]) -> None:
    """Settings of a kind, or of all (no name)."""
    if kind and kind not in _DIRECTIONS:
        raise UserError(f"by_kind: {kind!r} is no kind; use one of {', '.join(_DIRECTIONS)}")
    for name, value in fields.items():
        if name not in _SETTINGS or (name == "rows" and kind != "embedding"):
            allowed = [each for each in _SETTINGS if each != "rows" or kind == "embedding"]
            raise UserError(f"by_kind: {kind} has no {name!r}; use one of {', '.join(allowed)}")
        if name == "rows":
            if value not in ("all", "seen"):
                raise UserError(f"by_kind: rows is {shown(value)}; write all or seen")
        elif not is_rate(value):
            raise UserError(
                f"{name} is {shown(value)}; give a number that is not negative, and finite"
            )
        elif isinstance(value, Tensor) and value.dim():
            raise UserError(f"{name} is {shown(value)}; give a number, or a tensor of shape ()")
        elif name == "momentum" and value >= 1:
            raise UserError(f"momentum is {shown(value)}; give one below 1")


def _kinds(model: nn.Module, known: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    """The kind of every parameter that is moved, by its name; ``known`` has the roles of all."""
    learning = {name: p for name, p in named_weights(model) if p.requires_grad}
    names = {name for name, _ in named_weights(model)}
    told: dict[str, str] = {}
    for pattern, kind in said.items():
        if kind not in (*_DIRECTIONS, "none"):
            raise UserError(
                f"kind {shown(kind)} of {pattern!r}: use one of {', '.join(_DIRECTIONS)}, none"
            )
        those = [name for name in matched(model, pattern) if name in names]
        if not those:
            raise UserError(f"kind: no parameter's name matches {pattern!r}")
        told |= dict.fromkeys(those, kind)
    places = owners(model)
    found: dict[str, str] = {}
    strange: list[str] = []
    for name, parameter in learning.items():
        module, attribute = places[name][0]
        kind = told.get(name) or _kind(known[name], module, attribute, parameter)
        if kind is None:
            strange.append(name)
        elif kind != "none":
            _check_parameter(name, parameter, module, kind)
            found[name] = kind
    if strange:
        what = ", an embedding that is the head too" if known[strange[0]] == "tied" else ""
        kind = "none" if known[strange[0]] == "convolution" else "embedding"
        raise UserError(
            f"SteepestDescent: {len(strange)} parameters are of no kind that the article treats "
            f"(the first is {strange[0]}{what}); say what each is, such as "
            f"kind={{{strange[0]!r}: {kind!r}}}; 'none' leaves it to another optimizer"
        )
    return found


def _kind(role: str, module: nn.Module, attribute: str, parameter: Tensor) -> str | None:
    """The kind of a parameter by its role, its module and its name there; None if it has none."""
    if role in ("embedding", "head"):
        return role
    if is_matrix(role):
        return "linear"
    if role == "vector" and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"  # of positions: an index reads them too
    is_bias = attribute.startswith("bias") or attribute.endswith("bias")
    if role == "vector" and is_bias and (parameter.dim() == 1 or is_norm(module)):
        return "bias"
    return "gain" if role == "vector" and is_norm(module) else None


def _check_parameter(name: str, parameter: Tensor, module: nn.Module, kind: str) -> None:
    if is_distributed(parameter):
        raise UserError(
            f"{name} lies in parts on several processes, and SteepestDescent moves whole "
            "parameters; use DistributedDataParallel"
        )
    if getattr(module, "sparse", False):
        raise UserError(f"{name} has sparse gradients; give its module sparse=False")
    if kind in _DECAYED and isinstance(module, nn.modules.conv._ConvNd):
        raise UserError(
            f"{name} is a convolution and no {kind}, and the article treats none; give it 'none', "
            "for another optimizer"
        )
    if kind in _DECAYED and parameter.dim() not in ((2, 3) if kind == "linear" else (2,)):
        raise UserError(
            f"{name} has shape {tuple(parameter.shape)} and is no {kind}; give it another kind"
        )
