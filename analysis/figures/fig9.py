"""Figure 9 (appendix B): the norms of the blocks' outputs layer by layer, against S.

Rows: MLP, SSM and attention. Columns: Adam and Muon, each without multipliers and with three scalar
ones. A colour is a layer: the median over seeds, with the middle half of the seeds. A median a
hundred times below all others is written beside a mark at the axis. Drawn is what is judged; the
csv has every S.
"""

from __future__ import annotations

import itertools

import pandas as pd

from analysis.drawing.axes import each, judged_alone, s_axis
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import (
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
    """Three rows of four panels, the layers' looks below."""
    figure, axes = page(3, 4, 5.1, w_pad=0.03, h_pad=0.04, sharex=True, sharey="row")
    shown = judged_alone(numbers)
    looks = _looks(sorted(shown["layer"].unique()))
    letters = iter("abcdefghijkl")
    arms = [(optimizer, learned) for optimizer in ARMS for learned in NAMES]
    for row, (line, block) in enumerate(zip(axes, BLOCKS, strict=True)):
        for axis, (optimizer, learned) in zip(line, arms, strict=True):
            of_arm = (shown["optimizer"] == optimizer) & (shown["learned"] == learned)
            panel = shown[of_arm & (shown["block"] == block)]
            each(axis, panel, "S", looks, by="layer", band=(0.25, 0.75))
            s_axis(axis, panel, r"norm scale $S$" if row == len(BLOCKS) - 1 else "")
            title = f"{OPTIMIZER_NAMES[optimizer]},\n{NAMES[learned]}" if row == 0 else ""
            label(axis, f"{next(letters)}   {title}")
        _cut(line, shown[shown["block"] == block], looks)
        line[0].set_ylabel(f"RMS norm of {block} output")
    legend_below(figure, [key(f"layer {layer:.0f}", **look) for layer, look in looks.items()], 6)
    return caption(figure, context, f"S: norm scale of the MLP; {BANDS_HALF}")


def _looks(layers: list[float]) -> dict[float, dict]:
    """By layer a colour from light to dark, and a marker."""
    colours, markers = ramp(len(layers)), itertools.cycle("os^D")
    return {
        layer: {"color": colour, "marker": marker, "ms": 3}
        for layer, colour, marker in zip(layers, colours, markers, strict=False)
    }


def _cut(line, rows: pd.DataFrame, looks) -> None:
    """The logarithmic y axis of a row of panels; a median far below all others does not set it."""
    medians = rows.groupby(["optimizer", "learned", "layer", "S"])["value"].median().sort_values()
    below = medians[medians < 0.01 * medians.iloc[1]]
    low, high = medians.drop(below.index).min() / 3, rows["value"].max()
    low /= 4 if len(below) else 1  # room for what is written there
    line[0].set_ylim(low, 1.3 * high)
    plain_log_axis(line[0])
    for (optimizer, learned, layer, s), value in below.items():
        axis = line[2 * list(ARMS).index(optimizer) + learned]
        colour = shade(looks[layer]["color"], -0.2)
        axis.plot(s, low, "v", color=colour, ms=5, clip_on=False, zorder=5)
        said = f"layer {layer:.0f}: {value:.0e}".replace("e-0", "e-")
        axis.annotate(said, (s, low), (-18, 2), textcoords="offset points", ha="right",
                      va="bottom", color=colour, fontsize=SMALL)  # fmt: skip
