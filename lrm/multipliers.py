"""Learnable multipliers: W̄ = s·W (equation 2) and W̄_ij = r_i W_ij c_j (equation 3).

Two implementations with the same mathematics (section 2):

* ``forward``: the effective weight is computed in the forward pass and autograd does the rest
  (``torch.nn.utils.parametrize``, so that every reader of ``module.weight`` sees W̄, kernels
  that take the raw tensor included);
* ``optimizer``: the model holds W̄ itself; W and the multipliers live beside it, their
  gradients follow from Ḡ = ∂L/∂W̄ by the relations (4), and W̄ is written back after each step.

Both work on any ``nn.Module``::

    multipliers = attach(model, {"*.weight": "row_column"})
    optimizer = torch.optim.AdamW(multipliers.groups(lr=1e-3, weight_decay=0.1))
    ...
    loss.backward(); multipliers.pull_gradients()
    optimizer.step(); multipliers.push_weights()
    ...
    multipliers.merge()          # the plain model, with W̄ in place of W
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lrm.errors import UserError
from lrm.rules import AXES, Factor

IMPLEMENTATIONS = ("forward", "optimizer")


class Factors(nn.Module):
    """The multipliers of one matrix, or of some rows of one.

    Parameters are named ``scalar``, ``row`` and ``column``, with shapes (1,), (rows,) and
    (columns,). With the log parametrization they hold the logarithm (section 4.1).
    """

    def __init__(self, shape: Sequence[int], factors: Sequence[Factor], like: Tensor):
        super().__init__()
        self.shape = tuple(shape)
        self.log = {factor.axis: factor.parametrization == "log" for factor in factors}
        for factor in factors:
            start = math.log(factor.init) if self.log[factor.axis] else factor.init
            self.register_parameter(
                factor.axis,
                nn.Parameter(
                    torch.full((factor.size,), start, dtype=like.dtype, device=like.device)
                ),
            )

    def values(self) -> dict[str, Tensor]:
        """The multipliers themselves, exponentiated where the parameter is a logarithm."""
        return {
            axis: parameter.exp() if self.log[axis] else parameter
            for axis, parameter in self.named_parameters()
        }

    def _shaped(self, axis: str, value: Tensor) -> Tensor:
        """``value`` in a shape that broadcasts against the weight."""
        if axis == "row":
            return value.view(-1, *[1] * (len(self.shape) - 1))
        return value

    def forward(self, weight: Tensor) -> Tensor:
        """W̄ from W, same shape."""
        for axis, value in self.values().items():
            weight = weight * self._shaped(axis, value)
        return weight

    @torch.no_grad()
    def gradients(self, weight: Tensor, gradient: Tensor) -> dict[str, Tensor]:
        """Equation (4): from Ḡ = ∂L/∂W̄ to the gradients of W (key ``weight``), s, r and c.

        For a logarithmic multiplier the chain rule adds its value as a factor.
        """
        values = self.values()
        found = {"weight": gradient}
        for axis, value in values.items():
            found["weight"] = found["weight"] * self._shaped(axis, value)
        for axis, value in values.items():
            product = weight * gradient
            for other, factor in values.items():
                if other != axis:
                    product = product * self._shaped(other, factor)
            if axis == "row":
                product = product.flatten(1).sum(1) if product.dim() > 1 else product
            elif axis == "column":
                product = product.sum(0)
            else:
                product = product.sum().view(1)
            found[axis] = product * value if self.log[axis] else product
        return found


@dataclass(frozen=True)
class Target:
    """What to multiply: a parameter by its name, or rows [rows[0], rows[1]) of it."""

    key: str
    parameter: str
    rows: tuple[int, int] | None
    factors: tuple[Factor, ...]


class EffectiveWeight(nn.Module):
    """One parameter's multipliers: ``Factors`` for all of it, or one for each of several rows."""

    def __init__(self, weight: Tensor, targets: Sequence[Target]):
        super().__init__()
        self.targets = sorted(targets, key=lambda target: target.rows or (0, 0))
        self.parts = nn.ModuleList(
            Factors(_rows(weight, target).shape, target.factors, weight) for target in self.targets
        )

    def forward(self, weight: Tensor) -> Tensor:
        """W̄ from W, same shape; rows without multipliers pass through."""
        if self.targets[0].rows is None:
            return self.parts[0](weight)
        pieces, end = [], 0
        for target, part in zip(self.targets, self.parts, strict=True):
            start, stop = target.rows
            if start > end:
                pieces.append(weight[end:start])
            pieces.append(part(weight[start:stop]))
            end = stop
        if end < weight.shape[0]:
            pieces.append(weight[end:])
        return torch.cat(pieces)


