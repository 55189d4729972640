"""The door to kernels: every costly operation of the model passes through here.

Plain torch, unless ``implementation`` names a package of ``lrm.model.gpu.adapters`` (chosen by
``lrm.model.gpu.selection``). The torch functions run under autocast, in half precision, float32 and
float64; statistics, decays and exponents are never kept in half precision, and float64 is
never rounded. Operations with a hand-written backward (norm, rotation, convolution, the inverse
within the delta rule) can be differentiated once. Under ``torch.func``'s transforms, which know no
such backward, they are what they are written as, and torch differentiates them.
"""

from __future__ import annotations

from functools import lru_cache, wraps

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lrm.model.gpu import adapters
from lrm.multipliers.equations import is_transformed
from lrm.multipliers.precision import HALF, to_compute, upcast, without_autocast


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


def route(logits: Tensor, active: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which experts each token goes to, with which weights, and how unequal all choices are.

    Of logits (tokens, experts): the ``active`` largest, (tokens, active) int64; their softmax over
    all experts, divided by its sum over the chosen, (tokens, active); and experts · Σ_e (share of
    the choices) · (mean softmax), a scalar of which only the second factor has a gradient.
    """
    probabilities = upcast(logits).softmax(-1)
    top, choice = probabilities.topk(active, -1)
    experts = logits.shape[-1]
    chosen = torch.zeros_like(probabilities).scatter(-1, choice, 1.0)
    imbalance = experts * (chosen.mean(0) / active * probabilities.mean(0)).sum()
    return choice, (top / top.sum(-1, keepdim=True)).to(logits.dtype), imbalance


# The matrices of all experts (experts, rows, columns), and the weights of norms behind them
# (experts, rows) or None.
Stack = tuple[Tensor, Tensor | None]


def experts(
    x: Tensor, choice: Tensor, weight: Tensor, gate: Stack, up: Stack, down: Stack, eps: float
) -> Tensor:
    """``Σ_e weight_e · down_e(up_e(x) * silu(gate_e(x)))`` over the chosen experts of each token.

    x (tokens, d); choice and weight (tokens, active). A matrix may have an RMSNorm of ``eps``
    behind it. The tokens of an expert are brought together, so that its products are those of a
    dense block; none is dropped, whatever the balance. Under ``torch.func``'s transforms all
    experts compute all tokens.
    """
    count, active = len(gate[0]), choice.shape[-1]
    if is_transformed():
        every = torch.zeros_like(x[:, :1]).expand(-1, count).scatter(-1, choice, weight)

        def dense(equation: str, x: Tensor, stack: Stack) -> Tensor:
            y = torch.einsum(equation, x, stack[0])
            return y if stack[1] is None else _behind(y, stack[1], eps)

        inner = dense("td,esd->tes", x, up) * F.silu(dense("td,esd->tes", x, gate))
        return torch.einsum("te,ted->td", every, dense("tes,eds->ted", inner, down))
    flat = choice.flatten()
    order = flat.argsort(stable=True)
    expert = flat[order]
    ends = F.one_hot(flat, count).sum(0).cumsum(0)

    def own(x: Tensor, stack: Stack) -> Tensor:
        y = _grouped(x, stack[0], ends)
        return y if stack[1] is None else _behind(y, stack[1][expert], eps)

    rows = x[order // active]
    out = own(own(rows, up) * F.silu(own(rows, gate)), down)
    # Back to the tokens' own order; each place is written once, so that the sum has one order.
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
    return (out[back].unflatten(0, (-1, active)) * weight.to(out.dtype)[..., None]).sum(1)


def _behind(y: Tensor, weight: Tensor, eps: float) -> Tensor:
    """An RMSNorm over the last dimension whose weights differ along others too."""
    return rms_norm(y, y.new_ones(y.shape[-1]), eps) * weight.to(y.dtype)


def _grouped(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows up to ``ends[0]`` of x (rows, columns) by the first of ``weights``, and so on.

    weights (groups, rows out, columns); returns (rows, rows out).
    """
    x, weights = to_compute(x), to_compute(weights)
    if x.is_cuda and x.dtype == torch.bfloat16 and _has_grouped(x.device):
        return _at_once(x, weights, ends)
    return _one_by_one(x, weights, ends)


def _at_once(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    # Strides have to be multiples of 16 bytes, those of gradients too.
    rows, columns = weights.shape[1:]
    below, beside = -rows % 8, -columns % 8
    if below or beside:
        x, weights = F.pad(x, (0, beside)), F.pad(weights, (0, beside, 0, below))
    y = _GROUPED(x, weights.transpose(1, 2), offs=ends.to(torch.int32))
    return y[:, :rows]


# Public from torch 2.10 on.
_GROUPED = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


@_table
def _has_grouped(device: torch.device) -> bool:
    return _GROUPED is not None and torch.cuda.get_device_capability(device) >= (8, 0)


@torch.compiler.disable  # sizes differ from step to step
def _one_by_one(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    sizes = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    parts = zip(x.split(sizes), weights, strict=True)
    return torch.cat([F.linear(rows, weight) for rows, weight in parts])


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
        # Of one shape, the sum would be ``product`` itself, which is changed below.
        same = product.shape == weight.shape
        grad_weight = product.clone() if same else product.sum_to_size(weight.shape)
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


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """``attention`` by torch's fused kernels.

    Only flash attention, which is for half precision, takes fewer keys than queries: in float32
    torch would fall back to one that holds all scores, without a word.
    """
    group = q.shape[1] // k.shape[1]
    shares = group > 1 and q.dtype in HALF
    if group > 1 and not shares:
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=shares)


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, implementation: str = "torch"
) -> Tensor:
    """Causal softmax attention with grouped queries.

    q (batch, heads, length, head_dim); k, v (batch, kv_heads, length, head_dim), where
    kv_heads divides heads. Returns q's shape.
    """
    if implementation != "torch":
        return adapters.call("attention", implementation, q, k, v, scale)
    if q.is_cuda:
        return _fused(q, k, v, scale)
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


def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None, implementation: str = "torch"
) -> Tensor:
    """Depthwise causal convolution over the length, then SiLU.

    ``silu(bias + sum_k weight[:, 0, k] * x[t - (kernel - 1) + k])`` for x (batch, length,
    channels), weight (channels, 1, kernel) and bias (channels,) or None; x is zero before the
    start.
    """
    if implementation != "torch":
        return adapters.call("convolution", implementation, x, weight, bias)
    with without_autocast(x):
        weight = weight.squeeze(1).to(x.dtype)
        bias = None if bias is None else bias.to(x.dtype)
        if is_transformed():
            return F.silu(_by_taps(x, weight, bias))
        return F.silu(_CausalConv.apply(x, weight, bias))


