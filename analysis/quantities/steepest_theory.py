"""What was computed of directions and of the head, seed by seed (Beyond MuP 3, BM0 to BM0d)."""

from __future__ import annotations

import numpy as np

from analysis.tables.results import Tables

LAYERS = ("linear", "embedding", "head", "gain", "bias")
GRADIENTS = ("gaussian", "low_rank", "uneven", "rare", "heavy", "softmax")
DIRECTIONS = ("raw", "sign", "row", "column", "msign")
HEADS = ("initial", "medium", "large", "shifted", "trained")
# A gradient whose rows sum to zero, as those of every head do.
_OF_A_LOSS = "head.softmax"


def largest(tables: Tables, layer: str, stat: str) -> list[float]:
    """By seed the largest value of ``stat`` over all gradients of a layer."""
    tensors = tuple(f"{layer}.{kind}" for kind in GRADIENTS)
    rows = tables.pick(arm="DIRECTIONS", stat=stat, tensor=tensors)
    return list(rows.groupby("seed")["value"].max())


def gain_in_differences(tables: Tables) -> list[float]:
    """By seed how much steeper than rows over their norms a direction can be, with D as the norm.

    A lower bound: what ascent finds.
    """
    rows = tables.pick(arm="DIRECTIONS", stat="difference_gain", tensor=_OF_A_LOSS)
    return list(rows.sort_values("seed")["value"])


def rival_in_differences(tables: Tables) -> list[float]:
    """By seed the largest slope of the four other directions over that of rows, with D as norm."""
    stats = tuple(f"difference_{name}" for name in DIRECTIONS if name != "row")
    rows = tables.pick(arm="DIRECTIONS", stat=stats, tensor=_OF_A_LOSS)
    return list(rows.groupby("seed")["value"].max())


def of_head(tables: Tables, head: str, stat: str) -> np.ndarray:
    """By seed a stat of one of ``HEADS``."""
    return tables.pick(arm="HEAD", stat=stat, tensor=head).sort_values("seed")["value"].to_numpy()


def place(tables: Tables, head: str) -> np.ndarray:
    """By seed where the supremum of the loss lies: 0 at D, 1 at D + log V."""
    low, high, found = (of_head(tables, head, s) for s in ("lower", "upper", "supremum"))
    return (found - low) / (high - low)


def largest_of_logits(tables: Tables) -> list[float]:
    """By seed the largest |lse(a) − lse(b)| / max |a − b| of all pairs."""
    return list(tables.pick(arm="HEAD", stat="lse").groupby("seed")["value"].max())


def largest_of_heads(tables: Tables, stat: str) -> list[float]:
    """By seed the largest value of ``stat`` over ``HEADS``."""
    rows = tables.pick(arm="HEAD", stat=stat, tensor=HEADS)
    return list(rows.groupby("seed")["value"].max())
