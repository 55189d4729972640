"""Logged quantities of chosen runs, over training and as distributions."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.explore.selection import IDENTITY, named
from analysis.quantities.norms import at_step, geometric_mean, noise_spread, pooled_relative_norms
from lrm.errors import UserError


def course(
    scalars: pd.DataFrame, runs: pd.DataFrame, tensor: str, stat: str, layer: int | None = None
) -> pd.DataFrame:
    """One quantity of these runs at every step at which it was logged.

    Columns: run, kind, arm, point, seed, label, step, value, and tensor, stat, layer and ``over``,
    how layers were put together. Without ``layer`` a tensor inside the layers is averaged over
    them: the geometric mean, or the arithmetic one where a value is not positive. No rows of runs
    that do not log it; UserError where none in ``scalars`` does.
    """
    rows, layers = _rows(scalars, runs, tensor, stat, layer)
    over = ""
    if layer is None and len(layers) > 1:
        positive = bool((rows["value"] > 0).all())
        over = f"{'geometric mean' if positive else 'mean'} of {len(layers)} layers"
        mean = geometric_mean if positive else np.mean
        rows = rows.groupby(["run", "step"], observed=True)["value"].apply(mean).reset_index()
    rows = rows[["run", "step", "value"]].sort_values("step")
    courses = named(runs)[IDENTITY].merge(rows, on="run")
    return courses.assign(tensor=tensor, stat=stat, layer=_one(layer, layers), over=over)


def _rows(
    table: pd.DataFrame, runs: pd.DataFrame, tensor: str, stat: str, layer: int | None
) -> tuple[pd.DataFrame, list[int]]:
    """The rows of a quantity, of these runs alone, and all the layers that it has."""
    of_tensor = table[table["tensor"] == tensor]
    if of_tensor.empty:
        there = ", ".join(table["tensor"].unique())
        raise UserError(
            f"nothing is logged of {tensor!r}; there are {there or 'no vectors of anything'}"
        )
    rows = of_tensor[of_tensor["stat"] == stat]
    if rows.empty:
        there = ", ".join(of_tensor["stat"].unique())
        raise UserError(f"{tensor} has no {stat!r}; it has {there}")
    layers = sorted(map(int, rows["layer"].dropna().unique()))
    if layer is not None:
        if layer not in layers:
            there = f"it has {', '.join(map(str, layers))}" if layers else "it lies in none"
            raise UserError(f"{tensor} has no layer {layer}; {there}")
        rows = rows[rows["layer"] == layer]
    return rows[rows["run"].isin(runs["run"])], layers


def _one(layer: int | None, layers: list[int]) -> int | None:
    """The layer that a quantity is of, if it is of one."""
    return layers[0] if layer is None and len(layers) == 1 else layer


def distribution(
    vectors: pd.DataFrame,
    runs: pd.DataFrame,
    tensor: str,
    stat: str,
    layer: int | None = None,
    step: int | None = None,
) -> pd.DataFrame:
    """One vector quantity of these runs, the last one logged at or before ``step`` (None: ever).

    Columns: run, kind, arm, point, seed, label, step, tensor, stat, layer, over, and

    * ``values``, an array: row and column norms over the mean of their layer, without dead ones,
      pooled over layers; singular values over ‖W‖, largest first, averaged over layers;
      multipliers and other values as they are, pooled over layers;
    * ``spread``, their standard deviation, and ``noise``, the one that pure noise of that shape
      has (missing for multipliers and values: noise says nothing of them);
    * ``rows`` and ``columns`` of the matrix, ``dead``, the number of rows or columns below a
      thousandth of the mean.

    No rows of runs without it; UserError where none in ``vectors`` has it, and where ``step`` is
    before the first that was kept.
    """
    rows, layers = _rows(vectors, runs, tensor, stat, layer)
    if step is not None and len(rows) and step < rows["step"].min():
        there = ", ".join(map(str, sorted(rows["step"].unique())))
        raise UserError(
            f"no {stat} of {tensor} was kept at or before step {step}; it was at {there}"
        )
    rows = rows if step is None else rows[rows["step"] <= step]
    rows = at_step(rows, rows["step"].max()).sort_values("layer") if len(rows) else rows
    records = []
    for run in named(runs).to_dict("records"):
        own = rows[rows["run"] == run["run"]]
        if len(own):
            shape = _shape(run["description"], tensor)
            identity = {name: run[name] for name in IDENTITY} | {"step": int(own["step"].max())}
            records.append(identity | _summary(stat, own, shape))
    columns = [*IDENTITY, "step", "values", "spread", "noise", "rows", "columns", "dead"]
    over = f"{len(layers)} layers" if layer is None and len(layers) > 1 else ""
    table = pd.DataFrame(records, columns=columns)
    return table.assign(tensor=tensor, stat=stat, layer=_one(layer, layers), over=over)


def _shape(description: dict, tensor: str) -> tuple[int, int]:
    """Rows and entries of a row, as planned; vectors count as one column."""
    for rule in description["rules"]:
        if rule["tensor"].partition("@")[0] == tensor and rule["multiplier"] is None:
            return rule["shape"][0], math.prod(rule["shape"][1:])
    return 0, 0


def _summary(stat: str, vectors: pd.DataFrame, shape: tuple[int, int]) -> dict:
    """What ``distribution`` says of one run, whose layers are the rows of ``vectors``."""
    rows, columns = shape
    parts, dead, noise = vectors["value"], 0, math.nan
    if is_norms(stat):
        values, dead = pooled_relative_norms(vectors)
        noise = noise_spread(columns if stat.endswith("row_norms") else rows)
    elif stat == "singular_values":
        values = np.mean(
            [np.divide(part, np.linalg.norm(part)) for part in vectors["value"]], axis=0
        )
        noise = float(np.std(noise_spectrum(rows, columns)))
    else:
        values = np.concatenate([np.asarray(part, dtype=float) for part in parts])
    shown = {"values": values, "spread": float(np.std(values)), "noise": noise}
    return shown | {"rows": rows, "columns": columns, "dead": dead}


def is_norms(stat: str) -> bool:
    """Whether a vector holds norms of rows or columns."""
    return stat.endswith(("row_norms", "column_norms"))


def noise_spectrum(rows: int, columns: int) -> np.ndarray:
    """Singular values of a large matrix of pure noise with ‖W‖ = 1, largest first.

    Shape (min(rows, columns),), in the units of ``singular_values``, whose squares sum to ‖W‖².
    Quantiles of the Marchenko–Pastur law.
    """
    n, q = min(rows, columns), min(rows, columns) / max(rows, columns)
    # With eigenvalue = 1 + q + 2·sqrt(q)·cos(angle) the density has no steep ends.
    angle = (np.arange(4096) + 0.5) * np.pi / 4096
    eigenvalue = 1 + q + 2 * np.sqrt(q) * np.cos(angle)
    mass = np.cumsum(np.sin(angle) ** 2 / eigenvalue)
    squares = np.interp((np.arange(n) + 0.5) / n, mass / mass[-1], eigenvalue)
    return np.sqrt(squares / squares.sum())
