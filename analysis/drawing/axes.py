"""How a sweep of S is drawn: medians and seeds, the axis of S, what is not judged."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.style import power_of_two


def series(axis, frame: pd.DataFrame, x: str, colour: str, line: str = "-", **marker) -> None:
    """The median over seeds; with several seeds also every seed, and the band that they span."""
    if frame.empty:
        return
    grouped = frame.groupby(x)["value"]
    middle = grouped.median()
    axis.plot(middle.index, middle, color=colour, linestyle=line, zorder=3, **marker)
    if frame["seed"].nunique() > 1:
        axis.fill_between(middle.index, grouped.min(), grouped.max(), color=colour, alpha=0.2, lw=0)
        for _, seed in frame.groupby("seed"):
            seed = seed.sort_values(x)
            axis.plot(seed[x], seed["value"], color=colour, linestyle=line, lw=0.5, alpha=0.6)


def s_axis(axis, frame: pd.DataFrame, label: str, every: int = 1) -> None:
    """A logarithmic axis with ``every`` so many-th value of S named; grey where not judged."""
    values = sorted(frame["S"].unique())
    axis.set_xscale("log", base=4)
    named = values[::every]
    axis.set_xticks(named, [power_of_two(value) for value in named])
    axis.minorticks_off()
    shade(axis, frame)
    axis.set_xlabel(label)


def shade(axis, frame: pd.DataFrame) -> None:
    """Grey over the S that are not judged."""
    judged = frame.loc[frame["judged"], "S"]
    if judged.empty:
        return
    left, right = axis.get_xlim()
    axis.set_xlim(left, right)
    values = np.array(sorted(frame["S"].unique()))
    below, above = values[values < judged.min()], values[values > judged.max()]
    style = {"color": "#efefef", "lw": 0, "zorder": 0}
    if below.size:
        axis.axvspan(left, np.sqrt(below[-1] * judged.min()), **style)
    if above.size:
        axis.axvspan(np.sqrt(above[0] * judged.max()), right, **style)
