"""Figure 3 of the second paper: weight decay of scale vectors.

Loss after the decay of the LR, differences paired by seed; left of 0 is better. With decay on
vectors of one side less without, mean of the two settings of the other side. Seeds of short runs
alone, of which SV5b and SV6b judge, have rows of their own; with Muon they judge the median.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import dots
from analysis.drawing.designs import OPTIMIZERS
from analysis.drawing.gaps import by_stage, told_of_points, write_column
from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, NOT_JUDGED, SMALL
from analysis.quantities.vector_decay import decay_effect
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = {
    "sv_decay": ("MUON_*", "LONG_*", "ADAM_*", "FAST_*"),
    "sv_decay/short": "SV5b",
}
# Kind of runs, part, name, colour and marker.
ROWS = [
    ("MUON", "sv_decay", "Muon", OPTIMIZERS["Muon"], "s"),
    ("MUON", "sv_decay/short", "Muon, new seeds", OPTIMIZERS["Muon"], "s"),
    ("LONG", "sv_decay", "Muon, 3 × steps", OPTIMIZERS["Muon"], "D"),
    ("ADAM", "sv_decay", "AdamW", OPTIMIZERS["AdamW"], "o"),
    ("ADAM", "sv_decay/short", "AdamW, new seeds", OPTIMIZERS["AdamW"], "o"),
    ("FAST", "sv_decay", "AdamW, vectors 3 × LR", OPTIMIZERS["AdamW"], "^"),
]
SIDES = {"a": "input", "b": "output"}
TITLES = {
    "a": "a   Decay on inputs",
    "b": "b   Decay on outputs",
}
MESSAGE = (
    "On sixteen new seeds decay on input vectors raises the loss, with AdamW and Muon,\n"
    "that on output vectors with Muon alone; with Muon perhaps by less than matters"
)
_BELOW = 0.34
_ROBUST = {"Muon, new seeds"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    rows = []
    for panel, side in SIDES.items():
        for kind, part, name, *_ in ROWS:
            values = decay_effect(tables[part], kind, side).rename("value")
            if part != "sv_decay":
                values = values.drop(tables["sv_decay"].seeds, errors="ignore")
            rows.append(values.reset_index().assign(panel=panel, name=name))
    found = pd.concat(rows, ignore_index=True)
    return found[["panel", "name", "seed", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels above each other, on one axis."""
    panels = dict(tuple(numbers.groupby("panel")))
    figure, axes = page(2, 1, 4.1, h_pad=0.04, sharex=True)
    headline(figure, MESSAGE, context)
    low, high = numbers["value"].min(), numbers["value"].max()
    axes[0].set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    looks = {name: look for _, _, name, *look in ROWS if name in set(numbers["name"])}
    names = list(looks)
    matters = criteria_of("sv_decay")["SV6b"]["smallest_effect"]
    for axis, panel in zip(axes, SIDES, strict=True):
        named, hollow = by_stage(panels[panel], names)
        dots(
            axis,
            named,
            {name: colour for name, (colour, _) in looks.items()},
            markers={name: marker for name, (_, marker) in looks.items()},
            hollow=hollow,
            below=_BELOW,
            robust=_ROBUST,
        )
        axis.axvspan(-matters, matters, **NOT_JUDGED, lw=0, zorder=0)
        axis.axvline(0, **NEUTRAL)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0, labelsize=SMALL)
        write_column(axis, panels[panel], names, _ROBUST, head=panel == "a")
        label(axis, TITLES[panel])
        axis.set_ylim(-0.7, len(looks) - 0.55)
    axes[-1].set_xlabel("← better        loss with decay − loss without (nats)")
    said = "inputs: vectors in front of a matrix.   outputs: all others"
    legend_below(figure, [key(said, lw=0)], 1, handlelength=0, handletextpad=0)
    names_of_new = [name for _, part, name, *_ in ROWS if part != "sv_decay"]
    new = numbers.loc[numbers["name"].isin(names_of_new), "seed"].nunique()
    n = f"n = {len(context.seeds)} seeds, new seeds {new}" if new else ""
    note = "mean of both settings of the other side; "
    note += f"grey: within ± {matters:g}, less than matters\n{told_of_points(numbers, _ROBUST)}"
    return caption(figure, context, note, n)
