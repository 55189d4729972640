"""Gradient flow of a design on ½‖A − W⋆‖²_F, and what the theorems say of it.

Theorems 2.2, 3.1, 3.2, 9.1 and 9.2 of arXiv 2605.26895. Everything starts from the state in which
all scales are 1, and nearly everything from W = 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp

from lrm.errors import UserError
from lrm.noise.scale_vectors.designs import DESIGNS, REFERENCES, State, at_same_state

# Beyond what the theorems need: invariants are kept to 1e-12 and differences of order t³ to 1e-6.
_RELATIVE, _ABSOLUTE = 1e-13, 1e-15
# Coefficients are extrapolated from this time, in units of the fastest scale, and its halves.
_FIRST, _HALVINGS = 0.04, 5


def integrate(
    slope: Callable[[np.ndarray], np.ndarray], start: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """Solve ẏ = slope(y) from y = ``start`` (n,) at t = 0; y at ``times`` (m,) > 0, shape (m, n).

    Dormand and Prince's method of order 8, stopped at every one of the times.
    """
    found = [start]
    for begin, end in itertools.pairwise((0.0, *times)):
        solved = solve_ivp(lambda t, y: slope(y), (begin, end), found[-1], method="DOP853",
                           rtol=_RELATIVE, atol=_ABSOLUTE)  # fmt: skip
        if not solved.success:
            raise UserError(f"the flow cannot be followed to t = {end:g} ({solved.message}); lower "
                            "theory.horizon")  # fmt: skip
        found.append(solved.y[:, -1])
    return np.stack(found[1:])


def flow(design: str, teacher: np.ndarray, start: np.ndarray, times: np.ndarray) -> State:
    """The states at ``times`` (m,), stacked in front: W is (m, …, c, d).

    ``teacher`` and ``start``, W(0), are (…, c, d).
    """
    rule = DESIGNS[design]
    first = rule.start(start)
    sizes = [part.size for part in first]
    places = [slice(sum(sizes[:n]), sum(sizes[: n + 1])) for n in range(len(sizes))]

    def unpacked(flat: np.ndarray) -> State:
        return tuple(
            flat[..., place].reshape(*flat.shape[:-1], *one.shape)
            for place, one in zip(places, first, strict=True)
        )

    def slope(flat: np.ndarray) -> np.ndarray:
        state = unpacked(flat)
        descent = rule.gradient(state, teacher - rule.effective(state))
        return np.concatenate([part.ravel() for part in descent])

    return unpacked(integrate(slope, np.concatenate([part.ravel() for part in first]), times))


def shared(stacked: np.ndarray) -> np.ndarray:
    """Branches (k, c, d) as the one matrix (k c, d) on which they share a scale vector."""
    return stacked.reshape(-1, stacked.shape[-1])


def gap(effective: np.ndarray, other: np.ndarray, teacher: np.ndarray) -> np.ndarray:
    """L − L_other (m,) of effective matrices (m, …, c, d), exact where they hardly differ."""
    products = -0.5 * (effective - other) * (2 * teacher - effective - other)
    return products.reshape(len(products), -1).sum(-1)


def loss(effective: np.ndarray, teacher: np.ndarray) -> np.ndarray:
    """½‖A − W⋆‖²_F, (m,), of effective matrices (m, …, c, d)."""
    residuals = (teacher - effective).reshape(len(effective), -1)
    return 0.5 * (residuals**2).sum(-1)


def pair(
    design: str, teacher: np.ndarray, times: np.ndarray
) -> tuple[State, np.ndarray, np.ndarray]:
    """A design's states at ``times`` (m,), its effective matrices, and those of its reference.

    ``teacher`` is (c, d); for ``hg`` it is (k, c, d), and the reference is the shared vector.
    """
    zero = np.zeros_like(teacher)
    states = flow(design, teacher, zero, times)
    effective = DESIGNS[design].effective(states)
    reference = REFERENCES[design]
    if reference == "none":
        other = teacher * -np.expm1(-times)[:, None, None]  # without scales, in closed form
    elif design == "hg":
        states_shared = flow(reference, shared(teacher), shared(zero), times)
        other = DESIGNS[reference].effective(states_shared).reshape(effective.shape)
    else:
        other = DESIGNS[reference].effective(flow(reference, teacher, zero, times))
    return states, effective, other


def predicted_coefficient(design: str, teacher: np.ndarray) -> float:
    """c of L − L_reference = c t³ + O(t⁴): theorems 9.1 (ii) and 9.2 (ii), and ours for the rest.

    ``teacher`` as in ``pair``.
    """
    squares = teacher**2
    columns, rows = squares.sum(-2), squares.sum(-1)
    if design == "hg":
        # A shared vector is a standard one on the stack, and each branch has a standard one.
        return 2 / 3 * float((columns.sum(0) ** 2).sum() - (columns**2).sum())
    found = {
        "standard": (columns**2).sum(),
        "ap": (rows**2).sum(),
        "dp": (rows**2).sum(),
        "or": (1 - 1 / teacher.shape[1]) * squares.sum() ** 2,
        "er": (1 - 1 / teacher.shape[1]) * squares.sum() ** 2,
    }
    return -2 / 3 * float(found[design])


def coefficient(design: str, teacher: np.ndarray) -> float:
    """The same from the flows: Richardson's extrapolation of (L − L_reference) / t³ to t = 0.

    Halving t five times, each column of the table removes one power of t.
    """
    fastest = max(1.0, float(np.linalg.norm(teacher)))
    times = _FIRST / fastest * 0.5 ** np.arange(_HALVINGS, -1, -1)
    _, effective, other = pair(design, teacher, times)
    table = (gap(effective, other, teacher) / times**3)[::-1]  # from the largest time down
    for order in range(1, len(table)):
        table = (2.0**order * table[1:] - table[:-1]) / (2.0**order - 1)
    return float(table[0])


def invariant_error(design: str, states: State) -> float:
    """The largest departure from what gradient flow from W = 0 conserves, over ``states`` (m, …).

    γ_j² − ‖u_j‖² = 1 for every direct scale, its column or row; β² − ‖V‖²_F = 1 and ‖α‖² = d for
    OR; 2β − ‖V‖²_F = 0 and mean α = 0 for ER.
    """
    matrix, of_outputs, of_inputs = states
    whole = (matrix**2).sum((-2, -1))
    off = []
    if design in ("ap", "dp"):
        off.append(of_outputs**2 - (matrix**2).sum(-1) - 1)
    if design in ("standard", "hg", "dp"):
        off.append(of_inputs**2 - (matrix**2).sum(-2) - 1)
    if design == "or":
        off.append(of_inputs[..., 0] ** 2 - whole - 1)
        off.append((of_inputs[..., 1:] ** 2).mean(-1) - 1)
    if design == "er":
        off.append(2 * of_inputs[..., 0] - whole)
        off.append(of_inputs[..., 1:].mean(-1))
    return max(float(np.abs(each).max()) for each in off)


def rates(design: str, states: State, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """−dL/dt (m,) of a design and of its reference at the same effective state.

    ``residuals`` are W⋆ − A, (m, c, d).
    """
    of_reference = DESIGNS[REFERENCES[design]].rate(at_same_state(design, states), residuals)
    return DESIGNS[design].rate(states, residuals), of_reference


def random_states(
    design: str, generator: np.random.Generator, shape: tuple[int, int, int], kept: bool
) -> tuple[State, np.ndarray]:
    """Random states of ``dp`` or ``or`` (n, c, d) = ``shape``, and residuals W⋆ − A.

    Norms of matrices and residuals are log-uniform from 0.1 to 10. With ``kept`` scales are those
    that the conserved quantities demand; without, they are log-uniform from 0.1 to 10, which the
    words of theorems 3.1 and 3.2 allow.
    """
    number, outputs, inputs = shape

    def sizes(shape: tuple[int, ...]) -> np.ndarray:
        return np.exp(generator.uniform(np.log(0.1), np.log(10.0), shape))

    def matrices() -> np.ndarray:
        found = generator.standard_normal(shape)
        return sizes((number, 1, 1)) * found / np.linalg.norm(found, axis=(1, 2), keepdims=True)

    matrix, residuals = matrices(), matrices()
    if design == "dp":
        u = np.sqrt(1 + (matrix**2).sum(2))
        v = np.sqrt(1 + (matrix**2).sum(1))
        if not kept:
            u, v = sizes(u.shape), sizes(v.shape)
        return (matrix, u, v), residuals
    alpha = generator.standard_normal((number, inputs))
    alpha *= np.sqrt(inputs) / np.linalg.norm(alpha, axis=1, keepdims=True)
    beta = np.sqrt(1 + (matrix**2).sum((1, 2)))[:, None]
    if not kept:
        beta = sizes(beta.shape)
    return (matrix, np.ones((number, outputs)), np.concatenate((beta, alpha), axis=1)), residuals


def counterexample(
    design: str, generator: np.random.Generator, outputs: int, inputs: int
) -> tuple[State, np.ndarray]:
    """A state (1, c, d) of ``dp`` or ``or`` that is slower than the standard vector, and W⋆ − A.

    DP: M = 0 and γᵃ = ½. OR: β = ½, α = 1 and s_j = ⟨V_:j, R_:j⟩ with Σ s_j = 0. From W(0) = 0
    with scales of 1 neither is ever reached.
    """
    residual = generator.standard_normal((1, outputs, inputs))
    if design == "dp":
        matrix = np.zeros_like(residual)
        return (matrix, np.full((1, outputs), 0.5), np.ones((1, inputs))), residual
    along = generator.standard_normal((1, inputs))
    along = 2 * (along - along.mean(1, keepdims=True)) * (residual**2).sum(1)
    along -= along.mean(1, keepdims=True)
    matrix = residual * (along / (residual**2).sum(1))[:, None, :]
    raw = np.ones((1, inputs + 1))
    raw[:, 0] = 0.5
    return (matrix, np.ones((1, outputs)), raw), residual


def columns_rise(effective: np.ndarray, teacher: np.ndarray, times: np.ndarray) -> float:
    """By how much e^{2t}ℓ_j / ℓ_j(0) ever rises, of the column losses ℓ_j of A (m, c, d).

    Columns where the teacher is 0 have no loss.
    """
    columns = ((teacher - effective) ** 2).sum(1)
    begin = (teacher**2).sum(0)
    scaled = np.exp(2 * times)[:, None] * columns[:, begin > 0] / begin[begin > 0]
    return float(np.diff(np.vstack((np.ones(scaled.shape[1]), scaled)), axis=0).max())


def preconditioning(states: State, teacher: np.ndarray) -> tuple[float, float]:
    """Of the standard vector: how far ȧ_j is from P_j (w⋆_j − a_j), and the least λ_min(P_j).

    P_j = γ_j² I + u_j u_jᵀ (theorem 2.2). The first is relative to the largest |ȧ|.
    """
    matrix, _, v = states
    residuals = teacher - matrix * v[:, None, :]
    of_matrix, _, of_v = DESIGNS["standard"].gradient(states, residuals)
    moved = of_matrix * v[:, None, :] + matrix * of_v[:, None, :]
    columns = np.moveaxis(matrix, 1, 2)  # (m, d, c)
    eye = np.eye(matrix.shape[1])
    whole = (v**2)[..., None, None] * eye + columns[..., None] * columns[..., None, :]
    expected = np.einsum("mjab,mbj->maj", whole, residuals)
    off = np.abs(moved - expected).max() / np.abs(moved).max()
    # The least eigenvalue from those of the few samples that the norm singles out.
    least = np.linalg.eigvalsh(whole[:: max(1, len(whole) // 8)]).min()
    return float(off), float(least)


def scale_preconditioning(states: State, teacher: np.ndarray) -> float:
    """Of OR: how far γ̇ is from (qqᵀ + β²(I − qqᵀ/d)) s, relative to the largest |γ̇|."""
    matrix, _, raw = states
    v = DESIGNS["or"].inputs.value(raw)
    of_scales = ((teacher - matrix * v[:, None, :]) * matrix).sum(1)
    of_raw = DESIGNS["or"].inputs.pull(raw, of_scales)
    beta, q = raw[:, :1], v / raw[:, :1]
    # γ = βq moves by β̇q + βq̇, and q by the projection of α̇.
    alpha = raw[:, 1:]
    stretch = np.sqrt(alpha.shape[1]) / np.linalg.norm(alpha, axis=1, keepdims=True)
    along = (q * of_raw[:, 1:]).mean(1, keepdims=True) * q
    moved = of_raw[:, :1] * q + beta * stretch * (of_raw[:, 1:] - along)
    inner = (q * of_scales).sum(1, keepdims=True)
    expected = q * inner + beta**2 * (of_scales - q * inner / q.shape[1])
    return float(np.abs(moved - expected).max() / np.abs(moved).max())


def time_of(theta: np.ndarray, steepness: float) -> np.ndarray:
    """When θ̇ = √(1 + bθ²)(1 − θ) from θ(0) = 0 has reached ``theta``; b is ``steepness``.

    b = 4ρ for the standard vector and 4dρ for OR, where all columns have the squared norm ρ
    (theorem 9.2, iii).
    """
    left, last = 1 - theta, 1 + steepness
    root = np.sqrt(1 + steepness * theta**2)
    grown = (last - steepness * left + np.sqrt(last) * root) / left
    return np.log(grown / (1 + np.sqrt(last))) / np.sqrt(last)


def closed_form_error(
    design: str, teacher: np.ndarray, losses: np.ndarray, times: np.ndarray
) -> float:
    """How far L (m,) of a balanced teacher is from L = dρ(1 − θ)²/2, as a share of the time.

    Where the loss has fallen below 1e-12 of its start, rounding sets it, and it is left out.
    """
    inputs, squared = teacher.shape[1], float((teacher**2).sum() / teacher.shape[1])
    left = np.sqrt(losses / (0.5 * inputs * squared))
    seen = left > 1e-6
    steepness = 4 * squared * (inputs if design == "or" else 1)
    return float(np.abs(time_of(1 - left[seen], steepness) / times[seen] - 1).max())


def matched(teacher: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Loss of DP (m,) for a teacher with at most one entry in each row and column.

    Each entry is a = m(1 + m²), and ṁ = (1 + m²)(w − a), so that ȧ = (1 + 4m² + 3m⁴)(w − a)
    (theorem 9.1, iii).
    """
    entries = teacher[teacher != 0]
    found = integrate(lambda m: (1 + m**2) * (entries - m - m**3), np.zeros(len(entries)), times)
    return 0.5 * ((entries - found - found**3) ** 2).sum(1)
