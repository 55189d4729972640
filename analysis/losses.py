"""Losses of an experiment's arms, in nats per token."""

from __future__ import annotations

import pandas as pd


def final_losses(frame: pd.DataFrame) -> pd.DataFrame:
    """Validation losses after the decay, seeds in rows and arms in columns."""
    losses = frame[(frame["kind"] == "train") & (frame["stat"] == "validation_loss")]
    return losses[losses["step"] == losses["step"].max()].pivot(
        index="seed", columns="arm", values="value"
    )
