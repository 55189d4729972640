"""What is measured while training: pure functions that the loop calls at stated steps.

Norms are root mean squares, ‖W‖ = sqrt(mean of squared entries); an activation's norm is the
mean over tokens of the per-token root mean square. Results are nested dictionaries
``{stat: {address: value}}``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lrm.multipliers.attach import Multipliers
from lrm.plan.rules import TensorPlan

Scalars = dict[str, dict[str, float]]
Vectors = dict[str, dict[str, list[float]]]


def token_rms(activation: Tensor) -> Tensor:
    """Mean over tokens of the root mean square over the last axis."""
    norms = torch.linalg.vector_norm(_wide(activation), dim=-1)
    return norms.mean() / math.sqrt(activation.shape[-1])


def row_norms(weight: Tensor) -> Tensor:
    """Root mean square of each row, shape (rows,)."""
    return _wide(weight).flatten(1).square().mean(1).sqrt()


def column_norms(weight: Tensor) -> Tensor:
    """Root mean square of each column of a matrix, shape (columns,)."""
    return _wide(weight).square().mean(0).sqrt()


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().float() if tensor.dtype.itemsize < 4 else tensor.detach()


class Views:
    """The tensors behind every address: learnable W, effective W̄, gradients, multipliers."""

    def __init__(self, model: nn.Module, plans: Sequence[TensorPlan], multipliers: Multipliers):
        self.plans = list(plans)
        self._multipliers = multipliers
        self._parameters = dict(model.named_parameters())

    def weight(self, plan: TensorPlan) -> Tensor:
        """The tensor that the optimizer moves."""
        return _slice(self._parameters[plan.address.parameter], plan)

    def gradient(self, plan: TensorPlan) -> Tensor | None:
        """∂L/∂W of the tensor that the optimizer moves, after clipping; None if frozen."""
        if not plan.trainable:
            return None
        gradient = self._parameters[plan.address.parameter].grad
        return None if gradient is None else _slice(gradient, plan)

    def multipliers(self, plan: TensorPlan) -> dict[str, Tensor]:
        """The values of s, r and c, whatever their parametrization."""
        scaling = self._multipliers.scalings.get(plan.key)
        return {} if scaling is None else {k: v.detach() for k, v in scaling.values().items()}

    def multiplier_gradients(self, plan: TensorPlan) -> dict[str, Tensor]:
        """∂L/∂ of the parameters of s, r and c, after clipping; those that are there."""
        scaling = self._multipliers.scalings.get(plan.key)
        found = {} if scaling is None else dict(scaling.named_parameters())
        return {axis: value.grad for axis, value in found.items() if value.grad is not None}

    def effective(self, plan: TensorPlan) -> Tensor:
        """W̄, without the fixed forward multiplier."""
        scaling = self._multipliers.scalings.get(plan.key)
        weight = self.weight(plan).detach()
        return weight if scaling is None else scaling(weight).detach()


def _slice(tensor: Tensor, plan: TensorPlan) -> Tensor:
    rows = plan.address.rows
    return tensor if rows is None else tensor[rows[0] : rows[1]]


@torch.no_grad()
def tensor_norms(views: Views) -> Scalars:
    """Norms of weights, effective weights, multipliers and gradients of every address."""
    tensors: dict[tuple[str, str], Tensor] = {}
    for plan in views.plans:
        tensors["weight_norm", plan.key] = views.weight(plan)
        multipliers = views.multipliers(plan)
        # Norm weights always, so that scalar and vector ones are read the same way.
        if multipliers or plan.address.role == "norm":
            tensors["effective_norm", plan.key] = views.effective(plan)
        for axis, value in multipliers.items():
            tensors[f"{axis}_multiplier_norm", plan.key] = value
        for axis, gradient in views.multiplier_gradients(plan).items():
            tensors[f"{axis}_multiplier_gradient_norm", plan.key] = gradient
        gradient = views.gradient(plan)
        if gradient is not None:
            tensors["gradient_norm", plan.key] = gradient
    # All in one call: most of them are so small that calling takes longer than computing.
    norms = torch.stack(torch._foreach_norm([_wide(tensor) for tensor in tensors.values()]))
    found: Scalars = {}
    for ((stat, key), tensor), norm in zip(tensors.items(), norms.tolist(), strict=True):
        found.setdefault(stat, {})[key] = norm / math.sqrt(tensor.numel())
    return found


@torch.no_grad()
def activation_norms(model: nn.Module, tokens: Tensor, micro_batch: int = 0) -> Scalars:
    """Norms of all tapped activations on ``tokens`` (sequences, length), means over tokens.

    ``micro_batch`` sequences at a time, or all at once. Logits also centred per token
    (``centred_norm``): a shift common to the vocabulary does not change the probabilities.
    """
    found: dict[str, dict[str, Tensor]] = {"activation_norm": {}, "centred_norm": {}}
    for part in tokens.split(micro_batch or len(tokens)):
        activations: dict[str, Tensor] = {}
        model(part, activations=activations)
        logits = _wide(activations["projector"])
        centred = {"projector": token_rms(logits - logits.mean(-1, keepdim=True))}
        norms = {key: token_rms(activation) for key, activation in activations.items()}
        share = len(part) / len(tokens)
        for stat, values in (("activation_norm", norms), ("centred_norm", centred)):
            for key, value in values.items():
                whole = found[stat].get(key)
                found[stat][key] = value * share if whole is None else whole + value * share
    return to_floats(found)


class GradientStatistics:
    """Signal and noise of the gradients of several batches (claim N1, section 2).

    Of every learnable tensor, and of the multipliers that a matrix has or could have: where s = 1,
    ∂L/∂s = Σ W_ij G_ij, ∂L/∂r_i = Σ_j W_ij G_ij and ∂L/∂c_j = Σ_i W_ij G_ij. Those of multipliers
    that it has are these over s, r_i and c_j, which changes neither ratio of a scalar.
    """

    def __init__(self, views: Views):
        self.views = views
        self.count = 0
        self._sums: dict[tuple[str, str], Tensor] = {}
        self._squares: dict[tuple[str, str], Tensor] = {}

    @torch.no_grad()
    def add(self) -> None:
        """Take the gradients that are there, those of one batch."""
        self.count += 1
        for plan in self.views.plans:
            gradient = self.views.gradient(plan)
            if gradient is None:
                continue
            parts = {"gradient": _wide(gradient)}
            if gradient.dim() == 2:
                product = _wide(self.views.weight(plan)) * parts["gradient"]
                parts["scalar_gradient"] = product.sum()
                parts["row_gradient"] = product.sum(1)
                parts["column_gradient"] = product.sum(0)
            for stat, value in parts.items():
                place, square = (stat, plan.key), value.double().square().sum()
                if place in self._sums:
                    self._sums[place] += value
                    self._squares[place] += square
                else:
                    self._sums[place], self._squares[place] = value.clone(), square

    def result(self) -> Scalars:
        """``…_signal`` and ``…_noise`` by address: mean squares over the entries.

        Noise is the variance of one batch's gradient, signal the square of its expectation,
        without bias: below zero where there is less of it than can be told. At least two batches.
        """
        found: dict[str, dict[str, Tensor]] = {}
        for (stat, key), total in self._sums.items():
            size, n = total.numel(), self.count
            mean = (total.double() / n).square().sum()
            noise = (self._squares[stat, key] / n - mean) * n / (n - 1)
            found.setdefault(f"{stat}_noise", {})[key] = noise / size
            found.setdefault(f"{stat}_signal", {})[key] = (mean - noise / n) / size
        return to_floats(found)


@torch.no_grad()
def vectors(views: Views) -> Vectors:
    """Row and column norms of W and W̄, values of vector multipliers and of norm weights.

    Of the projector also the singular values over sqrt(entries), whose squares sum to ‖W‖²: a
    few directions that the data fixed stand out from what is noise.
    """
    found: Vectors = {}

    def put(stat: str, key: str, value: Tensor) -> None:
        found.setdefault(stat, {})[key] = value.tolist()

    for plan in views.plans:
        weight = views.weight(plan).detach()
        multipliers = views.multipliers(plan)
        if weight.dim() == 1:
            put("values", plan.key, views.effective(plan))
        else:
            put("row_norms", plan.key, row_norms(weight))
            if weight.dim() == 2:
                put("column_norms", plan.key, column_norms(weight))
            if multipliers:
                effective = views.effective(plan)
                put("effective_row_norms", plan.key, row_norms(effective))
                if weight.dim() == 2:
                    put("effective_column_norms", plan.key, column_norms(effective))
        for axis, value in multipliers.items():
            put(f"{axis}_multiplier", plan.key, value)
        if plan.address.name == "projector":
            put("singular_values", plan.key, _singular_values(weight))
    return found


def _singular_values(weight: Tensor) -> Tensor:
    """In units of the norm convention, largest first, through the smaller Gram matrix."""
    wide = _wide(weight).double()
    gram = wide.T @ wide if wide.shape[0] >= wide.shape[1] else wide @ wide.T
    if not gram.isfinite().all():  # the loop ends such a run at the next losses it writes
        return torch.full(gram.shape[:1], math.nan)
    return (torch.linalg.eigvalsh(gram).flip(0).clamp(min=0) / wide.numel()).sqrt()


def to_floats(found: dict[str, dict[str, Tensor]]) -> Scalars:
    """One transfer for all values."""
    flat = [value for values in found.values() for value in values.values()]
    numbers = iter(torch.stack(flat).tolist())
    return {stat: {key: next(numbers) for key in values} for stat, values in found.items()}
