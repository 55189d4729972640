"""Losses of an experiment's arms, in nats per token."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.norms import at_step
from analysis.tables.results import Tables, kept


@kept
def final_losses(tables: Tables) -> pd.DataFrame:
    """The validation loss of every trained run after the decay, as rows of the tidy frame."""
    return at_step(tables.pick(kind="train", stat="validation_loss"), np.inf).sort_index()


def losses_by_arm(tables: Tables) -> pd.DataFrame:
    """``final_losses`` with seeds in rows and arms in columns."""
    return final_losses(tables).pivot(index="seed", columns="arm", values="value")


def in_bins(losses: pd.DataFrame, width: int) -> pd.DataFrame:
    """Rows of the tidy frame with ``step`` rounded up to a multiple of ``width``."""
    return losses.assign(step=-(-losses["step"] // width) * width)


def rise(tables: Tables, arm: str) -> pd.Series:
    """How far the training loss of ``arm`` rises above the lowest before, in nats, by seed.

    Losses are means between probes after the first tenth of the steps, as published losses are.
    """
    settings = tables.runs.loc[tables.runs["arm"] == arm, "description"].iloc[0]["settings"]
    losses = tables.pick(arm=arm, stat="train_loss")
    losses = losses[losses["step"] > settings["train"]["steps"] / 10]
    means = in_bins(losses, settings["probes"]["every"]).pivot_table("value", "step", "seed")
    return (means - means.cummin()).max()


def diverged(tables: Tables, arm: str, by: float) -> pd.Series:
    """1 for each seed whose run of ``arm`` diverged, else 0.

    Its training loss rose by more than ``by`` nats above its lowest before, or a loss of it is not
    finite. A run that stops at such a loss is not finished, and its seed is in no tables.
    """
    losses = tables.pick(arm=arm, stat=("train_loss", "validation_loss"))
    finite = np.isfinite(losses["value"]).groupby(losses["seed"]).all()
    return ((rise(tables, arm) > by) | ~finite).astype(float)
