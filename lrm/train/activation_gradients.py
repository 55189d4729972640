"""Gradients of the loss by activations, and what mixers tell of themselves (third paper).

A root mean square of a gradient is over tokens and entries; the loss is the mean over tokens.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor

from lrm.model.activations import WithGradients
from lrm.plan.config import Settings
from lrm.train import compiled
from lrm.train.learner import Learner
from lrm.train.probes import Scalars, Vectors


def activation_gradients(
    learner: Learner, batch: Tensor, settings: Settings, autocast: Any = None, micro_batch: int = 0
) -> tuple[Scalars, Vectors]:
    """On ``batch`` (sequences, length), ``micro_batch`` sequences at a time.

    Inputs are all tokens but the last, targets all but the first.
    ``activation_gradient_norm`` by the keys of activations (``FalconH1.forward``), of those that
    the loss depends on; and the statistics of every mixer (``Mixer.statistics``) with the layer's
    number. Leaves no gradients.
    """
    squares: dict[str, Tensor] = {}
    sizes: dict[str, int] = {}
    told: dict[tuple[str, str], Tensor] = {}
    for part in batch.split(micro_batch or len(batch)):
        share = len(part) / len(batch)
        found = _passed(learner, part, settings, share, autocast)
        for key, value in found.items():
            if value.grad is not None:
                square = value.grad.double().square().sum()
                squares[key] = squares.get(key, 0.0) + square
                sizes[key] = sizes.get(key, 0) + value.numel()
        for place, value in _statistics(settings, found).items():
            told[place] = told.get(place, 0.0) + value * share
    learner.zero_grad()
    sums = torch.stack(list(squares.values())).tolist()
    norms = {key: math.sqrt(each / sizes[key]) for key, each in zip(squares, sums, strict=True)}
    vectors: Vectors = {}
    for (stat, key), value in told.items():
        vectors.setdefault(stat, {})[key] = value.tolist()
    return {"activation_gradient_norm": norms}, vectors


def _passed(
    learner: Learner, part: Tensor, settings: Settings, share: float, autocast: Any
) -> WithGradients:
    """The activations of ``part``, with the gradients of ``share`` times its mean objective."""
    learner.zero_grad()
    found = WithGradients()
    with compiled.uncompiled():
        with autocast or contextlib.nullcontext():
            z_loss = settings.train.z_loss
            _, objective = learner.model(part[:, :-1], part[:, 1:], z_loss, found)
        (objective * share).backward()
    return found


@torch.no_grad()
def _statistics(settings: Settings, found: WithGradients) -> dict[tuple[str, str], Tensor]:
    """What the mixers of all layers tell: (stat, tensor with its layer) → one number each head."""
    told = {}
    for layer in range(settings.model.num_hidden_layers):
        end = f"@{layer}"
        own = {key.removesuffix(end): value for key, value in found.items() if key.endswith(end)}
        for mixer in settings.model.mixers:
            for (stat, name), value in mixer.statistics(own).items():
                told[stat, name + end] = value.double()
    return told
