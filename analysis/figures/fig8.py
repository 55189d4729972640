"""Figure 8 (appendix B): block outputs, matrix norms and what grows in their place, against S.

Columns: MLP, SSM, attention, embedding. Top: norms of the blocks' outputs (geometric mean over
layers) and of the embedding's. Middle: matrix norms (geometric mean over layers and matrices,
merged ones as one). Bottom: multipliers, conv1d, D, and the loss after the decay. The y axis is
shared along each row, but for the loss. Shaded: S that are not judged.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.drawing.axes import s_axis, series
from analysis.drawing.style import ARM_COLOURS, TEXT_WIDTH, caption, plain_log_axis
from analysis.quantities.mlp_scale import ARMS, MlpSweep
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale",)
COLOURS = (ARM_COLOURS["FPN"], ARM_COLOURS["SPN"])
NAMES = ("without multipliers", "three scalar multipliers")
LINES = {"Adam": ("-", "o"), "Muon": ("--", "s")}
COLUMNS = ("MLP", "SSM", "attention", "embedding")


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: row, column, optimizer, learned, S, judged, seed, value."""
    table = tables["mlp_scale"]
    sweep = MlpSweep(table)
    judged = sweep.judged(criteria_of("mlp_scale")["M4"])
    found = []

    def add(row: str, column: str, optimizer: str, learned: bool, values: pd.DataFrame) -> None:
        long = values.rename_axis("seed").reset_index().melt("seed", var_name="S")
        found.append(long.assign(row=row, column=column, optimizer=optimizer, learned=learned))

    for optimizer, arms in ARMS.items():
        for learned, arm in enumerate(arms):
            where = (optimizer, bool(learned))
            for column in COLUMNS:
                add("output", column, *where, sweep.output(arm, column))
                add("matrices", column, *where, sweep.matrices(arm, column))
            if learned:
                add("rest", "MLP", *where, sweep.multiplier(arm))
            add("rest", "SSM", *where, sweep.table(arm, "ssm.conv", "weight_norm"))
            add("rest", "attention", *where, sweep.table(arm, "ssm.D", "weight_norm"))
            add("rest", "embedding", *where, sweep.loss(arm))
    found = pd.concat(found).astype({"S": float})
    found["judged"] = found["S"].isin(judged)
    columns = ["row", "column", "optimizer", "learned", "S", "judged", "seed", "value"]
    return found[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Three rows of four panels."""
    figure, axes = plt.subplots(3, 4, figsize=(TEXT_WIDTH, 5.6), sharey="none")
    figure.get_layout_engine().set(rect=(0, 0.075, 1, 0.925), w_pad=0.02, h_pad=0.05)
    titles = {
        "output": ("MLP output", "SSM output", "attention output", "embedding output"),
        "matrices": ("MLP matrices", "SSM matrices", "attention matrices", "embedding matrix"),
        "rest": ("MLP multipliers", "conv1d", "D", "loss after decay"),
    }
    labels = {"output": "RMS of output", "matrices": r"$\|W\|$", "rest": "RMS"}
    for line, (row, names) in zip(axes, titles.items(), strict=True):
        for axis, column, name in zip(line, COLUMNS, names, strict=True):
            panel = numbers[(numbers["row"] == row) & (numbers["column"] == column)]
            _panel(axis, panel)
            axis.set_title(name, loc="left")
            if row == "rest" and name != names[-1]:
                plain_log_axis(axis)
            elif row != "rest":
                axis.set_yscale("log")
        shared = line[:3] if row == "rest" else line
        _share(shared)
        line[0].set_ylabel(labels[row])
    axes[2, 3].set_ylabel("nats per token")
    for axis in axes[:2].flat:
        axis.set_xlabel("")
    _guides(axes, numbers)
    figure.legend(
        handles=_handles(numbers), loc="lower center", ncols=4, bbox_to_anchor=(0.5, 0.02)
    )
    caption(figure, context)
    return figure


def _panel(axis, panel: pd.DataFrame) -> None:
    for optimizer, (line, marker) in LINES.items():
        for learned, colour in enumerate(COLOURS):
            chosen = panel[(panel["optimizer"] == optimizer) & (panel["learned"] == bool(learned))]
            series(axis, chosen, "S", colour, line=line, marker=marker, ms=3)
    s_axis(axis, panel, r"$S_{MLP}$", every=2)


def _share(axes) -> None:
    """One range for all of ``axes``, labelled once."""
    low = min(axis.get_ylim()[0] for axis in axes)
    high = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(low, high)
    for axis in axes[1:]:
        axis.tick_params(labelleft=False, which="both")


def _guides(axes, numbers: pd.DataFrame) -> None:
    """Slope 1 through the MLP's matrices at S = 1, and −1 through its multipliers."""
    for axis, row, power in ((axes[1, 0], "matrices", 1.0), (axes[2, 0], "rest", -1.0)):
        panel = numbers[(numbers["row"] == row) & (numbers["column"] == "MLP")]
        s = np.array([panel["S"].min(), panel["S"].max()])
        at_one = panel.loc[panel["S"] == 1, "value"].median()
        axis.plot(s, at_one * s**power, color="#888888", lw=0.9, ls=(0, (1, 1)), zorder=1)


def _handles(numbers: pd.DataFrame) -> list:
    handles = [
        Line2D([], [], color=colour, label=name)
        for colour, name in zip(COLOURS, NAMES, strict=True)
    ]
    handles += [
        Line2D([], [], color="black", linestyle=line, marker=marker, ms=3, label=optimizer)
        for optimizer, (line, marker) in LINES.items()
    ]
    handles.append(
        Line2D([], [], color="#888888", lw=0.9, ls=(0, (1, 1)), label=r"$\propto S$, $\propto 1/S$")
    )
    if numbers["judged"].any() and not numbers["judged"].all():
        handles.append(Patch(color="#efefef", label="not judged"))
    return handles
