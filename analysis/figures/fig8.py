"""Figure 8 (appendix B): block outputs, matrix norms and what grows in their place, against S.

Columns: MLP, SSM, attention. Top: norms of the blocks' outputs (geometric mean over layers).
Middle: matrix norms (geometric mean over layers and matrices, merged ones as one). Bottom:
multipliers, conv1d and D. The y axis is shared along each row. Right: the loss after the decay,
which figure 1 f has at smaller S too, and both norms of the embedding, which hardly move. Lines are
medians, bands the middle half of the seeds. Drawn is what is judged; the csv has every S.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import each, judged_alone, s_axis
from analysis.drawing.page import caption, key, label, legend_below, sheet
from analysis.drawing.style import (
    ARM_LOOKS,
    BANDS_HALF,
    NO_MULTIPLIERS,
    OPTIMIZER_LOOKS,
    OPTIMIZER_NAMES,
    SMALL,
    plain_log_axis,
    shade,
    widen,
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
    "output": ("block output", ("MLP", "SSM", "attention")),
    "matrices": (r"matrix $W$", ("", "", "")),
    "rest": ("other tensors", ("MLP multipliers", "conv1d", "D")),
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
    """Three rows of three panels; beside them the loss, and below it the embedding."""
    figure = sheet(5.3, w_pad=0.04, h_pad=0.04)
    grid = figure.add_gridspec(3, 4, width_ratios=[1, 1, 1, 1.25])
    panels = dict(tuple(judged_alone(numbers).groupby(["row", "column"])))
    looks = {
        (optimizer, learned): look | line
        for optimizer, line in OPTIMIZER_LOOKS.items()
        for learned, look in LOOKS.items()
    }
    letters = iter("abcdefghijk")

    def drawn(place, which: tuple[str, str], title: str, s: bool):
        axis = figure.add_subplot(place)
        each(axis, panels[which], "S", looks, by=["optimizer", "learned"], band=MIDDLE)
        s_axis(axis, panels[which], r"norm scale $S$" if s else "")
        label(axis, f"{next(letters)}   {title}")
        return axis

    axes = []
    for number, (row, (name, titles)) in enumerate(ROWS.items()):
        own = [
            drawn(grid[number, place], (row, COLUMNS[place]), title, s=row == "rest")
            for place, title in enumerate(titles)
        ]
        own[0].set_ylabel(f"{name}\nRMS norm")
        axes.append(own)
    axes[0][0].margins(y=0.15)
    for own in axes:
        for axis in own:
            plain_log_axis(axis)
        _share(own)
    drawn(grid[:2, 3], ("rest", "embedding"), "loss (nats)", s=False)
    embedding = drawn(grid[2, 3], ("output", "embedding"), "embedding", s=True)
    rows = panels["matrices", "embedding"]
    each(embedding, rows, "S", looks, by=["optimizer", "learned"], band=MIDDLE)
    plain_log_axis(embedding)
    widen(embedding, 1.0)
    for axis, row, power in ((axes[1][0], "matrices", 1.0), (axes[2][0], "rest", -1.0)):
        _guide(axis, panels[row, "MLP"], power)
    _dead(axes[0][0], panels["output", "MLP"])
    handles = [key(NAMES[learned], **look) for learned, look in LOOKS.items()]
    handles += [
        key(OPTIMIZER_NAMES[name], **{"marker": "o", "ms": 3} | line)
        for name, line in OPTIMIZER_LOOKS.items()
    ]
    handles += [key(r"$\propto S$, $\propto 1/S$", **GUIDE)]
    legend_below(figure, handles, 5)
    note = f"j: the runs of figure 1 f; k: output and $W$; {BANDS_HALF}"
    return caption(figure, context, note)


def _dead(axis, panel: pd.DataFrame) -> None:
    """Words where a mean over layers falls tenfold, because one layer has no output any more."""
    own = panel[(panel["optimizer"] == "Adam") & panel["learned"]]
    middle = own.groupby("S")["value"].median()
    if len(middle) > 1 and middle.iloc[-1] < 0.2 * middle.iloc[-2]:
        said = "AdamW, S = 8:\none layer ≈ 0\n(figure 9 b)"
        axis.text(0.04, 0.03, said, transform=axis.transAxes, fontsize=SMALL,
                  color=shade(LOOKS[True]["color"], -0.25), linespacing=1.05)  # fmt: skip


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
