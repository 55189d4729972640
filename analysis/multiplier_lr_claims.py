"""Judging function of MLR (ours): the loss against the multipliers' own LR."""

from __future__ import annotations

import pandas as pd

from analysis.judging import Judgement, at_most
from analysis.style import power_of_two


def final_losses(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns arm, S, c_lr, seed, loss: validation after the decay, nats per token."""
    losses = frame[(frame["kind"] == "train") & (frame["stat"] == "validation_loss")]
    last = losses[losses["step"] == losses["step"].max()]
    return last[["arm", "S", "c_lr", "seed"]].assign(loss=last["value"]).reset_index(drop=True)


def mlr(frame, runs, criterion) -> Judgement:
    """The projector experiment's LR against the best of the grid, S by S, paired by seed."""
    losses, chosen = final_losses(frame), criterion["multiplier_lr"]
    components, notes = [], []
    for (arm, s), rows in losses.groupby(["arm", "S"]):
        table = rows.pivot(index="seed", columns="c_lr", values="loss")
        best = table.mean().idxmin()
        part = f"S = {power_of_two(s)}"
        name = f"{arm}, {part}: loss at {chosen:g} minus that at the best LR"
        excess = table[chosen] - table[best]
        components.append(at_most(name, excess, criterion["thresholds"]["excess"], part))
        notes.append(f"{arm} {part}: {best:g}")
    return Judgement(components, criterion["seeds"]["minimum"], "best LR: " + "; ".join(notes))


JUDGES = {"MLR": mlr}
