"""Which rescalings of multipliers and norm weights leave a model's output as it is. No torch here.

Derived on paper (section 4.1 and appendix C). An activation may change its scale by e^a, channel by
channel, where all that follows undoes it; what passes a nonlinearity may not, nor may the logits.
Each block declares which activations at the ends of its tensors may (``Block.ends``). Here is the
algebra: a matrix that maps an activation of scale e^a (by channel) to one of scale e^b must become
e^(b_i − a_j) times itself, ln r_i + ln c_j = b_i − a_j for its multipliers, from which also follow
the rows that go against the columns of the same matrix (the multiplicative symmetry). The solutions
of these linear equations are the symmetries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lrm.model import blocks
from lrm.model.blocks.block import NORMALISED, Changes
from lrm.model.config import ModelConfig
from lrm.multipliers.multiplier import MAGNITUDES
from lrm.plan.rules import TensorPlan


def freedoms() -> dict[str, str]:
    """What frees symmetries, each with a line for people.

    In this order each is said to free what those before do not.
    """
    found = {"matrix": "rows against columns of one matrix"}
    for block in blocks.every():
        found |= block.freedoms
    return found | {NORMALISED: "scale of what an RMSNorm behind a matrix takes in"}


@dataclass(frozen=True)
class Scales:
    """A block of log-scales: those of one multiplier, or of one tensor of RMSNorm weights."""

    key: str
    axis: str  # scalar, row, column, weight for RMSNorm weights, filter for conv1d's
    size: int


def scales(plans: Sequence[TensorPlan], filters: bool = False) -> list[Scales]:
    """Every multiplier, and every vector of RMSNorm weights that learns, in the plans' order.

    With ``filters`` also the scale of each channel's filter of conv1d, a row multiplier in effect.
    """
    found = []
    for plan in plans:
        if filters and plan.address.role == "conv" and plan.trainable:
            found.append(Scales(plan.key, "filter", plan.address.shape[0]))
        if plan.address.role == "norm" and plan.trainable:
            found.append(Scales(plan.key, "weight", plan.address.size))
        # Direction and magnitude of a vector together are the vector.
        own = [each for each in plan.multipliers if each.axis not in MAGNITUDES.values()]
        found += [Scales(plan.key, each.axis, each.size) for each in own]
    return found


def symmetries(
    plans: Sequence[TensorPlan], config: ModelConfig, filters: bool = False
) -> np.ndarray:
    """Orthonormal symmetries in the space of all log-scales, shape (count, Σ of their sizes)."""
    return _Equations(plans, config, filters).solutions(list(freedoms()))


def count(
    plans: Sequence[TensorPlan], config: ModelConfig, filters: bool = False
) -> dict[str, int]:
    """How many symmetries there are, by what frees them (the keys of ``freedoms``)."""
    equations = _Equations(plans, config, filters)
    found, before, names = {}, 0, list(freedoms())
    for end, name in enumerate(names, start=1):
        total = len(equations.solutions(names[:end]))
        found[name], before = total - before, total
    return found


class _Equations:
    """Unknown are the log-scales and, behind them, the changes of activations."""

    def __init__(self, plans: Sequence[TensorPlan], config: ModelConfig, filters: bool):
        self._ends = {
            name: ends
            for block in blocks.every(config.mixers)
            for name, ends in block.every_end(config).items()
        }
        self._blocks: dict[tuple[str, str], np.ndarray] = {}
        self._scales = 0
        for block in scales(plans, filters):
            self._blocks[block.key, block.axis] = self._scales + np.arange(block.size)
            self._scales += block.size
        self._changes: dict[tuple[str, int | None, int], int] = {}
        self._freedom: list[str] = []  # of every unknown change
        self._equations: list[dict[int, float]] = []
        for plan in plans:
            self._require(plan)

    def solutions(self, freedoms: Sequence[str]) -> np.ndarray:
        """Orthonormal, over the log-scales; only activations of ``freedoms`` may change."""
        unknowns = [*range(self._scales)]
        unknowns += [self._scales + n for n, name in enumerate(self._freedom) if name in freedoms]
        column = {unknown: place for place, unknown in enumerate(unknowns)}
        matrix = np.zeros((len(self._equations), len(unknowns)))
        for number, equation in enumerate(self._equations):
            for unknown in equation.keys() & column.keys():
                matrix[number, column[unknown]] = equation[unknown]
        # No activation changes unless a log-scale does: leaving the changes out loses nothing.
        kept = null_space(matrix)[:, : self._scales]
        return np.linalg.qr(kept.T)[0].T

    def _require(self, plan: TensorPlan) -> None:
        """The equations of one tensor, for every row with the first column and vice versa."""
        shape = plan.address.shape
        out, into = self._ends.get(plan.address.name, (None, None))
        rows: list[dict[int, float]] = [{} for _ in range(shape[0])]
        columns: list[dict[int, float]] = [{} for _ in range(shape[1] if len(shape) == 2 else 1)]
        for entries, sign, changes in ((rows, -1.0, out), (columns, 1.0, into)):
            if changes is not None:
                for entry, channel in zip(entries, changes.channels, strict=True):
                    unknown = self._change(changes, channel, plan.address.layer)
                    entry[unknown] = sign * changes.sign
        for axis in ("weight", "filter", "row", "column"):
            entries = columns if axis == "column" else rows
            if (block := self._blocks.get((plan.key, axis))) is not None:
                for entry, unknown in zip(entries, block, strict=True):
                    entry[int(unknown)] = 1.0
        for unknown in self._blocks.get((plan.key, "scalar"), ()):
            for entry in rows:
                entry[int(unknown)] = 1.0
        self._equations += [entry | columns[0] for entry in rows]
        self._equations += [rows[0] | entry for entry in columns[1:]]

    def _change(self, changes: Changes, channel: int, layer: int | None) -> int:
        """The number of the unknown change of one channel of an activation."""
        name = (changes.freedom, None if changes.everywhere else layer, channel)
        if name not in self._changes:
            self._changes[name] = self._scales + len(self._freedom)
            self._freedom.append(changes.freedom)
        return self._changes[name]


def null_space(matrix: np.ndarray, tolerance: float = 1e-9) -> np.ndarray:
    """Orthonormal vectors x with ``matrix`` x = 0, shape (count, columns).

    Singular values below ``tolerance`` times the largest count as 0.
    """
    _, values, right = np.linalg.svd(matrix)
    return right[int((values > tolerance * values.max(initial=0.0)).sum()) :]
