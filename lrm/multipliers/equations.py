"""Effective weights and the gradient relations (equations 2 to 4), on plain tensors.

A ``Part`` multiplies some or all of a weight by values: s, r and c of W̄ = s·W and
W̄_ij = r_i W_ij c_j. Large matrices are gone through in blocks that stay in a core's cache, so that
each is read and written once. Of small ones the calls cost more than the arithmetic, so that
there are few, and one node of autograd's graph for all of a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

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

    ``axes`` names the values that follow it, in their order. ``shapes`` are those in which they
    broadcast against the weight, None for one that comes in such a shape. ``order``, of the rows
    and columns of a matrix: which value varies along its first dimension, and which along its last.
    """

    axes: tuple[str, ...]
    rows: tuple[int, int] | None = None
    dim: int = 0
    shapes: tuple[tuple[int, ...] | None, ...] = ()
    order: tuple[int, int] | None = None

    def of(self, weight: Tensor) -> Tensor:
        """The entries of ``weight`` that are meant, a view."""
        if self.rows is None:
            return weight
        return weight.narrow(self.dim, self.rows[0], self.rows[1] - self.rows[0])

    def spread(self, values: Sequence[Tensor]) -> list[Tensor]:
        """``values``, one for each axis, in shapes that broadcast against the weight."""
        if not self.shapes:
            return list(values)
        pairs = zip(values, self.shapes, strict=True)
        return [value if shape is None else value.view(shape) for value, shape in pairs]


class Product(NamedTuple):
    """W̄ of a whole parameter, by what it is made of."""

    weight: Tensor
    parts: tuple[Part, ...]
    values: Sequence[Tensor]


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


def pulling(products: Sequence[Product], outers: list[Tensor]) -> Tensor:
    """A number whose backward pass adds equation (4) to the gradients of all ``products``.

    ``outers`` holds ∂L/∂W̄ of each. Both it and they are used up: the gradients of W take their
    memory. Not for gradients of gradients.
    """
    parts = [(product.parts, len(product.values)) for product in products]
    tensors = [tensor for weight, _, values in products for tensor in (weight, *values)]
    return _Pulling.apply(parts, outers, *tensors)


def again(kept: Tensor, weight: Tensor, parts: Sequence[Part], values: Sequence[Tensor]) -> Tensor:
    """``kept``, an earlier result of ``effective`` on the same arguments, with its own graph."""
    return _Effective.apply(weight, kept, tuple(parts), *values)


def split(parts: Sequence[Part], values: Sequence[Tensor]) -> Iterator[tuple[Part, list[Tensor]]]:
    """Every part with its own values, which broadcast."""
    end = 0
    for part in parts:
        begin, end = end, end + len(part.axes)
        yield part, part.spread(values[begin:end])


def _plain(weight: Tensor, parts: Sequence[Part], values: Sequence[Tensor]) -> Tensor:
    """By differentiable operations alone, for what a compiler or a mesh makes of them."""
    pieces, end, dim = [], 0, 0
    for part, own in split(parts, values):
        if part.rows is None:
            return scaled(weight, own)
        dim = part.dim
        if part.rows[0] > end:
            pieces.append(weight.narrow(dim, end, part.rows[0] - end))
        pieces.append(scaled(part.of(weight), own))
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
        # create_graph: somebody asks for gradients of gradients.
        further = torch.is_grad_enabled()
        if further or _is_several(outer):
            return _differentiable(ctx, weight, values, outer, further)
        inner = torch.empty_like(outer) if ctx.needs_input_grad[0] else None
        return inner, None, None, *gradients(weight, outer, ctx.parts, values, inner)


class _Pulling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, parts: list, outers: list[Tensor], *tensors: Tensor):
        ctx.parts, ctx.outers = parts, outers
        ctx.save_for_backward(*tensors)
        # On the device of the rest, whose streams autograd then waits for.
        return outers[0].new_zeros(())

    @staticmethod
    def backward(ctx, _: Tensor):
        remaining, outers = iter(ctx.saved_tensors), ctx.outers
        found: list[Tensor | None] = []
        with ExitStack() as contexts:
            for outer in {outer.device.type: outer for outer in outers}.values():
                contexts.enter_context(without_autocast(outer))
            for parts, count in ctx.parts:
                weight, *values = islice(remaining, 1 + count)
                # Nobody else has it, so that autograd takes it for the gradient of W as it is.
                outer = outers.pop(0)
                inner = outer if ctx.needs_input_grad[2 + len(found)] else None
                found += [inner, *_gradients(weight, outer, parts, values, inner)]
        return None, None, *found


@torch.enable_grad()
def _differentiable(
    ctx, weight: Tensor, values: Sequence[Tensor], outer: Tensor, further: bool
) -> tuple:
    """The gradients of all inputs of ``_Effective``, as functions of the inputs and ``outer``.

    ``further``: whether they shall have gradients themselves.
    """
    inputs = [weight, None, None, *values]
    wanted = [n for n, needed in enumerate(ctx.needs_input_grad) if needed]
    product = _plain(weight, ctx.parts, values)
    found = torch.autograd.grad(product, [inputs[n] for n in wanted], outer, create_graph=further)
    every = dict(zip(wanted, found, strict=True))
    return tuple(every.get(n) for n in range(len(inputs)))


def is_unshared(tensor: Tensor) -> bool:
    """Whether nobody else has memory of ``tensor``; False where torch does not tell.

    Autograd gives several parameters views of one gradient where a model adds views of them.
    """
    count = getattr(torch._C, "_storage_Use_Count", None)
    # One for the tensor, and one for its storage as Python sees it.
    return count is not None and count(tensor.untyped_storage()._cdata) <= 2


