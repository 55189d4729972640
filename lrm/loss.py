"""Cross-entropy with z-loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, targets: Tensor, z_loss: float = 0.0) -> tuple[Tensor, Tensor]:
    """Mean negative log-likelihood, and the same with the z-loss added.

    ``logits`` (..., vocabulary) and ``targets`` (...); half precision is lifted to float32. The
    z-loss (PaLM; appendix A) is ``z_loss`` times the mean squared log-partition function.
    Returns (cross-entropy, objective), both scalars.
    """
    logits = logits.flatten(0, -2)
    if logits.dtype.itemsize < 4:
        logits = logits.float()
    if not z_loss:
        loss = F.cross_entropy(logits, targets.flatten())
        return loss, loss
    log_partition = logits.logsumexp(-1)
    picked = logits.gather(-1, targets.flatten()[:, None]).squeeze(-1)
    loss = (log_partition - picked).mean()
    return loss, loss + z_loss * log_partition.square().mean()
