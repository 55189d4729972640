"""Effective weights and the gradient relations (equations 2 to 4), on plain tensors.

A ``Part`` multiplies some or all of a weight by values in shapes that broadcast against it: s, r
and c of W̄ = s·W and W̄_ij = r_i W_ij c_j. Matrices are gone through in blocks that stay in a
core's cache, so that each is read and written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lrm.multipliers.precision import upcast, without_autocast
from lrm.multipliers.sharding import is_distributed

# Entries of a block; its few temporaries fit a core's second cache.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Part:
    """Multipliers of ``weight.narrow(dim, start, length)``, or of all of it if ``rows`` is None.

    ``axes`` names the values that follow it, in their order.
    """

    axes: tuple[str, ...]
    rows: tuple[int, int] | None = None
    dim: int = 0

    def of(self, weight: Tensor) -> Tensor:
        """The entries of ``weight`` that are meant, a view."""
        if self.rows is None:
            return weight
        return weight.narrow(self.dim, self.rows[0], self.rows[1] - self.rows[0])


def scaled(weight: Tensor, values: Sequence[Tensor]) -> Tensor:
    """W̄: ``weight`` times all ``values``, in the weight's dtype; any of them may need gradients."""
    found = weight
    for value in values:
        found = found * value
    return found.to(weight.dtype)


def effective(weight: Tensor, parts: Sequence[Part], values: Sequence[Tensor]) -> Tensor:
    """W̄ of a whole parameter; ``values`` holds those of the first part, then of the second, …

    Its gradients follow equation (4) and are differentiable themselves. Entries in no part are W's.
    """
    if is_distributed(weight) or torch.compiler.is_compiling() or is_transformed():
        return _plain(weight, parts, values)
    return _Effective.apply(weight, None, tuple(parts), *values)


def again(kept: Tensor, weight: Tensor, parts: Sequence[Part], values: Sequence[Tensor]) -> Tensor:
    """``kept``, an earlier result of ``effective`` on the same arguments, with its own graph."""
    return _Effective.apply(weight, kept, tuple(parts), *values)


def split(parts: Sequence[Part], values: Sequence[Tensor]) -> list[tuple[Part, dict[str, Tensor]]]:
    """The values of each part, by axis."""
    remaining = iter(values)
    return [(part, {axis: next(remaining) for axis in part.axes}) for part in parts]


def _plain(weight: Tensor, parts: Sequence[Part], values: Sequence[Tensor]) -> Tensor:
    """By differentiable operations alone, for what a compiler or a mesh makes of them."""
    pieces, end, dim = [], 0, 0
    for part, own in split(parts, values):
        if part.rows is None:
            return scaled(weight, list(own.values()))
        dim = part.dim
        if part.rows[0] > end:
            pieces.append(weight.narrow(dim, end, part.rows[0] - end))
        pieces.append(scaled(part.of(weight), list(own.values())))
        end = part.rows[1]
    if end < weight.shape[dim]:
        pieces.append(weight.narrow(dim, end, weight.shape[dim] - end))
    return torch.cat(pieces, dim)


class _Effective(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight: Tensor, kept: Tensor | None, parts: tuple[Part, ...], *values: Tensor):
        ctx.parts = parts
        ctx.save_for_backward(weight, *values)
        return write(weight, parts, values) if kept is None else kept.view_as(kept)

    @staticmethod
    def backward(ctx, outer: Tensor):
        weight, *values = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: somebody asks for gradients of gradients
            return _differentiable(ctx, weight, values, outer)
        inner = torch.empty_like(outer) if ctx.needs_input_grad[0] else None
        return inner, None, None, *gradients(weight, outer, ctx.parts, values, inner)


def _differentiable(ctx, weight: Tensor, values: Sequence[Tensor], outer: Tensor) -> tuple:
    """The gradients of all inputs of ``_Effective``, as functions of the inputs and ``outer``."""
    inputs = [weight, None, None, *values]
    wanted = [n for n, needed in enumerate(ctx.needs_input_grad) if needed]
    product = _plain(weight, ctx.parts, values)
    found = torch.autograd.grad(product, [inputs[n] for n in wanted], outer, create_graph=True)
    every = dict(zip(wanted, found, strict=True))
    return tuple(every.get(n) for n in range(len(inputs)))


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation is at work."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    )


