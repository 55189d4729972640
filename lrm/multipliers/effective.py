"""One parameter's multipliers as modules: their values, and W̄ from W."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from lrm.errors import UserError
from lrm.multipliers import equations
from lrm.multipliers.equations import Part, Product, is_transformed, is_unshared
from lrm.multipliers.layout import Layout
from lrm.multipliers.multiplier import Multiplier, Target
from lrm.multipliers.precision import HALF, has_autocast, upcast
from lrm.multipliers.sharding import is_distributed, is_gathered, mesh_dimensions, replicated_like


class Scaling(nn.Module):
    """The multipliers of one parameter, or of some rows of one.

    Parameters are named ``scalar``, ``row`` and ``column``, with shapes (1,), (rows,) and
    (columns,), or for a stack of E matrices (E,), (E, rows) and (E, columns), in float32 beside
    weights in half precision. They hold what the multiplier's parametrization learns,
    ``multipliers`` says which; the magnitudes of some have parameters of their own.
    """

    def __init__(
        self, shape: Sequence[int], multipliers: Sequence[Multiplier], like: Tensor, layout: Layout
    ):
        super().__init__()
        self.shape, self.layout = tuple(shape), layout
        self.multipliers = {multiplier.axis: multiplier for multiplier in multipliers}
        dtype = torch.float32 if like.dtype in HALF else like.dtype
        for axis, multiplier in self.multipliers.items():
            start = multiplier.parametrization.raw(multiplier.init)
            raw = torch.full(layout.size(axis, shape), start, dtype=dtype, device=like.device)
            self.register_parameter(axis, nn.Parameter(replicated_like(raw, like)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Scaling:
        """As of any module, for ``to`` and the like; but multipliers stay out of low precision."""

        def kept(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            return tensor.to(found.device) if found.dtype.itemsize < 4 else found

        had_values = not any(raw.is_meta for raw in self._parameters.values())
        super()._apply(kept, recurse)
        if not had_values and not any(raw.is_meta for raw in self._parameters.values()):
            self.reset_parameters()  # to_empty gives memory as it happens to be
        return self

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Where all multipliers start, for models that are built on the meta device."""
        for axis, raw in self.named_parameters():
            multiplier = self.multipliers[axis]
            raw.fill_(multiplier.parametrization.raw(multiplier.init))

    def values(self) -> dict[str, Tensor]:
        """The multipliers themselves, by axis."""
        # Not by named_parameters, which takes longer than all else here.
        return {
            axis: self.multipliers[axis].parametrization.value(raw)
            for axis, raw in self._parameters.items()
        }

    def part(self, rows: tuple[int, int] | None = None) -> Part:
        """What ``values`` multiply: all of a weight, or ``rows`` of it."""
        axes, layout = tuple(self.multipliers), self.layout
        shapes = tuple(layout.spread(axis, self.shape) for axis in axes)
        # What comes as it is varies along the last dimension.
        is_matrix = len(self.shape) == 2 and set(axes) == {"row", "column"}
        order = (shapes.index(None) ^ 1, shapes.index(None)) if is_matrix else None
        return Part(axes, rows, layout.row, shapes, order)

    def forward(self, weight: Tensor) -> Tensor:
        """W̄ of the rows that are meant, same shape."""
        return equations.scaled(weight, self.part().spread(list(self.values().values())))


class _Derived:
    """What is no parameter, and changes several times a step: modules are slow to set."""

    __slots__ = ("held", "holding", "keeping", "kept", "read", "sources", "counted", "counts")

    def __init__(self) -> None:
        self.keeping = self.holding = False
        self.kept: Tensor | None = None
        self.held: Tensor | None = None  # its memory is kept from step to step
        self.sources: list[Tensor] = []  # W and what the multipliers learn, of held or kept
        self.counted: list[Tensor] = []  # those that count their changes in place
        self.counts: list[int] = []  # how often each of them had changed
        self.read: Tensor | None = None  # W as it was read last


