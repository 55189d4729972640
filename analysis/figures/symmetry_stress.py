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
from analysis.drawing.style import ARM_COLOURS, NEUTRAL, shade
from analysis.quantities import symmetry
from analysis.quantities.losses import in_bins
from analysis.tables.context import Context
from analysis.tables.find import EXPERIMENTS as FOLDER
from analysis.tables.results import Tables, stage_end
from lrm.plan.experiment import load

EXPERIMENTS = ("symmetry_stress",)
VECTOR, LOGARITHMS = ARM_COLOURS["VPN"], "#7B3294"
FAST_VECTOR, FAST_LOGARITHMS = shade(VECTOR, -0.5), shade(LOGARITHMS, 0.3)
# Colour of the line and its name; the twin in bfloat16 is dotted.
STREAM = {
    "FREE": (VECTOR, "LR {lr:g} (figure 4), λ = 0\n(bfloat16 lies under it)"),
    "FASTER": (FAST_VECTOR, "LR {lr:g}, λ = 0,\nfloat32"),
    "FASTER_LIGHT": (shade(VECTOR, 0.25), "LR {lr:g},\nλ = {weight_decay:g}"),
}
IN_BFLOAT16 = "LR {lr:g}, λ = 0,\nbfloat16"
TWIN = "_BF16"
LOSSES = {
    "FREE": ({"color": VECTOR, "lw": 1.4}, "direct,\nLR {lr:g}"),
    "LOG": ({"color": LOGARITHMS, "lw": 1.4, "ls": (0, (2, 2))}, "log-scale,\nLR {lr:g}"),
    "FAST": ({"color": FAST_VECTOR, "lw": 1.4}, "direct,\nLR {lr:g}"),
    "LOG_FAST": ({"color": FAST_LOGARITHMS, "lw": 1.4, "ls": (0, (2, 2))}, "log-scale,\nLR {lr:g}"),
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
    figure, (left, right) = page(1, 2, 2.6, w_pad=0.05)
    groups = dict(tuple(numbers.groupby(["panel", "arm"])))
    plan = planned("symmetry_stress", context)
    decays_from = stage_end(plan["FREE"])
    ends = {}
    for arm, (colour, name) in STREAM.items():
        for twin, look in ((arm, "-"), (f"{arm}{TWIN}", ":")):
            rows = groups["residual", twin]
            median(left, rows, "step", color=colour, ls=look)
            if twin == arm:
                said = name.format(**plan[arm]["multipliers"])
                ends[said] = end(rows, "step"), shade(colour, -0.2)
            elif arm == "FASTER":
                said = IN_BFLOAT16.format(**plan[arm]["multipliers"])
                ends[said] = end(rows, "step"), shade(colour, -0.2)
    norm = "RMS norm of the residual stream"
    label(left, "a   bfloat16 drifts further", yscale="log", xlabel="step", ylabel=norm)
    name_ends(left, ends, size=6.5)
    left.axvline(decays_from, **NEUTRAL, ls=":")
    left.legend(handles=[key("float32"), key("bfloat16", ls=":")], loc="upper left")
    ends = {}
    for arm, (look, name) in LOSSES.items():
        rows = groups["loss", arm]
        median(right, rows, "step", **look)
        ends[name.format(**plan[arm]["multipliers"])] = end(rows, "step"), look["color"]
    # The fall from the start would leave no room for the rest.
    losses = numbers[numbers["panel"] == "loss"]
    after = losses.loc[losses["step"] > losses["step"].min(), "value"]
    low, high = after.min(), after.max()
    right.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    loss = "training loss (nats per token)"
    label(right, "b   Logarithms: worse at a large LR", xlabel="step", ylabel=loss)
    name_ends(right, ends, size=6.5)
    right.axvline(decays_from, **NEUTRAL, ls=":")
    right.annotate("LR decay begins", (decays_from, 0.99), (-4, 0), ha="right", va="top",
                   xycoords=right.get_xaxis_transform(), textcoords="offset points",
                   fontsize=6.5, color="#555555")  # fmt: skip
    return caption(figure, context, "LR and λ: of the multipliers; lines: medians; bands: range")


def planned(experiment: str, context: Context) -> dict[str, dict]:
    """The settings of each arm of an experiment at the scale of what is drawn."""
    plan = load(FOLDER / experiment / "config.yaml")
    return {
        run.arm: run.settings.model_dump() for run in plan.runs(context.scale, context.seeds[:1])
    }
