"""From the ordered list of rules to one plan per tensor. No torch here.

Weight decay is decoupled and multiplied by the raw LR, as in torch's AdamW:
``W <- W - lr * weight_decay * W``. By default matrices and the embedding decay; RMSNorm
weights, conv1d, D, A_log, dt_bias and multipliers do not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lrm.errors import UserError, nearest
from lrm.model import tensors
from lrm.model.blocks.block import Constant
from lrm.model.tensors import Address
from lrm.multipliers.multiplier import Multiplier, of_kind
from lrm.plan.config import AxisRule, Rule, Settings

_OF_MATRICES = ("muon", "per_token")
# What rules may say of each optimizer besides. AdamW's and Muon's are those of the whole run.
_KNOWN: dict[str, tuple[str, ...]] = {
    "adamw": (), "muon": (), "sgd": ("momentum",), "normalized": ("momentum",),
    "sign": ("momentum", "rows"), "per_token": ("momentum", "rows"),
}  # fmt: skip


@dataclass(frozen=True)
class Matrix:
    """What Muon orthogonalises as one: a tensor, or the learning rows of a merged parameter."""

    name: str
    rows: int
    columns: int


@dataclass(frozen=True)
class TensorPlan:
    """Everything that the rules say about one tensor.

    ``optimizer`` is that of the tensor itself, multipliers always go by AdamW; ``matrix`` is set
    where it is Muon and the tensor learns. ``options`` are what the other kinds are told besides:
    their momentum, and which rows are moved. Initial values are drawn by ``init_seed`` where it is
    given, else by the run's seed.
    """

    address: Address
    forward: float
    init_scale: float
    trainable: bool
    lr: float
    weight_decay: float
    multipliers: tuple[Multiplier, ...] = field(default=())
    optimizer: str = "adamw"
    matrix: Matrix | None = None
    options: tuple[tuple[str, Any], ...] = ()
    init_seed: int | None = None

    @property
    def key(self) -> str:
        """The address with its layer, e.g. ``mlp.up@3``."""
        return self.address.key


@functools.lru_cache(maxsize=4096)  # runs that differ by their seed share one plan
def resolve(settings: Settings) -> tuple[TensorPlan, ...]:
    """The plan of every tensor of the model, in forward order.

    Raises UserError where a pattern matches nothing, or asks for an impossible multiplier or
    optimizer.
    """
    present = tensors.addresses(settings.model)
    point_factors(settings)
    for rule in settings.rules:
        if not tensors.is_point(rule.match):
            tensors.check_pattern(rule.match, present, rule.optional)
    plans: dict[tuple[str, tuple[int, ...]], TensorPlan] = {}
    found = []
    for address in present:
        rules = tuple(rule for rule in settings.rules if tensors.matches(rule.match, address))
        # Layers of which the rules say the same share all but their address.
        said = (address.name, tuple(map(id, rules)))
        if said not in plans:
            plans[said] = _plan(address, rules, settings)
        found.append(replace(plans[said], address=address))
    return _with_matrices(found, settings)


@functools.lru_cache(maxsize=4096)
def point_factors(settings: Settings) -> Mapping[str, float]:
    """Forward factors of the model's points by key (``Block.points``); those that are not 1.

    Raises UserError where a rule that names one asks for anything else, or the model lacks it.
    """
    points = tensors.points(settings.model)
    rules = [rule for rule in settings.rules if tensors.is_point(rule.match)]
    for rule in rules:
        said = _given(rule) | _given(rule.width_exponent) | _given(rule.multiplier)
        if odd := sorted(said.keys() - {"forward", "forward_scale"}):
            raise UserError(
                f"rule {rule.match!r}: {odd[0]} is for tensors, and this is an activation; it "
                "takes forward, forward_scale and width_exponent.forward"
            )
        if not rule.optional and not any(tensors.matches_point(rule.match, p) for p in points):
            raise UserError(
                f"rule {rule.match!r} matches nothing in this model; its activations that take a "
                f"factor are {nearest(rule.match, points) or 'none'}"
            )
    found = {}
    for point in points:
        said, exponents = {}, {}
        for rule in rules:
            if tensors.matches_point(rule.match, point):
                said |= _given(rule)
                exponents |= _given(rule.width_exponent)
        width = (settings.model.hidden_size / settings.base_width) ** exponents.get("forward", 0.0)
        found[point] = said.get("forward", 1.0) * said.get("forward_scale", 1.0) * width
    return {point: factor for point, factor in found.items() if factor != 1}


def _optimizer(address: Address, said: dict[str, Any], settings: Settings) -> str:
    """Which optimizer moves a tensor: the rule's; else Muon, if chosen, takes hidden matrices."""
    kind = said.get("optimizer")
    if kind in _OF_MATRICES and len(address.shape) != 2:
        raise UserError(
            f"rule for {address.name!r}: optimizer = {kind} needs a matrix, this tensor has shape "
            f"{address.shape}; use adamw, or name matrices such as mlp.*"
        )
    if kind not in (None, "adamw") and said.get("weight") == "scalar":
        raise UserError(
            f"rule for {address.name!r}: weight = scalar learns a multiplier, which AdamW moves; "
            "drop optimizer or weight"
        )
    hidden = address.role == "matrix" and address.layer is not None
    return kind or (settings.optimizer.name if hidden else "adamw")


