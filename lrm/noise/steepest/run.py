"""What *Beyond MuP 3* says of directions and of the head, as a run with the tables of any other."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import torch

from lrm.noise.log import Log, Tell, carry_out
from lrm.noise.steepest import head as heads
from lrm.noise.steepest.directions import (
    DIRECTIONS,
    GRADIENTS,
    LAYERS,
    gradient_of,
    msign,
    slope,
    steepest_in_differences,
)
from lrm.noise.tensor import seed_of
from lrm.optim.criteria import of_head
from lrm.optim.directions import per_token
from lrm.plan.run import Report, TheoryRun

# Half of the random directions lie this near to the layer's own, relative to it.
_NEAR = (0.3, 0.03, 0.003)
_ASCENT = 150  # steps
# The head's LR per step, and steps, of the head that is trained.
_LR, _STEPS = 0.5, 60


def run(
    run: TheoryRun, path: Path, corpora: Path, report: Report = lambda step, loss: None
) -> None:
    """Compute what ``run.settings.theory`` says; ``_directions`` and ``_head`` name the tables."""
    carry_out(run, path, corpora, report, lambda _: [functools.partial(_simulate, run)], "float64")


def _simulate(run: TheoryRun, log: Log, tell: Tell) -> None:
    {"directions": _directions, "head": _head}[run.settings.theory.simulate](run, log, tell)


def _generator(run: TheoryRun, *key: str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(run.seed, "/".join(("steepest", *key))))


def _directions(run: TheoryRun, log: Log, tell: Tell) -> None:
    """By ``<layer>.<gradient>``: the ``slope_<direction>`` over the dual norm.

    ``own_error`` is |own slope − 1|; ``largest_other`` the largest slope of the other directions
    that are not parallel to the own one; ``largest_random`` that of random ones, half of them near
    the own. Of gains ``diagonal_error``, the largest entry of msign(diag g) − diag(sign g).

    Of a head with the gradient of a cross-entropy the same under D itself, which is at most twice
    the head's criterion: ``difference_<direction>``, ⟨G, Δ⟩ / D(Δ) over that of rows, and
    ``difference_gain``, by how much ascent surpasses rows there. Only where the rows of a gradient
    sum to zero is there a largest such slope, because D does not see what all rows share.
    """
    theory, tries = run.settings.theory, run.settings.train.steps
    for layer_name, layer in LAYERS.items():
        for kind in GRADIENTS:
            key, generator = f"{layer_name}.{kind}", _generator(run, layer_name, kind)
            gradient = gradient_of(layer, kind, (theory.tokens, theory.width), generator)
            found = {name: make(gradient) for name, make in DIRECTIONS.items()}
            slopes = {name: slope(layer, gradient, each) for name, each in found.items()}
            own = found[layer.own]
            others = [slopes[n] for n, each in found.items() if not _parallel(each, own)]
            random = []
            for number in range(tries):
                chance = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
                if number % 2:
                    near = _NEAR[number // 2 % len(_NEAR)]
                    chance = own + near * chance * own.norm() / chance.norm()
                random.append(slope(layer, gradient, chance))
            stats = {f"slope_{name}": value for name, value in slopes.items()}
            stats |= {
                "own_error": abs(slopes[layer.own] - 1),
                "largest_other": max(others),
                "largest_random": max(random),
            }
            if layer_name == "gain":
                wanted = torch.diag(torch.sign(gradient[0]))
                stats["diagonal_error"] = float(
                    (msign(torch.diag(gradient[0])) - wanted).abs().max()
                )
            if (layer_name, kind) == ("head", "softmax"):
                rate = {n: float((gradient * e).sum() / of_head(e)) for n, e in found.items()}
                stats |= {f"difference_{n}": value / rate["row"] for n, value in rate.items()}
                stats["difference_gain"] = steepest_in_differences(gradient, _ASCENT)
            for stat, value in stats.items():
                log.scalar(tries, stat, key, value)
    tell(tries)


def _parallel(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.dot(a.flatten(), b.flatten()) > (1 - 1e-12) * a.norm() * b.norm())


def _head(run: TheoryRun, log: Log, tell: Tell) -> None:
    """By head: ``lower`` D, ``upper`` D + log V, ``supremum`` and ``supremum_random`` between.

    ``dependence`` and ``update`` are the largest change of the loss over its bound, between two
    inputs and by an update, over random inputs and targets; ``data`` the same of the update that
    training made, on what it is trained on, with the ``mean_loss`` there. ``lse`` (of no head) is
    the largest |lse(a) − lse(b)| / max |a − b|, over pairs of logits of several kinds.
    """
    theory, steps = run.settings.theory, run.settings.train.steps
    tokens, width, points = theory.tokens, theory.width, theory.points
    generator = _generator(run, "head")
    initial = torch.randn(tokens, width, generator=generator, dtype=torch.float64) / width
    means = heads.inputs_of(tokens, width, generator)
    targets = torch.randint(tokens, (16 * tokens,), generator=generator)
    noise = heads.inputs_of(len(targets), width, generator)
    data = per_token(means[targets] + noise)
    common = torch.randn(1, width, generator=generator, dtype=torch.float64)
    each = {
        "initial": (initial, initial / 10),
        "medium": (4 * initial, initial / 2),
        "large": (16 * initial, initial),
        "shifted": (initial + common, common.expand_as(initial) + initial / 10),
        "trained": heads.trained(initial, _LR, _STEPS, data, targets),
    }
    for name, (head, update) in each.items():
        lower = float(of_head(head))
        supremum, from_random = heads.supremum(head, theory.starts, steps, generator)
        one, two = (heads.inputs_of(points, width, generator) for _ in range(2))
        two = torch.where(torch.arange(points)[:, None] % 2 == 0, two,
                          per_token(one + 1e-3 * two))  # fmt: skip
        labels = torch.randint(tokens, (points,), generator=generator)
        between = heads.losses(one, labels, head) - heads.losses(two, labels, head)
        apart = (one - two).square().mean(-1).sqrt()
        bound = float(of_head(update))

        def changed(inputs: torch.Tensor, labels: torch.Tensor, head=head, update=update) -> float:
            after = heads.losses(inputs, labels, head + update)
            return float((after - heads.losses(inputs, labels, head)).abs().max())

        stats = {
            "lower": lower,
            "upper": lower + math.log(tokens),
            "supremum": supremum,
            "supremum_random": from_random,
            "dependence": float((between.abs() / apart).max()) / lower,
            "update": changed(one, labels) / bound,
        }
        if name == "trained":
            stats["data"] = changed(data, targets) / bound
            stats["mean_loss"] = float(heads.losses(data, targets, head).mean())
        for stat, value in stats.items():
            log.scalar(steps, stat, name, value)
    for kind, (a, b) in _logits(points, tokens, generator).items():
        change = (a.logsumexp(-1) - b.logsumexp(-1)).abs() / (a - b).abs().amax(-1)
        log.scalar(steps, "lse", kind, float(change.max()))
    tell(steps)


def _logits(
    points: int, tokens: int, generator: torch.Generator
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of logits (points, tokens)."""
    a, b = torch.randn(2, points, tokens, generator=generator, dtype=torch.float64)
    return {
        "independent": (a, b),
        "large": (30 * a, 30 * b),
        "near": (a, a + 1e-3 * b),
        "one_sided": (a, a + b.abs()),
        "shifted": (a, a + b[:, :1]),
    }
