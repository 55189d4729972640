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


def rise(tables: Tables, arm: str) -> pd.Series:
    """How far the training loss of ``arm`` rises above the lowest before, in nats, by seed.

    Of means between probes after the first tenth of the steps, as far as published losses tell.
    """
    settings = tables.runs.loc[tables.runs["arm"] == arm, "description"].iloc[0]["settings"]
    every, steps = settings["probes"]["every"], settings["train"]["steps"]
    losses = tables.pick(arm=arm, stat="train_loss")
    losses = losses[losses["step"] > steps / 10]
    probe = -(-losses["step"] // every) * every
    means = losses.assign(step=probe).pivot_table("value", "step", "seed").sort_index()
    return (means - means.cummin()).max()


def diverged(tables: Tables, arm: str, by: float) -> pd.Series:
    """1 for each seed whose run of ``arm`` diverged, else 0.

    Its training loss rose by more than ``by`` nats above its lowest before, or a loss of it is not
    finite. A run that stops at such a loss is not finished, and its seed is in no tables.
    """
    losses = tables.pick(arm=arm, stat=("train_loss", "validation_loss"))
    finite = np.isfinite(losses["value"]).groupby(losses["seed"]).all()
    return ((rise(tables, arm) > by) | ~finite).astype(float)
