"""Figure 9 (appendix B): the norms of the blocks' outputs layer by layer, against S.

Rows: MLP, SSM and attention. Columns: Adam and Muon, each without multipliers and with three scalar
ones. A purple is a layer: the median over seeds, with the middle half of the seeds. A median a
hundred times below all others is written beside a mark at the axis. Drawn is what is judged; the
csv has every S.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import end, judged_alone, median, name_ends, s_axis
from analysis.drawing.page import caption, label, page
from analysis.drawing.style import (
    ARM_LOOKS,
    BANDS_HALF,
    NO_MULTIPLIERS,
    OPTIMIZER_NAMES,
    SMALL,
    plain_log_axis,
    ramp,
    shade,
)
from analysis.quantities.mlp_scale import ARMS, BLOCKS, MlpSweep
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale",)
NAMES = {False: NO_MULTIPLIERS, True: "scalar multipliers"}
MARKERS = {False: ARM_LOOKS["FPN"]["marker"], True: ARM_LOOKS["SPN"]["marker"]}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: block, optimizer, learned, layer, S, judged, seed, value."""
    sweep = MlpSweep(tables["mlp_scale"])
    parts = []
    for optimizer, arms in ARMS.items():
        for learned, arm in enumerate(arms):
            for block, tensor in BLOCKS.items():
                rows = sweep.measured(arm, tensor, "activation_norm")
                parts.append(rows.assign(block=block, optimizer=optimizer, learned=bool(learned)))
    rows = pd.concat(parts)
    rows["judged"] = rows["S"].isin(sweep.judged(criteria_of("mlp_scale")["M4"]))
    columns = ["block", "optimizer", "learned", "layer", "S", "judged", "seed", "value"]
    return rows[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Three rows of four panels."""
    figure, axes = page(3, 4, 4.9, w_pad=0.03, h_pad=0.04, sharex=True, sharey="row")
    shown = judged_alone(numbers)
    layers = sorted(shown["layer"].unique())
    colours = dict(zip(layers, ramp(len(layers)), strict=True))
    letters = iter("abcdefghijkl")
    arms = [(optimizer, learned) for optimizer in ARMS for learned in NAMES]
    for row, (line, block) in enumerate(zip(axes, BLOCKS, strict=True)):
        for axis, (optimizer, learned) in zip(line, arms, strict=True):
            of_arm = (shown["optimizer"] == optimizer) & (shown["learned"] == learned)
            panel, ends = shown[of_arm & (shown["block"] == block)], {}
            for layer, rows in panel.groupby("layer"):
                look = {"color": colours[layer], "marker": MARKERS[learned], "ms": 2.5}
                median(axis, rows, "S", band=(0.25, 0.75), **look)
                ends[f"layer {layer:.0f}"] = end(rows, "S"), colours[layer]
            s_axis(axis, panel, r"norm scale $S$" if row == len(BLOCKS) - 1 else "")
            title = f"{OPTIMIZER_NAMES[optimizer]},\n{NAMES[learned]}" if row == 0 else ""
            label(axis, f"{next(letters)}   {title}")
        _cut(line, shown[shown["block"] == block], colours)
        # What is left is the last panel's.
        name_ends(line[-1], {name: (y, shade(c, -0.2)) for name, (y, c) in ends.items()})
        line[0].set_ylabel(f"RMS norm of {block} output")
    return caption(figure, context, f"S: norm scale of the MLP; {BANDS_HALF}")


def _cut(line, rows: pd.DataFrame, colours) -> None:
    """The logarithmic y axis of a row of panels; a median far below all others does not set it."""
    medians = rows.groupby(["optimizer", "learned", "layer", "S"])["value"].median().sort_values()
    below = medians[medians < 0.01 * medians.iloc[1]]
    low, high = medians.drop(below.index).min() / 3, rows["value"].max()
    low /= 4 if len(below) else 1  # room for what is written there
    line[0].set_ylim(low, 1.3 * high)
    plain_log_axis(line[0])
    for (optimizer, learned, layer, s), value in below.items():
        axis = line[2 * list(ARMS).index(optimizer) + learned]
        colour = shade(colours[layer], -0.2)
        axis.plot(s, low, "v", color=colour, ms=5, clip_on=False, zorder=5)
        said = f"layer {layer:.0f}: {value:.0e}".replace("e-0", "e-")
        axis.annotate(said, (s, low), (-18, 2), textcoords="offset points", ha="right",
                      va="bottom", color=colour, fontsize=SMALL)  # fmt: skip
