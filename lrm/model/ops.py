"""The door to kernels: every costly operation of the model passes through here.

Plain torch, unless ``implementation`` names a package of ``lrm.model.gpu.adapters`` (chosen by
``lrm.model.gpu.selection``). The torch functions run under autocast, in half precision, float32 and
float64; statistics, decays and exponents are never kept in half precision, and float64 is
never rounded. Operations with a hand-written backward (norm, rotation, convolution) can be
differentiated once. Under ``torch.func``'s transforms, which know no such backward, they are what
they are written as, and torch differentiates them.
"""

from __future__ import annotations

from functools import lru_cache, wraps

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lrm.model.gpu import adapters
from lrm.multipliers.equations import is_transformed
from lrm.multipliers.precision import HALF, upcast, without_autocast


def _table(function):
    """Keep the last results of ``function``; where it is compiled they are constants."""
    cached = lru_cache(maxsize=16)(function)

    @wraps(function)
    def table(*arguments):
        return cached(*arguments)

    return torch.compiler.assume_constant_result(table)


def linear(x: Tensor, weight: Tensor, factor: float = 1.0) -> Tensor:
    """``factor * x @ weight.T`` for x (..., columns) and weight (rows, columns).

    The factor goes to the smallest of input, weight and output.
    """
    if factor == 1.0:
        return F.linear(x, weight)
    rows, columns = weight.shape
    tokens = x.numel() // columns
    if tokens * min(rows, columns) >= rows * columns:
        return F.linear(x, weight * factor)
    return F.linear(x * factor, weight) if columns <= rows else F.linear(x, weight) * factor


def embedding(tokens: Tensor, weight: Tensor, factor: float = 1.0) -> Tensor:
    """``factor * weight[tokens]``: (batch, length) and (vocabulary, d) to (batch, length, d)."""
    if factor == 1.0:
        return F.embedding(tokens, weight)
    if weight.shape[0] <= tokens.numel():
        return F.embedding(tokens, weight * factor)
    return F.embedding(tokens, weight) * factor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``weight * x / sqrt(mean(x**2) + eps)`` over the last dimension, in x's dtype."""
    wide, weight = upcast(x), upcast(weight)
    if is_transformed():
        scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * weight).to(x.dtype)
    return _RMSNorm.apply(wide, weight, eps).to(x.dtype)


class _RMSNorm(torch.autograd.Function):
    """A third faster than ``F.rms_norm`` on CPU, forward and backward together."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, weight, scale = ctx.saved_tensors
        unit = x * scale
        product = grad * unit
        grad_weight = product.sum_to_size(weight.shape)
        mean = product.mul_(weight).mean(-1, keepdim=True)
        return (grad * weight).addcmul_(unit, mean, value=-1).mul_(scale), grad_weight, None


def rope(x: Tensor, theta: float) -> Tensor:
    """Rotary position embedding of x (batch, length, heads, head_dim), heads brought forward.

    Entry i is paired with entry i + head_dim / 2, and position t turns the pair by
    ``t * theta ** (-2 i / head_dim)``. Returns (batch, heads, length, head_dim), contiguous.
    """
    cos, sin = _rope_tables(x.shape[1], x.shape[3], theta, x.dtype, x.device)
    if is_transformed():
        x = x.transpose(1, 2)
        return x * cos + x.roll(x.shape[-1] // 2, -1) * sin
    return _Rope.apply(x, cos, sin)


class _Rope(torch.autograd.Function):
    """The backward of a rotation is the rotation back: half the passes of autograd's."""

    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x.transpose(1, 2).contiguous(), cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        return _rotate(grad, *ctx.saved_tensors, -1).transpose(1, 2), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin, value=direction)


