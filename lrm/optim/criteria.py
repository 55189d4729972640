"""How much a layer, or an update of it, may do in the worst case over inputs. Torch alone.

These are the criteria of *Beyond MuP 3* (Su, https://kexue.fm/archives/11647), of matrices as torch
stores them: (outputs, inputs), or (tokens, width) of an embedding and a head. Norms are root mean
squares, but for ‖·‖₂, the largest singular value. The same function serves W and ΔW.
"""

from __future__ import annotations

import torch
from torch import Tensor

_EXACT = "donot_use_mm_for_euclid_dist"


def rms(tensor: Tensor, dim: int | None = None) -> Tensor:
    """Root mean square over ``dim``, or over all entries."""
    return tensor.square().mean(dim).sqrt()


def of_linear(matrix: Tensor) -> Tensor:
    """‖W‖₂ sqrt(inputs / outputs): the largest norm of an output for an input of norm 1."""
    outputs, inputs = matrix.shape
    return torch.linalg.matrix_norm(matrix, 2) * (inputs / outputs) ** 0.5


def of_embedding(rows: Tensor) -> Tensor:
    """max_i ‖E_i‖ over tokens i."""
    return rms(rows, -1).max()


def of_rows_of_head(rows: Tensor) -> Tensor:
    """d max_i ‖w_i‖, half of the bound on ``of_head`` that the article makes small."""
    return rows.shape[-1] * of_embedding(rows)


def of_head(rows: Tensor) -> Tensor:
    """D = d max_{i,t} ‖w_i − w_t‖: the loss is at most D + log V, and changes by at most D(ΔW)."""
    return rows.shape[-1] ** 0.5 * torch.cdist(rows, rows, compute_mode=_EXACT).max()


def of_gain(gain: Tensor) -> Tensor:
    """max_j |γ_j|: of the diagonal layer diag(γ) the largest singular value."""
    return gain.abs().max()


def of_bias(bias: Tensor) -> Tensor:
    """‖b‖."""
    return rms(bias)
