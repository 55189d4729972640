"""Figure 9 (appendix B): the norms of the outputs of MLP and SSM layer by layer, against S.

Rows: MLP and SSM, of which claims ask whether layers behave alike. Columns: Adam and Muon, each
without multipliers and with three scalar ones. A colour is a layer: the median over seeds, and a
faint point for each seed, on the axis where the seed lies below it. A median a hundred times below
all others is a mark at the axis, and its value is written. Drawn is what is judged; the csv has
every S, and attention's outputs.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pandas as pd

from analysis.drawing.axes import each, judged_alone, s_axis
from analysis.drawing.page import caption, key, label, legend_below, sheet
from analysis.drawing.style import (
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
# How far to each side the layers' seeds stand, in powers of two.
APART = 0.1
DRAWN = ("MLP", "SSM")
MESSAGES = {
    "MLP": "Without multipliers all of the MLP's layers follow S; with Muon multipliers hold them",
    "SSM": "The SSM's layers follow the MLP's, unless multipliers hold it",
}
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
    """Two rows of four panels, the layers' looks below."""
    figure = sheet(3.9, w_pad=0.02, h_pad=0.03)
    shown = judged_alone(numbers)
    looks = _looks(sorted(shown["layer"].unique()))
    letters = iter("abcdefgh")
    arms = [(optimizer, learned) for optimizer in ARMS for learned in NAMES]
    for part, block in zip(figure.subfigures(len(DRAWN), 1), DRAWN, strict=True):
        part.suptitle(MESSAGES[block], x=0.01, ha="left", fontsize=7.5, weight="bold")
        line = part.subplots(1, len(arms), sharey=True)
        for axis, (optimizer, learned) in zip(line, arms, strict=True):
            of_arm = (shown["optimizer"] == optimizer) & (shown["learned"] == learned)
            panel = shown[of_arm & (shown["block"] == block)]
            each(axis, panel, "S", looks, by="layer", band=None)
            s_axis(axis, panel, r"norm scale $S$ of the MLP")
            label(axis, f"{next(letters)}   {OPTIMIZER_NAMES[optimizer]},\n{NAMES[learned]}")
        _cut(line, shown[shown["block"] == block], looks)
        for axis, (optimizer, learned) in zip(line, arms, strict=True):
            of_arm = (shown["optimizer"] == optimizer) & (shown["learned"] == learned)
            _seeds(axis, shown[of_arm & (shown["block"] == block)], looks)
        line[0].set_ylabel(f"{block} output (RMS)")
    legend_below(figure, [key(f"layer {layer:.0f}", **look) for layer, look in looks.items()], 6)
    note = "lines: medians; faint points: seeds, those on the axis lie below it"
    return caption(figure, context, note if numbers["seed"].nunique() > 1 else "")


def _seeds(axis, panel: pd.DataFrame, looks) -> None:
    """A point for each seed, layers beside each other; what lies below the axis stands there."""
    apart = np.linspace(-APART, APART, len(looks)) if len(looks) > 1 else [0.0]
    for (layer, look), shift in zip(looks.items(), apart, strict=True):
        rows = panel[panel["layer"] == layer]
        values = rows["value"].clip(lower=axis.get_ylim()[0])
        points = {"ls": "", "ms": 1.7, "mew": 0, "alpha": 0.45, "zorder": 2, "clip_on": False}
        axis.plot(rows["S"] * 2.0**shift, values, **look | points)


def _looks(layers: list[float]) -> dict[float, dict]:
    """By layer a colour from light to dark, and a marker; the palest of the ramp is left out."""
    colours, markers = ramp(len(layers) + 1)[1:], itertools.cycle("os^D")
    return {
        layer: {"color": colour, "marker": marker, "ms": 3, "lw": 1.0}
        for layer, colour, marker in zip(layers, colours, markers, strict=False)
    }


def _cut(line, rows: pd.DataFrame, looks) -> None:
    """The logarithmic y axis of a row of panels; a median far below all others does not set it."""
    medians = rows.groupby(["optimizer", "learned", "layer", "S"])["value"].median().sort_values()
    below = medians[medians < 0.01 * medians.iloc[1]]
    low, high = medians.drop(below.index).min() / 3, rows["value"].max()
    line[0].set_ylim(low, 1.3 * high)
    plain_log_axis(line[0])
    told: Counter = Counter()
    for (optimizer, learned, layer, s), value in below.items():
        axis = line[2 * list(ARMS).index(optimizer) + learned]
        colour = shade(looks[layer]["color"], -0.2)
        axis.plot(s, low, "v", color=colour, ms=5, clip_on=False, zorder=5)
        said = f"▼ layer {layer:.0f}: {value:.0e}".replace("e-0", "e-")
        axis.text(0.04, 0.97 - 0.13 * told[axis], said, transform=axis.transAxes, va="top",
                  color=colour, fontsize=SMALL)  # fmt: skip
        told[axis] += 1
