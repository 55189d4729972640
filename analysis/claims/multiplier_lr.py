"""Judging function of MLR (ours): the loss against the multipliers' own LR."""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, at_most
from analysis.drawing.style import power_of_two
from analysis.quantities.losses import final_losses
from analysis.tables.results import Tables


def mlr(tables: Tables, criterion: dict) -> Judgement:
    """The projector experiment's LR against the best of the grid, S by S, paired by seed."""
    losses, chosen = final_losses(tables), criterion["multiplier_lr"]
    limits, components, notes = criterion["thresholds"], [], []
    for (arm, s), rows in losses.groupby(["arm", "S"]):
        table = rows.pivot(index="seed", columns="c_lr", values="value")
        best = table.mean().idxmin()
        part = f"S = {power_of_two(s)}"
        name = f"{arm}, {part}: loss at {chosen:g} minus that at the best LR"
        excess = table[chosen] - table[best]
        components.append(at_most(name, excess, limits["excess"], part))
        notes.append(f"{arm} {part}: {best:g}")
    # An LR that made no difference would be as good as any.
    table = losses.pivot_table("value", "seed", ["arm", "S", "c_lr"])
    worst = table.mean().idxmax()
    harm = table[worst] - table[(*worst[:2], chosen)]
    name = (
        f"{worst[0]}, S = {power_of_two(worst[1])}: loss at {worst[2]:g} minus that at {chosen:g}"
    )
    return Judgement(
        components,
        criterion["seeds"]["minimum"],
        "best LR: " + "; ".join(notes),
        contrast=[at_least(name, harm, limits["contrast"])],
    )
