"""Figure 8 (appendix B): block outputs, matrix norms and what grows in their place, against S.

Columns: MLP, SSM, attention, embedding. Top: norms of the blocks' outputs (geometric mean over
layers) and of the embedding's. Middle: matrix norms (geometric mean over layers and matrices,
merged ones as one). Bottom: multipliers, conv1d, D, and the loss after the decay. The y axis is
shared along each row, but for the loss. Lines are medians, bands the range of seeds. Drawn is what
is judged; the csv has every S.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import each, judged_alone, s_axis
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_COLOURS, plain_log_axis
from analysis.quantities.mlp_scale import ARMS, MlpSweep
from analysis.tables.context import Context, stacked
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale",)
COLOURS = {False: ARM_COLOURS["FPN"], True: ARM_COLOURS["SPN"]}
NAMES = {False: "without multipliers", True: "three scalar multipliers"}
LINES = {
    "Adam": {"ls": "-", "marker": "o", "ms": 3},
    "Muon": {"ls": "--", "marker": "s", "ms": 3},
}
GUIDE = {"color": "#888888", "lw": 0.9, "ls": (0, (1, 1))}
COLUMNS = ("MLP", "SSM", "attention", "embedding")
# The label of each row of panels, and their titles.
ROWS = {
    "output": ("RMS of output", COLUMNS),
    "matrices": (r"$\|W\|$", COLUMNS),
    "rest": ("RMS", ("MLP multipliers", "conv1d", "D", "loss after decay")),
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: row, column, optimizer, learned, S, judged, seed, value."""
    sweep = MlpSweep(tables["mlp_scale"])
    parts = []
    for optimizer, arms in ARMS.items():
        for learned, arm in enumerate(arms):
            panels = {("output", block): sweep.output(arm, block) for block in COLUMNS}
            panels |= {("matrices", block): sweep.matrices(arm, block) for block in COLUMNS}
            if learned:
                panels["rest", "MLP"] = sweep.multiplier(arm)
            panels["rest", "SSM"] = sweep.table(arm, "ssm.conv", "weight_norm")
            panels["rest", "attention"] = sweep.table(arm, "ssm.D", "weight_norm")
            panels["rest", "embedding"] = sweep.loss(arm)
            where = {"optimizer": optimizer, "learned": bool(learned)}
            for (row, column), values in panels.items():
                parts.append(stacked(values, row=row, column=column, **where))
    rows = pd.concat(parts).astype({"S": float})
    rows["judged"] = rows["S"].isin(sweep.judged(criteria_of("mlp_scale")["M4"]))
    columns = ["row", "column", "optimizer", "learned", "S", "judged", "seed", "value"]
    return rows[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Three rows of four panels."""
    figure, axes = page(3, 4, 5.6, w_pad=0.03, h_pad=0.05)
    panels = dict(tuple(judged_alone(numbers).groupby(["row", "column"])))
    looks = {
        (optimizer, learned): {"color": colour, **line}
        for optimizer, line in LINES.items()
        for learned, colour in COLOURS.items()
    }
    letters = iter("abcdefghijkl")
    for line, (row, (name, titles)) in zip(axes, ROWS.items(), strict=True):
        for axis, column, title in zip(line, COLUMNS, titles, strict=True):
            each(axis, panels[row, column], "S", looks, by=["optimizer", "learned"])
            s_axis(axis, panels[row, column], r"norm scale $S$" if row == "rest" else "")
            label(
                axis,
                f"{next(letters)}   {title}",
                yscale="linear" if title == "loss after decay" else "log",
            )
        line[0].set_ylabel(name)
    for axis in (*axes[1], *axes[2, :3]):
        plain_log_axis(axis)
    axes[2, 3].set_ylabel("nats per token", labelpad=0)
    for shared in (axes[0], axes[1], axes[2, :3]):
        _share(shared)
    for axis, row, power in ((axes[1, 0], "matrices", 1.0), (axes[2, 0], "rest", -1.0)):
        _guide(axis, panels[row, "MLP"], power)
    handles = [key(NAMES[learned], color=colour) for learned, colour in COLOURS.items()]
    handles += [key(optimizer, **line) for optimizer, line in LINES.items()]
    handles += [key(r"$\propto S$, $\propto 1/S$", **GUIDE)]
    legend_below(figure, handles, 5)
    return caption(figure, context, "S: norm scale of the MLP; bands: range of seeds")


def _share(axes) -> None:
    """One range for all of ``axes``."""
    limits = np.array([axis.get_ylim() for axis in axes])
    for axis in axes:
        axis.set_ylim(limits.min(), limits.max())


def _guide(axis, panel: pd.DataFrame, power: float) -> None:
    """A line ∝ S^power through the median at S = 1."""
    s = np.array([panel["S"].min(), panel["S"].max()])
    axis.plot(s, panel.loc[panel["S"] == 1, "value"].median() * s**power, **GUIDE, zorder=1)