def _rows(weight: Tensor, target: Target) -> Tensor:
    return weight if target.rows is None else weight[target.rows[0] : target.rows[1]]


class Multipliers:
    """The multipliers attached to a model, whichever way they are implemented.

    ``weights`` maps a parameter's name to the learnable tensor W behind it, ``factors`` a
    target's key to its ``Factors``. ``frozen`` names parameters whose W does not learn.
    """

    def __init__(
        self,
        model: nn.Module,
        targets: Sequence[Target],
        implementation: str,
        frozen: Collection[str] = (),
    ):
        if implementation not in IMPLEMENTATIONS:
            raise UserError(
                f"unknown implementation {implementation!r}; use one of {IMPLEMENTATIONS}"
            )
        self.model = model
        self._frozen = frozen
        self.implementation = implementation
        self.weights: dict[str, nn.Parameter] = {}
        self.factors: dict[str, Factors] = {}
        self.effective: dict[str, EffectiveWeight] = {}
        parameters = dict(model.named_parameters())
        by_parameter: dict[str, list[Target]] = {}
        for target in targets:
            if target.parameter not in parameters:
                raise UserError(f"the model has no parameter {target.parameter!r}")
            by_parameter.setdefault(target.parameter, []).append(target)
        for name, group in by_parameter.items():
            self._attach(name, parameters[name], group)

    def _attach(self, name: str, weight: nn.Parameter, targets: list[Target]) -> None:
        effective = EffectiveWeight(weight, targets)
        self.effective[name] = effective
        for target, part in zip(effective.targets, effective.parts, strict=True):
            self.factors[target.key] = part
        module, attribute = _owner(self.model, name)
        if self.implementation == "forward":
            parametrize.register_parametrization(module, attribute, effective)
            learnable = module.parametrizations[attribute].original
        else:
            learnable = nn.Parameter(weight.detach().clone())
            with torch.no_grad():
                weight.copy_(effective(learnable))
        learnable.requires_grad_(name not in self._frozen)
        self.weights[name] = learnable

    def named_factors(self) -> Iterator[tuple[str, str, nn.Parameter]]:
        """(key, axis, parameter) of every multiplier."""
        for key, factors in self.factors.items():
            for axis, parameter in factors.named_parameters():
                yield key, axis, parameter

    @torch.no_grad()
    def pull_gradients(self) -> None:
        """After backward: gradients of W and of the multipliers from those of W̄ (equation 4).

        Nothing to do where autograd went through the reparametrized forward.
        """
        if self.implementation == "forward":
            return
        parameters = dict(self.model.named_parameters())
        for name, effective in self.effective.items():
            outer = parameters[name].grad
            weight = self.weights[name]
            if outer is None:
                continue
            inner = outer.clone()
            for target, part in zip(effective.targets, effective.parts, strict=True):
                found = part.gradients(_rows(weight, target), _rows(outer, target))
                _rows(inner, target).copy_(found.pop("weight"))
                for axis, gradient in found.items():
                    part.get_parameter(axis).grad = gradient
            weight.grad = inner if weight.requires_grad else None

    @torch.no_grad()
    def push_weights(self) -> None:
        """After the optimizer's step: write W̄ into the model (optimizer-level implementation)."""
        if self.implementation == "forward":
            return
        parameters = dict(self.model.named_parameters())
        for name, effective in self.effective.items():
            parameters[name].copy_(effective(self.weights[name]))

    def merge(self) -> nn.Module:
        """Leave W̄ in the model and forget the multipliers: no cost at inference (section 2)."""
        if self.implementation == "forward":
            for name in self.effective:
                module, attribute = _owner(self.model, name)
                parametrize.remove_parametrizations(module, attribute, leave_parametrized=True)
                module.get_parameter(attribute).requires_grad_(True)
        self.weights, self.factors, self.effective = {}, {}, {}
        return self.model

    def groups(
        self, lr: float, weight_decay: float, multiplier_lr: float | None = None
    ) -> list[dict]:
        """Parameter groups for any torch optimizer, for models outside this suite.

        Tensors with multipliers and other tensors of two or more dimensions decay, vectors do
        not, multipliers follow their own LR (``multiplier_lr``, or that of their ``Factor``)
        and light decay.
        """
        behind = set(self.effective)
        factor_ids = {id(parameter) for _, _, parameter in self.named_factors()}
        learnable_ids = {id(weight) for weight in self.weights.values()}
        decayed = [weight for weight in self.weights.values() if weight.requires_grad]
        plain = []
        for name, parameter in self.model.named_parameters():
            known = name in behind or id(parameter) in factor_ids or id(parameter) in learnable_ids
            if not known and parameter.requires_grad:
                (decayed if parameter.dim() > 1 else plain).append(parameter)
        groups = [
            {"params": decayed, "lr": lr, "weight_decay": weight_decay},
            {"params": plain, "lr": lr, "weight_decay": 0.0},
        ]
        by_settings: dict[tuple[float, float], list[nn.Parameter]] = {}
        for effective in self.effective.values():
            for target, part in zip(effective.targets, effective.parts, strict=True):
                for factor in target.factors:
                    rate = factor.lr if multiplier_lr is None else multiplier_lr
                    by_settings.setdefault((rate, factor.weight_decay), []).append(
                        part.get_parameter(factor.axis)
                    )
        groups += [
            {"params": found, "lr": rate, "weight_decay": decay}
            for (rate, decay), found in by_settings.items()
        ]
        return [group for group in groups if group["params"]]


