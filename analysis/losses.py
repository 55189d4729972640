"""Losses of an experiment's arms, in nats per token."""

from __future__ import annotations

import pandas as pd


def final_losses(frame: pd.DataFrame) -> pd.DataFrame:
    """Validation losses after the decay, seeds in rows and arms in columns."""
    losses = frame[frame["stat"] == "validation_loss"]
    last = losses.sort_values("step").groupby(["arm", "seed"]).tail(1)
    return last.pivot(index="seed", columns="arm", values="value")


def rise(frame: pd.DataFrame, runs: pd.DataFrame, arm: str) -> pd.Series:
    """How far the training loss of ``arm`` rises above the lowest before, in nats, by seed.

    Of means between probes after the first tenth of the steps, as far as published losses tell.
    """
    settings = runs.loc[runs["arm"] == arm, "description"].iloc[0]["settings"]
    every, steps = settings["probes"]["every"], settings["train"]["steps"]
    losses = frame[(frame["arm"] == arm) & (frame["stat"] == "train_loss")]
    losses = losses[losses["step"] > steps / 10]
    probe = -(-losses["step"] // every) * every
    means = losses.assign(step=probe).pivot_table("value", "step", "seed").sort_index()
    return (means - means.cummin()).max()
