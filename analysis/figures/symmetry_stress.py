"""Ours beside figure 4: multipliers under stress (section 4.1).

Left: norm of the residual stream in two precisions, without weight decay on multipliers, at their
LR in figure 4 and at ten times it, and there with weight decay (held). Right: training loss of
direct and of log-scale multipliers, at that LR and at five times it, means between probes. Median,
and every seed.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis.drawing.axes import series
from analysis.drawing.style import TEXT_WIDTH, caption
from analysis.quantities import symmetry
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("symmetry_stress",)
STREAM = {
    "FREE": ("#009E73", "-", "1 × LR"),
    "FREE_BF16": ("#009E73", ":", "bfloat16"),
    "FASTER": ("#0072B2", "-", "10 × LR"),
    "FASTER_BF16": ("#0072B2", ":", "bfloat16"),
    "FASTER_LIGHT": ("#E69F00", "-", "10 × LR, held"),
    "FASTER_LIGHT_BF16": ("#E69F00", ":", "bfloat16"),
}
LOSSES = {
    "FREE": ("#0072B2", "-", "direct"),
    "LOG": ("#D55E00", "-", "log-scale"),
    "FAST": ("#0072B2", "--", "direct, 5 × LR"),
    "LOG_FAST": ("#D55E00", "--", "log-scale, 5 × LR"),
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, seed, step, value."""
    table = tables["symmetry_stress"]
    found = []
    for arm in STREAM:
        norms = np.exp(symmetry.residual(table, arm)).rename("value").reset_index()
        found.append(norms.assign(panel="residual", arm=arm))
    losses = table.pick(stat="train_loss")
    every = table.settings["probes"]["every"]
    binned = losses.assign(step=-(-losses["step"] // every) * every)
    means = binned.groupby(["arm", "seed", "step"], as_index=False)["value"].mean()
    found.append(means[means["arm"].isin(LOSSES)].assign(panel="loss"))
    columns = ["panel", "arm", "seed", "step", "value"]
    return pd.concat(found)[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, axes = plt.subplots(1, 2, figsize=(TEXT_WIDTH, 3.2))
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95), w_pad=0.05)
    for axis, panel, arms in ((axes[0], "residual", STREAM), (axes[1], "loss", LOSSES)):
        rows = numbers[numbers["panel"] == panel]
        for arm, (colour, line, name) in arms.items():
            series(axis, rows[rows["arm"] == arm], "step", colour, line=line, label=name)
        axis.set_xlabel("step")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(arms) // 2)
    axes[0].set_yscale("log")
    axes[0].set_ylabel("norm of the residual stream")
    axes[0].set_title("a   Residual stream, last layer", loc="left")
    axes[1].set_ylabel("training loss (nats per token)")
    axes[1].set_title("b   Direct and log-scale, no weight decay", loc="left")
    caption(figure, context)
    return figure
