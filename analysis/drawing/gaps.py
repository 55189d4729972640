"""Differences of losses from top to bottom, a line for each comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import dots
from analysis.drawing.designs import LOOKS
from analysis.drawing.style import NEUTRAL, SMALL
from analysis.quantities.designs import gap
from analysis.tables.results import Tables


@dataclass(frozen=True)
class Comparison:
    """Two arms of an experiment, what their difference is called, and the design of its look."""

    name: str
    experiment: str
    arm: str
    against: str
    design: str


def measured(tables: Mapping[str, Tables], panels: Mapping[str, Sequence[Comparison]]):
    """The differences of all panels as rows: panel, name, seed, value (nats per token)."""
    rows = []
    for panel, compared in panels.items():
        for each in compared:
            values = gap(tables[each.experiment], each.arm, each.against)
            rows.append(values.rename("value").reset_index().assign(panel=panel, name=each.name))
    return pd.concat(rows, ignore_index=True)[["panel", "name", "seed", "value"]]


def draw_gaps(axis, rows: pd.DataFrame, compared: Sequence[Comparison]) -> None:
    """``rows`` of one panel of ``measured``, in the order of ``compared``; left of 0 is better."""
    values = rows.groupby("name")["value"]
    named = {each.name: values.get_group(each.name) for each in compared}
    looks = {each.name: LOOKS[each.design] for each in compared}
    colours = {name: colour for name, (colour, _, _) in looks.items()}
    dots(axis, named, colours, markers={name: marker for name, (*_, marker) in looks.items()})
    axis.axvline(0, **NEUTRAL)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0, labelsize=SMALL)
    axis.xaxis.set_major_locator(MaxNLocator(3))
