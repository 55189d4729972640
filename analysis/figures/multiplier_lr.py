"""The multipliers' own LR: final loss, and the norm that they reach, at three S."""

from __future__ import annotations

import pandas as pd

from analysis.drawing.page import caption, page
from analysis.drawing.style import ARM_LOOKS, power_of_two
from analysis.quantities.losses import final_losses
from analysis.quantities.norms import at_step
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("multiplier_lr",)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, S, c_lr, seed, loss (nats), norm (‖c‖ where the constant stage ends)."""
    table = tables["multiplier_lr"]
    keys = ["arm", "S", "c_lr", "seed"]
    losses = final_losses(table)[[*keys, "value"]].rename(columns={"value": "loss"})
    norms = table.pick(kind="train", tensor="norm.final", stat="effective_norm")
    norms = at_step(norms, table.stage_end)[[*keys, "value"]]
    return losses.merge(norms.rename(columns={"value": "norm"}), on=keys)


def draw(numbers: pd.DataFrame, context: Context):
    """One column per S: loss above, norm below, against the multipliers' LR."""
    scales = sorted(numbers["S"].unique())
    shared = {"sharex": True, "sharey": "row", "squeeze": False}
    figure, axes = page(2, len(scales), 3.9, below=0.04, **shared)
    for column, s in zip(axes.T, scales, strict=True):
        for axis, quantity in zip(column, ("loss", "norm"), strict=True):
            for arm, rows in numbers[numbers["S"] == s].groupby("arm"):
                means = rows.groupby("c_lr")[quantity].mean()
                axis.plot(rows["c_lr"], rows[quantity], ls="", alpha=0.35, ms=3, **ARM_LOOKS[arm])
                axis.plot(means.index, means, label=arm, **ARM_LOOKS[arm])
            axis.set_xscale("log")
        column[0].set_title(f"S = {power_of_two(s)}")
        column[1].set(yscale="log", xlabel="LR of the multipliers")
    axes[0, 0].set_ylabel("final loss (nats per token)")
    axes[1, 0].set_ylabel(r"$\|c\|$ before the decay")
    axes[0, 0].legend()
    return caption(figure, context)
