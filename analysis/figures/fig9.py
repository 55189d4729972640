"""Figure 9 (appendix B): the norms of the blocks' outputs layer by layer, against S.

Rows: MLP and SSM, of which claims ask whether layers behave alike, and attention. Columns: Adam and
Muon, each without multipliers and with three scalar ones. A colour is a layer: the median over
seeds, and a faint point for each seed. A panel with a median a hundred times below all others has a
longer axis of its own, tinted, and a line where the axes of the others end. Written is how many
seeds lose a layer, as the note of M3 counts them (``switched_off``). Drawn is what is judged; the
csv has every S.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullLocator

from analysis.drawing.axes import each, judged_alone, s_axis
from analysis.drawing.page import caption, headline, key, legend_below, sheet
from analysis.drawing.style import (
    ARM_COLOURS,
    DASHED_KEYS,
    NO_MULTIPLIERS,
    OPTIMIZER_NAMES,
    S_MEANS,
    SMALL,
    ramp,
    shade,
)
from analysis.quantities.mlp_scale import ARMS, BLOCKS, MlpSweep, switched_off
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale",)
# How far to each side the outermost layers stand, in powers of two.
APART = 0.18
# Layers from light to dark, in colours that are no arm's; dashes and markers tell them apart too.
SHADES = ("#C9A0DC", "#A05CB8", "#6A3D9A", "#2B0A4D")
DASHES = ("-", (0, (4, 1)), (0, (4, 1, 1, 1)), "-")
# The message of each row.
MESSAGES = {
    "MLP": "Without multipliers all MLP outputs grow with S; with them Muon's hardly do,\n"
    "and with AdamW most seeds lose layer 1 at S = 8, while layer 0 grows",
    "SSM": "Without multipliers SSM outputs grow from S = 4 on; with them they grow far less.\n"
    "With AdamW some seeds lose layer 0 of the SSM at S = 8, without multipliers and with",
    "attention": "Without multipliers attention outputs grow from S = 4 on; with them far less",
}
NAMES = {False: NO_MULTIPLIERS, True: "scalar multipliers"}
LONGER = "#B0005A"  # of an axis with another scale than its neighbours'
COLOURS = {False: ARM_COLOURS["FPN"], True: ARM_COLOURS["SPN"]}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: block, optimizer, learned, layer, S, judged, seed, value, lost.

    ``lost`` is the number of seeds that lose the layer at the largest judged S.
    """
    sweep = MlpSweep(tables["mlp_scale"])
    judged = sweep.judged(criteria_of("mlp_scale")["M4"])
    points = judged or sorted(sweep.tables.scalars["S"].dropna().unique())
    parts = []
    for optimizer, arms in ARMS.items():
        for learned, arm in enumerate(arms):
            for block, tensor in BLOCKS.items():
                rows = sweep.measured(arm, tensor, "activation_norm")
                lost = rows["layer"].map(switched_off(sweep, arm, block, points))
                where = {"block": block, "optimizer": optimizer, "learned": bool(learned)}
                parts.append(rows.assign(**where, lost=lost))
    rows = pd.concat(parts)
    rows["judged"] = rows["S"].isin(judged)
    columns = ["block", "optimizer", "learned", "layer", "S", "judged", "seed", "value", "lost"]
    return rows[columns].sort_values(columns[:-2], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Three rows of four panels, the layers' looks below."""
    figure = sheet(6.8, w_pad=0.02, h_pad=0.03)
    shown = judged_alone(numbers)
    looks = _looks(sorted(shown["layer"].unique()))
    letters = iter("abcdefghijkl")
    arms = [(optimizer, learned) for optimizer in ARMS for learned in NAMES]
    panels = dict(tuple(shown.groupby(["block", "optimizer", "learned"])))
    parts = figure.subfigures(len(MESSAGES), 1)
    longer: set[tuple[str, bool]] = set()  # arms of which a panel has an axis of its own
    for part, (block, message) in zip(parts, MESSAGES.items(), strict=True):
        headline(part, message, context)
        line = part.subplots(1, len(arms))
        for axis, (optimizer, learned) in zip(line, arms, strict=True):
            panel = panels[block, optimizer, learned]
            apart = dict(zip(looks, np.linspace(-APART, APART, len(looks)), strict=True))
            panel = panel.assign(at=panel["S"] * 2.0 ** panel["layer"].map(apart))
            each(axis, panel, "at", looks, by="layer", band=None)
            _seeds(axis, panel, looks)
            s_axis(axis, panel, r"norm scale $S$" if block == list(MESSAGES)[-1] else "")
            arm = f"   {OPTIMIZER_NAMES[optimizer]},\n{NAMES[learned]}"
            colour = shade(COLOURS[learned], -0.2)
            axis.set_title(f"{next(letters)}{arm}", loc="left", color=colour)
        line[0].set_ylabel(f"{block} output (RMS)")
        axes = dict(zip(arms, line, strict=True))
        own = _with_dead(shown[shown["block"] == block])
        longer |= own
        # The scale of the others is named again behind a panel that has another.
        behind = {arms[place + 1] for place, arm in enumerate(arms[:-1]) if arm in longer}
        _share(axes, own, named={arms[0]} | longer | behind, said=f"{block} output")
        for arm, axis in axes.items():
            _name_lost(axis, panels[block, *arm], above=arm not in own)
    handles = [key(f"layer {layer:.0f}", **look) for layer, look in looks.items()]
    legend_below(figure, handles, 6, **DASHED_KEYS)
    note = f"{S_MEANS}, of the MLP"
    if numbers["seed"].nunique() > 1:
        note += "\nlines: medians; faint points: seeds; layers stand side by side at each S"
        note += "\na seed has lost a layer whose output is below a tenth of that at S = 1"
    if longer:
        note += "; dotted: where the other axes end"
    return caption(figure, context, note)


def _seeds(axis, panel: pd.DataFrame, looks) -> None:
    """A point for each seed, below the medians of its layer."""
    for layer, look in looks.items():
        rows = panel[panel["layer"] == layer]
        points = {"ls": "", "ms": 2.3, "mew": 0, "alpha": 0.5, "zorder": 2, "clip_on": False}
        axis.plot(rows["at"], rows["value"], **look | points)


def _looks(layers: list[float]) -> dict[float, dict]:
    """By layer a colour from light to dark, dashes and a marker."""
    shades = SHADES if len(layers) <= len(SHADES) else ramp(len(layers))
    looks = zip(layers, shades, DASHES * len(layers), "os^D" * len(layers), strict=False)
    return {
        layer: {"color": colour, "ls": dashes, "marker": marker, "ms": 3, "lw": 1.0}
        for layer, colour, dashes, marker in looks
    }


def _share(axes: dict, own: set, named: set, said: str) -> None:
    """A logarithmic range for all axes but those of ``own``; numbers at those ``named``.

    What is ``said`` of an axis is repeated at those of ``own``, which are longer.
    """
    for arm, axis in axes.items():
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(numticks=6))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.tick_params(labelleft=arm in named)
    limits = np.array([axis.get_ylim() for arm, axis in axes.items() if arm not in own])
    for arm, axis in axes.items():
        if arm in own:
            axis.set_ylabel(f"{said}, longer axis", color=LONGER)
            axis.axhline(limits.min(), color=LONGER, lw=0.8, ls=":", zorder=1)
            axis.tick_params(axis="y", colors=LONGER)
            axis.spines["left"].set_color(LONGER)
        else:
            axis.set_ylim(limits.min(), limits.max())


def _with_dead(rows: pd.DataFrame) -> set[tuple[str, bool]]:
    """The arms with a median that lies a hundred times below all others."""
    medians = rows.groupby(["optimizer", "learned", "layer", "S"])["value"].median().sort_values()
    below = medians[medians < 0.01 * medians.iloc[1]]
    return {(optimizer, learned) for optimizer, learned, *_ in below.index}


def _name_lost(axis, panel: pd.DataFrame, above: bool) -> None:
    """How many seeds lose which layers at the largest S, in the upper or lower left corner."""
    seeds, last = panel["seed"].nunique(), panel["S"].max()
    if seeds < 2:
        return
    lost = panel.groupby("layer")["lost"].first()
    lost = lost[lost > 0].sort_values(ascending=False)
    said = [f"layer {layer:.0f}: {count} of {seeds}" for layer, count in lost.items()]
    if said:
        axis.text(0.04, 0.97 if above else 0.03, "\n".join([f"seeds lost, S = {last:g}:", *said]),
                  transform=axis.transAxes, va="top" if above else "bottom", fontsize=SMALL,
                  linespacing=1.1)  # fmt: skip
