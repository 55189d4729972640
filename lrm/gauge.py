"""Which rescalings of multipliers and norm weights leave a model's output as it is. No torch here.

Derived on paper (section 4.1 and appendix C). An activation may change its scale by e^a, channel by
channel, where all that follows undoes it:

* the residual stream as a whole, since every reader normalises it (the normalisation symmetry);
* what a block's RMSNorm weights give out, channel by channel, in favour of the first matrices;
* queries, against keys: by rotated pair, and alike in all heads that share a key;
* values, against the columns of the attention's output: alike in all heads that share a value;
* x, B and C before conv1d, if that has multipliers of its own, or if its filters, whose scales
  learn too, are counted among the log-scales;
* what the SSM's inner RMSNorm gives out, against the columns of its output;
* what ``up`` gives out, against the columns of ``down``; and what the final RMSNorm gives out.

z, dt, gate, and what conv1d gives out, go through a nonlinearity and may not; nor may the logits.
A matrix that maps an activation of scale e^a (by channel) to one of scale e^b must become
e^(b_i − a_j) times itself, ln r_i + ln c_j = b_i − a_j for its multipliers, from which also follow
the rows that go against the columns of the same matrix (the multiplicative symmetry). The solutions
of these linear equations are the symmetries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lrm.config import ModelConfig
from lrm.model.tensors import ssm_slices
from lrm.rules import TensorPlan

# In this order each is said to free what those before do not.
FREEDOMS = {
    "matrix": "rows against columns of one matrix",
    "residual": "scale of the residual stream",
    "mixer_input": "RMSNorm weights against columns of q, k, v and in_proj",
    "query_key": "q against k",
    "value": "v against columns of attention.out",
    "convolution": "x, B, C against conv1d",
    "inner_norm": "inner RMSNorm weights against columns of ssm.out",
    "mlp_input": "RMSNorm weights against columns of gate and up",
    "up_down": "up against columns of down",
    "final": "final RMSNorm weights against columns of the projector",
}


# By row or column of a tensor, the sign and number of an unknown change; None: it cannot change.
Side = list[tuple[float, int]] | None
_QUERY_HEADS = ("attention.q", "attention.out")


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
        if filters and plan.address.kind == "conv" and plan.trainable:
            found.append(Scales(plan.key, "filter", plan.address.shape[0]))
        if plan.address.kind == "norm" and plan.trainable:
            found.append(Scales(plan.key, "weight", plan.address.size))
        found += [Scales(plan.key, factor.axis, factor.size) for factor in plan.factors]
    return found


def symmetries(
    plans: Sequence[TensorPlan], config: ModelConfig, filters: bool = False
) -> np.ndarray:
    """Orthonormal symmetries in the space of all log-scales, shape (count, Σ of their sizes)."""
    return _Equations(plans, config, filters).solutions(list(FREEDOMS))


def count(
    plans: Sequence[TensorPlan], config: ModelConfig, filters: bool = False
) -> dict[str, int]:
    """How many symmetries there are, by what frees them (the keys of ``FREEDOMS``)."""
    equations = _Equations(plans, config, filters)
    found, before = {}, 0
    for end, name in enumerate(FREEDOMS, start=1):
        total = len(equations.solutions(list(FREEDOMS)[:end]))
        found[name], before = total - before, total
    return found


class _Equations:
    """Unknown are the log-scales and, behind them, the changes of activations."""

    def __init__(self, plans: Sequence[TensorPlan], config: ModelConfig, filters: bool):
        self._config = config
        self._has_inner_norm = any(plan.address.name == "norm.ssm" for plan in plans)
        self._blocks: dict[tuple[str, str], np.ndarray] = {}
        self._scales = 0
        for block in scales(plans, filters):
            self._blocks[block.key, block.axis] = self._scales + np.arange(block.size)
            self._scales += block.size
        self._changes: dict[tuple[str, int | None], np.ndarray] = {}
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
        out, into = self._ends(plan.address.name, plan.address.layer)
        rows: list[dict[int, float]] = [{} for _ in range(shape[0])]
        columns: list[dict[int, float]] = [{} for _ in range(shape[1] if len(shape) == 2 else 1)]
        for entries, sign, changes in ((rows, -1.0, out), (columns, 1.0, into)):
            if changes is not None:
                for entry, (own_sign, unknown) in zip(entries, changes, strict=True):
                    entry[unknown] = sign * own_sign
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

    def _change(self, freedom: str, layer: int | None, size: int) -> np.ndarray:
        """The unknown changes of an activation's channels."""
        if (freedom, layer) not in self._changes:
            start = self._scales + len(self._freedom)
            self._changes[freedom, layer] = start + np.arange(size)
            self._freedom += [freedom] * size
        return self._changes[freedom, layer]

    def _ends(self, name: str, layer: int | None) -> tuple[Side, Side]:
        """The changes of what a tensor gives out, by row, and of what it takes in, by column."""
        config = self._config
        d, ssm = config.hidden_size, ssm_slices(config)
        kv, head = config.num_key_value_heads, config.head_dim

        def change(freedom: str, size: int, sign: float = 1.0) -> Side:
            return [(sign, int(unknown)) for unknown in self._change(freedom, layer, size)]

        def stream(sign: float = 1.0) -> Side:
            return [(sign, int(self._change("residual", None, 1)[0]))] * d

        def shared(freedom: str, by: int, repeat: int, sign: float = 1.0) -> Side:
            """Of ``by`` channels a key's head, ``repeat`` times in it, alike in all its heads."""
            found = self._change(freedom, layer, kv * by).reshape(kv, 1, by)
            heads = config.num_attention_heads // kv if name in _QUERY_HEADS else 1
            spread = np.tile(found, (1, heads, repeat)).ravel()
            return [(sign, int(unknown)) for unknown in spread]

        def convolved(part: str | None, sign: float = 1.0) -> Side:
            sizes = {each: ssm[each] for each in ("ssm.x", "ssm.B", "ssm.C")}
            found, start = change("convolution", sum(sizes.values()), sign), 0
            for each, size in sizes.items():
                if each == part:
                    return found[start : start + size]
                start += size
            return found

        mixer, mlp = ("mixer_input", d), ("mlp_input", d)
        match name:
            case "embedding":  # its rows are tokens; what it gives out are its columns
                return None, stream(-1.0)
            case "norm.mixer":
                return change(*mixer), None
            case "attention.q":
                return shared("query_key", head // 2, 2), change(*mixer)
            case "attention.k":
                return shared("query_key", head // 2, 2, -1.0), change(*mixer)
            case "attention.v":
                return shared("value", head, 1), change(*mixer)
            case "attention.out":
                return stream(), shared("value", head, 1)
            case "ssm.z" | "ssm.dt":
                return None, change(*mixer)
            case "ssm.x" | "ssm.B" | "ssm.C":
                return convolved(name), change(*mixer)
            case "ssm.conv":  # its rows are channels, which it takes in
                return convolved(None, -1.0), None
            case "norm.ssm":
                return change("inner_norm", config.mamba_d_ssm), None
            case "ssm.out":
                inner = change("inner_norm", config.mamba_d_ssm) if self._has_inner_norm else None
                return stream(), inner
            case "norm.mlp":
                return change(*mlp), None
            case "mlp.gate":
                return None, change(*mlp)
            case "mlp.up":
                return change("up_down", config.intermediate_size), change(*mlp)
            case "mlp.down":
                return stream(), change("up_down", config.intermediate_size)
            case "norm.final":
                return change("final", d), None
            case "projector":
                return None, change("final", d)
        return None, None  # A_log, D and biases


def null_space(matrix: np.ndarray, tolerance: float = 1e-9) -> np.ndarray:
    """Orthonormal vectors x with ``matrix`` x = 0, shape (count, columns).

    Singular values below ``tolerance`` times the largest count as 0.
    """
    _, values, right = np.linalg.svd(matrix)
    return right[int((values > tolerance * values.max(initial=0.0)).sum()) :]
