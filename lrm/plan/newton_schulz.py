"""Muon in numbers: its costs, and what it does to pure noise. No torch here.

A Muon step on an (R, C) matrix of noise is η f φ(N): N the Nesterov momentum, a Gaussian matrix;
φ the Newton–Schulz iteration, which maps singular values to about 1; f the shape factor. Updates
are as long as each other, remember each other through the momentum, and that is all that the
equilibrium depends on.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from lrm.plan.config import OptimizerConfig
from lrm.plan.msign import COEFFICIENTS, shape_factor

FEWEST = 4  # rows or columns for which ``covariances`` holds


def step_flops(rows: int, columns: int, iterations: int) -> float:
    """FLOPs of the matrix products of one Newton–Schulz call."""
    short, long = sorted((rows, columns))
    return iterations * (4.0 * short**2 * long + 2.0 * short**3)


def noise_draws(rows: int, columns: int, wanted: int) -> int:
    """How many of the ``wanted`` matrices of noise are simulated: 2**14 entries, at least two.

    A step mixes the entries of a matrix, so that none can stand for the others; but the norm of
    a large one differs little from draw to draw.
    """
    return max(2, min(wanted, 2**14 // (rows * columns)))


def covariances(
    rows: int, columns: int, optimizer: OptimizerConfig, steps: int, last: bool = False
) -> np.ndarray:
    """E[u_t u_{t−L}] of one entry's updates u (without η), shape (lags, steps); on pure noise.

    Column t is step t + 1, from momentum 0 on; ``last`` asks for that of the last step alone. With
    ρ the correlation of the two momenta, and r the shorter side,

        E⟨φ(N_t), φ(N_s)⟩ / r ≈ a ρ + (b − a) ρ³ (1 − q) / (1 − q ρ²).

    An odd function of Gaussians has odd powers of ρ only (Hermite); a (the first power), b (the
    value at ρ = 1) and the slope there follow from the Marchenko–Pastur density of the singular
    values, and q makes the higher powers a geometric series of that slope. E‖W‖² agrees with
    simulation within 1.5% for sides from 8 on of which one is 1.5 times the other or more, and
    within 5% where they are nearer, since there the smallest singular vectors turn fast, or from
    4 on. Below that, ``FEWEST``, the density is none of so few singular values.
    """
    first, whole, ratio = _overlap(rows, columns, optimizer.newton_schulz_steps)
    mu, ahead = optimizer.muon_momentum, int(optimizer.muon_nesterov)
    reach = 1 if mu == 0 else int(np.ceil(np.log(1e-9) / np.log(mu)))
    later = np.arange(steps if last else 1, steps + 1, dtype=float)[None, :]  # t
    lag = np.arange(min(reach + 1, steps), dtype=float)[:, None]
    earlier = later - lag  # s
    exists = earlier >= 1
    s = np.where(exists, earlier, 1.0)

    def momentum_product(lag: np.ndarray, s: np.ndarray) -> np.ndarray:
        """E[n_t n_s] / (1 − μ)², where n_t weighs g_{t−j} by μ^(j + ahead), g_t by 1 more."""
        summed = (1 - mu ** (2 * s)) / (1 - mu**2)
        now = ahead * (mu ** (lag + ahead) + (lag == 0) * (1 + mu**ahead))
        return mu ** (lag + 2 * ahead) * summed + now

    at_zero = np.zeros_like(lag)
    spread = np.sqrt(momentum_product(at_zero, later) * momentum_product(at_zero, s))
    rho = momentum_product(lag, s) / spread
    overlap = first * rho + (whole - first) * rho**3 * (1 - ratio) / (1 - ratio * rho**2)
    scale = shape_factor(optimizer.shape_factor, rows, columns) ** 2 / max(rows, columns)
    return np.where(exists, scale * overlap, 0.0)


@functools.cache
def noise_gain(rows: int, columns: int, optimizer: OptimizerConfig) -> float:
    """‖W‖ of the equilibrium over sqrt(η / 2λ), without schedule: sqrt(Σ_L E[u_t u_{t−L}]).

    Leading order in ηλ / (1 − μ): a guide for tables, like ``timescales.equilibrium_norm``.
    """
    mu = optimizer.muon_momentum
    steps = 2 if mu == 0 else 2 * int(np.ceil(np.log(1e-9) / np.log(mu)))
    lags = covariances(rows, columns, optimizer, steps, last=True)[:, 0]
    return math.sqrt(lags[0] + 2 * lags[1:].sum())


@functools.cache
def _overlap(rows: int, columns: int, iterations: int) -> tuple[float, float, float]:
    """a, b and q of ``covariances``."""
    short, long = sorted((rows, columns))
    aspect = short / long
    # σ² / long for N(0, 1) entries: 1 + aspect + 2 sqrt(aspect) cos θ, at midpoints of θ.
    theta = (np.arange(400) + 0.5) / 400 * np.pi
    squares = 1 + aspect + 2 * math.sqrt(aspect) * np.cos(theta)
    density = np.sin(theta) ** 2 / squares
    density /= density.sum()
    sigma = np.sqrt(squares)
    # The Frobenius norm, which the iteration divides by, is sqrt(short long); no singular value
    # is larger, though the density of few rows says so.
    value, slope = _iterate(np.minimum(sigma / math.sqrt(short), 1.0), iterations)
    slope /= math.sqrt(short)
    first = (density @ (sigma * value)) ** 2
    whole = density @ value**2
    # d/dρ at 1 is the mean squared Jacobian of φ, here in the basis of singular vectors.
    apart = sigma[:, None] - sigma[None]
    np.fill_diagonal(apart, 1.0)
    minus = (value[:, None] - value[None]) / apart
    np.fill_diagonal(minus, slope)
    plus = (value[:, None] + value[None]) / (sigma[:, None] + sigma[None])
    inside = density @ (minus**2 + plus**2) @ density
    jacobian = aspect / 2 * inside + (1 - aspect) * (density @ (value / sigma) ** 2)
    # Mean over the powers from 3 on; of a single row hardly any are left.
    power = max(3.0, (jacobian - first) / max(whole - first, 1e-9))
    return first, whole, (power - 3) / (power - 1)


def _iterate(sigma: np.ndarray, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """What Newton–Schulz makes of singular values, and the derivative of that."""
    a, b, c = COEFFICIENTS
    slope = np.ones_like(sigma)
    for _ in range(iterations):
        slope = slope * (a + 3 * b * sigma**2 + 5 * c * sigma**4)
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    return sigma, slope
