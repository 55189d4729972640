"""The direction of steepest descent in each norm, on plain tensors. Torch alone.

The LR bounds a norm of the update, and each direction has the largest inner product with the
momentum among all of its norm: Newton–Schulz in the spectral norm, ``per_token`` in the largest
RMS of a row, ``normalized`` in the RMS of the whole, and the sign in the largest entry. See *Beyond
MuP 3* (Su, https://kexue.fm/archives/11647).
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lrm.plan.msign import COEFFICIENTS


def newton_schulz(matrices: Tensor, iterations: int, eps: float) -> Tensor:
    """U V^T of matrices (n, rows, columns) = U S V^T, roughly; same shape and dtype.

    Singular values end between 0.7 and 1.2. A matrix is first divided by its Frobenius norm, or
    by ``eps`` if that is larger.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(iterations):
        gram = x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, gram, x, beta=a)
    return x.mT if tall else x


def moments(
    state: MutableMapping[nn.Parameter, dict[str, Any]],
    leaves: Sequence[nn.Parameter],
    momentum: float,
    nesterov: bool,
) -> list[Tensor]:
    """What each leaf's gradient becomes by ``momentum``, as an average: B <- μ B + (1 − μ) G.

    With ``nesterov`` μ B + (1 − μ) G of the new B. B lies in ``state`` as ``momentum_buffer``; of
    leaves without nesterov what is returned is B itself.
    """
    gradients = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        if not state[leaf]:
            state[leaf]["momentum_buffer"] = torch.zeros_like(leaf)
    buffers = [state[leaf]["momentum_buffer"] for leaf in leaves]
    torch._foreach_lerp_(buffers, gradients, 1 - momentum)
    return torch._foreach_lerp(gradients, buffers, momentum) if nesterov else buffers


def per_token(rows: Tensor) -> Tensor:
    """Each row (…, columns) over its root mean square; rows of zeros stay zeros.

    Rows of an embedding are its tokens, and so are those of an LM head as torch stores it, which
    the article writes as columns.
    """
    # A row that fades has squares of zero long before its entries are.
    rows = rows / _or_one(rows.abs().amax(-1, keepdim=True))
    return normalized(rows, torch.linalg.vector_norm(rows, dim=-1, keepdim=True), rows.shape[-1])


def normalized(tensor: Tensor, norm: Tensor, count: int) -> Tensor:
    """``tensor`` over its root mean square: its L2 ``norm`` over the root of ``count`` entries."""
    return tensor / _or_one(norm * count**-0.5)


def _or_one(size: Tensor) -> Tensor:
    """``size``, or 1 where it is 0; what is no number stays none."""
    return torch.where(size == 0, torch.ones_like(size), size)