def _is_several(outer: Tensor) -> bool:
    """Whether it stands for several gradients at once, which ``out=`` does not take.

    ``torch.autograd.grad`` with ``is_grads_batched`` does that, by a ``vmap`` of its own.
    """
    functorch = torch._C._functorch
    return functorch.is_legacy_batchedtensor(outer) or functorch.is_batchedtensor(outer)


def is_transformed() -> bool:
    """Whether ``torch.func``, forward-mode differentiation or ``torch.jit.trace`` is at work."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch.jit.is_tracing()  # which cannot save what Python computes
    )


@torch.no_grad()
def write(weight: Tensor, parts: Sequence[Part], values: Sequence[Tensor]) -> Tensor:
    """``effective`` without a graph."""
    if is_distributed(weight):
        return _plain(weight, parts, values)
    out = torch.empty_like(weight)
    write_into(out, weight, parts, values)
    return out


def write_into(
    out: Tensor, weight: Tensor, parts: Sequence[Part], values: Sequence[Tensor]
) -> None:
    """``write`` into ``out``, on no mesh; the caller has switched gradients off, once for all."""
    if parts[0].rows is not None:
        out.copy_(weight)
    for part, own in split(parts, values):
        _multiply(part.of(weight), own, part.of(out))


@torch.no_grad()
def gradients(
    weight: Tensor,
    outer: Tensor,
    parts: Sequence[Part],
    values: Sequence[Tensor],
    inner: Tensor | None,
) -> list[Tensor]:
    """Equation (4): from Ḡ = ∂L/∂W̄, ``outer``, to the gradients of ``values``, in their shapes.

    That of W is written into ``inner``, which may be ``outer`` itself; None leaves it out.
    """
    with without_autocast(weight):
        return _gradients(weight, outer, parts, values, inner)


def _gradients(
    weight: Tensor,
    outer: Tensor,
    parts: Sequence[Part],
    values: Sequence[Tensor],
    inner: Tensor | None,
) -> list[Tensor]:
    if inner is not None and inner is not outer and parts[0].rows is not None:
        inner.copy_(outer)
    found = []
    for part, own in split(parts, values):
        into = None if inner is None else part.of(inner)
        found += _relations(part.of(weight), part.of(outer), own, part.order, into)
    return [
        sums if sums.shape == value.shape else sums.view(value.shape)
        for sums, value in zip(found, values, strict=True)
    ]


def _relations(
    weight: Tensor,
    outer: Tensor,
    values: Sequence[Tensor],
    order: tuple[int, int] | None,
    inner: Tensor | None,
) -> list[Tensor]:
    blocks = _blocks(weight)
    if not blocks:
        return _sums(weight, outer, values, order, inner)
    sums = [torch.zeros_like(value) for value in values]
    for block in blocks:
        own = [_block(value, block, weight) for value in values]
        into = None if inner is None else inner[block]
        found = _sums(weight[block], outer[block], own, order, into)
        for every, more in zip(sums, found, strict=True):
            part = _block(every, block, weight)
            part.add_(more.view(part.shape))
    return sums


def _sums(
    weight: Tensor,
    outer: Tensor,
    values: Sequence[Tensor],
    order: tuple[int, int] | None,
    inner: Tensor | None,
) -> list[Tensor]:
    """``_relations`` of a block."""
    product = upcast(weight) * upcast(outer)
    if order is not None and product.dtype == values[0].dtype == values[1].dtype:
        first, last = values[order[0]], values[order[1]]
        along = (torch.mv(product, last), torch.mv(product.T, first.view(-1)))
        sums = [along[order[0]], along[order[1]]]
    else:
        sums = [
            _summed(product, [*values[:number], *values[number + 1 :]], value.shape)
            for number, value in enumerate(values)
        ]
    if inner is not None:
        _multiply_block(outer, values, inner)
    return sums


def _multiply(source: Tensor, values: Sequence[Tensor], out: Tensor) -> None:
    """``scaled`` into ``out``, which may be ``source``."""
    blocks = _blocks(source)
    if not blocks:
        _multiply_block(source, values, out)
    for block in blocks:
        own = [_block(value, block, source) for value in values]
        _multiply_block(source[block], own, out[block])


def _multiply_block(source: Tensor, values: Sequence[Tensor], out: Tensor) -> None:
    dtype = out.dtype
    for value in values:
        if value.dtype != dtype or is_distributed(value):
            out.copy_(scaled(source, values))
            return
    torch.mul(source, values[0], out=out)
    for value in values[1:]:
        out.mul_(value)


def _summed(product: Tensor, others: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """Sum of ``product`` times all ``others`` over the dimensions in which ``shape`` is 1."""
    for other in others:
        product = product * other
    shape = (1,) * (product.dim() - len(shape)) + tuple(shape)
    over = [d for d, (n, m) in enumerate(zip(product.shape, shape, strict=True)) if m == 1 != n]
    return product.sum(over, keepdim=True) if over else product


def _blocks(weight: Tensor) -> list[slice]:
    """Rows of a large matrix on the CPU, some at a time; none of what is done at once."""
    if weight.numel() <= _BLOCK or weight.dim() != 2:
        return []
    if weight.device.type != "cpu" or is_distributed(weight):
        return []
    rows = max(1, _BLOCK // weight.shape[1])
    return [slice(start, start + rows) for start in range(0, weight.shape[0], rows)]


def _block(value: Tensor, block: slice, weight: Tensor) -> Tensor:
    """The rows of ``value`` that go with those of ``weight``; one without rows has all."""
    has_rows = value.dim() == weight.dim() and value.shape[0] == weight.shape[0]
    return value[block] if has_rows else value
