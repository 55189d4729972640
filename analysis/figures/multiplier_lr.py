"""The multipliers' own LR: final loss, and the norm that they reach, at three S."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd

from analysis.drawing.style import ARM_COLOURS, ARM_MARKERS, TEXT_WIDTH, caption, power_of_two
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
    figure, axes = plt.subplots(
        2, len(scales), figsize=(TEXT_WIDTH, 3.9), sharex=True, sharey="row", squeeze=False
    )
    figure.get_layout_engine().set(rect=(0, 0.04, 1, 0.96))
    for column, s in zip(axes.T, scales, strict=True):
        for axis, quantity in zip(column, ("loss", "norm"), strict=True):
            for arm, rows in numbers[numbers["S"] == s].groupby("arm"):
                look = {"color": ARM_COLOURS[arm], "marker": ARM_MARKERS[arm]}
                means = rows.groupby("c_lr")[quantity].mean()
                axis.plot(rows["c_lr"], rows[quantity], ls="", alpha=0.35, ms=3, **look)
                axis.plot(means.index, means, label=arm, **look)
            axis.set_xscale("log")
        column[0].set_title(f"S = {power_of_two(s)}")
        column[1].set_yscale("log")
        column[1].set_xlabel("LR of the multipliers")
    axes[0, 0].set_ylabel("final loss (nats per token)")
    axes[1, 0].set_ylabel(r"$\|c\|$ before the decay")
    axes[0, 0].legend()
    caption(figure, context)
    return figure
