"""Losses of the tokens that a model can copy from earlier in a sequence, and of all others.

A token counts as recalled where it and the one before it stand next to each other earlier in the
same sequence (``lrm.data.recalled``). Runs of before 27 November 2026 do not tell the two apart.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.norms import at_step
from analysis.tables.find import NothingFound
from analysis.tables.results import Tables

RECALLED, OTHER = "recall_loss", "other_loss"


def final_losses_among(tables: Tables, tokens: str) -> pd.DataFrame:
    """Loss after the decay of ``RECALLED`` or ``OTHER`` tokens, nats: seeds × arms.

    Raises NothingFound where no run tells it.
    """
    rows = tables.pick(kind="train", stat=tokens)
    if rows.empty:
        raise NothingFound("none of these runs tells recalled tokens apart; train new seeds")
    rows = at_step(rows, np.inf)
    return rows.pivot(index="seed", columns="arm", values="value")


def gap_among(tables: Tables, tokens: str, arm: str, against: str) -> pd.Series:
    """That of ``arm`` less that of ``against``, by seed."""
    losses = final_losses_among(tables, tokens)
    return (losses[arm] - losses[against]).rename(tokens)