class _CausalConv(torch.autograd.Function):
    """Channels stay last in memory, and the weight's gradient is taken tap by tap.

    Three times faster on CPU than ``F.conv1d``, most of whose time is the weight's gradient.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padded = F.pad(x, (0, 0, weight.shape[1] - 1, 0))
        ctx.save_for_backward(padded, weight)
        ctx.has_bias = bias is not None
        return _correlate(padded, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        padded, weight = ctx.saved_tensors
        kernel, length = weight.shape[1], grad.shape[1]
        grad_x = _correlate(F.pad(grad, (0, 0, 0, kernel - 1)), weight.flip(1), None)
        taps = [(grad * padded[:, k : k + length]).sum((0, 1)) for k in range(kernel)]
        return grad_x, torch.stack(taps, 1), grad.sum((0, 1)) if ctx.has_bias else None


def _by_taps(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    kernel, length = weight.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, kernel - 1, 0))
    taps = [padded[:, k : k + length] * weight[:, k] for k in range(kernel)]
    return sum(taps[1:], start=taps[0]) if bias is None else sum(taps, start=bias)


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
    dt, A = upcast(dt), upcast(A)
    if implementation != "torch":
        return adapters.call("scan", implementation, x, dt, A, B, C, chunk, D)
    with without_autocast(x):
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


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk: int,
    implementation: str = "torch",
) -> tuple[Tensor, Tensor]:
    """The gated delta rule as chunked matrix products.

    For every head, with state S of shape (dv, dk) and S_0 = 0,

        S_t = exp(g_t) S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T        o_t = S_t q_t

    q, k (batch, length, heads, dk), of unit length or shorter; v (batch, length, heads, dv); g
    and beta (batch, length, heads), g <= 0 and 0 <= beta <= 1. Returns o (batch, length, heads,
    dv) in v's dtype and the last S (batch, heads, dv, dk). ``chunk`` is the largest chunk wanted,
    a power of two; it changes the result by rounding only. Plain torch computes in float32 at
    least, because the rule lives on differences of keys that may be nearly equal.
    """
    q, k, g, beta = upcast(q), upcast(k), upcast(g), upcast(beta)
    if implementation != "torch":
        return adapters.call("delta", implementation, q, k, v, g, beta)
    with without_autocast(v):
        size = min(chunk, 1 << (v.shape[1] - 1).bit_length())
        o, state = _gated_delta(q, k, upcast(v), g, beta, size)
        return o.to(v.dtype), state


def _gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    batch, length, heads, width = v.shape
    key_width = k.shape[-1]
    pad = -length % size
    if pad:
        # A step with g = 0 and beta = 0 leaves the state as it is.
        q, k, v = (F.pad(t, (0, 0, 0, 0, 0, pad)) for t in (q, k, v))
        g, beta = (F.pad(t, (0, 0, 0, pad)) for t in (g, beta))
    chunks = (length + pad) // size
    # Heads and chunks first, positions in a chunk and channels last.
    q, k, v = (t.transpose(1, 2).reshape(batch * heads, chunks, size, -1) for t in (q, k, v))
    g, beta = (t.transpose(1, 2).reshape(batch * heads, chunks, size) for t in (g, beta))

    decay = _decay(g, 0)
    since_start = g.cumsum(-1).exp().unsqueeze(-1)
    keys_then_queries = torch.cat((k * beta.unsqueeze(-1), q), -2)
    erased, read = (keys_then_queries @ k.transpose(-1, -2)).split(size, -2)
    erased, read = (erased * decay).tril(-1), read * decay
    # With V~ the values that the steps of a chunk really write, (I + erased) V~ is beta times the
    # values less what the keys find in the state before the chunk.
    wanted = torch.cat((v, k * since_start), -1) * beta.unsqueeze(-1)
    written, found = (_unit_inverse(erased) @ wanted).split((width, key_width), -1)
    k = (k * decay[..., -1, :].unsqueeze(-1)).transpose(-1, -2)
    kept = since_start[:, :, -1:]

    # The only part that goes from chunk to chunk. States lie as (dk, dv).
    values, states = [written[:, 0]], []
    state = k[:, 0] @ values[0]
    for c in range(1, chunks):
        states.append(state)
        values.append(written[:, c] - found[:, c] @ state)
        state = kept[:, c] * state + k[:, c] @ values[c]
    o = read @ torch.stack(values, 1)
    if states:
        later = (q * since_start)[:, 1:] @ torch.stack(states, 1)
        o = torch.cat((o[:, :1], o[:, 1:] + later), 1)
    o = o.view(batch, heads, chunks * size, width).transpose(1, 2)
    state = state.view(batch, heads, key_width, width).transpose(-1, -2)
    return o[:, :length] if pad else o, state


def _unit_inverse(lower: Tensor) -> Tensor:
    """``(I + lower)^-1`` for strictly lower triangular matrices (..., n, n), n a power of two.

    By halves, each a product of inverses: the product of the powers of ``lower`` is the same on
    paper, but with nearly equal keys those powers grow like binomials and cancel.
    """
    if is_transformed():
        return _by_halves(lower)
    return _UnitInverse.apply(lower)


class _UnitInverse(torch.autograd.Function):
    """Two products backward, in place of twice those of every half."""

    @staticmethod
    def forward(ctx, lower: Tensor) -> Tensor:
        inverse = _by_halves(lower)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        [inverse] = ctx.saved_tensors
        turned = inverse.transpose(-1, -2)
        return (turned @ grad @ turned).tril_(-1).neg_()


# Up to this size the products of halves are smaller than what calling them costs.
_SMALLEST_HALVES = 8


def _by_halves(lower: Tensor) -> Tensor:
    n = lower.shape[-1]
    if n <= _SMALLEST_HALVES:
        # All blocks at once, in products of the whole matrix with what lies between two blocks.
        unit, between = _between_blocks(n, lower.dtype, lower.device)
        if n == 1:
            return unit.expand_as(lower)
        inverse = unit - lower * between[0]
        for mask in between[1:]:
            inverse = inverse - inverse @ (lower * mask) @ inverse
        return inverse
    half = n // 2
    blocks = torch.stack((lower[..., :half, :half], lower[..., half:, half:]))
    first, second = _by_halves(blocks).unbind()
    corner = second @ lower[..., half:, :half] @ first
    upper = torch.cat((first, torch.zeros_like(first)), -1)
    return torch.cat((upper, torch.cat((-corner, second), -1)), -2)


@_table
def _between_blocks(
    n: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The unit matrix; and for blocks of 1, 2, 4, … ones where a block meets its neighbour."""
    with torch.inference_mode(False):
        index = torch.arange(n, device=device)
        i, j, found, size = index[:, None], index, [], 1
        while size < n:
            is_pair = (i // size == j // size + 1) & (j // size % 2 == 0)
            found.append(is_pair.to(dtype))
            size *= 2
        return torch.eye(n, dtype=dtype, device=device), tuple(found)
