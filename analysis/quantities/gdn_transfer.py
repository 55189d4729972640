"""Sizes over the width while Gated Delta Networks train, at one LR for all widths (third paper).

Values are by seed: exponents of the width, by least squares, of geometric means over layers. Of
gradients they are root mean squares over tokens and entries of ∂L/∂a.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.stats import log_slope
from analysis.tables.results import Tables, kept

# Of each quantity its name in the figures, the stat, the tensor and the exponent that is derived.
SIZES = {
    "q̃": ("activation_norm", "gdn.conv_q", 0.0),
    "k̃": ("activation_norm", "gdn.conv_k", 0.0),
}
GRADIENTS = {
    "∂h": ("activation_gradient_norm", "block.in", -1.0),
    "∂q̃": ("activation_gradient_norm", "gdn.conv_q", -1.0),
    "∂k̃": ("activation_gradient_norm", "gdn.conv_k", -1.0),
}
QUANTITIES = SIZES | GRADIENTS
# What a block reads from the residual stream is the embedding, or what the layer before left.
_STREAM = ("embedding", "residual")


@kept
def course(tables: Tables, quantity: str, arm: str, lr: float) -> pd.DataFrame:
    """Rows: seed, width, step, value: one of ``QUANTITIES`` while the arm trains at this LR."""
    stat, tensor, _ = QUANTITIES[quantity]
    tensors = _STREAM if tensor == "block.in" else (tensor,)
    rows = tables.pick(arm=arm, lr=lr, stat=stat, tensor=tensors)
    if tensor == "block.in":
        last = rows.loc[rows["tensor"] == "residual", "layer"].max()
        rows = rows[(rows["tensor"] == "embedding") | (rows["layer"] < last)]
    rows = rows[rows["value"] > 0]
    logs = np.log(rows["value"]).groupby([rows["seed"], rows["width"], rows["step"]]).mean()
    return np.exp(logs).rename("value").reset_index()


def exponent(tables: Tables, quantity: str, arm: str, lr: float) -> pd.Series:
    """Of the width at the end of training; nan where a run of the seed diverged."""
    rows = course(tables, quantity, arm, lr)
    steps = tables.settings["train"]["steps"]
    ended = rows[rows["step"] == steps].pivot(index="seed", columns="width", values="value")
    every = tables.pick(arm=arm)["width"].unique()
    ended = ended.reindex(
        columns=sorted(every), index=sorted(tables.pick(arm=arm)["seed"].unique())
    )
    return ended.apply(lambda row: log_slope(row.index, row), axis=1)


def clipped_share(tables: Tables, arm: str, lr: float, width: float) -> pd.Series:
    """The share of steps of which the gradient was clipped, over training."""
    rows = tables.pick(arm=arm, lr=lr, width=width, stat="clipped_fraction")
    return rows[rows["step"] > 0].groupby("seed")["value"].mean()
