"""Figure 9 (appendix B): the norms of the outputs of MLP and SSM layer by layer, against S.

Rows: MLP and SSM, of which claims ask whether layers behave alike. Columns: Adam and Muon, each
without multipliers and with three scalar ones. A colour is a layer: the median over seeds, and a
faint point for each seed. The value of a median a hundred times below all others is written, and
its panel has a longer axis of its own. Drawn is what is judged; the csv has every S, and
attention's outputs.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullLocator

from analysis.drawing.axes import each, judged_alone, s_axis
from analysis.drawing.page import caption, key, legend_below, sheet
from analysis.drawing.style import (
    ARM_COLOURS,
    NO_MULTIPLIERS,
    OPTIMIZER_NAMES,
    SMALL,
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
# The message of each row.
MESSAGES = {
    "MLP": "Without multipliers all MLP outputs grow with S; under Muon, multipliers hold them",
    "SSM": "Without multipliers SSM outputs grow too by S = 4 and 8; with them they grow far less",
}
NAMES = {False: NO_MULTIPLIERS, True: "scalar multipliers"}
COLOURS = {False: ARM_COLOURS["FPN"], True: ARM_COLOURS["SPN"]}


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
    figure = sheet(4.0, w_pad=0.02, h_pad=0.03)
    shown = judged_alone(numbers)
    looks = _looks(sorted(shown["layer"].unique()))
    letters = iter("abcdefgh")
    arms = [(optimizer, learned) for optimizer in ARMS for learned in NAMES]
    panels = dict(tuple(shown.groupby(["block", "optimizer", "learned"])))
    parts = figure.subfigures(len(MESSAGES), 1, height_ratios=[1.15, 1.0])
    longer: set[tuple[str, bool]] = set()  # arms of which a panel has an axis of its own
    for part, (block, message) in zip(parts, MESSAGES.items(), strict=True):
        part.suptitle(message, x=0.01, ha="left", fontsize=7.5, weight="bold")
        line = part.subplots(1, len(arms))
        first, last = block == next(iter(MESSAGES)), block == next(reversed(MESSAGES))
        for axis, (optimizer, learned) in zip(line, arms, strict=True):
            panel = panels[block, optimizer, learned]
            each(axis, panel, "S", looks, by="layer", band=None)
            _seeds(axis, panel, looks)
            s_axis(axis, panel, r"norm scale $S$" if last else "")
            arm = f"   {OPTIMIZER_NAMES[optimizer]},\n{NAMES[learned]}" if first else ""
            colour = shade(COLOURS[learned], -0.2)
            axis.set_title(f"{next(letters)}{arm}", loc="left", color=colour)
        line[0].set_ylabel(f"{block} output (RMS)")
        axes = dict(zip(arms, line, strict=True))
        own = _name_dead(axes, shown[shown["block"] == block], looks)
        longer |= own
        _share(axes, own, named={arms[0]} | longer)
    legend_below(figure, [key(f"layer {layer:.0f}", **look) for layer, look in looks.items()], 6)
    note = "S: norm scale of the MLP's matrices"
    several = numbers["seed"].nunique() > 1
    return caption(figure, context, note + "; lines: medians; faint points: seeds" * several)


def _seeds(axis, panel: pd.DataFrame, looks) -> None:
    """A point for each seed, layers beside each other."""
    apart = np.linspace(-APART, APART, len(looks)) if len(looks) > 1 else [0.0]
    for (layer, look), shift in zip(looks.items(), apart, strict=True):
        rows = panel[panel["layer"] == layer]
        points = {"ls": "", "ms": 1.7, "mew": 0, "alpha": 0.45, "zorder": 2, "clip_on": False}
        axis.plot(rows["S"] * 2.0**shift, rows["value"], **look | points)


def _looks(layers: list[float]) -> dict[float, dict]:
    """By layer a colour from light to dark, and a marker; the palest of the ramp is left out."""
    colours, markers = ramp(len(layers) + 1)[1:], itertools.cycle("os^D")
    return {
        layer: {"color": colour, "marker": marker, "ms": 3, "lw": 1.0}
        for layer, colour, marker in zip(layers, colours, markers, strict=False)
    }


def _share(axes: dict, own: set, named: set) -> None:
    """A logarithmic range for all axes but those of ``own``; numbers at those ``named``."""
    for arm, axis in axes.items():
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(numticks=6))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.tick_params(labelleft=arm in named)
    limits = np.array([axis.get_ylim() for arm, axis in axes.items() if arm not in own])
    for arm, axis in axes.items():
        if arm in own:
            axis.text(0.04, 0.03, "longer axis", transform=axis.transAxes, fontsize=SMALL,
                      color="#555555")  # fmt: skip
        else:
            axis.set_ylim(limits.min(), limits.max())


def _name_dead(axes: dict, rows: pd.DataFrame, looks) -> set[tuple[str, bool]]:
    """The value of each median that lies a hundred times below all others, beside it.

    Returns the arms that have one.
    """
    medians = rows.groupby(["optimizer", "learned", "layer", "S"])["value"].median().sort_values()
    below = medians[medians < 0.01 * medians.iloc[1]]
    for (optimizer, learned, layer, s), value in below.items():
        said = f"layer {layer:.0f}:\n{value:.0e}".replace("e-0", "e-")
        axes[optimizer, learned].annotate(
            said, (s, value), (-6, 0), textcoords="offset points", ha="right", va="center",
            color=shade(looks[layer]["color"], -0.2), fontsize=SMALL, linespacing=1.05,
        )  # fmt: skip
    return {(optimizer, learned) for optimizer, learned, *_ in below.index}
