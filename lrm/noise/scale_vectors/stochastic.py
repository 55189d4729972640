"""What noise does to scale vectors: stochastic equations, SGD, and Adam.

The equations (17) and (18) of theorem 8.1 and SGD on one coordinate a = γw; Adam on a whole design.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from lrm.noise.scale_vectors.designs import Design
from lrm.plan.config import OptimizerConfig
from lrm.plan.theory import SdeTheory, SgdTheory

# Steps whose noise is drawn together.
_CHUNK = 200


def _noise(
    theory: SdeTheory | SgdTheory, size: float, draws: int, generator: np.random.Generator
) -> Iterator[np.ndarray]:
    """Noise (2, paths) of one draw after the other, of standard deviation ``size``."""
    for begin in range(0, draws, _CHUNK):
        shape = (min(_CHUNK, draws - begin), 2, theory.paths)
        yield from size * generator.standard_normal(shape)


def _decays(theory: SdeTheory | SgdTheory) -> tuple[float, np.ndarray]:
    """λ of w; and of γ, (2, 1): none in the first row, that of w in the second."""
    return theory.weight_decay, np.array([[0.0], [theory.weight_decay]])


def sde(
    theory: SdeTheory, steps: int, generator: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """w, γ and the noise in γ² − w², at t = 0 and after every step, each (2, paths).

    The first row is without weight decay on γ, the second with it; both see the same noise. They
    begin at w = 0 and γ = 1. The third array is 2√q ∫γ dB′ − w dB, whose mean is 0.

    A step is half of decay and noise, gradient flow, and the other half. Gradient flow turns (γ, w)
    hyperbolically and so keeps γ² − w², however steep it is. With Euler's method γ² − w² would lose
    dt E (γw − a)² of itself in a unit of time: a tenth of its growth at dt 0.01.
    """
    dt, (of_w, of_scale) = theory.dt, _decays(theory)
    kept_w, kept_scale = np.exp(-dt / 2 * of_w), np.exp(-dt / 2 * of_scale)
    w, scale, chance = (np.full((2, theory.paths), start) for start in (0.0, 1.0, 0.0))
    kicks = _noise(theory, (dt / 2 * theory.noise) ** 0.5, 2 * steps, generator)
    yield w, scale, chance
    for before, after in zip(kicks, kicks, strict=True):
        w, scale = kept_w * w, kept_scale * scale
        chance = chance + 2 * (scale * before[1] - w * before[0])
        w, scale = w + before[0], scale + before[1]
        # At the curvature γ² + w² of the beginning.
        curvature = scale * scale + w * w
        angle = (scale * w - theory.target) * -np.expm1(-dt * curvature) / curvature
        grown = np.exp(angle)
        even, odd = 0.5 * (grown + 1 / grown), 0.5 * (grown - 1 / grown)
        w, scale = w * even - scale * odd, scale * even - w * odd
        chance = chance + 2 * (scale * after[1] - w * after[0])
        w, scale = kept_w * (w + after[0]), kept_scale * (scale + after[1])
        yield w, scale, chance


def sgd(
    theory: SgdTheory, lr: float, steps: int, generator: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """w and γ before the first and after every step of SGD, as in ``sde``.

    Weight decay is decoupled and multiplied by the LR, as the suite's optimizers have it.
    """
    of_w, of_scale = _decays(theory)
    w, scale = np.zeros((2, theory.paths)), np.ones((2, theory.paths))
    yield w, scale
    for of_gradient_w, of_gradient_scale in _noise(theory, theory.noise, steps, generator):
        error = scale * w - theory.target
        if theory.enters == "target":
            error = error + of_gradient_w
            of_gradient_w = of_gradient_scale = 0.0
        moved_w = error * scale + of_gradient_w + of_w * w
        moved_scale = error * w + of_gradient_scale + of_scale * scale
        w, scale = w - lr * moved_w, scale - lr * moved_scale
        yield w, scale


def sharpness(w: np.ndarray, scale: np.ndarray, target: float) -> np.ndarray:
    """λ_max of the Hessian of ½(γw − a)² in (w, γ): equation (21)."""
    squares, difference = scale**2 + w**2, scale**2 - w**2
    return 0.5 * (squares + np.sqrt(difference**2 + 4 * (2 * scale * w - target) ** 2))


def square_bound(theory: SdeTheory, start: float, times: np.ndarray) -> np.ndarray:
    """What E w² cannot exceed at ``times``, and E γ² with weight decay neither: equation (28).

    ``start`` is the square at t = 0.
    """
    left = np.exp(-2 * theory.weight_decay * times)
    most = (theory.noise + 0.5 * theory.target**2) / (2 * theory.weight_decay)
    return left * start + most * (1 - left)


def adam(
    design: Design,
    teachers: np.ndarray,
    optimizer: OptimizerConfig,
    factors: np.ndarray,
    draw: Callable[[], np.ndarray],
) -> np.ndarray:
    """The last loss ½‖A − W⋆‖²_F (…) of a design that Adam moves from W = 0 to ``teachers``.

    ``teachers`` are (…, c, d). At every step the LR is the optimizer's times the next of
    ``factors``, and ``draw()`` (…, c, d) is added to the gradient of A. No weight decay.
    """
    state = design.start(np.zeros_like(teachers))
    first = [np.zeros_like(part) for part in state]
    second = [np.zeros_like(part) for part in state]
    beta1, beta2 = optimizer.beta1, optimizer.beta2
    for step, factor in enumerate(factors, 1):
        of_effective = design.effective(state) - teachers + draw()
        moved = []
        rate = optimizer.lr * factor / (1 - beta1**step)
        correction = (1 - beta2**step) ** -0.5
        for part, gradient, m, v in zip(
            state, design.gradient(state, of_effective), first, second, strict=True
        ):
            m += (1 - beta1) * (gradient - m)
            v += (1 - beta2) * (gradient**2 - v)
            moved.append(part - rate * m / (correction * np.sqrt(v) + optimizer.eps))
        state = tuple(moved)
    return 0.5 * ((design.effective(state) - teachers) ** 2).sum((-2, -1))