@torch.no_grad()
def write(
    weight: Tensor,
    parts: Sequence[Part],
    values: Sequence[Tensor],
    out: Tensor | None = None,
) -> Tensor:
    """``effective`` without a graph, into ``out`` where that is given."""
    if is_distributed(weight):
        found = _plain(weight, parts, values)
        return found if out is None else out.copy_(found)
    if out is None:
        out = torch.empty_like(weight)
    if any(part.rows is not None for part in parts):
        out.copy_(weight)
    for part, own in split(parts, values):
        source, target = part.of(weight), part.of(out)
        for block in _blocks(source):
            _multiply(
                source[block], [_block(v, block, source) for v in own.values()], target[block]
            )
    return out


@torch.no_grad()
def gradients(
    weight: Tensor,
    outer: Tensor,
    parts: Sequence[Part],
    values: Sequence[Tensor],
    inner: Tensor | None,
) -> list[Tensor]:
    """Equation (4): from Ḡ = ∂L/∂W̄, ``outer``, to the gradients of ``values``.

    That of W is written into ``inner``, which may be ``outer`` itself; None leaves it out.
    """
    with without_autocast(weight):
        if inner is not None and inner is not outer and any(p.rows is not None for p in parts):
            inner.copy_(outer)
        found = []
        for part, own in split(parts, values):
            into = None if inner is None else part.of(inner)
            sums = _relations(part.of(weight), part.of(outer), own, into)
            found += [sums[axis] for axis in part.axes]
        return found


def _relations(
    weight: Tensor, outer: Tensor, values: Mapping[str, Tensor], inner: Tensor | None
) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for block in _blocks(weight):
        w, g = upcast(weight[block]), upcast(outer[block])
        own = {axis: _block(value, block, weight) for axis, value in values.items()}
        product = w * g
        for axis, value in values.items():
            others = [other for name, other in own.items() if name != axis]
            found = _summed(product, others, own[axis].shape)
            if axis not in sums:
                sums[axis] = found if block == slice(None) else torch.zeros_like(value)
            if block != slice(None):
                _block(sums[axis], block, weight).add_(found)
        if inner is not None:
            _multiply(outer[block], list(own.values()), inner[block])
    return sums


def _multiply(source: Tensor, values: Sequence[Tensor], out: Tensor) -> None:
    """``scaled`` into ``out``, which may be ``source``."""
    if is_distributed(out) or any(value.dtype != out.dtype for value in values):
        out.copy_(scaled(source, values))
        return
    first, *others = values
    torch.mul(source, first, out=out)
    for value in others:
        out.mul_(value)


def _summed(product: Tensor, others: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """Sum of ``product`` times all ``others`` over the dimensions in which ``shape`` is 1."""
    over = [d for d, (n, m) in enumerate(zip(product.shape, shape, strict=True)) if m == 1 != n]
    if len(others) == 1 and product.dim() == 2 and len(over) == 1 and product.is_floating_point():
        # As a product of matrix and vector it is one pass.
        [other] = others
        if other.dtype == product.dtype and not is_distributed(product):
            if over == [1] and other.shape[0] == 1:
                return product @ other.expand(1, product.shape[1]).T
            if over == [0] and other.shape[1] == 1:
                return other.expand(product.shape[0], 1).T @ product
    for other in others:
        product = product * other
    return product.sum(over, keepdim=True) if over else product


def _blocks(weight: Tensor) -> list[slice]:
    """Rows of a matrix on the CPU, some at a time; all of anything else at once."""
    if weight.dim() != 2 or weight.device.type != "cpu" or is_distributed(weight):
        return [slice(None)]
    rows = max(1, _BLOCK // max(1, weight.shape[1]))
    if rows >= weight.shape[0]:
        return [slice(None)]
    return [slice(start, start + rows) for start in range(0, weight.shape[0], rows)]


def _block(value: Tensor, block: slice, weight: Tensor) -> Tensor:
    """The rows of ``value`` that go with those of ``weight``; one that has a single row has all."""
    return value[block] if value.shape[0] == weight.shape[0] else value