def _options(
    address: Address, rules: Sequence[Rule], optimizer: str, settings: Settings
) -> tuple[tuple[str, Any], ...]:
    """The momentum of a tensor that neither AdamW nor Muon moves, and which of its rows move.

    What an earlier rule said of another optimizer does not count. Raises UserError where a rule
    says what its optimizer does not know.
    """
    said: dict[str, Any] = {}
    for rule in rules:
        if rule.optimizer is not None:
            said = {key: value for key, value in said.items() if key in _KNOWN[rule.optimizer]}
        given = {"momentum": rule.momentum, "rows": rule.rows}
        said |= {key: value for key, value in given.items() if value is not None}
    where = f"rule for {address.name!r}: "
    for key in said:
        if key not in _KNOWN[optimizer]:
            kinds = ", ".join(kind for kind, known in _KNOWN.items() if key in known)
            raise UserError(
                f"{where}{key} is for {kinds}, and this tensor is moved by {optimizer}; drop {key}"
            )
    if "rows" in said and len(address.shape) != 2:
        raise UserError(f"{where}rows is for matrices, and its shape is {address.shape}; drop rows")
    found = {"momentum": settings.optimizer.momentum, "rows": "all", **said}
    return tuple((key, found[key]) for key in _KNOWN[optimizer])


def _with_matrices(plans: list[TensorPlan], settings: Settings) -> tuple[TensorPlan, ...]:
    """The plans with what Muon orthogonalises together.

    The slices of a merged parameter are one matrix, whatever LR and decay each of them has; rows
    that do not learn are no part of it.
    """
    whole = settings.optimizer.muon_matrices == "whole"
    rows: dict[str, int] = {}
    names: list[str | None] = []
    for plan in plans:
        name = None
        if plan.optimizer == "muon" and plan.trainable:
            name = plan.address.parameter if whole and not plan.address.apart else plan.key
            rows[name] = rows.get(name, 0) + plan.address.shape[0]
        names.append(name)
    return tuple(
        replace(plan, matrix=Matrix(name, rows[name], plan.address.shape[1])) if name else plan
        for plan, name in zip(plans, names, strict=True)
    )