@_table
def _rope_tables(
    length: int, head_dim: int, theta: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines, and sines whose first half is negated, (length, head_dim) each."""
    exact = torch.float32 if dtype in HALF else dtype
    # Tensors born in inference mode could not be saved for a later backward.
    with torch.inference_mode(False):
        power = torch.arange(0, head_dim, 2, dtype=exact, device=device) / head_dim
        angle = torch.arange(length, dtype=exact, device=device)[:, None] * (1.0 / theta**power)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, implementation: str = "torch"
) -> Tensor:
    """Causal softmax attention with grouped queries.

    q (batch, heads, length, head_dim); k, v (batch, kv_heads, length, head_dim), where
    kv_heads divides heads. Returns q's shape.
    """
    if implementation != "torch":
        with without_autocast(q):
            return adapters.ADAPTERS["attention"][implementation](q, k, v, scale)
    if q.is_cuda:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=k.shape[1] != q.shape[1]
        )
    batch, heads, length, width = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    # The queries of one group share their keys: one product for all of them. Matrix products,
    # because the bf16 backward of torch's fused CPU attention is 7 times slower. Some queries at
    # a time, since they do not see the keys that follow.
    with without_autocast(q):
        q = q.reshape(batch * kv_heads, group, length, width)
        k = k.reshape(batch * kv_heads, length, width).transpose(1, 2)
        v = v.reshape(batch * kv_heads, length, width)
        parts = []
        for mask in _causal_masks(length, group, q.dtype, q.device):
            end, count = mask.shape[1], mask.shape[0] // group
            rows = q[:, :, end - count : end].reshape(len(q), -1, width)
            scores = torch.baddbmm(mask, rows, k[:, :, :end], alpha=scale)
            part = torch.bmm(scores.softmax(-1), v[:, :end])
            parts.append(part.view(batch, heads, count, width))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


@_table
def _causal_masks(
    length: int, repeats: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """For some queries at a time, (repeats * queries, keys up to the last of them)."""
    # As measured on CPU at lengths of 64 to 2048.
    count = max(128, -(-length // 16))
    ends = [min(start + count, length) for start in range(0, length, count)]
    with torch.inference_mode(False):
        return tuple(
            _causal_mask(end - start, end, start, dtype, device).repeat(repeats, 1)
            for start, end in zip([0, *ends], ends, strict=False)
        )


def _causal_mask(
    rows: int, columns: int, diagonal: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """0 where ``column <= row + diagonal`` else -inf."""
    mask = torch.full((rows, columns), float("-inf"), dtype=dtype, device=device)
    return mask.triu_(diagonal + 1)


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor, implementation: str = "torch") -> Tensor:
    """Depthwise causal convolution over the length, then SiLU.

    ``silu(bias + sum_k weight[:, 0, k] * x[t - (kernel - 1) + k])`` for x (batch, length,
    channels), weight (channels, 1, kernel) and bias (channels,); x is zero before the start.
    """
    with without_autocast(x):
        if implementation != "torch":
            return adapters.ADAPTERS["convolution"][implementation](x, weight, bias)
        weight, bias = weight.squeeze(1).to(x.dtype), bias.to(x.dtype)
        if is_transformed():
            return F.silu(_by_taps(x, weight, bias))
        return F.silu(_CausalConv.apply(x, weight, bias))


class _CausalConv(torch.autograd.Function):
    """Channels stay last in memory, and the weight's gradient is taken tap by tap.

    Three times faster on CPU than ``F.conv1d``, most of whose time is the weight's gradient.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, weight.shape[1] - 1, 0))
        ctx.save_for_backward(padded, weight)
        return _correlate(padded, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        padded, weight = ctx.saved_tensors
        kernel, length = weight.shape[1], grad.shape[1]
        grad_x = _correlate(F.pad(grad, (0, 0, 0, kernel - 1)), weight.flip(1), None)
        taps = [(grad * padded[:, k : k + length]).sum((0, 1)) for k in range(kernel)]
        return grad_x, torch.stack(taps, 1), grad.sum((0, 1))


def _by_taps(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    kernel, length = weight.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, kernel - 1, 0))
    taps = (padded[:, k : k + length] * weight[:, k] for k in range(kernel))
    return sum(taps, start=bias)


def _correlate(padded: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # As an image of height one, (batch, length, channels) is already in channels-last order,
    # for which the depthwise kernels of oneDNN are fast.
    image = padded.transpose(1, 2).unsqueeze(2)
    out = F.conv2d(image, weight[:, None, None], bias, groups=weight.shape[0])
    return out.squeeze(2).transpose(1, 2)


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk: int,
    D: Tensor | None = None,
    implementation: str = "torch",
) -> Tensor:
    """State space duality (Mamba2) as chunked matrix products.

    For every head, with state S of shape (p, n),

        S_t = exp(A dt_t) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t + D x_t

    x (batch, length, heads, p); dt (batch, length, heads), after softplus; A (heads,),
    negative; B, C (batch, length, groups, n), where groups divides heads; D (heads,) or None.
    Returns (batch, length, heads, p) in x's dtype. ``chunk`` is the largest chunk wanted; it
    changes the result by rounding only. Decays are as exact as float32 matrix products, so
    torch's float32 matmul precision must stay at "highest", its default.
    """
    with without_autocast(x):
        dt, A = upcast(dt), upcast(A)
        if implementation != "torch":
            return adapters.ADAPTERS["scan"][implementation](x, dt, A, B, C, chunk, D)
        return _ssd(x, dt, A, B, C, _chunk(x, chunk), D)


def _chunk(x: Tensor, chunk: int) -> int:
    """The chunk that is used: on CPU small ones are faster, as measured at 128 to 2048."""
    length = x.shape[1]
    fast = length
    if not x.is_cuda:
        fast = 16
        while fast * fast < 2 * length:
            fast *= 2
    # The decays between chunks take a constant of chunks ** 3 entries.
    return max(min(chunk, length, fast), -(-length // 256))


def _ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, size: int, D: Tensor | None
) -> Tensor:
    batch, length, heads, width = x.shape
    groups, state = B.shape[2:]
    share = heads // groups
    pad = -length % size
    if pad:
        # A step with dt = 0 and x = 0 leaves the state as it is.
        x, B, C = (F.pad(t, (0, 0, 0, 0, 0, pad)) for t in (x, B, C))
        dt = F.pad(dt, (0, 0, 0, pad))
    chunks = (length + pad) // size

    # Heads come first from here on, so that the products need no further copies. Per head and
    # chunk, positions are i (of y) and j (of x).
    x = x.transpose(1, 2).reshape(batch * heads * chunks, size, width)
    B, C = (t.transpose(1, 2).reshape(batch, groups, chunks, size, state) for t in (B, C))
    dt = dt.transpose(1, 2).reshape(batch, heads, chunks, size)
    steps = dt * A[:, None, None]
    # In the exponent, the product with dt costs no pass over a large tensor.
    log_dt = dt.clamp_min(torch.finfo(dt.dtype).tiny).log()

    decay = _decay(steps, 0, log_dt).view(batch, groups, share, chunks, size, size)
    scores = upcast(C @ B.transpose(-1, -2)).unsqueeze(2)
    if D is None:
        mixing = scores * decay
    else:
        eye = torch.eye(size, dtype=decay.dtype, device=x.device)
        skip = (D.to(decay.dtype)[:, None, None] * eye).view(groups, share, 1, size, size)
        mixing = torch.addcmul(skip, scores, decay)
    y = torch.bmm(mixing.to(x.dtype).view(-1, size, size), x)

    if chunks > 1:
        per_head = (batch, groups, share, chunks, size, 1)
        spans, _ = _spans(size, 0, steps.dtype, steps.device)
        into = (steps @ spans[:, -1] + log_dt).exp().to(x.dtype).view(per_head)
        out_of = steps.cumsum(-1).exp().to(x.dtype).view(per_head)
        added = torch.bmm((B.unsqueeze(2) * into).reshape(-1, size, state).transpose(1, 2), x)
        carry = _decay(steps.sum(-1), 1).to(x.dtype).view(-1, chunks, chunks)
        states = torch.bmm(carry, added.view(batch * heads, chunks, state * width))
        states = states.view(-1, state, width)
        from_states = (C.unsqueeze(2) * out_of).reshape(-1, size, state)
        if is_transformed():  # which have no batched form of the operation in place
            y = torch.baddbmm(y, from_states, states)
        else:
            y.baddbmm_(from_states, states)
    y = y.view(batch, heads, chunks * size, width).transpose(1, 2)
    return y[:, :length] if pad else y


def _decay(steps: Tensor, gap: int, log_weight: Tensor | None = None) -> Tensor:
    """``exp(log_weight_j + sum of steps_k over j < k <= i - gap)`` where j <= i - gap, else 0.

    steps, log_weight (..., n) to (..., n, n), indexed [i, j]. Sums are taken term by term, as
    products with zeros and ones: differences of cumulative sums lose up to three digits, above
    all in the gradient of A.
    """
    n = steps.shape[-1]
    spans, mask = _spans(n, gap, steps.dtype, steps.device)
    exponent = torch.addmm(mask.view(-1), steps.reshape(-1, n), spans.view(n, n * n))
    exponent = exponent.view(*steps.shape, n)
    return exponent.exp() if log_weight is None else (exponent + log_weight.unsqueeze(-2)).exp_()


@_table
def _spans(n: int, gap: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """1 where j < k <= i - gap, [k, i, j]; and 0 where j <= i - gap else -inf, [i, j]."""
    with torch.inference_mode(False):
        index = torch.arange(n, device=device)
        k, i, j = index[:, None, None], index[None, :, None] - gap, index
        return ((j < k) & (k <= i)).to(dtype), _causal_mask(n, n, -gap, dtype, device)
