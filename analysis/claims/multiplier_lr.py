"""Judging function of MLR (ours): the loss against the multipliers' own LR.

Losses are in nats per token after the decay; ``c_lr`` is the LR of the projector's multipliers,
and ``S`` multiplies the projector's LR and divides its weight decay.
"""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, at_most, judgement
from analysis.drawing.style import power_of_two
from analysis.quantities.losses import final_losses
from analysis.tables.results import Tables


def mlr(tables: Tables, criterion: dict) -> Judgement:
    """The projector experiment's LR against the best of the grid, S by S, paired by seed."""
    losses, chosen = final_losses(tables), criterion["multiplier_lr"]
    limits, parts, notes = criterion["thresholds"], [], []
    for (arm, s), rows in losses.groupby(["arm", "S"]):
        table = rows.pivot(index="seed", columns="c_lr", values="value")
        best = table.mean().idxmin()
        group = f"{arm} at S = {power_of_two(s)}"
        name = f"{group}: loss at {chosen:g} minus that at the best LR (nats)"
        parts.append(at_most(name, table[chosen] - table[best], limits["excess"], group))
        notes.append(f"{group}: {best:g}")
    # An LR that made no difference would be as good as any.
    table = losses.pivot_table("value", "seed", ["arm", "S", "c_lr"])
    arm, s, lr = table.mean().idxmax()
    harm = table[arm, s, lr] - table[arm, s, chosen]
    name = f"{arm}, S = {power_of_two(s)}: loss at {lr:g} minus that at {chosen:g} (nats)"
    contrast = [at_least(name, harm, limits["contrast"])]
    return judgement(criterion, parts, "best LR: " + "; ".join(notes), contrast)