def attach(
    model: nn.Module,
    kinds: Mapping[str, str],
    *,
    lr: float = 1.0e-2,
    weight_decay: float = 2.0e-3,
    parametrization: str = "direct",
    implementation: str = "forward",
) -> Multipliers:
    """Put learnable multipliers on any model.

    ``kinds`` maps patterns of parameter names to scalar, row, column or row_column; a wildcard
    for columns means the matrices among its matches. The weight
    decay default is the paper's light decay against symmetries (section 4.1). Raises UserError
    for a pattern that matches nothing and for a column multiplier on a vector.
    """
    parameters = dict(model.named_parameters())
    chosen: dict[str, str] = {}
    for pattern, kind in kinds.items():
        if kind not in AXES:
            raise UserError(f"unknown kind {kind!r}; use one of {', '.join(AXES)}")
        names = fnmatch.filter(parameters, pattern)
        if pattern not in parameters and "column" in AXES[kind]:
            # A wildcard means the matrices that it finds, not the norms between them.
            names = [name for name in names if parameters[name].dim() == 2]
        if not names:
            raise UserError(f"pattern {pattern!r} matches no parameter that can be {kind}")
        chosen |= dict.fromkeys(names, kind)
    targets = []
    for name, kind in chosen.items():
        shape = parameters[name].shape
        if "column" in AXES[kind] and len(shape) != 2:
            raise UserError(f"{name}: a column multiplier needs a matrix, its shape is {shape}")
        factors = tuple(
            Factor(
                axis,
                {"scalar": 1, "row": shape[0], "column": shape[-1]}[axis],
                lr,
                weight_decay,
                1.0,
                parametrization,
            )
            for axis in AXES[kind]
        )
        if factors:
            targets.append(Target(name, name, None, factors))
    return Multipliers(model, targets, implementation)


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return model.get_submodule(path), attribute
