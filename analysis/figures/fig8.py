"""Figure 8 (appendix B): block outputs, matrix norms and what grows in their place, against S.

Columns: MLP, SSM, attention, embedding. Top: norms of the blocks' outputs (geometric mean over
layers) and of the embedding's. Middle: matrix norms (geometric mean over layers and matrices,
merged ones as one). Bottom: multipliers, conv1d, D, and the loss after the decay, which figure 1 f
has at smaller S too. The y axis is shared along each row, but for the loss. Lines are medians,
bands the middle half of the seeds. Drawn is what is judged; the csv has every S.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import each, judged_alone, s_axis
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import (
    ARM_LOOKS,
    BANDS_HALF,
    NO_MULTIPLIERS,
    OPTIMIZER_LOOKS,
    OPTIMIZER_NAMES,
    SMALL,
    plain_log_axis,
    shade,
)
from analysis.quantities.mlp_scale import ARMS, MlpSweep
from analysis.tables.context import Context, stacked
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale",)
LOOKS = {False: ARM_LOOKS["FPN"] | {"ms": 3}, True: ARM_LOOKS["SPN"] | {"ms": 3}}
NAMES = {False: NO_MULTIPLIERS, True: "three scalar multipliers"}
MIDDLE = (0.25, 0.75)
GUIDE = {"color": "#888888", "lw": 0.9, "ls": (0, (1, 1))}
COLUMNS = ("MLP", "SSM", "attention", "embedding")
# The label of each row of panels, and their titles.
ROWS = {
    "output": ("block output", COLUMNS),
    "matrices": (r"matrix $W$", ("", "", "", "")),
    "rest": ("other tensors", ("MLP multipliers", "conv1d", "D", "loss")),
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
    figure, axes = page(3, 4, 5.3, w_pad=0.03, h_pad=0.04)
    panels = dict(tuple(judged_alone(numbers).groupby(["row", "column"])))
    looks = {
        (optimizer, learned): look | line
        for optimizer, line in OPTIMIZER_LOOKS.items()
        for learned, look in LOOKS.items()
    }
    letters = iter("abcdefghijkl")
    for line, (row, (name, titles)) in zip(axes, ROWS.items(), strict=True):
        for axis, column, title in zip(line, COLUMNS, titles, strict=True):
            each(axis, panels[row, column], "S", looks, by=["optimizer", "learned"], band=MIDDLE)
            s_axis(axis, panels[row, column], r"norm scale $S$" if row == "rest" else "")
            label(
                axis,
                f"{next(letters)}   {title}",
                yscale="linear" if title == "loss" else "log",
            )
        line[0].set_ylabel(f"{name}\nRMS norm")
    axes[0, 0].margins(y=0.15)
    for axis in (*axes[0], *axes[1], *axes[2, :3]):
        plain_log_axis(axis)
    axes[2, 3].set_ylabel("nats after the decay", labelpad=1)
    for shared in (axes[0], axes[1], axes[2, :3]):
        _share(shared)
    for axis, row, power in ((axes[1, 0], "matrices", 1.0), (axes[2, 0], "rest", -1.0)):
        _guide(axis, panels[row, "MLP"], power)
    _dead(axes[0, 0], panels["output", "MLP"])
    handles = [key(NAMES[learned], **look) for learned, look in LOOKS.items()]
    handles += [
        key(OPTIMIZER_NAMES[name], **{"marker": "o", "ms": 3} | line)
        for name, line in OPTIMIZER_LOOKS.items()
    ]
    handles += [key(r"$\propto S$, $\propto 1/S$", **GUIDE)]
    legend_below(figure, handles, 5)
    note = f"S: norm scale of the MLP; l: the runs of figure 1 f; {BANDS_HALF}"
    return caption(figure, context, note)


def _dead(axis, panel: pd.DataFrame) -> None:
    """Words where a mean over layers falls tenfold, because one layer has no output any more."""
    own = panel[(panel["optimizer"] == "Adam") & panel["learned"]]
    middle = own.groupby("S")["value"].median()
    if len(middle) > 1 and middle.iloc[-1] < 0.2 * middle.iloc[-2]:
        axis.text(0.04, 0.03, "AdamW, S = 8: one\nlayer ≈ 0 (fig. 9 b)", transform=axis.transAxes,
                  fontsize=SMALL, color=shade(LOOKS[True]["color"], -0.25),
                  linespacing=1.05)  # fmt: skip


def _share(axes) -> None:
    """One range for all of ``axes``, with its numbers at the first."""
    limits = np.array([axis.get_ylim() for axis in axes])
    for axis in axes:
        axis.set_ylim(limits.min(), limits.max())
        axis.tick_params(labelleft=axis is axes[0])


def _guide(axis, panel: pd.DataFrame, power: float) -> None:
    """A line ∝ S^power through the median at S = 1."""
    s = np.array([panel["S"].min(), panel["S"].max()])
    axis.plot(s, panel.loc[panel["S"] == 1, "value"].median() * s**power, **GUIDE, zorder=1)
