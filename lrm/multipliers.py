"""Learnable multipliers: W̄ = s·W (equation 2) and W̄_ij = r_i W_ij c_j (equation 3).

Two implementations with the same mathematics (section 2):

* ``forward``: whoever reads ``module.weight`` gets W̄, computed from the parameter W and the
  multipliers in the module; autograd does the rest, by the relations (4);
* ``optimizer``: the model's parameter is W̄ itself; W and the multipliers live beside it, their
  gradients follow from Ḡ = ∂L/∂W̄ by the same relations, and W̄ is written back after each step.

In both the model's ``state_dict`` holds W under the parameter's own name and the multipliers
under ``<module>.multipliers.<attribute>``, so that checkpoints of one load into the other.
``lrm.api`` has the calls for models outside this suite.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from lrm import effective
from lrm.effective import Part
from lrm.errors import UserError
from lrm.model.kernels import HALF
from lrm.reading import read_through, restore
from lrm.rules import Factor

IMPLEMENTATIONS = ("forward", "optimizer")
# The name under which a module holds the multipliers of its parameters.
CHILD = "multipliers"


@dataclass(frozen=True)
class Layout:
    """Which dimensions of a parameter are rows and columns; any others count matrices.

    A stack of matrices (experts) has multipliers for each of them. ``whole``: there is one
    multiplier a row and nothing else to count (vectors, convolutions).
    """

    row: int
    column: int | None
    whole: bool = False

    def kept(self, axis: str, shape: Sequence[int]) -> list[int]:
        """The dimensions of ``shape`` along which the multipliers of ``axis`` differ."""
        stack = (
            [] if self.whole else [d for d in range(len(shape)) if d not in (self.row, self.column)]
        )
        return stack + {"scalar": [], "row": [self.row], "column": [self.column]}[axis]

    def size(self, axis: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the multipliers of ``axis``: (stack…, rows), (stack…, columns) or (1,)."""
        return tuple(shape[d] for d in self.kept(axis, shape)) or (1,)

    def spread(self, axis: str, value: Tensor, shape: Sequence[int]) -> Tensor:
        """``value`` in a shape that broadcasts against ``shape``."""
        kept = self.kept(axis, shape)
        return value.view([n if d in kept else 1 for d, n in enumerate(shape)])


def layout(module: nn.Module, weight: Tensor) -> Layout:
    """The layout of a parameter ``weight`` of ``module``.

    Rows come first, as in ``nn.Linear``; in transformers' ``Conv1D`` (GPT-2) they come last.
    An embedding's rows are its tokens.
    """
    if weight.dim() < 2 or isinstance(module, nn.modules.conv._ConvNd):
        return Layout(0, None, whole=True)
    last = weight.dim() - 1
    transposed = type(module).__name__ == "Conv1D"
    return Layout(last, last - 1) if transposed else Layout(last - 1, last)


class Factors(nn.Module):
    """The multipliers of one parameter, or of some rows of one.

    Parameters are named ``scalar``, ``row`` and ``column``, with shapes (1,), (rows,) and
    (columns,), in float32 beside weights in half precision. With the log parametrization they
    hold the logarithm (section 4.1).
    """

    def __init__(
        self, shape: Sequence[int], factors: Sequence[Factor], like: Tensor, layout: Layout
    ):
        super().__init__()
        self.shape, self.layout = tuple(shape), layout
        self.log = {factor.axis: factor.parametrization == "log" for factor in factors}
        dtype = torch.float32 if like.dtype in HALF else like.dtype
        for factor in factors:
            start = math.log(factor.init) if self.log[factor.axis] else factor.init
            size = layout.size(factor.axis, shape)
            value = torch.full(size, start, dtype=dtype, device=like.device)
            if isinstance(like, DTensor):
                mesh = like.device_mesh
                value = distribute_tensor(value, mesh, [Replicate()] * mesh.ndim)
            self.register_parameter(factor.axis, nn.Parameter(value))

    def values(self) -> dict[str, Tensor]:
        """The multipliers themselves, exponentiated where the parameter is a logarithm."""
        return {
            axis: parameter.exp() if self.log[axis] else parameter
            for axis, parameter in self.named_parameters()
        }

    def spread(self) -> list[Tensor]:
        """``values`` in shapes that broadcast against the weight."""
        return [self.layout.spread(axis, v, self.shape) for axis, v in self.values().items()]

    def forward(self, weight: Tensor) -> Tensor:
        """W̄ of the rows that are meant, same shape."""
        return effective.scaled(weight, self.spread())

    @torch.no_grad()
    def add_gradients(self, found: Sequence[Tensor]) -> None:
        """Add gradients of ``spread()`` to those of the parameters, by the chain rule."""
        for (axis, parameter), gradient in zip(self.named_parameters(), found, strict=True):
            gradient = gradient.view(parameter.shape)
            if isinstance(parameter, DTensor):
                gradient = gradient.redistribute(parameter.device_mesh, parameter.placements)
            if self.log[axis]:
                gradient = gradient * parameter.exp()
            _add(parameter, gradient.to(parameter.dtype))


