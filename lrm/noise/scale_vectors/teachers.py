"""Teachers W⋆ of the theory of scale vectors, drawn from a generator."""

from __future__ import annotations

import numpy as np

Generator = np.random.Generator


def _gaussian(generator: Generator, outputs: int, inputs: int) -> np.ndarray:
    """Gaussian with columns of norm 1."""
    matrix = generator.standard_normal((outputs, inputs))
    return matrix / np.linalg.norm(matrix, axis=0)


def _small(generator: Generator, outputs: int, inputs: int) -> np.ndarray:
    return 0.3 * _gaussian(generator, outputs, inputs)


def _large(generator: Generator, outputs: int, inputs: int) -> np.ndarray:
    return 3.0 * _gaussian(generator, outputs, inputs)


def _low_rank(generator: Generator, outputs: int, inputs: int) -> np.ndarray:
    """Rank 2, columns of root mean square 1."""
    matrix = generator.standard_normal((outputs, 2)) @ generator.standard_normal((2, inputs))
    return matrix * np.sqrt(inputs) / np.linalg.norm(matrix)


def _uneven(generator: Generator, outputs: int, inputs: int) -> np.ndarray:
    """Columns of log-normal norms, root mean square 1."""
    matrix = _gaussian(generator, outputs, inputs) * np.exp(generator.standard_normal(inputs))
    return matrix * np.sqrt(inputs) / np.linalg.norm(matrix)


def _half_empty(generator: Generator, outputs: int, inputs: int) -> np.ndarray:
    """Every second column is zero."""
    matrix = _gaussian(generator, outputs, inputs)
    matrix[:, 1::2] = 0.0
    return matrix


def _diagonal(generator: Generator, outputs: int, inputs: int) -> np.ndarray:
    """At most one entry in a row and in a column, of size 0.3 to 3 and random sign."""
    matrix = np.zeros((outputs, inputs))
    size = min(outputs, inputs)
    sizes = np.exp(generator.uniform(np.log(0.3), np.log(3.0), size))
    np.fill_diagonal(matrix, sizes * generator.choice((-1.0, 1.0), size))
    return matrix


def _balanced(generator: Generator, outputs: int, inputs: int) -> np.ndarray:
    """Columns of one norm, 0.5 to 2, as theorem 9.2 (iii) asks."""
    return np.exp(generator.uniform(np.log(0.5), np.log(2.0))) * _gaussian(
        generator, outputs, inputs
    )


_KINDS = {
    "gaussian": _gaussian, "small": _small, "large": _large, "low_rank": _low_rank,
    "uneven": _uneven, "half_empty": _half_empty, "diagonal": _diagonal, "balanced": _balanced,
}  # fmt: skip
TEACHERS = tuple(_KINDS)


def draw(kind: str, generator: Generator, outputs: int, inputs: int) -> np.ndarray:
    """W⋆ (outputs, inputs) of one of ``TEACHERS``."""
    return _KINDS[kind](generator, outputs, inputs)
