"""What noise is fed to: a tensor that an optimizer moves and nothing else does."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lrm.errors import UserError
from lrm.model.blocks.block import Constant, Normal
from lrm.model.tensors import matches
from lrm.multipliers.groups import Entry
from lrm.multipliers.parametrization import DIRECT, Parametrization
from lrm.optim.optimizer import Optimizer
from lrm.plan.config import Settings
from lrm.plan.newton_schulz import noise_draws
from lrm.plan.rules import Matrix, TensorPlan
from lrm.plan.schedule import lr_factor, stage_ends
from lrm.plan.timescales import initial_norm


@dataclasses.dataclass(frozen=True)
class Walker:
    """One tensor to simulate: ``start`` is the RMS of normal entries, or a constant.

    A multiplier's walk is that of what its parametrization learns; ``start`` and norms are the
    multiplier's own. With ``matrix`` the tensor is that, or rows of that, and Muon moves it.
    """

    key: str
    size: int
    lr: float
    weight_decay: float
    start: float
    constant: bool
    parametrization: Parametrization = DIRECT
    matrix: Matrix | None = None


def entries_of(walker: Walker, values: Tensor, noise: Tensor) -> list[Entry]:
    """What the optimizer moves: all of ``values`` at once, or for Muon matrix by matrix.

    Leaves and their gradients share the memory of ``values`` and ``noise``.
    """
    parts = zip(values, noise, strict=True) if walker.matrix else [(values, noise)]
    found = []
    for number, (value, gradient) in enumerate(parts):
        leaf = nn.Parameter(value)
        leaf.grad = gradient
        entry = Entry((walker.key,), leaf, leaf, None, walker.lr, walker.weight_decay, False)
        if walker.matrix:
            entry = dataclasses.replace(entry, optimizer="muon", matrix=str(number))
        found.append(entry)
    return found


# Adam's entries are independent, so that a larger tensor is represented by this many in all.
_MAX_ENTRIES = 1 << 14


def walkers(
    plans: Sequence[TensorPlan], patterns: tuple[str, ...], settings: Settings
) -> list[Walker]:
    """The learnable tensors and multipliers of the addresses that ``patterns`` match.

    Raises UserError for those that begin neither constant nor normal (conv1d, A_log, dt_bias).
    """
    found = []
    for plan in plans:
        if not any(matches(pattern, plan.address) for pattern in patterns):
            continue
        if plan.trainable:
            initial = plan.address.initial
            if not isinstance(initial, (Constant, Normal)):
                raise UserError(
                    f"brownian: {plan.address.name} cannot be walked; match multipliers, or "
                    "tensors that begin constant or normal, such as matrices and norms"
                )
            vector = isinstance(initial, Constant)
            start = initial.value if vector else initial_norm(plan, settings)
            size, matrix = plan.address.size, plan.matrix
            found.append(
                Walker(plan.key, size, plan.lr, plan.weight_decay, start, vector, matrix=matrix)
            )
        for each in plan.multipliers:
            key, rates = f"{plan.key}.{each.axis}", (each.lr, each.weight_decay)
            found.append(Walker(key, each.size, *rates, each.init, True, each.parametrization))
    return found


def simulate(
    walker: Walker,
    settings: Settings,
    draws: int,
    seed: int,
    every: int = 1,
    report: Callable[[int, Tensor], None] = lambda step, values: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Walk ``draws`` copies of one tensor with the run's optimizer and schedule.

    Returns (steps (n,), norms (n, draws)) at step 0, every ``every`` steps, and the end of each
    stage; ``report`` gets those steps and the values (draws, entries). A draw simulates at most
    2**14 / draws entries of a large tensor. What Muon moves is simulated in its true shape, and a
    slice within its matrix; of large matrices there are fewer draws than asked for
    (``noise_draws``).
    """
    generator = torch.Generator().manual_seed(seed_of(seed, walker.key))
    if walker.matrix:
        rows, columns = walker.matrix.rows, walker.matrix.columns
        shape = (noise_draws(rows, columns, draws), rows, columns)
    else:
        shape = (draws, max(1, min(walker.size, _MAX_ENTRIES // draws)))
    if walker.constant:
        values = torch.full(shape, walker.parametrization.raw(walker.start))
    else:
        values = torch.randn(shape, generator=generator) * walker.start
    noise = torch.empty(shape)
    entries = entries_of(walker, values, noise)
    # Rows of noise are alike: the first stand for those of the slice.
    walked = values[:, : walker.size // shape[2]] if walker.matrix else values
    optimizer = Optimizer(entries, settings.optimizer, settings.train)
    total = settings.train.steps
    ends = stage_ends(settings.schedule, total)
    steps, norms = [0], [_norms(walked, walker)]
    for step in range(total):
        noise.normal_(generator=generator)
        optimizer.step(lr_factor(settings.schedule, total, step))
        if (step + 1) % every == 0 or step + 1 in ends:
            report(step + 1, walked)
            steps.append(step + 1)
            norms.append(_norms(walked, walker))
    return np.array(steps), torch.stack(norms).numpy()


def _norms(raw: Tensor, walker: Walker) -> Tensor:
    return walker.parametrization.value(raw).square().flatten(1).mean(1).sqrt()


def seed_of(seed: int, key: str) -> int:
    """What a simulation named ``key`` draws from: of its own, whatever else the seed draws."""
    # The word is that of the first simulations; another one would change published numbers.
    digest = hashlib.sha256(f"brownian/{seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
