"""Learnable multipliers: W̄ = s·W (equation 2) and W̄_ij = r_i W_ij c_j (equation 3).

Two implementations with the same mathematics (section 2):

* ``forward``: whoever reads ``module.weight`` gets W̄, computed from the parameter W and the
  multipliers in the module; autograd does the rest, by the relations (4);
* ``optimizer``: the model's parameter is W̄ itself; W and the multipliers live beside it, their
  gradients follow from Ḡ = ∂L/∂W̄ by the same relations, and W̄ is written back after each step.

In both the model's ``state_dict`` holds W under the parameter's own name and the multipliers
under ``<module>.multipliers.<attribute>``, so that checkpoints of one load into the other.
``lrm.multipliers.library`` has the calls for models outside this suite.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lrm.errors import UserError
from lrm.multipliers import equations
from lrm.multipliers.effective import EffectiveWeight, Scaling, add_gradient
from lrm.multipliers.layout import layout, owners
from lrm.multipliers.multiplier import Multiplier, Target
from lrm.multipliers.reading import read_through, restore
from lrm.multipliers.state import CHILD, Saved

IMPLEMENTATIONS = ("forward", "optimizer")


class Multipliers:
    """The multipliers attached to a model, whichever way they are implemented.

    ``scalings`` maps a target's key to its multipliers, ``effective`` a parameter's name to all of
    its scalings. ``frozen`` names parameters whose W does not learn, besides those that require
    no gradients.

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
        self.scalings: dict[str, Scaling] = {}
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
        for target, scaling in zip(found.targets, found.scalings(), strict=True):
            self.scalings[target.key] = scaling
        self._learned[name] = parameter.requires_grad
        if self.implementation == "forward":
            weight = parameter
            _child(module).add_module(attribute, found)
            for owner, under in self._owners[name]:
                read_through(owner, under, found)
        else:
            weight = nn.Parameter(parameter.detach().clone())
            for owner, under in self._owners[name]:
                saved = Saved(found, weight, under, first=owner is module and under == attribute)
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

    def named(self) -> Iterator[tuple[str, Multiplier, nn.Parameter]]:
        """Every multiplier: its name (``<key>.<axis>``), what it is, and its parameter."""
        for key, scaling in self.scalings.items():
            for axis, parameter in scaling.named_parameters():
                yield f"{key}.{axis}", scaling.multipliers[axis], parameter

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
            sums = iter(equations.gradients(weight, outer, found.parts, values, inner))
            for part, scaling in zip(found.parts, found.scalings(), strict=True):
                scaling.add_gradients([next(sums) for _ in part.axes])
            if inner is not None:
                add_gradient(weight, inner)
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
        self._masters, self.scalings, self.effective, self._hooks = {}, {}, {}, []
        return self.model


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
