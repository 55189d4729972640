"""Differences of losses from top to bottom, a line for each comparison."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import dots, middle
from analysis.drawing.designs import LOOKS
from analysis.drawing.style import NEUTRAL, SMALL
from analysis.quantities.designs import gap
from analysis.quantities.stats import Interval
from analysis.tables.results import FIRST_JUDGING_SEED, Tables
from lrm.plan.claims import judging_seeds


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


def by_stage(rows: pd.DataFrame, names: Sequence[str]) -> tuple[dict[str, pd.Series], ...]:
    """The column value of ``rows`` by name: of seeds that judge, and of seeds that explore."""
    judging = rows["seed"] >= FIRST_JUDGING_SEED
    return tuple(
        {name: rows.loc[which & (rows["name"] == name), "value"] for name in names}
        for which in (judging, ~judging)
    )


def draw_gaps(axis, rows: pd.DataFrame, compared: Sequence[Comparison], below: float = 0.0,
              robust: Collection[str] = ()) -> None:  # fmt: skip
    """``rows`` of one panel of ``measured``, in the order of ``compared``; left of 0 is better.

    Seeds that explore are hollow, and bars leave them out; points stand ``below`` the bars.
    Bars of the names in ``robust`` are medians, as ``dots`` draws them.
    """
    named, hollow = by_stage(rows, [each.name for each in compared])
    looks = {each.name: LOOKS[each.design] for each in compared}
    colours = {name: colour for name, (colour, _, _) in looks.items()}
    markers = {name: marker for name, (*_, marker) in looks.items()}
    dots(axis, named, colours, markers=markers, hollow=hollow, below=below, robust=robust)
    axis.axvline(0, **NEUTRAL)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0, labelsize=SMALL)
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def write_gaps(axis, rows: pd.DataFrame, compared: Sequence[Comparison],
               robust: Collection[str] = (), head: bool = True) -> None:  # fmt: skip
    """``write_column`` of the lines of ``draw_gaps``."""
    write_column(axis, rows, [each.name for each in compared], robust, head)


def write_column(axis, rows: pd.DataFrame, names: Sequence[str],
                 robust: Collection[str] = (), head: bool = True) -> None:  # fmt: skip
    """The value of each line in a column to the right of the axis, ``names`` from above.

    With several seeds that judge it is their mean with its interval, else it has three digits. Of
    names in ``robust`` it is their median, and says so where other lines have means. The column's
    ``head`` says what it has; of axes above each other the first needs one.
    """
    look = {"va": "center", "fontsize": SMALL, "annotation_clip": False}
    beside = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    several = False
    for place, name in enumerate(reversed(names)):
        said, judging, _ = _value_of(rows, name, robust)
        several |= judging > 1
        if name in robust and judging > 1 and not set(rows["name"]) <= set(robust):
            said = f"median {said}"
        if said:
            axis.annotate(said, (1, place), (5, 0), **beside, **look)
    if several and head:
        kind = "median" if set(names) <= set(robust) else "mean"
        axis.annotate(f"{kind} [95%]", (1, 1), (5, 4), xycoords="axes fraction", color="#444444",
                      **look | {"va": "bottom"}, textcoords="offset points")  # fmt: skip


def write_above(axis, rows: pd.DataFrame, names: Sequence[str],
                robust: Collection[str] = ()) -> None:  # fmt: skip
    """The value of each line above its bar, ``names`` from above; to be called at its limits.

    It is that of ``write_column``. Where there are names in ``robust`` it says which it is, mean or
    median. What lies beyond the axis has its value at the edge, with an arrow.
    """
    low, high = axis.get_xlim()
    look = {"textcoords": "offset points", "fontsize": SMALL, "zorder": 5,
            "bbox": {"color": "white", "pad": 0.4}}  # fmt: skip
    for place, name in enumerate(reversed(names)):
        said, judging, centre = _value_of(rows, name, robust)
        if not said:
            continue
        if robust and judging > 1:
            said = f"{'median' if name in robust else 'mean'} {said}"
        if low < centre < high:
            axis.annotate(said, (centre, place), (0, 9), va="bottom", ha="center", **look)
        elif centre <= low:
            axis.annotate(f"← {said}", (low, place), (4, 0), va="center", ha="left", **look)
        else:
            axis.annotate(f"{said} →", (high, place), (-4, 0), va="center", ha="right", **look)


def _value_of(rows: pd.DataFrame, name: str, robust: Collection[str]) -> tuple[str, int, float]:
    """What is written of ``name``, "" where it has no rows; how many of its seeds judge; where."""
    own = rows[rows["name"] == name]
    judging = own.loc[own["seed"] >= FIRST_JUDGING_SEED, "value"]
    points = own["value"] if judging.empty else judging
    if points.empty:
        return "", 0, np.nan
    found = middle(points, name in robust)
    return _said(found, bare=judging.empty), len(judging), found.mean


def _said(found: Interval, bare: bool) -> str:
    """A mean or median to three digits, with its interval if it has one, unless ``bare``.

    All have four where three hide on which side of 0 an end lies, and four do not.
    """
    if bare or not np.isfinite(found.low):
        return f"{found.mean:z.3f}".replace("-", "−")
    hidden = [0.00005 <= abs(end) < 0.0005 for end in (found.low, found.high)]
    mean, low, high = (
        f"{value:z.{4 if any(hidden) else 3}f}" for value in (found.mean, found.low, found.high)
    )
    return f"{mean} [{low}, {high}]".replace("-", "−")


def told_of_points(rows: pd.DataFrame, robust: Collection[str] = ()) -> str:
    """What a caption says of the points and bars of ``draw_gaps``, by the column seed of ``rows``.

    Seeds that explore ran before the criteria were fixed; they judge nothing, and have no bars.
    Of the names in ``robust`` it says that their bars are medians.
    """
    seeds = rows["seed"].dropna().unique()
    judging = sum(seeds >= FIRST_JUDGING_SEED)
    exploring = len(seeds) - judging
    parts = []
    if judging:
        parts.append(f"{'full ' if exploring else ''}points: seeds that judge")
    if judging > 1:
        # A median has an interval from six values on.
        counts = rows[rows["seed"] >= FIRST_JUDGING_SEED].groupby("name")["seed"].nunique()
        medians = [counts[name] for name in set(robust) & set(counts.index)]
        few = "; medians of fewer than six have none" if min(medians, default=6) < 6 else ""
        parts.append(f"bars: their {_kinds_of_bars(rows, robust)} with 95% intervals{few}")
    if exploring:
        who = "one seed that explores" if exploring == 1 else "seeds that explore"
        parts.append(f"hollow: {who}, not judged")
    return "; ".join(parts)


def _kinds_of_bars(rows: pd.DataFrame, robust: Collection[str]) -> str:
    if not robust:
        return "means"
    return "medians" if set(rows["name"]) <= set(robust) else "means, or where it says so medians,"


def that_judge(rows: pd.DataFrame, criterion: Mapping) -> pd.Series:
    """Whether the column seed of ``rows`` has a seed that judges by an entry of criteria.yaml."""
    return rows["seed"].isin(judging_seeds(criterion))


def told_of_judging(rows: pd.DataFrame, judging: pd.Series) -> str:
    """What a caption says of points, solid where ``judging``, and of their bars and numbers."""
    if not judging.any():
        return "hollow: seeds that do not judge"
    said = "solid: seeds that judge, run after the criteria were fixed"
    several = rows.loc[judging, "seed"].nunique() > 1
    numbers = "\nbars and numbers: means with 95% intervals of the solid points" * several
    others = sorted(map(int, rows.loc[~judging, "seed"].unique()))
    if not others:
        return said + numbers
    when = "earlier" if others[-1] < rows.loc[judging, "seed"].min() else "other"
    which = f"{others[0]}–{others[-1]}" if len(others) > 1 else f"{others[0]}"
    return f"{said}; hollow: {when} seed{'s' * (len(others) > 1)} ({which}){numbers}"