class EffectiveWeight(nn.Module):
    """One parameter's multipliers: a ``Scaling`` of all of it, or of each of some of its rows.

    ``by_step``: between ``hold`` and ``release`` W̄ is a plain tensor, whose gradient goes on to W
    and the multipliers at the end.
    """

    def __init__(
        self, weight: Tensor, targets: Sequence[Target], layout: Layout, by_step: bool = False
    ):
        super().__init__()
        self.by_step = by_step
        self.targets = sorted(targets, key=lambda target: target.rows or (0, 0))
        self.parts: list[Part] = []
        for target in self.targets:
            shape = list(weight.shape)
            if target.rows is not None:
                shape[layout.row] = target.rows[1] - target.rows[0]
            name = "all" if target.rows is None else "rows_{}_{}".format(*target.rows)
            scaling = Scaling(shape, target.multipliers, weight, layout)
            self.add_module(name, scaling)
            self.parts.append(scaling.part(target.rows))
        self._mesh = mesh_dimensions(weight)
        self._derived = _Derived()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: what is derived stays behind."""
        return self.__dict__ | {"_derived": _Derived()}

    def scalings(self) -> list[Scaling]:
        """One for each target, in the order of their rows."""
        return list(self.children())

    def reset_parameters(self) -> None:
        """Where all multipliers start."""
        for scaling in self.scalings():
            scaling.reset_parameters()

    def learned(self) -> list[Tensor]:
        """The parameters from which ``values`` come."""
        return [raw for each in self._modules.values() for raw in each._parameters.values()]

    def values(self) -> list[Tensor]:
        """Of all scalings, in the order of the parts."""
        return [value for scaling in self._modules.values() for value in scaling.values().values()]

    def forward(self, weight: Tensor) -> Tensor:
        """W̄ from W, same shape; W itself while FSDP has it sharded, between uses."""
        derived, compiles = self._derived, torch.compiler.is_compiling()
        if not compiles:
            derived.read = weight if isinstance(weight, nn.Parameter) else None
        if derived.holding and (compiles or self._is_derived_from(weight)):
            if not compiles:  # as parts of a model freeze and thaw between two losses
                derived.held.requires_grad_(self._learns(weight))
            return derived.held
        if self.is_sharded(weight):
            return weight
        if derived.kept is not None and (compiles or self._is_again(weight)):
            return equations.again(derived.kept, weight, self.parts, self.values())
        found = equations.effective(weight, self.parts, self.values())
        # In this order: compiled code is not to depend on whether weights are kept.
        if not compiles and derived.keeping and self._may_keep(weight):
            derived.kept = found.detach()
            self._note_sources(weight)
        return found

    def _may_keep(self, weight: Tensor) -> bool:
        """Not what others hold in its place, nor what cannot be saved for a backward pass."""
        inference = torch.is_inference_mode_enabled()
        return not (inference or is_transformed() or is_gathered(self, weight))

    def _is_again(self, weight: Tensor) -> bool:
        """Whether ``equations.again``, which transforms do not know, may give what is kept."""
        return not is_transformed() and self._is_derived_from(weight)

    def _is_derived_from(self, weight: Tensor) -> bool:
        """Whether what is held or kept is W̄ of ``weight`` and of the multipliers that are there.

        ``torch.func.functional_call`` puts other tensors in the place of both.
        """
        derived = self._derived
        sources = derived.sources
        if sources[0] is not weight or not all(map(is_, sources[1:], self.learned())):
            return False
        if [each._version for each in derived.counted] != derived.counts:
            raise self._changed()
        return True

    def _note_sources(self, weight: Tensor) -> None:
        """Remember of what W̄ is held or kept."""
        derived = self._derived
        derived.sources = [weight, *self.learned()]
        # Inference tensors count nothing.
        derived.counted = [each for each in derived.sources if not each.is_inference()]
        derived.counts = [each._version for each in derived.counted]

    def _changed(self) -> UserError:
        return UserError(
            f"{self.targets[0].parameter} or its multipliers were changed within lrm.same_weights, "
            "where their product is built already; change them before the with block, as an "
            "average for an evaluation, or behind it"
        )

    def _forget_sources(self) -> None:
        derived = self._derived
        derived.sources, derived.counted, derived.counts = [], [], []

    def last_read(self) -> Tensor | None:
        """W as it was read last, if it was a parameter."""
        return self._derived.read

    def write(self, weight: Tensor) -> Tensor:
        """W̄ without a graph."""
        return equations.write(weight, self.parts, self.values())

    @torch.no_grad()
    def solve(self, weight: Tensor, effective: Tensor) -> bool:
        """Write into ``weight`` the W whose W̄ is ``effective``; False where a multiplier is 0.

        Entries that ``effective`` shares with the present W̄ stay as they are.
        """
        values = [value.detach() for value in self.values()]
        if any((value == 0).any() for value in values):
            return False
        found = effective.detach().clone()
        for part, own in equations.split(self.parts, values):
            piece = part.of(found)
            divided = upcast(piece)
            for value in own:
                divided = divided / value
            piece.copy_(divided)
        weight.copy_(torch.where(effective == self.write(weight), weight, found))
        return True

    def is_sharded(self, weight: Tensor) -> bool:
        """Whether ``weight`` lies on more dimensions of a mesh than when this was attached."""
        return mesh_dimensions(weight) > self._mesh

    def keep(self, keeping: bool) -> None:
        """Build W̄ once and use it again, until this is called with False."""
        derived = self._derived
        derived.keeping, derived.kept = keeping, None
        self._forget_sources()

    def hold(self, weight: Tensor) -> None:
        """Build W̄ and give it to all who read, until ``release``; to be called without gradients.

        Tensors that lie on a mesh, or that FSDP gathers for each use, are built at each read.
        """
        if is_gathered(self, weight):
            return
        held = self._derived.held
        if held is None or (held.shape, held.dtype, held.device, held.is_inference()) != (
            weight.shape, weight.dtype, weight.device, torch.is_inference_mode_enabled(),
        ):  # fmt: skip
            self._derived.held = held = torch.empty_like(weight)
        held.requires_grad_(self._learns(weight))
        equations.write_into(held, weight, self.parts, self.values())
        self._derived.holding = True
        self._note_sources(weight)

    def _learns(self, weight: Tensor) -> bool:
        return weight.requires_grad or any(raw.requires_grad for raw in self.learned())

    def check_unchanged(self) -> None:
        """Raise UserError where a gradient waits for ``release``, and is not that of what is there.

        Readers ask for themselves.
        """
        derived = self._derived
        waits = derived.holding and derived.held.grad is not None
        if waits and [each._version for each in derived.counted] != derived.counts:
            raise self._changed()

    def is_late(self) -> bool:
        """Whether a gradient of W̄ came behind ``release``, where it reaches nobody; forgets it."""
        held = self._derived.held
        if held is None or self._derived.holding or held.grad is None:
            return False
        held.grad = None
        return True

    def release(self, weight: Tensor) -> tuple[Product, Tensor] | None:
        """End of ``hold``: W̄ as a product of what learns, and its gradient, which is given away.

        None where nobody asked for a gradient, or nothing learns.
        """
        if not self._derived.holding:
            return None
        self._derived.holding = False
        self._forget_sources()
        outer, self._derived.held.grad = self._derived.held.grad, None
        if outer is None:
            return None
        if not is_unshared(outer):  # its memory will be that of W's gradient
            outer = outer.clone()
        product = Product(weight, self.parts, self.values())
        learns = weight.requires_grad or any(value.requires_grad for value in product.values)
        return (product, outer) if learns else None

    def forget(self) -> None:
        """Let go of ``last_read``, in whose place another tensor has come."""
        self._derived.read = None

    def _may_scale_around(self, weight: Tensor) -> bool:
        """Whether what goes in and comes out may be scaled in W's place, where that is less."""
        if self.by_step or self.parts[0].rows is not None or is_distributed(weight):
            return False
        # Whether it is less would become a bound on the number of tokens.
        if torch.jit.is_tracing():
            return False
        if torch.compiler.is_compiling():
            return not torch.compiler.is_exporting()
        return not self._derived.keeping

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """``x @ W̄.T + bias`` by scaling x and the output, where that is less than scaling W.

        None where it is not, where ``_may_scale_around`` says no, and in float16.
        """
        rows, columns = weight.shape
        if not self._may_scale_around(weight):
            return None
        if columns == 0 or x.is_nested or x.dim() == 0 or x.shape[-1] != columns:
            return None
        if _computes_in(weight) == torch.float16:
            return None  # W alone may be too large for it, where W̄ is not
        tokens = x.numel() // columns
        if tokens * (rows + columns) >= rows * columns:
            return None
        [scaling] = self.scalings()
        values = scaling.values()
        before = [values.pop("column")] if "column" in values else []
        if columns <= rows and "scalar" in values:
            before.append(values.pop("scalar"))
        for value in before:
            x = (x * value).to(x.dtype)
        # Autocast keeps its casts of parameters until it is left, and none of their views: W would
        # stay as it was while it learns.
        y = nn.functional.linear(x, weight.view_as(weight))
        for value in values.values():
            y = (y * value).to(y.dtype)
        return y if bias is None else y + bias.to(y.dtype)

    def embedding(self, indices: Tensor, weight: Tensor, padding: int | None) -> Tensor | None:
        """Rows of W̄ by scaling those of W that are looked up: ``indices`` (...) to (..., columns).

        None where these are not fewer than all, and where ``_may_scale_around`` says no.
        """
        if not self._may_scale_around(weight) or indices.is_nested:
            return None
        if indices.numel() >= weight.shape[0]:
            return None
        [scaling] = self.scalings()
        values = [
            nn.functional.embedding(indices, value[:, None]) if axis == "row" else value
            for axis, value in scaling.values().items()
        ]
        found = equations.scaled(nn.functional.embedding(indices, weight), values)
        if padding is not None:  # that row has no gradient, nor have multipliers of it
            found = torch.where((indices == padding)[..., None], found.detach(), found)
        return found


def _computes_in(weight: Tensor) -> torch.dtype:
    """The dtype of a matrix product with ``weight``, under autocast or without."""
    kind = weight.device.type
    if weight.dtype != torch.float64 and has_autocast(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return weight.dtype
