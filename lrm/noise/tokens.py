"""Brownian motion of the embedding, masked by real occurrences.

A token's row has a gradient only in steps whose batch holds the token: that of its occurrences
added up. Without any signal Adam keeps such a row below the norm of a dense one, the more the
rarer its token is. What the model's rows do beyond that is theirs (claim M5f).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lrm.data import Batches
from lrm.multipliers.groups import Entry
from lrm.optim.optimizer import Optimizer
from lrm.plan.config import Settings
from lrm.plan.schedule import lr_factor, stage_ends


@dataclass(frozen=True)
class TokenNoise:
    """What came out: ``steps`` (n,), ``norms`` (n, draws), and by token at the stages' ends.

    ``row_norms`` maps a step to the norms of all rows (vocabulary,); ``frequency``
    (vocabulary,) is the share of steps whose batch held the token.
    """

    steps: np.ndarray
    norms: np.ndarray
    row_norms: dict[int, np.ndarray]
    frequency: np.ndarray


def simulate(
    settings: Settings,
    batches: Batches,
    draws: int,
    generator: torch.Generator,
    start: float,
    lr: float,
    weight_decay: float,
    report: Callable[[int], None] = lambda step: None,
) -> TokenNoise:
    """Walk ``draws`` independent entries of every row with the run's AdamW, schedule and batches.

    Rows start from normal entries of RMS ``start``. The gradient of a token that occurs n times
    in a step is N(0, n).
    """
    vocabulary, total = settings.model.vocab_size, settings.train.steps
    values = torch.randn(vocabulary, draws, generator=generator) * start
    leaf = nn.Parameter(values)
    leaf.grad = torch.zeros_like(values)
    entry = Entry(("embedding",), leaf, leaf, None, lr, weight_decay, False)
    optimizer = Optimizer([entry], settings.optimizer, settings.train)
    ends = stage_ends(settings.schedule, total)
    seen = np.zeros(vocabulary)
    steps, norms, row_norms = [0], [_norms(values, 0)], {}
    for step in range(total):
        inputs = batches.batch(step)[:, :-1]
        counts = np.bincount(inputs.ravel(), minlength=vocabulary)
        seen += counts > 0
        leaf.grad.normal_(generator=generator)
        leaf.grad *= torch.from_numpy(np.sqrt(counts, dtype=np.float32))[:, None]
        optimizer.step(lr_factor(settings.schedule, total, step))
        done = step + 1
        if done % settings.probes.every == 0 or done in ends:
            report(done)
            steps.append(done)
            norms.append(_norms(values, 0))
        if done in ends:
            row_norms[done] = _norms(values, 1).numpy()
    return TokenNoise(np.array(steps), torch.stack(norms).numpy(), row_norms, seen / total)


def _norms(values: Tensor, over: int) -> Tensor:
    return values.square().mean(over).sqrt()
