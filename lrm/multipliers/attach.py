"""Learnable multipliers: W̄ = s·W (equation 2) and W̄_ij = r_i W_ij c_j (equation 3).

In both implementations W and the multipliers are parameters of the model: W under the name that it
always had, the multipliers under ``<module>.multipliers.<attribute>``. Whoever reads
``module.weight`` gets W̄, which is derived and never saved. The two differ in who applies the
gradient relations (4), and when (section 2):

* ``forward``: autograd does, at each read of W̄. A linear layer may scale its input and output
  instead, where that is cheaper;
* ``optimizer``: around the micro-batches of a step the model computes with a plain tensor W̄. Its
  gradient Ḡ = ∂L/∂W̄ is collected, and the relations are applied once behind them. Outside of such
  a step W̄ is built whole at each read, and autograd does the rest.

A checkpoint of one loads into the other. ``lrm.multipliers.library`` has the calls for models
outside this suite.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn

from lrm.errors import UserError
from lrm.multipliers import equations
from lrm.multipliers.effective import EffectiveWeight, Scaling
from lrm.multipliers.layout import layout, owners
from lrm.multipliers.multiplier import Multiplier, Target
from lrm.multipliers.reading import READERS, check_restorable, read_through, restore
from lrm.multipliers.sharding import is_distributed, reshard

IMPLEMENTATIONS = ("forward", "optimizer")
# The name under which a module holds the multipliers of its parameters.
CHILD = "multipliers"


def is_multiplier(name: str) -> bool:
    """Whether a parameter or an entry of a checkpoint of this name holds multipliers."""
    return f".{CHILD}." in f".{name}"


def check_may_learn(call: str) -> None:
    """Raise UserError within ``torch.inference_mode()``, where tensors are made that cannot."""
    if torch.is_inference_mode_enabled():
        raise UserError(
            f"lrm.{call} within torch.inference_mode(), where nothing can learn; call it outside "
            "of it"
        )


class Multipliers:
    """The multipliers attached to a model, whichever way they are implemented.

    ``scalings`` maps a target's key to its multipliers, ``effective`` a parameter's name to all of
    its scalings. ``frozen`` names parameters whose W does not learn, besides those that require
    no gradients, and ``turned`` matrices with inputs first that only the user knows as such.

    A parameter that several modules share (tied embeddings) is multiplied once, for all of them.
    Raises UserError for an unknown name or implementation. Whatever fails leaves the model as it
    was.
    """

    def __init__(
        self,
        model: nn.Module,
        targets: Sequence[Target],
        implementation: str,
        frozen: Collection[str] = (),
        turned: Collection[str] = (),
    ):
        if implementation not in IMPLEMENTATIONS:
            raise UserError(
                f"unknown implementation {implementation!r}; use one of "
                f"{', '.join(IMPLEMENTATIONS)}"
            )
        self.model = model
        self.implementation = implementation
        self.scalings: dict[str, Scaling] = {}
        self.effective: dict[str, EffectiveWeight] = {}
        self.is_unchanged = False  # whether within ``unchanged``
        self.is_collecting = False  # whether gradients come at its end
        self.is_counted = False  # whether they would be too late there
        self._owners = owners(model)
        parameters = dict(model.named_parameters())
        by_parameter: dict[str, list[Target]] = {}
        for target in targets:
            if target.parameter not in parameters:
                raise UserError(f"the model has no parameter {target.parameter!r}")
            by_parameter.setdefault(target.parameter, []).append(target)
        for name in by_parameter:
            module, _ = self._owners[name][0]
            if hasattr(module, CHILD):
                raise UserError(
                    f"{name}: {type(module).__name__} has an attribute {CHILD!r} of its own, where "
                    "those of the weight would be; rename it, or give the parameter 'none'"
                )
        learned = [p for name in by_parameter if (p := parameters[name]).requires_grad]
        try:
            for name, group in by_parameter.items():
                self._attach(name, parameters[name], group, name in frozen, name in turned)
        except BaseException:
            self._take_back()
            for parameter in learned:
                parameter.requires_grad_(True)
            raise

    def _attach(
        self,
        name: str,
        parameter: nn.Parameter,
        targets: list[Target],
        frozen: bool,
        turned: bool,
    ) -> None:
        module, attribute = self._owners[name][0]
        by_step = self.implementation == "optimizer"
        form = layout(module, attribute, parameter, inputs_first=turned)
        found = EffectiveWeight(parameter, targets, form, by_step)
        self.effective[name] = found
        for target, scaling in zip(found.targets, found.scalings(), strict=True):
            self.scalings[target.key] = scaling
        if CHILD not in module._modules:
            module.add_module(CHILD, nn.ModuleDict())
        # Not by its methods, which refuse names such as keys and values.
        module._modules[CHILD]._modules[attribute] = found
        for owner, under in self._owners[name]:
            read_through(owner, under, found)
        if frozen:
            parameter.requires_grad_(False)

    def _take_back(self) -> None:
        """Take the multipliers from the model again, with their values."""
        for name in self.effective:
            for owner, under in self._owners[name]:
                if under in owner.__dict__.get(READERS, {}):
                    restore(owner, under)
                owner._modules.pop(CHILD, None)
        self.scalings, self.effective = {}, {}

    def parameter(self, name: str) -> nn.Parameter:
        """The learnable tensor W that the model has under that name now."""
        if (found := self.find(name)) is None:
            raise UserError(
                f"{name} has multipliers, and its module has no such parameter any more; merge "
                "before it is taken away (lrm.merge_multipliers)"
            )
        return found

    def find(self, name: str) -> nn.Parameter | None:
        """``parameter``, or None where something took it away."""
        # From its module each time: sharding and loading put other tensors in its place.
        module, attribute = self._owners[name][0]
        return module._parameters.get(attribute)

    def left(self) -> list[str]:
        """The parameters whose multipliers are no part of the model any more, by name."""
        there = {id(module) for module in self.model.modules()}
        # Of a parameter that is tied the first module holds them.
        return [name for name in self.effective if id(self._owners[name][0][0]) not in there]

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """The learnable tensor W of each parameter that has multipliers, by its name."""
        return {name: self.parameter(name) for name in self.effective}

    def named(self) -> Iterator[tuple[str, Multiplier, nn.Parameter]]:
        """Every multiplier: its name (``<key>.<axis>``), what it is, and its parameter."""
        for key, scaling in self.scalings.items():
            for axis, parameter in scaling.named_parameters():
                yield f"{key}.{axis}", scaling.multipliers[axis], parameter

    def places(self) -> list[tuple[dict[str, nn.Parameter | None], str]]:
        """Where every W and every multiplier lies: a module's own mapping, and the name in it."""
        owners = [self._owners[name][0] for name in self.effective]
        found = [(module._parameters, attribute) for module, attribute in owners]
        return found + [(scaling._parameters, axis) for scaling in self.scalings.values()
                        for axis in scaling._parameters]  # fmt: skip

    @contextlib.contextmanager
    def unchanged(self, several: bool = True, by_step: bool = True) -> Iterator[None]:
        """Within it no weight or multiplier changes: W̄ is built once, for all micro-batches.

        In ``optimizer`` gradients of W and the multipliers are there when it ends, not before;
        without ``by_step`` they come with each backward pass, as in ``forward``. ``several``:
        whether there is more than one micro-batch; in ``forward`` a single one is left alone.
        """
        collects = by_step and self.implementation == "optimizer"
        if self.is_unchanged or not (collects or several):
            yield
            return
        if collects:
            self.check_late()
        self.is_unchanged, self.is_collecting = True, collects
        finished = False
        try:
            self.hold_all() if collects else self._keep(True)
            yield
            for found in self.effective.values():
                found.check_unchanged()
            finished = True
        finally:
            self.is_unchanged = self.is_collecting = False
            self.release_all(finished) if collects else self._keep(False)

    def _keep(self, keeping: bool) -> None:
        for found in self.effective.values():
            found.keep(keeping)

    def check_late(self) -> None:
        """Raise UserError where backward() ran behind ``unchanged``, in which W̄ had been built."""
        late = [name for name, found in self.effective.items() if found.is_late()]
        if late:
            raise UserError(
                f"backward() ran behind lrm.same_weights, and {late[0]} has no gradient of it; "
                "call backward() within the with block"
            )

    @torch.no_grad()
    def hold_all(self) -> None:
        """Build every W̄, and give it to all who read until ``release_all`` (``optimizer``)."""
        # W̄ has its memory of the step before, of which autocast keeps casts until it is left.
        torch.clear_autocast_cache()
        for name, found in self.effective.items():
            found.hold(self.parameter(name))

    @torch.enable_grad()
    def release_all(self, pull: bool) -> None:
        """Pass the gradients of all W̄ on; without ``pull`` they are forgotten.

        Through autograd, so that those who wait for gradients of parameters
        (DistributedDataParallel) are told.
        """
        pairs = [found.release(self.parameter(name)) for name, found in self.effective.items()]
        if pull and (pairs := [pair for pair in pairs if pair is not None]):
            products, outers = zip(*pairs, strict=True)
            own = list(outers)
            del pairs, outers  # autograd keeps without a copy what nobody else has
            torch.autograd.backward([equations.pulling(products, own)])

    @torch.no_grad()
    def effective_weights(self) -> dict[str, Tensor]:
        """W̄ of every parameter that has multipliers, by its name; copies."""
        reshard(self.model)
        return {name: self.effective[name].write(weight) for name, weight in self.weights.items()}

    def check_merge(self) -> None:
        """Raise UserError where ``merge`` would."""
        check_may_learn("merge_multipliers")
        for name in self.weights:
            for owner, _ in self._owners[name]:
                check_restorable(owner)

    @torch.no_grad()
    def merge(self) -> nn.Module:
        """Leave W̄ in the model and forget the multipliers: no cost at inference (section 2).

        Raises UserError where a module has lost the parameter or was parametrized since, and within
        ``torch.inference_mode()``; the model is then as it was.
        """
        self.check_merge()
        reshard(self.model)
        weights = self.weights
        for name in weights:
            # Of a parameter that was tied each module may hold another one now: ``to_empty`` and
            # loading by assignment leave them apart, the latter over the same memory.
            held = [owner._parameters.get(attribute) for owner, attribute in self._owners[name]]
            merged: dict[tuple, Tensor] = {}
            for parameter in {id(each): each for each in held if each is not None}.values():
                if is_distributed(parameter):
                    parameter.copy_(self.effective[name].write(parameter))
                    continue
                # In memory of its own: others may hold W's, such as a state_dict.
                place = (parameter.data_ptr(), parameter.shape, parameter.stride())
                if place not in merged or parameter.is_meta:
                    merged[place] = self.effective[name].write(parameter)
                parameter.data = merged[place]
            for owner, attribute in self._owners[name]:
                restore(owner, attribute)
                if CHILD in owner._modules:
                    delattr(owner, CHILD)
        for name in weights:
            for owner, _ in self._owners[name]:
                if isinstance(owner, nn.RNNBase):
                    owner.flatten_parameters()  # cuDNN wants them in one piece
        self.scalings, self.effective = {}, {}
        return self.model
