"""What the simulated theory of scale vectors says, seed by seed (second paper, SVT1 to SVT7)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.stats import log_slope
from analysis.tables.results import Tables, kept

DESIGNS = ("standard", "ap", "dp", "or", "er")
# Growth is fitted from this share of the time on: over two decades.
_TWO_DECADES = 0.01


def largest(tables: Tables, design: str, stat: str, *of: str) -> list[float]:
    """By seed the largest value of a flow's ``stat``, over all teachers or over the tensors ``of``.

    Only stats that are measured once.
    """
    return list(_flow(tables, design, stat, of).max())


def least(tables: Tables, design: str, stat: str, *of: str) -> list[float]:
    """The same with the least value."""
    return list(_flow(tables, design, stat, of).min())


def _flow(tables: Tables, design: str, stat: str, of: tuple[str, ...]):
    chosen = {"tensor": of} if of else {}
    rows = tables.pick(arm="FLOW", design=design, stat=stat, **chosen)
    if not of:
        rows = rows[~rows["tensor"].isin(["kept", "any", "counterexample"])]
    return rows.groupby("seed")["value"]


@kept
def started(tables: Tables, stat: str) -> pd.DataFrame:
    """Seeds × (start, design) of a stat of flows from a nonzero start."""
    rows = tables.pick(arm="START", stat=stat)
    return rows.pivot(index="seed", columns=["start", "tensor"], values="value")


@kept
def course(tables: Tables, target: float, noise: float, stat: str, tensor: str) -> pd.DataFrame:
    """Times × seeds of a mean over paths of the stochastic equations."""
    chosen = {"arm": "SDE", "target": target, "noise": noise, "tensor": tensor}
    values, times = (
        tables.pick(stat=name, **chosen).pivot(index="step", columns="seed", values="value")
        for name in (stat, "time")
    )
    return values.set_axis(times.mean(axis=1).rename("time"), axis=0)


def growth(tables: Tables, target: float, noise: float, tensor: str) -> list[float]:
    """By seed the exponent of E γ² ∝ t^p over the last two decades of t."""
    found = course(tables, target, noise, "scale_square", tensor)
    late = found[found.index >= _TWO_DECADES * found.index.max()]
    return [log_slope(late.index, late[seed]) for seed in late]


def share_of_bound(
    tables: Tables, target: float, noise: float, stat: str, tensor: str
) -> list[float]:
    """By seed the largest ratio, over time, of a mean square to what bounds it."""
    square, bound = (
        course(tables, target, noise, name, tensor) for name in (stat, f"{stat}_bound")
    )
    return list((square / bound).max())


def at_end(tables: Tables, stat: str, tensor: str, **point) -> np.ndarray:
    """By seed a stat that a run measures once, at a point of the grid."""
    rows = tables.pick(stat=stat, tensor=tensor, **point)
    return rows.groupby("seed")["value"].mean().to_numpy()


@kept
def adam_losses(tables: Tables, teacher: str) -> dict[str, pd.DataFrame]:
    """By design seeds × LRs of the last loss under Adam, relative to that of W = 0."""
    rows = tables.pick(arm="ADAM", stat="loss", tensor=teacher)
    return {
        design: own.pivot(index="seed", columns="lr", values="value")
        for design, own in rows.groupby("design")
    }


def tuned_lrs(losses: pd.DataFrame) -> pd.Series:
    """By seed the LR whose mean loss over all *other* seeds is least.

    So no seed has a say in the LR that it is judged at. A single seed has no others.
    """
    if len(losses) == 1:
        return losses.idxmin(axis=1)
    return pd.Series({seed: losses.drop(seed).mean().idxmin() for seed in losses.index})


def tuned_losses(losses: pd.DataFrame) -> np.ndarray:
    """By seed the loss at ``tuned_lrs``."""
    return np.array([losses.at[seed, lr] for seed, lr in tuned_lrs(losses).items()])


def gain_under_adam(tables: Tables, teacher: str, design: str, other: str) -> np.ndarray:
    """By seed ln of another design's loss over this one's, each at its own best LR."""
    losses = adam_losses(tables, teacher)
    return np.log(tuned_losses(losses[other]) / tuned_losses(losses[design]))


def edges(tables: Tables, teacher: str) -> list[float]:
    """By seed the share of designs whose best LR is an edge of the grid."""
    found = []
    for losses in adam_losses(tables, teacher).values():
        ends = [losses.columns.min(), losses.columns.max()]
        found.append(tuned_lrs(losses).isin(ends).to_numpy())
    return list(np.mean(found, axis=0))


def balanced_course(loss: float, inputs: int, of_or: bool) -> tuple[np.ndarray, np.ndarray]:
    """Times and losses of theorem 9.2 (iii), whose closed form is that of the time.

    L = ``loss`` (1 − θ)² with θ̇ = √(1 + 4kρθ²)(1 − θ), from ``loss`` = dρ/2 at t = 0. ``inputs`` is
    d; k is d for OR and 1 for the standard vector.
    """
    left = np.geomspace(1.0, 1e-4, 400)
    steepness = 4 * (2 * loss / inputs) * (inputs if of_or else 1)
    last = 1 + steepness
    root = np.sqrt(1 + steepness * (1 - left) ** 2)
    grown = (last - steepness * left + np.sqrt(last) * root) / left
    return np.log(grown / (1 + np.sqrt(last))) / np.sqrt(last), loss * left**2
