"""Ours beside figure 4: multipliers under stress (section 4.1).

a: norm of the residual stream in two precisions, without weight decay on multipliers, at their LR
in figure 4 and at ten times it, and there with weight decay (held). b: training loss of direct and
of log-scale multipliers, at that LR and at five times it, means between probes. Lines are medians,
bands the range of seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import end, median, name_ends
from analysis.drawing.page import caption, key, label, page
from analysis.drawing.style import ARM_COLOURS, shade
from analysis.quantities import symmetry
from analysis.quantities.losses import in_bins
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("symmetry_stress",)
VECTOR, LOGARITHMS = ARM_COLOURS["VPN"], "#8C510A"
# Colour of the line and its name; the twin in bfloat16 is dotted.
STREAM = {
    "FREE": (VECTOR, "LR of figure 4"),
    "FASTER": (shade(VECTOR, -0.45), "LR × 10"),
    "FASTER_LIGHT": (shade(VECTOR, 0.45), "LR × 10,\nweight decay"),
}
TWIN = "_BF16"
LOSSES = {
    "FREE": ({"color": VECTOR, "lw": 2.2}, "direct"),
    "LOG": ({"color": LOGARITHMS, "ls": (0, (2, 2))}, "log-scale"),
    "FAST": ({"color": shade(VECTOR, -0.45), "lw": 2.2}, "direct, LR × 5"),
    "LOG_FAST": ({"color": shade(LOGARITHMS, -0.45), "ls": (0, (2, 2))}, "log-scale, LR × 5"),
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, seed, step, value."""
    table = tables["symmetry_stress"]
    parts = []
    for arm in STREAM:
        for twin in (arm, f"{arm}{TWIN}"):
            norms = np.exp(symmetry.residual(table, twin)).rename("value").reset_index()
            parts.append(norms.assign(panel="residual", arm=twin))
    losses = table.pick(stat="train_loss", arm=tuple(LOSSES))
    losses = in_bins(losses, table.settings["probes"]["every"])
    means = losses.groupby(["arm", "seed", "step"], as_index=False)["value"].mean()
    parts.append(means.assign(panel="loss"))
    columns = ["panel", "arm", "seed", "step", "value"]
    return pd.concat(parts)[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, (left, right) = page(1, 2, 2.5, w_pad=0.05)
    groups = dict(tuple(numbers.groupby(["panel", "arm"])))
    ends = {}
    for arm, (colour, name) in STREAM.items():
        for twin, look, precision in ((arm, "-", ""), (f"{arm}{TWIN}", ":", ", bfloat16")):
            rows = groups["residual", twin]
            median(left, rows, "step", color=colour, ls=look)
            if arm == "FASTER" or not precision:
                ends[f"{name}{precision}"] = end(rows, "step"), shade(colour, -0.2)
    norm = "norm of the residual stream (RMS)"
    label(left, "a   Residual stream, last layer", yscale="log", xlabel="step", ylabel=norm)
    name_ends(left, ends)
    left.legend(handles=[key("float32"), key("bfloat16", ls=":")], loc="upper left")
    ends = {}
    for arm, (look, name) in LOSSES.items():
        rows = groups["loss", arm]
        median(right, rows, "step", **look)
        ends[name] = end(rows, "step"), look["color"]
    # The fall from the start would leave no room for the rest.
    losses = numbers[numbers["panel"] == "loss"]
    after = losses.loc[losses["step"] > losses["step"].min(), "value"]
    low, high = after.min(), after.max()
    right.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    loss = "training loss (nats per token)"
    label(right, "b   Direct and log-scale", xlabel="step", ylabel=loss)
    name_ends(right, ends)
    return caption(figure, context)
