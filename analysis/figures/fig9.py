"""Figure 9 (appendix B): the norms of the blocks' outputs layer by layer, against S.

Columns: MLP, SSM and attention; rows: without multipliers and with three scalar ones. A colour is
a layer, Adam solid, Muon dashed; medians over seeds, Adam's with the band that seeds span.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis.drawing.axes import median, s_axis
from analysis.drawing.page import caption, key, key_of_shade, label, legend_below, page
from analysis.quantities.mlp_scale import ARMS, BLOCKS, MlpSweep
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale",)
LOOKS = {
    "Adam": {"ls": "-", "marker": "o", "ms": 2.5, "alpha": 0.15},
    "Muon": {"ls": "--", "lw": 0.9, "zorder": 2, "band": None},
}


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
    """Two rows of three panels."""
    figure, axes = page(2, 3, 4.2, below=0.1, w_pad=0.03, h_pad=0.05, sharex=True, sharey=True)
    layers = sorted(numbers["layer"].unique())
    colours = dict(zip(layers, plt.cm.viridis(np.linspace(0.05, 0.9, len(layers))), strict=True))
    for line, learned in zip(axes, (False, True), strict=True):
        for axis, block in zip(line, BLOCKS, strict=True):
            panel = numbers[(numbers["block"] == block) & (numbers["learned"] == learned)]
            for (optimizer, layer), rows in panel.groupby(["optimizer", "layer"]):
                median(axis, rows, "S", color=colours[layer], **LOOKS[optimizer])
            axis.set_yscale("log")
            s_axis(axis, panel, r"$S_{MLP}$" if learned else "", every=2)
            if not learned:
                label(axis, f"{block} output")
        line[0].set_ylabel(("with" if learned else "without") + " multipliers\nRMS of output")
    handles = [key(f"layer {layer:.0f}", color=colour) for layer, colour in colours.items()]
    handles += [key(name, ls=look["ls"]) for name, look in LOOKS.items()]
    handles += key_of_shade(numbers)
    legend_below(figure, handles, min(len(handles), 8))
    return caption(figure, context)
