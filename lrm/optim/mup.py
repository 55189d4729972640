"""muP on any torch model: learning rates and initial values as powers of how much wider it is.

After Tensor Programs V (Yang et al., https://arxiv.org/abs/2203.03466), table 3: what is tuned at
one width serves all. The suite's own runs have it as presets (``width/gdn_mup_*``), but for the
gates and heads of Gated Delta Networks, which those treat as the third paper does.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lrm.errors import UserError, shown
from lrm.multipliers.layout import Layout, layout, owners, uncompiled
from lrm.multipliers.library import build_param_groups, check_model, known_roles, named_weights
from lrm.multipliers.roles import said_roles

# Of an optimizer's name the power of inputs and of outputs in the factor on the LR.
_POWERS = {"adamw": (-1, 0), "sgd": (-1, 1)}
# By role the power of inputs in the initial root mean square.
_INITIAL = {"matrix": -0.5, "transposed": -0.5, "convolution": -0.5, "head": -1.0, "embedding": 0.0}
_HIDDEN = ("matrix", "transposed", "convolution")


def mup_param_groups(
    model: nn.Module,
    base: nn.Module,
    lr: float,
    weight_decay: float,
    *,
    optimizer: str = "adamw",
    role: Mapping[str, str] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Groups as ``lrm.build_param_groups`` makes them, with muP's learning rates.

    ``base`` is the model at the width at which ``lr`` was tuned, with the same names of parameters;
    it may lie on the meta device. A parameter with m_in times the inputs and m_out times the
    outputs that it has there gets ``lr`` times

    ========= ============ ========= ===================== =========
    optimizer factor       matrices  embedding and vectors head
    ========= ============ ========= ===================== =========
    ``adamw`` 1 / m_in     1 / m     1                     1 / m
    ``sgd``   m_out / m_in 1         m                     1 / m
    ========= ============ ========= ===================== =========

    where the last three columns are of a model m times as wide. Tables that an index reads have no
    inputs, and so have vectors. Weight decays stay, so that η·λ follows the LR: as 1 / m for
    matrices under AdamW. To keep η·λ, the second recipe of section 4.2's table 1, divide each
    group's weight decay by its factor. Multipliers keep their LR. ``role`` maps patterns of
    parameter names to roles where the types of modules and names do not tell them
    (``lrm.multipliers.roles``), and ``options`` are those of ``build_param_groups``. A matrix that
    its name alone tells is taken as (outputs, inputs): give it the role ``transposed`` where it is
    used as ``x @ W``. Initial values have to follow too (``mup_rescale_``).

    Attention is to have heads of one size, more of them in a wider model: else its logits would
    need a factor, and a warning says so where heads tell their size. The factors are wrong for
    Muon, which takes its matrices from ``build_param_groups``. Raises UserError for another
    optimizer, for parameters that ``base`` does not have or has in other dimensions, and for an
    embedding that is the head too, which would need a factor on the logits.
    """
    if optimizer not in _POWERS:
        raise UserError(
            f"mup_param_groups: optimizer {shown(optimizer)} has no rule here; use one of "
            f"{', '.join(_POWERS)}"
        )
    model, base = uncompiled(model), uncompiled(base)
    ratios = _ratios(model, base, "mup_param_groups", role)
    of_inputs, of_outputs = _POWERS[optimizer]
    factors = {
        id(parameter): ratios[name][0] ** of_inputs * ratios[name][1] ** of_outputs
        for name, parameter in named_weights(model)
    }
    found = []
    for group in build_param_groups(model, lr, weight_decay, role=role, **options):
        parts: dict[float, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            parts.setdefault(factors.get(id(parameter), 1.0), []).append(parameter)
        for factor, members in parts.items():
            found.append({**group, "params": members, "lr": group["lr"] * factor})
    return found


@torch.no_grad()
def mup_rescale_(
    model: nn.Module, base: nn.Module, *, role: Mapping[str, str] | None = None
) -> nn.Module:
    """Scale the initial weights of ``model`` to those of ``base`` by muP's powers; returns it.

    The root mean square of each weight becomes that of ``base`` times m_in^(−1/2) for matrices,
    times 1/m_in for the head, and times 1 for embeddings; vectors stay as they are, which are
    biases too. A matrix whose inputs grow and whose outputs do not is an output layer and has
    1/m_in as the head has, such as a classifier's last one and a router; ``role`` says otherwise
    by ``matrix``, and is as in ``mup_param_groups``, whose factors follow from m_in and m_out for
    such a layer too. It does not matter how ``model`` was initialised, only that its weights are
    random and not all 0. To be called before training and before multipliers are attached. Raises
    UserError as ``mup_param_groups`` does, and for a ``base`` on the meta device.
    """
    given, model, base = model, uncompiled(model), uncompiled(base)
    ratios = _ratios(model, base, "mup_rescale_", role)
    roles, of_base = known_roles(model, role), dict(named_weights(base))
    said = said_roles(model, role or {})
    for name, parameter in named_weights(model):
        if (power := _INITIAL.get(roles[name])) is None:
            continue
        # ``transposed`` says where the inputs are, and not how many outputs grow.
        is_free = said.get(name, "transposed") == "transposed"
        if is_free and roles[name] in _HIDDEN and _is_output(*ratios[name]):
            power = _INITIAL["head"]
        if of_base[name].is_meta or parameter.is_meta:
            raise UserError(f"mup_rescale_: {name} has no values; build it elsewhere than on meta")
        own, wanted = _rms(parameter), _rms(of_base[name]) * ratios[name][0] ** power
        if own > 0:
            parameter.mul_(wanted / own)
    return given


def _is_output(of_inputs: float, of_outputs: float) -> bool:
    """Whether a layer ends what grows with the width, as a classifier's last one: table 3."""
    return of_outputs == 1.0 != of_inputs


def _rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


def _ratios(
    model: nn.Module, base: nn.Module, call: str, role: Mapping[str, str] | None
) -> dict[str, tuple[float, float]]:
    """How many times the inputs and outputs of ``base`` each parameter has, by name."""
    for each in (model, base):
        check_model(each, f"optim.{call}")
    there, places, roles = dict(named_weights(base)), owners(model), known_roles(model, role)
    _warn_of_heads(model, base, call)
    found = {}
    for name, parameter in named_weights(model):
        other = there.get(name)
        if other is None or other.dim() != parameter.dim():
            what = "has no such parameter" if other is None else "has it in other dimensions"
            raise UserError(f"{call}: {name}: base {what}; build it of the same layers")
        if roles[name] == "tied":
            raise UserError(
                f"{call}: {name} is embedding and head at once, and muP asks two things; give "
                "the head weights of its own (tie_word_embeddings=False)"
            )
        wider = [n / m for n, m in zip(parameter.shape, other.shape, strict=True)]
        turned = roles[name] == "transposed"
        form = layout(*places[name][0], parameter, inputs_first=turned)
        found[name] = _sides(roles[name], wider, form)
    return found


def _warn_of_heads(model: nn.Module, base: nn.Module, call: str) -> None:
    """Warn where heads of attention grow in size; the model may have a factor on their logits."""
    own, of_base = _head_sizes(model), _head_sizes(base)
    for place, size in own.items():
        if size != of_base.get(place, size):
            warnings.warn(
                f"{call}: heads of attention have size {size} and that of base {of_base[place]} "
                f"({place}); let their number grow and not their size, or multiply their logits "
                f"by {(of_base[place] / size) ** 0.5:.3g} yourself",
                stacklevel=4,
            )
            return


def _head_sizes(model: nn.Module) -> dict[str, int]:
    """The sizes of heads as far as modules or a configuration of transformers tell, by place."""
    found = {
        f"{path}.head_dim".lstrip("."): size
        for path, module in model.named_modules()
        if isinstance(size := getattr(module, "head_dim", None), int)
    }
    config = getattr(model, "config", None)
    width, number = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads"))
    size = getattr(config, "head_dim", None)
    if isinstance(size, int):
        found["config.head_dim"] = size
    elif isinstance(width, int) and isinstance(number, int) and number > 0:
        found["config.hidden_size / num_attention_heads"] = width // number
    return found


def _sides(role: str, wider: list[float], axes: Layout) -> tuple[float, float]:
    if role in ("vector", "embedding"):  # a table's rows are found by an index
        return 1.0, math.prod(wider)
    outputs = wider[axes.row]
    if axes.column is not None:
        return wider[axes.column], outputs
    return math.prod(wider) / outputs, outputs
