"""Figure 8 (appendix B): what changes with S in each block, in three rows of four panels.

All are set over the same seed at S = 1: the loss as a difference, norms as ratios. Columns are MLP,
SSM, attention and embedding. Rows: norms of outputs (geometric mean over layers); norms of matrices
(over layers and matrices, merged ones as one); the MLP's multipliers, the SSM's conv1d and D, and
the loss after the decay. Panels of a row share an axis, but for the MLP's matrices and multipliers
and for the loss. Lines are medians, bands the middle half of the seeds; for the loss they are means
and 95% intervals. Drawn is what is judged; the csv has every S, and every norm as it is.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import MultipleLocator, NullLocator

from analysis.drawing.axes import each, judged_alone, mean, name_ends, s_axis
from analysis.drawing.page import caption, headline, key, label, legend_below, sheet
from analysis.drawing.style import (
    ARM_LOOKS,
    BANDS_HALF,
    DASHED_KEYS,
    NEUTRAL,
    NO_MULTIPLIERS,
    OPTIMIZER_LOOKS,
    OPTIMIZER_NAMES,
    S_MEANS,
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
LINES = {
    (optimizer, learned): look | line
    for optimizer, line in OPTIMIZER_LOOKS.items()
    for learned, look in LOOKS.items()
}
NAMES = {False: NO_MULTIPLIERS, True: "three scalar multipliers"}
SHORT = {False: "none", True: "scalars"}
MIDDLE = (0.25, 0.75)
BEYOND = 1.6
GUIDE = {"color": "#888888", "lw": 0.9, "ls": (0, (1, 1))}
COLUMNS = ("MLP", "SSM", "attention", "embedding")
MULTIPLIERS = ("rest", "MLP")
LOSS = ("rest", "embedding")
# The message of each row, and its panels: row and column of the csv, and the title.
ROWS = {
    "Without multipliers the outputs of MLP, SSM and attention rise by S = 8; with them they\n"
    "hardly grow, but for AdamW's MLP, whose layers part (figure 9 b)": {
        ("output", "MLP"): "MLP output",
        ("output", "SSM"): "SSM output",
        ("output", "attention"): "attention output",
        ("output", "embedding"): "embedding output",
    },
    "The MLP's matrices grow with S in all arms, attention's by a quarter without multipliers": {
        ("matrices", "MLP"): r"MLP: $\|W\|$",
        ("matrices", "SSM"): r"SSM: $\|W\|$",
        ("matrices", "attention"): r"attention: $\|W\|$",
        ("matrices", "embedding"): r"embedding: $\|W\|$",
    },
    "The MLP's multipliers fall as its matrices grow; without them D and the loss rise more": {
        MULTIPLIERS: "MLP: $|s|$",
        ("rest", "SSM"): r"SSM: $\|$conv1d$\|$",
        ("rest", "attention"): r"SSM: $\|D\|$",
        LOSS: "Loss − that at S = 1",
    },
}
# Panels that share a logarithmic axis; the loss has a linear one of its own.
SHARED = (
    [("output", column) for column in COLUMNS],
    [("matrices", "MLP")],
    [("matrices", column) for column in COLUMNS[1:]],
    [MULTIPLIERS],
    [("rest", "SSM"), ("rest", "attention")],
)


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
    """Three rows of four panels under their messages."""
    figure = sheet(6.4, w_pad=0.03, h_pad=0.03)
    shown = judged_alone(numbers)
    panels = dict(tuple(_over_one(shown).groupby(["row", "column"])))
    letters, axes = iter("abcdefghijkl"), {}
    for part, (message, places) in zip(figure.subfigures(len(ROWS), 1), ROWS.items(), strict=True):
        headline(part, message, context)
        for axis, (which, title) in zip(part.subplots(1, 4), places.items(), strict=True):
            axes[which] = axis
            if which == LOSS:
                ends = _losses(axis, panels[which])
            else:
                each(axis, panels[which], "S", LINES, by=["optimizer", "learned"], band=MIDDLE)
            s_axis(axis, panels[which], r"norm scale $S$" if which[0] == "rest" else "")
            axis.axhline(0 if which == LOSS else 1, **NEUTRAL)
            label(axis, f"{next(letters)}   {title}")
    for which, power in ((("matrices", "MLP"), 1.0), (MULTIPLIERS, -1.0)):
        _guide(axes[which], panels[which], power)
        axes[which].set_xlim(right=BEYOND * panels[which]["S"].max())
    for group in SHARED:
        _share([axes[which] for which in group])
    for places in ROWS.values():
        axes[next(iter(places))].set_ylabel("over S = 1")
    axes[LOSS].set_ylabel("Δ loss (nats)")
    _dead(axes["output", "MLP"], panels["output", "MLP"])
    handles = [key(NAMES[learned], **look) for learned, look in LOOKS.items()]
    handles += [
        key(OPTIMIZER_NAMES[name], **{"marker": "o", "ms": 3} | line)
        for name, line in OPTIMIZER_LOOKS.items()
    ]
    handles += [key(r"$\propto S$, $\propto 1/S$", **GUIDE)]
    legend_below(figure, handles, 5, **DASHED_KEYS)
    note = (
        f"{S_MEANS}, of the MLP\n"
        "all norms: geometric means over layers, in e to h over matrices too; ‖ ‖: weights' RMS"
    )
    if numbers["seed"].nunique() > 1:
        note += f"\n{BANDS_HALF}, some narrower than the markers"
        note += "; l: means with 95% intervals"
    caption(figure, context, f"{note}{_beyond(numbers, shown)}")
    figure.get_layout_engine().execute(figure)  # names keep apart by the axis' height
    name_ends(axes[LOSS], ends)
    return figure


def _losses(axis, panel: pd.DataFrame) -> dict[str, tuple[float, str]]:
    """Means with 95% intervals; returns what ``name_ends`` wants."""
    groups, ends = dict(tuple(panel.groupby(["optimizer", "learned"]))), {}
    for (optimizer, learned), look in LINES.items():
        if (optimizer, learned) in groups:
            means = mean(axis, groups[optimizer, learned], "S", **look)
            name = f"{OPTIMIZER_NAMES[optimizer]},\n{SHORT[learned]}"
            ends[name] = means.iloc[-1], shade(look["color"], -0.25)
    return ends


def _over_one(rows: pd.DataFrame) -> pd.DataFrame:
    """Norms over those of the same seed at S = 1, losses less theirs."""
    same = ["row", "column", "optimizer", "learned", "seed"]
    base = rows[rows["S"] == 1].set_index(same)["value"].rename("base")
    rows = rows.join(base, on=same, how="inner")
    loss = (rows["row"] == LOSS[0]) & (rows["column"] == LOSS[1])
    change = np.where(loss, rows["value"] - rows["base"], rows["value"] / rows["base"])
    return rows.assign(value=change)


def _beyond(numbers: pd.DataFrame, shown: pd.DataFrame) -> str:
    """The S that are left out, on either side."""
    sides = [f"S < {shown['S'].min():g}"] if numbers["S"].min() < shown["S"].min() else []
    sides += [f"S > {shown['S'].max():g}"] if numbers["S"].max() > shown["S"].max() else []
    return f"\nnot drawn: {' and '.join(sides)} (not judged)" if sides else ""


def _dead(axis, panel: pd.DataFrame) -> None:
    """Words where a geometric mean over layers halves: one of them hardly puts out anything."""
    own = panel[(panel["optimizer"] == "Adam") & panel["learned"]]
    middle = own.groupby("S")["value"].median()
    if len(middle) > 1 and middle.iloc[-1] < 0.5 * middle.iloc[-2]:
        said = f"AdamW, S = {middle.index[-1]:g}:\none layer ≈ 0\n(figure 9 b)"
        axis.text(0.04, 0.03, said, transform=axis.transAxes, fontsize=SMALL,
                  color=shade(LOOKS[True]["color"], -0.25), linespacing=1.05)  # fmt: skip


def _share(axes) -> None:
    """One logarithmic range for all of ``axes``, with its numbers at the first."""
    for axis in axes:
        plain_log_axis(axis)
    limits = np.array([axis.get_ylim() for axis in axes])
    span = limits.max() / limits.min()
    for axis in axes:
        axis.set_ylim(limits.min(), limits.max())
        if span < 2.5:
            axis.yaxis.set_major_locator(MultipleLocator(0.1 if span < 1.4 else 0.2))
            axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter("×{x:.3g}")
        axis.tick_params(labelleft=axis is axes[0])


def _guide(axis, panel: pd.DataFrame, power: float) -> None:
    """A line ∝ S^power through 1 at S = 1, and beyond the last S, where no line hides it."""
    s = np.array([panel["S"].min(), BEYOND * panel["S"].max()])
    axis.plot(s, s**power, **GUIDE, zorder=1)
