"""Cross-entropy of all logits at once, against which the fused one is measured."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lrm.model import ops
from lrm.multipliers.precision import upcast


def whole_logits(
    hidden: Tensor, weight: Tensor, targets: Tensor, z_loss: float = 0.0, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """What ``lrm.model.loss.linear_cross_entropy`` returns for the same arguments."""
    logits = upcast(ops.linear(hidden, weight, factor)).flatten(0, -2)
    loss = F.cross_entropy(logits, targets.flatten())
    objective = loss + z_loss * logits.logsumexp(-1).square().mean() if z_loss else loss
    return loss.detach(), objective
