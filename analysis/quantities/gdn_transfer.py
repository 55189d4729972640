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
# Of a sequence, from its first token to its last.
PLACES = ("first", "quarter", "half", "three_quarters", "last")
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


def exponent_of_scalar(
    tables: Tables, tensor: str, arm: str, lr: float, widest: float
) -> pd.Series:
    """Of the width in |s| of a matrix at the end of training, means of ln |s| over layers.

    Of widths up to ``widest``.
    """
    end = tables.settings["train"]["steps"]
    rows = tables.pick(arm=arm, lr=lr, tensor=tensor, stat="scalar_multiplier_norm", step=end)
    rows = rows[rows["width"] <= widest]
    logs = np.log(rows["value"]).groupby([rows["seed"], rows["width"]]).mean().unstack()
    return logs.apply(lambda row: log_slope(row.index, np.exp(row)), axis=1)


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


@kept
def of_heads(tables: Tables, stat: str, tensor: str, arm: str, lr: float) -> pd.DataFrame:
    """What heads tell (``Mixer.statistics``): rows of seed, width, step, layer, head and value."""
    rows = tables.pick_vectors(arm=arm, lr=lr, stat=stat, tensor=tensor)
    found = rows[["seed", "width", "step", "layer", "value"]].explode("value").reset_index()
    found["head"] = found.groupby("index").cumcount()
    return found.astype({"value": float}).drop(columns="index")


def by_width(heads: pd.DataFrame, step: int, summary: str = "mean") -> pd.DataFrame:
    """A ``summary`` over layers and heads at a step: seeds in rows, widths in columns."""
    rows = heads[heads["step"] == step]
    return rows.pivot_table("value", "seed", "width", aggfunc=summary)


def exponent_of_heads(heads: pd.DataFrame, step: int) -> pd.Series:
    """Of the width in the geometric mean over layers and heads, by seed."""
    logs = by_width(heads.assign(value=np.log(heads["value"])), step)
    return logs.apply(lambda row: log_slope(row.index, np.exp(row)), axis=1)


def largest_cosine(tables: Tables, arm: str, lr: float, step: int) -> pd.DataFrame:
    """Over five places the largest mean over heads of |cos(q, k)|: seeds × widths.

    A head's cosine is the mean over sequences, with its sign.
    """
    found = [_cosines(tables, place, arm, lr) for place in PLACES]
    means = [by_width(rows.assign(value=rows["value"].abs()), step) for rows in found]
    return pd.concat(means).groupby(level="seed").max()


def independent_cosine(key_dim: int, heads: int, sequences: int, draws: int = 2000) -> float:
    """What ``largest_cosine`` is on average where queries and keys have independent directions.

    Of ``heads`` in all layers, by simulation with a fixed seed.
    """
    draw = np.random.default_rng(0).standard_normal
    found = []
    for _ in range(draws):
        q, k = draw((2, len(PLACES), heads, sequences, key_dim))
        sizes = np.linalg.norm(q, axis=-1) * np.linalg.norm(k, axis=-1)
        means = ((q * k).sum(-1) / sizes).mean(-1)
        found.append(np.abs(means).mean(-1).max())
    return float(np.mean(found))


def beyond_unrelated(tables: Tables, arm: str, lr: float, step: int) -> pd.DataFrame:
    """Mean cos(q, k) of one token less that of any two of a sequence: seeds × widths."""
    own = [by_width(_cosines(tables, place, arm, lr), step) for place in PLACES]
    of_two = by_width(of_heads(tables, "unrelated_cosine", "gdn.q", arm, lr), step)
    return pd.concat(own).groupby(level="seed").mean() - of_two


def _cosines(tables: Tables, place: str, arm: str, lr: float) -> pd.DataFrame:
    return of_heads(tables, f"cosine_{place}", "gdn.q", arm, lr)


def clipped_share(tables: Tables, arm: str, lr: float, width: float) -> pd.Series:
    """The share of steps of which the gradient was clipped, over training."""
    rows = tables.pick(arm=arm, lr=lr, width=width, stat="clipped_fraction")
    return rows[rows["step"] > 0].groupby("seed")["value"].mean()
