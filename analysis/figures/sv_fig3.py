"""Figure 3 of the second paper, and the last panel of its figure 5: weight decay of scale vectors.

Loss after the decay of the LR, differences paired by seed; left of 0 is better. a, b: with decay on
vectors of one side less without, mean of the two settings of the other side. c: with norms behind
matrices, and magnitude and direction apart.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import dots
from analysis.drawing.gaps import Comparison, draw_gaps, measured
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, SMALL
from analysis.quantities.vector_decay import decay_effect
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {
    "sv_decay": ("MUON_*", "LONG_*", "ADAM_*", "FAST_*", "DNP_OR_*"),
}
# By kind: name, colour and marker.
LOOKS = {
    "MUON": ("Muon", "#332288", "s"),
    "LONG": ("Muon, 3 × steps", "#332288", "D"),
    "ADAM": ("AdamW", "#B8860B", "o"),
    "FAST": ("AdamW, vectors 3 × LR", "#B8860B", "^"),
}
SIDES = {"a": "input", "b": "output"}
DNP = {
    "c": [
        Comparison(name, "sv_decay", f"DNP_OR_{arm}", "DNP_OR_NONE", "or")
        for name, arm in (("on inputs (IWD)", "INPUT"), ("on outputs", "OUTPUT"), ("on all", "ALL"))
    ]
}
TITLES = {
    "a": ("a   Decay on inputs", "loss with − without\n(nats)"),
    "b": ("b   Decay on outputs", "loss with − without\n(nats)"),
    "c": ("c   DNP with OR", "loss − without decay\n(nats)"),
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    rows = []
    for panel, side in SIDES.items():
        for kind, (name, *_) in LOOKS.items():
            values = decay_effect(tables["sv_decay"], kind, side).rename("value")
            rows.append(values.reset_index().assign(panel=panel, name=name))
    found = pd.concat([*rows, measured(tables, DNP)], ignore_index=True)
    return found[["panel", "name", "seed", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels side by side."""
    figure, axes = page(1, 3, 2.2, w_pad=0.03, width_ratios=[1.2, 0.8, 1.1])
    panels = dict(tuple(numbers.groupby("panel")))
    for axis, panel in zip(axes, SIDES, strict=False):
        values = panels[panel].groupby("name")["value"]
        named = {name: values.get_group(name) for name, *_ in LOOKS.values()}
        dots(
            axis,
            named,
            {name: colour for name, colour, _ in LOOKS.values()},
            markers={name: marker for name, _, marker in LOOKS.values()},
        )
        axis.axvline(0, **NEUTRAL)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0, labelsize=SMALL)
    axes[1].tick_params(labelleft=False)
    draw_gaps(axes[2], panels["c"], DNP["c"])
    for axis, (title, words) in zip(axes, TITLES.values(), strict=True):
        label(axis, title, xlabel=words)
    said = "left of 0 is better.   inputs: vectors in front of a matrix.   outputs: all others"
    legend_below(figure, [key(said, lw=0)], 1, handlelength=0, handletextpad=0)
    return caption(figure, context, "points: seeds; bars: means with 95% intervals")
