"""Recurrences step by step, as the papers write them: what chunked algorithms are compared with."""

import torch
from torch import Tensor


def gated_delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """``ops.gated_delta`` literally: S <- exp(g) S (I - beta k k^T) + beta v k^T, o = S q."""
    batch, length, heads, width = k.shape
    S, out = v.new_zeros(batch, heads, v.shape[-1], width), []
    eye = torch.eye(width, dtype=k.dtype, device=k.device)
    for t in range(length):
        key, strength = k[:, t], beta[:, t, :, None, None]
        erased = eye - strength * key.unsqueeze(-1) * key.unsqueeze(-2)
        written = strength * v[:, t].unsqueeze(-1) * key.unsqueeze(-2)
        S = g[:, t, :, None, None].exp() * S @ erased + written
        out.append((S @ q[:, t].unsqueeze(-1)).squeeze(-1))
    return torch.stack(out, 1), S