def _plan(address: Address, rules: Sequence[Rule], settings: Settings) -> TensorPlan:
    """What the ``rules``, all of which match, say of one tensor."""
    said: dict[str, Any] = {}
    layers = [_given(settings.multipliers)]
    exponents: dict[str, float] = {}
    for rule in rules:
        said |= _given(rule)
        layers.append(_given(rule.multiplier))
        exponents |= _given(rule.width_exponent)

    optimizer = settings.optimizer
    width = settings.model.hidden_size / settings.base_width
    scale = said.get("relative_scale", 1.0)
    if said.get("compensate") and "relative_scale" not in said:
        raise UserError(f"rule for {address.name!r}: compensate is for a relative_scale, and there "
                        "is none; write one, or drop it")  # fmt: skip
    compensation = scale if said.get("compensate") else 1.0
    decayed = address.role in tensors.DECAYED
    plain_decay = optimizer.weight_decay if decayed else 0.0

    def at_width(name: str) -> float:
        return width ** exponents.get(name, 0.0)

    lr = said.get("lr", settings.base_lr) * said.get("lr_scale", 1.0) * scale * at_width("lr")
    decay = said.get("weight_decay", plain_decay) * said.get("wd_scale", 1.0) / scale
    plan = {
        "forward": said.get("forward", 1.0)
        * said.get("forward_scale", 1.0)
        / compensation
        * at_width("forward"),
        "init_scale": said.get("init_scale", 1.0) * compensation * at_width("init"),
        "trainable": True,
        "lr": lr,
        "weight_decay": decay * at_width("weight_decay"),
        "multipliers": _multipliers(address, layers, settings),
        "optimizer": _optimizer(address, said, settings),
        "init_seed": said.get("init_seed"),
    }
    plan["options"] = _options(address, rules, plan["optimizer"], settings)
    if address.role not in tensors.DECAYED and (plan["forward"] != 1 or plan["init_scale"] != 1):
        raise UserError(
            f"rule for {address.name!r}: forward and init_scale (and compensate) are for matrices "
            "and the embedding; name them, e.g. projector or mlp.*"
        )
    if plan["init_seed"] is not None and isinstance(address.initial, Constant):
        raise UserError(
            f"rule for {address.name!r}: init_seed is for values that are drawn, and these are all "
            f"{address.initial.value:g}; drop it"
        )
    ignored = [name for name in ("init_scale", "init_seed") if said.get(name) is not None]
    ignored += ["width_exponent.init"] if at_width("init") != 1 else []
    if settings.train.start is not None and ignored:
        raise UserError(
            f"rule for {address.name!r}: {ignored[0]} is for initial values, and train.start gives "
            "others; drop one of the two"
        )
    weight = said.get("weight")
    if weight is not None and address.role != "norm" and weight != "frozen":
        raise UserError(
            f"rule for {address.name!r}: weight = {weight} is only for norms; "
            "write frozen, or use a multiplier"
        )
    if weight in ("frozen", "scalar"):
        plan["trainable"] = False
    if weight == "scalar":
        if plan["multipliers"]:
            raise UserError(
                f"rule for {address.name!r}: weight = scalar is a multiplier already; "
                "drop the other one"
            )
        # One learnable number times a frozen vector of ones; it stays a norm weight, and is
        # therefore counted in the clipping norm like the vector that it stands for.
        multiplier = Multiplier("scalar", 1, lr, plan["weight_decay"], in_clip_norm=True)
        plan["multipliers"] = (multiplier,)
    return TensorPlan(address, **plan)


def _given(rule: Any) -> dict[str, Any]:
    """The fields that a rule states."""
    if rule is None:
        return {}
    nested = {"match", "optional", "multiplier", "width_exponent"} if isinstance(rule, Rule) else {}
    return {
        name: _given(value) if isinstance(value, AxisRule) else value
        for name, value in rule
        if value is not None and name not in nested
    }


def _multipliers(
    address: Address, layers: list[dict[str, Any]], settings: Settings
) -> tuple[Multiplier, ...]:
    kinds = [layer.pop("kind") for layer in layers if "kind" in layer]
    if not kinds:
        return ()
    shape = address.shape
    sizes = {"scalar": 1, "row": shape[0]} | ({"column": shape[1]} if len(shape) == 2 else {})
    clipped = settings.train.clip_includes_multipliers
    where = f"rule for {address.name!r}"
    return of_kind(kinds[-1], shape, sizes, layers, where, clipped)


def table(plans: Sequence[TensorPlan], settings: Settings) -> list[dict[str, Any]]:
    """The expanded rules as records: one for every tensor and one for every multiplier.

    ``lr_wd`` is the product of LR and weight decay, the speed of forgetting per step. Points come
    last, where rules give them a factor.
    """
    clipped = settings.train.clip_norm > 0
    rows = []
    for plan in plans:
        rows.append(
            {
                "tensor": plan.key,
                "multiplier": None,
                "shape": list(plan.address.shape),
                "forward": plan.forward,
                "init": plan.init_scale,
                "trainable": plan.trainable,
                "optimizer": plan.optimizer,
                **dict(plan.options),
                "lr": plan.lr if plan.trainable else 0.0,
                "weight_decay": plan.weight_decay if plan.trainable else 0.0,
                "lr_wd": plan.lr * plan.weight_decay if plan.trainable else 0.0,
                "in_clip_norm": clipped and plan.trainable,
            }
        )
        for each in plan.multipliers:
            rows.append(
                {
                    "tensor": plan.key,
                    "multiplier": each.label,
                    "shape": [each.size],
                    "forward": 1.0,
                    "init": each.init,
                    "trainable": True,
                    "optimizer": "adamw",
                    "lr": each.lr,
                    "weight_decay": each.weight_decay,
                    "lr_wd": each.lr * each.weight_decay,
                    "in_clip_norm": clipped and each.in_clip_norm,
                }
            )
    for point, factor in point_factors(settings).items():
        nothing = {"lr": 0.0, "weight_decay": 0.0, "lr_wd": 0.0, "in_clip_norm": False}
        rows.append(
            {
                "tensor": point,
                "multiplier": None,
                "shape": [],
                "forward": factor,
                "init": 1.0,
                "trainable": False,
                "optimizer": None,
                **nothing,
            }
        )
    return rows
