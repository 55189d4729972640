"""Ours beside figure 4: multipliers under stress (section 4.1).

Left: norm of the residual stream in two precisions, without weight decay on multipliers, at their
LR in figure 4 and at ten times it, and there with weight decay (held). Right: training loss of
direct and of log-scale multipliers, at that LR and at five times it, means between probes. Median,
and every seed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import each
from analysis.drawing.page import caption, label, page
from analysis.quantities import symmetry
from analysis.quantities.losses import in_bins
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("symmetry_stress",)
STREAM = {
    "FREE": {"color": "#009E73", "ls": "-", "label": "1 × LR"},
    "FREE_BF16": {"color": "#009E73", "ls": ":", "label": "bfloat16"},
    "FASTER": {"color": "#0072B2", "ls": "-", "label": "10 × LR"},
    "FASTER_BF16": {"color": "#0072B2", "ls": ":", "label": "bfloat16"},
    "FASTER_LIGHT": {"color": "#E69F00", "ls": "-", "label": "10 × LR, held"},
    "FASTER_LIGHT_BF16": {"color": "#E69F00", "ls": ":", "label": "bfloat16"},
}
LOSSES = {
    "FREE": {"color": "#0072B2", "ls": "-", "label": "direct"},
    "LOG": {"color": "#D55E00", "ls": "-", "label": "log-scale"},
    "FAST": {"color": "#0072B2", "ls": "--", "label": "direct, 5 × LR"},
    "LOG_FAST": {"color": "#D55E00", "ls": "--", "label": "log-scale, 5 × LR"},
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, seed, step, value."""
    table = tables["symmetry_stress"]
    parts = []
    for arm in STREAM:
        norms = np.exp(symmetry.residual(table, arm)).rename("value").reset_index()
        parts.append(norms.assign(panel="residual", arm=arm))
    losses = table.pick(stat="train_loss", arm=tuple(LOSSES))
    losses = in_bins(losses, table.settings["probes"]["every"])
    means = losses.groupby(["arm", "seed", "step"], as_index=False)["value"].mean()
    parts.append(means.assign(panel="loss"))
    columns = ["panel", "arm", "seed", "step", "value"]
    return pd.concat(parts)[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, (left, right) = page(1, 2, 3.2, below=0.05, w_pad=0.05)
    for axis, panel, looks in ((left, "residual", STREAM), (right, "loss", LOSSES)):
        each(axis, numbers[numbers["panel"] == panel], "step", looks)
        axis.set_xlabel("step")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(looks) // 2)
    norm, loss = "norm of the residual stream", "training loss (nats per token)"
    label(left, "a   Residual stream, last layer", yscale="log", ylabel=norm)
    label(right, "b   Direct and log-scale, no weight decay", ylabel=loss)
    return caption(figure, context)
