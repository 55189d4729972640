"""Figure 9 (appendix B): the norms of the blocks' outputs layer by layer, against S.

Rows: MLP, SSM and attention. Columns: Adam and Muon, each without multipliers and with three scalar
ones. A colour is a layer: the median over seeds, with the band that seeds span. Drawn is what is
judged; the csv has every S.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis.drawing.axes import judged_alone, median, s_axis
from analysis.drawing.page import caption, key, legend_below, page
from analysis.quantities.mlp_scale import ARMS, BLOCKS, MlpSweep
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale",)
NAMES = {False: "without multipliers", True: "with multipliers"}


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
    figure, axes = page(3, 4, 5.2, below=0.085, w_pad=0.03, h_pad=0.04, sharex=True, sharey="row")
    shown = judged_alone(numbers)
    layers = sorted(shown["layer"].unique())
    colours = dict(zip(layers, plt.cm.viridis(np.linspace(0.05, 0.9, len(layers))), strict=True))
    arms = [(optimizer, learned) for optimizer in ARMS for learned in NAMES]
    for row, (line, block) in enumerate(zip(axes, BLOCKS, strict=True)):
        for axis, (optimizer, learned) in zip(line, arms, strict=True):
            of_arm = (shown["optimizer"] == optimizer) & (shown["learned"] == learned)
            panel = shown[of_arm & (shown["block"] == block)]
            for layer, rows in panel.groupby("layer"):
                look = {"color": colours[layer], "marker": "o", "ms": 2.5}
                median(axis, rows, "S", alpha=0.15, **look)
            axis.set_yscale("log")
            s_axis(axis, panel, r"$S_{MLP}$" if row == len(BLOCKS) - 1 else "")
            if row == 0:
                axis.set_title(f"{optimizer}\n{NAMES[learned]}")
        line[0].set_ylabel(f"{block} output, RMS")
    handles = [key(f"layer {layer:.0f}", color=colour) for layer, colour in colours.items()]
    legend_below(figure, handles, min(len(handles), 8))
    return caption(figure, context, "median and range of seeds")
