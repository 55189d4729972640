"""Row-norm distributions and geometric means. Norms are root mean squares."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.tables.results import stage_end


def geometric_mean(values) -> float:
    """exp(mean(log)); zeros make it zero."""
    values = np.asarray(values, dtype=float)
    with np.errstate(divide="ignore"):
        return float(np.exp(np.log(values).mean()))


def over_layers(frame: pd.DataFrame) -> pd.DataFrame:
    """Geometric mean of ``value`` over layers, and over tensors where several are given.

    Keeps every other column of the tidy frame.
    """
    keys = [name for name in frame.columns if name not in ("tensor", "layer", "value")]
    grouped = frame.groupby(keys, dropna=False, observed=True)["value"]
    return grouped.apply(geometric_mean).reset_index()


def relative_norms(norms, dead_below: float = 1.0e-3) -> tuple[np.ndarray, int]:
    """A layer's row (or column) norms divided by their mean, and the number of dead ones.

    Rows below ``dead_below`` of the mean are dead: counted, not averaged (figure 3).
    """
    norms = np.asarray(norms, dtype=float)
    alive = norms > dead_below * norms.mean()
    return norms[alive] / norms[alive].mean(), int((~alive).sum())


def pooled_relative_norms(vectors: pd.DataFrame) -> tuple[np.ndarray, int]:
    """``relative_norms`` of every row of a vector table, pooled."""
    parts = [relative_norms(value) for value in vectors["value"]]
    return np.concatenate([part for part, _ in parts]), sum(dead for _, dead in parts)


def noise_spread(columns: int) -> float:
    """Relative spread of the row norms of pure noise with that many columns: 1 / sqrt(2·d_in)."""
    return 1.0 / np.sqrt(2.0 * columns)


def at_stage_ends(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """``at_step`` where each run's own constant stage ends; runs may differ in length."""
    ends = {row.run: stage_end(row.description["settings"]) for row in runs.itertuples()}
    early = frame[frame["step"] <= frame["run"].map(ends)]
    return _last(early.sort_values("step", kind="stable"))


def at_step(frame: pd.DataFrame, step: float) -> pd.DataFrame:
    """The last measurement of every series at or before ``step``."""
    # Means over rows depend in their last digit on the order that a sort gives to equal steps:
    # both sorts are those of the published numbers.
    return _last(frame[frame["step"] <= step].sort_values("step"))


def _last(ordered: pd.DataFrame) -> pd.DataFrame:
    # A run has one arm, seed and grid point, so that few columns tell its series apart.
    told_by = ("run", "tensor", "layer", "stat") if "run" in ordered else ordered.columns
    series = [name for name in told_by if name in ordered and name not in ("step", "value")]
    return ordered.drop_duplicates(series, keep="last")
