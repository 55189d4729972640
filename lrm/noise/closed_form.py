"""Closed form of E‖W‖² under pure noise, for Adam and Muon, without decay or with it."""

from __future__ import annotations

import numpy as np

from lrm.noise.tensor import Walker
from lrm.plan.config import Settings
from lrm.plan.newton_schulz import FEWEST
from lrm.plan.newton_schulz import covariances as muon_covariances
from lrm.plan.schedule import lr_factors


def has_closed_form(walker: Walker) -> bool:
    """Only for what is learned directly; under Muon from four rows and columns on."""
    matrix = walker.matrix
    is_large = matrix is None or min(matrix.rows, matrix.columns) >= FEWEST
    return walker.parametrization.is_identity and is_large


def expected_square(walker: Walker, settings: Settings) -> np.ndarray:
    """Closed form of E‖W‖² under noise after each step, shape (steps + 1,).

    With w_t = (1 − η_t λ) w_{t−1} − η_t u_t, where u_t = m̂_t / sqrt(v̂_t) for Adam,

        E w_t² = a_t² E w_{t−1}² − 2 a_t η_t E[w_{t−1} u_t] + η_t² E u_t²,

    and E[w_{t−1} u_t] follows from the covariances E[u_t u_s]. Muon's are in
    ``lrm.plan.newton_schulz.covariances``, with their tolerance; Adam's are those of the
    bias-corrected first moment (β₁) times a correction for the fluctuation δ of v̂ about 1,
    v̂^(−1/2) ≈ 1 − δ/2 + 3δ²/8, to first order in 1 − β₂. Without it (v̂ = 1) the norm comes out
    1.5 to 3% too high at β₂ = 0.95. ε is neglected.
    """
    optimizer = settings.optimizer
    rates = walker.lr * lr_factors(settings.schedule, settings.train.steps)
    if walker.matrix:
        lags = muon_covariances(walker.matrix.rows, walker.matrix.columns, optimizer, len(rates))
    else:
        lags = _covariances(optimizer.beta1, optimizer.beta2, len(rates))
    keep = 1.0 - rates * walker.weight_decay
    squares = np.empty(len(rates) + 1)
    squares[0] = walker.start**2
    # past[L-1] = η_{t-L} times the decay that its update has suffered until t − 1.
    past = np.zeros(len(lags) - 1)
    for t, (rate, kept) in enumerate(zip(rates, keep, strict=True)):
        cross = -float(past @ lags[1:, t])
        squares[t + 1] = kept**2 * squares[t] - 2 * kept * rate * cross + rate**2 * lags[0, t]
        past *= kept
        past[1:] = past[:-1]
        past[:1] = rate  # none where there is but one step
    return squares


def _covariances(beta1: float, beta2: float, steps: int) -> np.ndarray:
    """E[u_t u_{t−L}] of pure noise, shape (lags, steps); column t is step t + 1 of Adam.

    Every term carries β₁^L, which bounds the lags that matter.
    """
    reach = 1 if beta1 == 0 else int(np.ceil(np.log(1e-9) / np.log(beta1)))
    lags = min(reach + 1, steps)
    later = np.arange(1, steps + 1, dtype=float)[None, :]  # t
    lag = np.arange(lags, dtype=float)[:, None]
    earlier = later - lag  # s
    exists = earlier >= 1
    s = np.where(exists, earlier, 1.0)
    first = (1 - beta1) ** 2 / ((1 - beta1**later) * (1 - beta1**s))

    def summed(ratio: float) -> np.ndarray:
        """Σ_{k ≤ s} ratio^(s − k)."""
        return (1 - ratio**s) / (1 - ratio)

    plain = first * beta1**lag * summed(beta1**2)  # E[m̂_t m̂_s]
    norm_t, norm_s = (1 - beta2) / (1 - beta2**later), (1 - beta2) / (1 - beta2**s)
    # −½ E[m̂ m̂ δ_t] − ½ E[m̂ m̂ δ_s], from E[g² (g² − 1)] = 2.
    mixed = first * beta1**lag * summed(beta1**2 * beta2)
    linear = -mixed * (norm_t * beta2**lag + norm_s)
    # ¼ E[δ_t δ_s] + ⅜ E[δ_t²] + ⅜ E[δ_s²], times E[m̂_t m̂_s].
    square_t = 2 * norm_t**2 * (1 - beta2 ** (2 * later)) / (1 - beta2**2)
    square_s = 2 * norm_s**2 * summed(beta2**2)
    product = 2 * norm_t * norm_s * beta2**lag * summed(beta2**2)
    quadratic = plain * (product / 4 + 3 * (square_t + square_s) / 8)
    return np.where(exists, plain + linear + quadratic, 0.0)
