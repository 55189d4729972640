"""Exponents of the width in a Gated Delta Network, seed by seed (third paper, GD0, GD12, GD13).

An exponent is the least-squares slope of ln(size) against ln(width), where a size is the geometric
mean over layers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.stats import log_slope
from analysis.tables.results import Tables, kept

SHORT, LONG = "gdn.state.short", "gdn.state.long"
# What the paper derives, by quantity: the stat, the tensor and the exponent.
DERIVED = {
    "q̃": ("size", "gdn.conv_q", 0.0),
    "k̃": ("size", "gdn.conv_k", 0.0),
    "v": ("size", "gdn.conv_v", 0.0),
    "z_α": ("size", "gdn.alpha", 0.0),
    "z_β": ("size", "gdn.beta", 0.0),
    "⟨q, k⟩": ("cosine", "gdn.q", -0.5),
    "S": ("size", "gdn.state.short", -0.5),
    "o": ("size", "gdn.read.short", -0.5),
    "∂h": ("gradient", "block.in", -1.0),
    "∂q̃": ("gradient", "gdn.conv_q", -1.0),
    "∂k̃": ("gradient", "gdn.conv_k", -1.0),
    "∂v": ("gradient", "gdn.conv_v", -1.0),
    "∂o": ("gradient", "gdn.read", -0.5),
    "∂z_α": ("gradient", "gdn.alpha", -0.5),
    "∂z_β": ("gradient", "gdn.beta", -0.5),
}
RECIPES = ("SP", "ORIGINAL", "PAPER")
GATES = {"Δz_α": "gdn.alpha", "Δz_β": "gdn.beta"}
# Sequences in a batch where it has few tokens for the width, and many.
FEW, MANY = 1, 256


@kept
def exponents(tables: Tables, stat: str, tensor: str, **point) -> pd.Series:
    """By seed, of the runs at this ``point``: an arm, a step, so many sequences in a batch."""
    rows = tables.pick(stat=stat, tensor=tensor, **point)
    sizes = np.log(rows["value"]).groupby([rows["seed"], rows["width"]]).mean().unstack("width")
    widths = sizes.columns.to_numpy(dtype=float)
    return np.exp(sizes).apply(lambda values: log_slope(widths, values), axis=1)


def of_quantity(tables: Tables, quantity: str, recipe: str) -> pd.Series:
    """By seed the exponent of one of ``DERIVED`` as models begin."""
    stat, tensor, _ = DERIVED[quantity]
    return exponents(tables, stat, tensor, arm=f"SIZES_{recipe}")


def of_step(tables: Tables, stat: str, tensor: str, sequences: int) -> pd.Series:
    """By seed, of the first step with the gates' LR constant in d."""
    return exponents(tables, stat, tensor, arm="STEP", sequences=sequences, step=1)


def of_ten(tables: Tables, tensor: str, lr: str, sequences: int, step: int = 10) -> pd.Series:
    """By seed, of what ten steps change, with the gates' ``lr`` CONSTANT in d or SCALED."""
    point = {"arm": f"TEN_{lr}", "sequences": sequences, "step": step}
    return exponents(tables, "change", tensor, **point)


def tokens(tables: Tables) -> dict[int, int]:
    """By the number of sequences that of tokens in a batch."""
    rows = tables.pick(arm="STEP", stat="tokens")
    return dict(zip(rows["sequences"].astype(int), rows["value"].astype(int), strict=True))


def largest_difference(tables: Tables, stat: str, tensor: str, **point) -> list[float]:
    """By seed the largest relative difference that a factor on the read makes, over widths."""
    rows = tables.pick(arm="READ", stat=stat, tensor=tensor, **point)
    return list(rows.groupby("seed")["value"].max())


def growth_with_eps(tables: Tables) -> list[float]:
    """By seed the exponent of epsilon in the first gradient's change (geometric mean of widths)."""
    rows = tables.pick(arm="READ", stat="first_gradient", tensor="factor")
    rows = rows[rows["eps"] > 0]
    changes = np.log(rows["value"]).groupby([rows["seed"], rows["eps"]]).mean().unstack("eps")
    return [log_slope(changes.columns, np.exp(values)) for _, values in changes.iterrows()]
