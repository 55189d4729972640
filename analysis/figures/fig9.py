"""Figure 9 (appendix B): the norms of the blocks' outputs layer by layer, against S.

Columns: MLP, SSM and attention; rows: without multipliers and with three scalar ones. A colour is
a layer, Adam solid, Muon dashed; medians over seeds, Adam's with the band that seeds span.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.drawing.axes import s_axis
from analysis.drawing.style import TEXT_WIDTH, caption
from analysis.quantities.mlp_scale import ARMS, BLOCKS, MlpSweep
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale",)
LINES = {"Adam": "-", "Muon": "--"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: block, optimizer, learned, layer, S, judged, seed, value."""
    table = tables["mlp_scale"]
    sweep = MlpSweep(table)
    judged = sweep.judged(criteria_of("mlp_scale")["M4"])
    found = []
    for optimizer, arms in ARMS.items():
        for learned, arm in enumerate(arms):
            for block, tensor in BLOCKS.items():
                rows = sweep.measured(arm, tensor, "activation_norm")
                found.append(rows.assign(block=block, optimizer=optimizer, learned=bool(learned)))
    found = pd.concat(found)
    found["judged"] = found["S"].isin(judged)
    columns = ["block", "optimizer", "learned", "layer", "S", "judged", "seed", "value"]
    return found[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two rows of three panels."""
    figure, axes = plt.subplots(2, 3, figsize=(TEXT_WIDTH, 4.2), sharex=True, sharey=True)
    figure.get_layout_engine().set(rect=(0, 0.1, 1, 0.9), w_pad=0.03, h_pad=0.05)
    layers = sorted(numbers["layer"].unique())
    colours = dict(zip(layers, plt.cm.viridis(np.linspace(0.05, 0.9, len(layers))), strict=True))
    for line, learned in zip(axes, (False, True), strict=True):
        for axis, block in zip(line, BLOCKS, strict=True):
            panel = numbers[(numbers["block"] == block) & (numbers["learned"] == learned)]
            for (optimizer, layer), rows in panel.groupby(["optimizer", "layer"]):
                grouped = rows.groupby("S")["value"]
                middle, colour = grouped.median(), colours[layer]
                style = {"color": colour, "ls": LINES[optimizer]}
                if optimizer == "Adam":
                    axis.plot(middle.index, middle, marker="o", ms=2.5, zorder=3, **style)
                    axis.fill_between(middle.index, grouped.min(), grouped.max(), color=colour,
                                      alpha=0.15, lw=0)  # fmt: skip
                else:
                    axis.plot(middle.index, middle, lw=0.9, zorder=2, **style)
            axis.set_yscale("log")
            s_axis(axis, panel, r"$S_{MLP}$" if learned else "", every=2)
            if not learned:
                axis.set_title(f"{block} output", loc="left")
        line[0].set_ylabel(("with" if learned else "without") + " multipliers\nRMS of output")
    handles = [Line2D([], [], color=colours[layer], label=f"layer {layer:.0f}") for layer in layers]
    handles += [Line2D([], [], color="black", ls=ls, label=name) for name, ls in LINES.items()]
    if numbers["judged"].any() and not numbers["judged"].all():
        handles.append(Patch(color="#efefef", label="not judged"))
    columns = min(len(handles), 8)
    figure.legend(handles=handles, loc="lower center", ncols=columns, bbox_to_anchor=(0.5, 0.03))
    caption(figure, context)
    return figure
