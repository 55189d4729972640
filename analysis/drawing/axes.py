"""What figures draw of several seeds: medians over something, and differences between arms."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from analysis.drawing.style import (
    ARM_LOOKS,
    DECAY,
    NOT_JUDGED,
    SMALL,
    power_of_two,
    shade,
)
from analysis.quantities.stats import Interval, interval, median_interval
from lrm.plan.claims import judging_seeds

_MARKERS = {look["color"]: look["marker"] for look in ARM_LOOKS.values()}


def median(
    axis,
    rows: pd.DataFrame,
    x: str,
    band: tuple[float, float] | None = (0.0, 1.0),
    alpha: float = 0.2,
    **look,
) -> None:
    """The median of ``value`` over seeds against ``x``, in the line's ``look`` with its ``color``.

    With several seeds it draws also the band between two quantiles, by default their range.
    """
    grouped = rows.groupby(x)["value"]
    middle = grouped.median()
    axis.plot(middle.index, middle, **{"zorder": 3} | look)
    if band and rows["seed"].nunique() > 1:
        low, high = (grouped.quantile(share) for share in band)
        axis.fill_between(middle.index, low, high, color=look["color"], alpha=alpha, lw=0)


def mean(axis, rows: pd.DataFrame, x: str, **look) -> pd.Series:
    """The mean of ``value`` over seeds against ``x``, in the line's ``look`` with its ``color``.

    With several seeds it draws also the band of the 95% intervals. Returns the means.
    """
    found = rows.groupby(x)["value"].apply(interval)
    means = found.map(lambda one: one.mean)
    axis.plot(means.index, means, **look)
    low, high = (found.map(lambda one, end=end: getattr(one, end)) for end in ("low", "high"))
    if np.isfinite(low).all():
        axis.fill_between(means.index, low, high, color=look["color"], alpha=0.2, lw=0)
    return means


def middle(values, robust: bool = False) -> Interval:
    """The mean of ``values`` over seeds with its 95% interval, as most claims are judged.

    ``robust``: the median with that of order statistics, where a single seed may jump.
    """
    return median_interval(values) if robust else interval(values)


def each(
    axis,
    rows: pd.DataFrame,
    x: str,
    looks: Mapping[object, dict],
    by: str | list[str] = "arm",
    **shared,
) -> None:
    """``median`` of every name in ``looks``, the rows whose ``by`` (one column or several) it is.

    ``shared`` goes to all of them. Names without rows are left out.
    """
    groups = dict(tuple(rows.groupby(by)))
    for name, look in looks.items():
        if name in groups:
            median(axis, groups[name], x, **shared, **look)


def end(rows: pd.DataFrame, x: str) -> float:
    """The median of ``value`` where ``x`` is largest: the end of a line of ``median``."""
    return rows.loc[rows[x] == rows[x].max(), "value"].median()


def judged_alone(numbers: pd.DataFrame) -> pd.DataFrame:
    """The rows whose S is ``judged``; all of them where none is, as at the scale ``smoke``."""
    return numbers[numbers["judged"]] if numbers["judged"].any() else numbers


def judging_alone(numbers: pd.DataFrame, criterion: Mapping) -> pd.DataFrame:
    """The rows whose ``seed`` judges by this entry of ``criteria.yaml``; all where there is none.

    Other seeds may be published beside them, and what is drawn would not be what is judged.
    """
    own = numbers[numbers["seed"].isin(judging_seeds(criterion))]
    return numbers if own.empty else own


def s_axis(axis, frame: pd.DataFrame, label: str) -> None:
    """A logarithmic axis with every value of S named; grey where not judged."""
    values = np.array(sorted(frame["S"].unique()))
    axis.set_xscale("log", base=4)
    axis.set_xticks(values, [power_of_two(value) for value in values])
    axis.minorticks_off()
    axis.set_xlabel(label)
    judged = frame.loc[frame["judged"], "S"]
    if judged.empty:
        return
    left, right = axis.get_xlim()
    axis.set_xlim(left, right)
    below, above = values[values < judged.min()], values[values > judged.max()]
    style = NOT_JUDGED | {"lw": 0, "zorder": 0}
    if below.size:
        axis.axvspan(left, np.sqrt(below[-1] * judged.min()), **style)
    if above.size:
        axis.axvspan(np.sqrt(above[0] * judged.max()), right, **style)


def decay_line(axis, step: float) -> None:
    """A vertical line at the step at which the decay of the learning rate begins."""
    axis.axvline(step, **DECAY, zorder=1)


def name_ends(
    axis,
    ends: Mapping[str, tuple[float, str]],
    size: float = SMALL,
    at: float = 1.06,
    line: float = 1.35,
) -> None:
    """The name of each line to the right of the axis, joined to the line's end.

    ``ends`` maps a name to the line's last y and its colour. Names that would touch push each other
    apart; they begin ``at`` this share of the axis' width,
    and a ``line`` is so many sizes high. To be called when the axis has its
    lines, its limits and its scale.
    """
    scale, limits = axis.transScale, np.array(axis.get_ylim())
    flat = [scale.transform((1.0, y))[1] for y in (*limits, *(y for y, _ in ends.values()))]
    shares = (np.array(flat[2:]) - flat[0]) / (flat[1] - flat[0])
    tall = axis.get_window_extent().height * 72 / axis.figure.dpi  # points
    lines = np.array([name.count("\n") + 1 for name in ends])
    heights = spread_out(shares, line * size / tall * lines)
    last = axis.dataLim.x1
    for (name, (y, colour)), height in zip(ends.items(), heights, strict=True):
        join = {"arrowstyle": "-", "color": colour, "lw": 0.5, "shrinkA": 1, "shrinkB": 2}
        axis.annotate(name, (last, y), xytext=(at, height), textcoords="axes fraction",
                      va="center", color=colour, fontsize=size, linespacing=1.05,
                      annotation_clip=False, arrowprops=join | {"relpos": (0, 0.5)})  # fmt: skip


def spread_out(places: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """The nearest places (least squares) in this order that lie half of both ``widths`` apart."""
    order = np.argsort(places, kind="stable")
    at, wide = np.array(places, dtype=float)[order], np.array(widths, dtype=float)[order]
    gaps = np.concatenate([[0.0], np.cumsum((wide[:-1] + wide[1:]) / 2)])
    return (isotonic_regression(at - gaps).x + gaps)[np.argsort(order, kind="stable")]


def dots(
    axis,
    named: Mapping[str, Collection[float]],
    colours: Mapping[str, str],
    raised: float = 0.0,
    intervals: bool = True,
    markers: Mapping[str, str] | None = None,
    hollow: Mapping[str, Collection[float]] | None = None,
    below: float = 0.0,
    apart: float = 0.0,
    robust: Collection[str] = (),
) -> None:
    """A line for each name, from top to bottom, with the values of its seeds.

    Without ``markers`` an arm's colour brings the arm's marker, and any other a circle.
    Points are seeds, the bar is the mean and the line its 95% interval (of several seeds; one
    alone is a point); of the names in ``robust`` it is the median, see ``middle``.
    ``hollow`` has values that the bar leaves out, of seeds that do not judge.
    Lines stand one apart; ``raised`` moves them up, to draw twice on the same axis, and points
    stand ``below`` their bar, the second, fourth … lower by ``apart`` where they would touch.
    """
    for place, (name, values) in enumerate(reversed(named.items())):
        height, colour = place + raised, colours[name]
        marker = markers[name] if markers else _MARKERS.get(colour, "o")
        size = 5.5 if marker == "*" else 3.2  # of a star the rays alone reach so far
        look = {"marker": marker, "lw": 0, "color": colour, "ms": size}
        under = height - below - apart * (np.arange(len(values)) % 2)
        axis.plot(np.sort(values), under, **look, alpha=0.45, mew=0)
        left_out = hollow.get(name, ()) if hollow else ()
        under = [height - below] * len(left_out)
        axis.plot(left_out, under, **look, markerfacecolor="none", mew=0.6)
        if len(values) < 2:
            continue
        found = middle(values, name in robust)
        axis.plot(found.mean, height, "|", color=shade(colour, -0.3), ms=9, mew=1.8, zorder=4)
        if intervals and np.isfinite(found.low):
            axis.plot([found.low, found.high], [height] * 2, color=colour, lw=1.2)
    axis.set_yticks(range(len(named)), reversed(named))
    axis.set_ylim(-0.6, len(named) - 0.4)
