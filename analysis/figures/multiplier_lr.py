"""The multipliers' own LR: final loss, and the norm that they reach, at three S.

Lines are medians, bands the middle half of the seeds. Dotted: the LR of the projector experiment.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.axes import median
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_LOOKS, NEUTRAL, plain_log_axis, power_of_two
from analysis.quantities.losses import final_losses
from analysis.quantities.norms import at_step
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("multiplier_lr",)
NAMES = {"SPN": "SPN (learned scalar)", "VPN": "VPN (learned vector)"}


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
    figure, axes = page(2, len(scales), 3.2, w_pad=0.04, **shared)
    chosen = criteria_of("multiplier_lr")["MLR"]["multiplier_lr"]
    letters = iter("abcdefghijkl")
    for line, quantity in zip(axes, ("loss", "norm"), strict=True):
        for axis, s in zip(line, scales, strict=True):
            for arm, rows in numbers[numbers["S"] == s].groupby("arm"):
                rows = rows.assign(value=rows[quantity])
                median(axis, rows, "c_lr", band=(0.25, 0.75), **ARM_LOOKS[arm])
            axis.set_xscale("log")
            axis.set_xticks([0.001, 0.01, 0.1], ["0.001", "0.01", "0.1"])
            axis.axvline(chosen, **NEUTRAL, ls=":")
            axis.xaxis.set_minor_locator(NullLocator())
            title = f"   S = {power_of_two(s)}" if quantity == "loss" else ""
            label(axis, f"{next(letters)}{title}")
    for column in axes.T:
        column[1].set_xlabel("LR of the multipliers")
        plain_log_axis(column[1])
    axes[0, 0].set_ylabel("loss after the decay\n(nats)")
    axes[1, 0].set_ylabel(r"RMS norm $\|c\|$")
    handles = [key(NAMES[arm], **ARM_LOOKS[arm]) for arm in NAMES]
    handles.append(key("LR of the projector experiment", **NEUTRAL, ls=":"))
    legend_below(figure, handles, 3)
    said = r"$S=\sqrt{\eta/\lambda}$ over that of the base setting"
    return caption(figure, context, f"{said}; lines: medians; bands: middle half")