def _mesh_dimensions(tensor: Tensor) -> int:
    return tensor.device_mesh.ndim if isinstance(tensor, DTensor) else 0


def _add(parameter: Tensor, gradient: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient


@dataclass(frozen=True)
class Target:
    """What to multiply: a parameter by its name, or rows [rows[0], rows[1]) of it."""

    key: str
    parameter: str
    rows: tuple[int, int] | None
    factors: tuple[Factor, ...]


class EffectiveWeight(nn.Module):
    """One parameter's multipliers: ``Factors`` for all of it, or for each of some of its rows."""

    def __init__(self, weight: Tensor, targets: Sequence[Target], layout: Layout):
        super().__init__()
        self.targets = sorted(targets, key=lambda target: target.rows or (0, 0))
        self.parts: list[Part] = []
        for target in self.targets:
            axes = tuple(factor.axis for factor in target.factors)
            part = Part(axes, target.rows, layout.row)
            self.parts.append(part)
            factors = Factors(part.of(weight).shape, target.factors, weight, layout)
            self.add_module("all" if target.rows is None else "rows_{}_{}".format(*target.rows),
                            factors)  # fmt: skip
        self._mesh = _mesh_dimensions(weight)
        self._keeping = False
        self._kept: Tensor | None = None

    def factors(self) -> list[Factors]:
        """One for each target, in the order of their rows."""
        return list(self.children())

    def values(self) -> list[Tensor]:
        """Of all factors, in shapes that broadcast."""
        return [value for factors in self.children() for value in factors.spread()]

    def forward(self, weight: Tensor) -> Tensor:
        """W̄ from W, same shape; W itself while FSDP has it sharded, between uses."""
        if self.is_sharded(weight):
            return weight
        if self._kept is not None:
            return effective.again(self._kept, weight, self.parts, self.values())
        found = effective.effective(weight, self.parts, self.values())
        # In this order: compiled code is not to depend on whether weights are kept.
        if not torch.compiler.is_compiling() and self._keeping:
            self._kept = found.detach()
        return found

    def write(self, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """W̄ without a graph, into ``out`` where that is given."""
        return effective.write(weight, self.parts, self.values(), out)

    def is_sharded(self, weight: Tensor) -> bool:
        """Whether ``weight`` lies on more dimensions of a mesh than when this was attached."""
        return _mesh_dimensions(weight) > self._mesh

    def keep(self, keeping: bool) -> None:
        """Build W̄ once and use it again, until this is called with False."""
        self._keeping, self._kept = keeping, None

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """``x @ W̄.T + bias`` by scaling x and the output, where that is less than scaling W.

        None where it is not, and where rows have multipliers of their own.
        """
        if self.parts[0].rows is not None or isinstance(weight, DTensor):
            return None
        if not torch.compiler.is_compiling() and self._keeping:
            return None
        rows, columns = weight.shape
        tokens = x.numel() // columns
        if tokens * (rows + columns) >= rows * columns:
            return None
        [factors] = self.factors()
        values = factors.values()
        before = [values.pop("column")] if "column" in values else []
        if columns <= rows and "scalar" in values:
            before.append(values.pop("scalar"))
        for value in before:
            x = (x * value).to(x.dtype)
        y = nn.functional.linear(x, weight)
        for value in values.values():
            y = (y * value).to(y.dtype)
        return y if bias is None else y + bias.to(y.dtype)


class Multipliers:
    """The multipliers attached to a model, whichever way they are implemented.

    ``factors`` maps a target's key to its ``Factors``, ``effective`` a parameter's name to all of
    them. ``frozen`` names parameters whose W does not learn, besides those that require no
    gradients.

    A parameter that several modules share (tied embeddings) is multiplied once, for all of them.
    Raises UserError for an unknown name or implementation.
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
        self.implementation = implementation
        self._masters: dict[str, nn.Parameter] = {}
        self.factors: dict[str, Factors] = {}
        self.effective: dict[str, EffectiveWeight] = {}
        self._owners = owners(model)
        self._learned: dict[str, bool] = {}
        self._hooks: list[Any] = []
        parameters = dict(model.named_parameters())
        by_parameter: dict[str, list[Target]] = {}
        for target in targets:
            if target.parameter not in parameters:
                raise UserError(f"the model has no parameter {target.parameter!r}")
            is_sharded = isinstance(parameters[target.parameter], DTensor)
            if is_sharded and target.rows and implementation == "optimizer":
                raise UserError(
                    f"{target.parameter} is sharded, and its rows lie in several processes; with "
                    "implementation='optimizer' give it one kind of multiplier"
                )
            by_parameter.setdefault(target.parameter, []).append(target)
        for name, group in by_parameter.items():
            self._attach(name, parameters[name], group, name in frozen)

    def _attach(
        self, name: str, parameter: nn.Parameter, targets: list[Target], frozen: bool
    ) -> None:
        module, attribute = self._owners[name][0]
        found = EffectiveWeight(parameter, targets, layout(module, parameter))
        self.effective[name] = found
        for target, part in zip(found.targets, found.factors(), strict=True):
            self.factors[target.key] = part
        self._learned[name] = parameter.requires_grad
        if self.implementation == "forward":
            weight = parameter
            _child(module).add_module(attribute, found)
            for owner, under in self._owners[name]:
                read_through(owner, under, found)
        else:
            weight = nn.Parameter(parameter.detach().clone())
            for owner, under in self._owners[name]:
                saved = _Saved(found, weight, under, first=owner is module and under == attribute)
                self._hooks += [
                    owner.register_state_dict_post_hook(saved),
                    owner.register_load_state_dict_pre_hook(saved.load),
                ]
        weight.requires_grad_(self._learned[name] and not frozen)
        if self.implementation == "optimizer":
            self._masters[name] = weight
            parameter.requires_grad_(True)
            found.write(weight, out=parameter.data)

    def parameter(self, name: str) -> nn.Parameter:
        """The model's parameter of that name now: W, or W̄ in ``optimizer``."""
        # From its module each time: sharding and loading put other tensors in its place.
        module, attribute = self._owners[name][0]
        return module._parameters[attribute]

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """The learnable tensor W behind each parameter that has multipliers, by its name."""
        if self.implementation == "optimizer":
            return dict(self._masters)
        return {name: self.parameter(name) for name in self.effective}

    def named_factors(self) -> Iterator[tuple[str, str, nn.Parameter]]:
        """(key, axis, parameter) of every multiplier."""
        for key, factors in self.factors.items():
            for axis, parameter in factors.named_parameters():
                yield key, axis, parameter

    @torch.no_grad()
    def pull_gradients(self) -> None:
        """After backward: move the gradients of W̄ to W and the multipliers (equation 4).

        They are added to what is there, and W̄ has none afterwards. Nothing to do where autograd
        went through the forward.
        """
        if self.implementation == "forward":
            return
        for name, found in self.effective.items():
            outer, weight = self.parameter(name).grad, self._masters[name]
            if outer is None:
                continue
            if type(outer) is not type(weight.data):
                raise UserError(
                    f"{name} was sharded after its multipliers were attached; with "
                    "implementation='optimizer' call fully_shard first"
                )
            inner = None
            if weight.requires_grad:
                # A gradient with memory of its own can become that of W in place.
                inner = outer if _owns_memory(outer) else torch.empty_like(outer)
            values = found.values()
            sums = iter(effective.gradients(weight, outer, found.parts, values, inner))
            for part, factors in zip(found.parts, found.factors(), strict=True):
                factors.add_gradients([next(sums) for _ in part.axes])
            if inner is not None:
                _add(weight, inner)
            self.parameter(name).grad = None

    @torch.no_grad()
    def push_weights(self) -> None:
        """After the optimizer's step: write W̄ into the model (optimizer-level implementation)."""
        if self.implementation == "optimizer":
            for name, found in self.effective.items():
                found.write(self._masters[name], out=self.parameter(name))

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Within it no weight or multiplier changes: W̄ is built once, for all micro-batches."""
        for found in self.effective.values():
            found.keep(self.implementation == "forward")
        try:
            yield
        finally:
            for found in self.effective.values():
                found.keep(False)

    @torch.no_grad()
    def effective_weights(self) -> dict[str, Tensor]:
        """W̄ of every parameter that has multipliers, by its name; copies."""
        return {name: self.effective[name].write(weight) for name, weight in self.weights.items()}

    @torch.no_grad()
    def merge(self) -> nn.Module:
        """Leave W̄ in the model and forget the multipliers: no cost at inference (section 2)."""
        for name, value in self.effective_weights().items():
            self.parameter(name).copy_(value)
            self.parameter(name).requires_grad_(self._learned[name])
            if self.implementation == "forward":
                for owner, attribute in self._owners[name]:
                    restore(owner, attribute)
                    if CHILD in owner._modules:
                        delattr(owner, CHILD)
        for hook in self._hooks:
            hook.remove()
        self._masters, self.factors, self.effective, self._hooks = {}, {}, {}, []
        return self.model


class _Saved:
    """State-dict hooks of a module whose parameter is W̄: W and the multipliers take its place."""

    def __init__(self, found: EffectiveWeight, weight: nn.Parameter, attribute: str, first: bool):
        self.found, self.weight, self.attribute, self.first = found, weight, attribute, first

    def _factors(self, prefix: str) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.found.named_parameters():
            yield f"{prefix}{CHILD}.{self.attribute}.{name}", parameter

    def __call__(self, module: nn.Module, state: dict, prefix: str, metadata: Any) -> None:
        state[prefix + self.attribute] = self.weight.detach()
        if self.first:
            for key, parameter in self._factors(prefix):
                state[key] = parameter.detach()

    @torch.no_grad()
    def load(
        self, module: nn.Module, state: dict, prefix: str, metadata: Any, strict: bool,
        missing: list[str], unexpected: list[str], errors: list[str],
    ) -> None:  # fmt: skip
        name = prefix + self.attribute
        factors = dict(self._factors(prefix)) if self.first else {}
        missing += [key for key in factors if key not in state]
        for key, parameter in {name: self.weight, **factors}.items():
            value = state.pop(key, None)
            if value is None:
                continue
            if value.shape != parameter.shape:
                errors.append(
                    f"size mismatch for {key}: {tuple(value.shape)} in the checkpoint, "
                    f"{tuple(parameter.shape)} in the model"
                )
                return
            parameter.copy_(value)
        state[name] = self.found.write(self.weight)


def owners(model: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Every (module, attribute) that holds each parameter, by the parameter's first name."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    names: dict[int, str] = {}
    for path, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), f"{path}.{attribute}".lstrip("."))
                found.setdefault(id(parameter), []).append((module, attribute))
    return {names[key]: places for key, places in found.items()}


def _child(module: nn.Module) -> nn.ModuleDict:
    """The module's multipliers, by attribute."""
    if CHILD not in module._modules:
        if hasattr(module, CHILD):
            raise UserError(f"{type(module).__name__} has an attribute {CHILD!r} of its own")
        module.add_module(CHILD, nn.ModuleDict())
    return module._modules[CHILD]


def _owns_memory(tensor: Tensor) -> bool:
    if isinstance(tensor, DTensor):
        return False
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
