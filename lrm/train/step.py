"""One training step, one validation, one measurement: functions of a learner and a batch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lrm.plan.config import Settings
from lrm.plan.schedule import lr_factor
from lrm.train import compiled, probes
from lrm.train.distributed import ALONE
from lrm.train.learner import Learner


def backward(
    learner: Learner,
    batch: Tensor,
    settings: Settings,
    autocast: Any = None,
    micro_batch: int = 0,
) -> Tensor:
    """Gradients of the mean objective over ``batch`` and those of the other processes.

    Returns the cross-entropy of ``batch`` alone, a scalar on the device.
    """
    learner.zero_grad()
    compiled.begin_step()
    total = batch.new_zeros((), dtype=torch.float32)
    parts = batch.split(micro_batch or len(batch))
    several = len(parts) > 1
    with learner.multipliers.unchanged(several):
        for part in parts:
            share = len(part) / len(batch)
            with learner.group.accumulating(learner.call, part is not parts[-1]):
                loss = add_gradients(learner.call, part, settings, autocast, share)
            total = loss if share == 1 else total + loss * share
    learner.settle()
    return total


def add_gradients(
    model: nn.Module, batch: Tensor, settings: Settings, autocast: Any = None, share: float = 1.0
) -> Tensor:
    """Add ``share`` times the gradients of ``batch`` to those there are; its cross-entropy."""
    with autocast or contextlib.nullcontext():
        loss, objective = model(batch[:, :-1], batch[:, 1:], settings.train.z_loss)
    (objective if share == 1 else objective * share).backward()
    return loss


def train_step(
    learner: Learner,
    batch: Tensor,
    settings: Settings,
    step: int,
    autocast: Any = None,
    micro_batch: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """One update on ``batch`` (sequences, length + 1), ``micro_batch`` sequences at a time.

    Of several processes each has its own rows of the batch. Returns (cross-entropy of these
    rows, gradient norm of the whole batch before clipping, whether it was clipped), scalars on
    the device.
    """
    total = backward(learner, batch, settings, autocast, micro_batch)
    norm, clipped = learner.optimizer.step(lr_factor(settings.schedule, settings.train.steps, step))
    return total, norm, clipped


@torch.no_grad()
def validation_loss(
    learner: Learner,
    sequences: np.ndarray,
    lot: int,
    autocast: Any,
    counted: np.ndarray | None = None,
) -> float:
    """Mean cross-entropy per token of the fixed sequences (count, length + 1), in nats.

    ``counted`` (count, length), bool, says whose targets: at least one, and by default all. Of
    several processes each computes every so many-th sequence, and all return the mean.
    """
    device = next(learner.model.parameters()).device
    group = learner.group
    mine = sequences[group.rank :: group.world]
    kept = None if counted is None else counted[group.rank :: group.world]
    total = 0.0
    # As many passes in each process, because they may have to help each other.
    for start in range(0, -(-len(sequences) // group.world), lot):
        own = mine[start : start + lot]
        batch = torch.from_numpy(own if len(own) else sequences[:1]).to(device)
        weight, among = len(own), None  # of a lot that counts no token any loss, with weight 0
        if kept is not None and (weight := int(kept[start : start + lot].sum())):
            among = torch.from_numpy(kept[start : start + lot]).to(device)
        with compiled.uncompiled(), autocast or contextlib.nullcontext():
            loss, _ = learner.model(batch[:, :-1], batch[:, 1:], counted=among)
        total += loss.item() * weight
    mean = group.mean(torch.tensor(total, dtype=torch.float64)).item()
    return mean * group.world / (len(sequences) if counted is None else int(counted.sum()))


def gradient_statistics(
    learner: Learner, views: probes.Views, batches: Iterable[Tensor], settings: Settings,
    autocast: Any = None, micro_batch: int = 0,
) -> probes.Scalars:  # fmt: skip
    """``probes.GradientStatistics`` over ``batches``, at least two; leaves no gradients."""
    found = probes.GradientStatistics(views)
    # The one process that measures does not wait for others.
    alone = dataclasses.replace(learner, call=learner.model, group=ALONE)
    for batch in batches:
        backward(alone, batch, settings, autocast, micro_batch)
        found.add()
    learner.zero_grad()
    return found.result()


def measure_norms(
    learner: Learner, views: probes.Views, tokens: Tensor, autocast: Any, micro_batch: int = 0
) -> probes.Scalars:
    """Every norm of ``lrm.train.probes``, activations on ``tokens`` (sequences, length).

    ``micro_batch`` of these sequences pass at a time, or all.
    """
    learner.model.eval()
    found = probes.tensor_norms(views)
    with compiled.uncompiled(), autocast or contextlib.nullcontext():
        found |= probes.activation_norms(learner.model, tokens, micro_batch)
    learner.model.train()
    return found
