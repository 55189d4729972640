"""Drawings of ``tables``: a panel per table, a colour per arm and grid point.

Of several arms with up to four grid points, points have a line of their own too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.ticker import NullFormatter
from scipy.stats import gaussian_kde, norm

from analysis.drawing.page import caption, key
from analysis.drawing.style import ARM_COLOURS, NOISE_COLOUR, TEXT_WIDTH, log_axis
from analysis.explore.tables import is_norms, noise_spectrum
from analysis.tables.context import Context
from lrm.errors import UserError

# Okabe-Ito as in style.py, and on.
_COLOURS = (*ARM_COLOURS.values(), "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_POINTS = 241
# Of grid points, in their order; dashes are Brownian motion's.
_LINES = ("-", (0, (4, 1, 1, 1)), (0, (1.2, 1)), (0, (4, 1, 1, 1, 1, 1)))
# A density of fewer values says more of its smoothing than of them.
_FEWEST = 8
# A line through fewer steps would show a course that nobody measured.
_FEWEST_STEPS = 5
# The share of values that each end of a panel may leave out: one row may be twelve times the mean.
_TAIL = 0.02
# What a legend says beside the colours, where a panel has it.
_NOTES = {
    "Brownian motion": {"color": NOISE_COLOUR, "ls": "--"},
    "at these steps only": {"color": NOISE_COLOUR, "ls": "", "marker": "o", "ms": 3},
    "pure noise": {"color": "black", "ls": ":", "lw": 1},
}


def draw_course(courses: pd.DataFrame | Iterable[pd.DataFrame], context: Context):
    """One panel per ``course``. A colour is an arm at a grid point; its seeds share it.

    Dashed: Brownian motion. Dots: fewer than five steps are there, which no line joins. Returns
    the Figure; raises UserError where there is no table.
    """
    return _draw(courses, context, _course)


def draw_distribution(distributions: pd.DataFrame | Iterable[pd.DataFrame], context: Context):
    """One panel per ``distribution``: densities (Scott's width), or singular values in order.

    Colours as in ``draw_course``. Dotted: pure noise of that shape, where there is such a thing.
    Ticks on the axis instead of a density: fewer than eight values, or all alike. Multipliers that
    differ tenfold between runs stand on a logarithmic axis. A panel may leave out the outermost 2%
    of a run's values. Returns the Figure.
    """
    return _draw(distributions, context, _distribution)


def _draw(tables: pd.DataFrame | Iterable[pd.DataFrame], context: Context, panel: Callable):
    """Let ``panel(axis, table, looks)`` draw each table; it returns which of ``_NOTES`` apply."""
    tables = [tables] if isinstance(tables, pd.DataFrame) else list(tables)
    if not tables:
        raise UserError("nothing to draw: give a table of explore.course or explore.distribution")
    figure, axes = panels(len(tables), 0.5, 2.1)
    shown = pd.concat([table[["arm", "point", "label"]] for table in tables]).drop_duplicates()
    looks = _looks(shown)
    notes = set()
    for axis, table in zip(axes, tables, strict=True):
        if table.empty:
            axis.text(0.5, 0.5, "not kept of these runs", transform=axis.transAxes, ha="center")
            axis.set(xticks=[], yticks=[])
        else:
            notes |= panel(axis, table, looks)
    handles = [key(name, **looks[name]) for name in shown["label"]]
    handles += [key(note, **look) for note, look in _NOTES.items() if note in notes]
    columns = 1 + (len(handles) - 1) // 20
    figure.legend(handles=handles, loc="outside right center", ncols=columns, handlelength=2.4)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05)
    return caption(figure, context)


def panels(count: int, base: float, each: float):
    """A figure of ``base`` and for each line of panels ``each`` inches, and ``count`` axes."""
    columns = 2 if count == 4 else min(3, count)
    lines = -(-count // columns)
    size = (TEXT_WIDTH if count > 1 else 0.65 * TEXT_WIDTH, base + each * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    return figure, axes.flat[:count]


def _course(axis, rows: pd.DataFrame, looks: dict) -> set[str]:
    several = rows.loc[rows["kind"] != "brownian", "seed"].nunique() > 1
    notes = set()
    for (_, kind, label), one in rows.groupby(["run", "kind", "label"], sort=False):
        noise = kind == "brownian"
        look = looks[label] | {"zorder": 3 if noise else 2}
        if len(one) < _FEWEST_STEPS:
            notes.add("at these steps only")
            look |= {"ls": "", "marker": "D" if noise else "o", "ms": 3, "alpha": 0.8}
        else:
            look |= {"ls": "--"} if noise else {}
            look |= {"lw": 1.0 if several and not noise else 1.4}
        axis.plot(one["step"], one["value"], **look)
    _scale(axis, rows["value"])
    stat, over = rows[["stat", "over"]].iloc[0]
    unit = stat.replace("_", " ") + (" (nats per token)" if stat.endswith("_loss") else "")
    unit = "\n".join(filter(None, (unit, over)))
    axis.set(title=_title(rows.iloc[0]), xlabel="step", ylabel=unit)
    return notes | ({"Brownian motion"} if (rows["kind"] == "brownian").any() else set())


def _distribution(axis, table: pd.DataFrame, looks: dict) -> set[str]:
    first = table.iloc[0]
    draw = _spectra if first["stat"] == "singular_values" else _densities
    draw(axis, table, looks)
    steps = ", ".join(map(str, sorted(table["step"].unique())))
    where = ", ".join(filter(None, (_title(first), first["over"])))
    axis.set_title(f"{where}\nstep {steps}")
    return {"pure noise"} if table["noise"].notna().any() else set()


def _title(first: pd.Series) -> str:
    return f"{first['tensor']}{'' if pd.isna(first['layer']) else f', layer {first.layer}'}"


def _spectra(axis, table: pd.DataFrame, looks: dict) -> None:
    for row in table.to_dict("records"):
        order = np.arange(1, len(row["values"]) + 1)
        axis.loglog(order, row["values"], **looks[row["label"]], marker="o", markevery=[0], ms=3)
    for rows, columns in sorted(set(zip(table["rows"], table["columns"], strict=True))):
        noise = noise_spectrum(rows, columns)
        axis.loglog(np.arange(1, len(noise) + 1), noise, ":", color="black", lw=1, zorder=4)
    axis.xaxis.set_major_formatter("{x:g}")
    _scale(axis, np.concatenate(list(table["values"])))
    axis.set(xlabel="direction", ylabel="singular value / ‖W‖")


def _densities(axis, table: pd.DataFrame, looks: dict) -> None:
    stat = table["stat"].iloc[0]
    logarithmic = not is_norms(stat) and _far_apart(table["values"])
    there, back = (np.log, np.exp) if logarithmic else (np.asarray, np.asarray)
    widths = sorted(set(table["noise"].dropna()))
    grid = _grid(table["values"].map(there), widths)
    ticks, curves = 0, []
    for row in table.to_dict("records"):
        values, look = there(row["values"]), looks[row["label"]]
        if len(values) < _FEWEST or np.ptp(values) < 1e-6 * (1 + np.abs(values).max()):
            low = 0.04 * ticks  # one line of ticks above the other
            axis.vlines(back(values), low, low + 0.035, color=look["color"], lw=1.4,
                        transform=axis.get_xaxis_transform())  # fmt: skip
            ticks += 1
        else:
            curves.append((gaussian_kde(values)(grid), look))
    peaks = [curve.max() for curve, _ in curves]
    # Without noise to compare with, a narrow one must not flatten the others.
    alone = bool(curves) and not widths and max(peaks) > 10 * min(peaks)
    for (curve, look), peak in zip(curves, peaks, strict=True):
        axis.plot(back(grid), curve / peak if alone else curve, **look)
    for width in widths:
        axis.plot(grid, norm.pdf(grid, 1.0, width), ":", color="black", lw=1, zorder=4)
    if logarithmic:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
    words = stat.replace("_", " ").removesuffix("s")
    axis.set_xlabel(f"{words} / mean" if is_norms(stat) else words)
    axis.set(xlim=back(grid[[0, -1]]), yticks=[])
    if axis.lines:
        density = "density of the logarithm" if logarithmic else "density"
        axis.set_ylabel(f"{density} / its peak" if alone else density)
        axis.set_ylim(bottom=0)
    if widths and curves:
        # Noise of many columns is so narrow that it would flatten what is to be seen.
        axis.set_ylim(0, min(axis.get_ylim()[1], 2.5 * max(peaks)))


def _far_apart(values: pd.Series) -> bool:
    """Whether positive values of different runs differ by more than a factor of ten."""
    if min(part.min() for part in values) <= 0:
        return False
    middles = values.map(np.median)
    return middles.max() > 10 * middles.min()


def _grid(parts: pd.Series, widths: list[float]) -> np.ndarray:
    """Positions that hold nearly all values of every run, and the noise."""
    ends = np.array([np.quantile(values, [_TAIL, 1 - _TAIL]) for values in parts])
    low, high = ends.min(), ends.max()
    margin = 0.08 * (high - low) or 0.05 * max(abs(high), 1.0)
    low, high = low - margin, high + margin
    if widths:
        low, high = max(0.0, min(low, 1 - 3 * widths[-1])), max(high, 1 + 3 * widths[-1])
    return np.linspace(low, high, _POINTS)


def _looks(shown: pd.DataFrame) -> dict[str, dict]:
    """By label a colour, and a line for each grid point where there are few, of several arms."""
    points, colours = list(dict.fromkeys(shown["point"])), _series_colours(shown)
    few = shown["arm"].nunique() > 1 and len(points) <= len(_LINES)
    lines = dict(zip(points, _LINES, strict=False)) if few else dict.fromkeys(points, "-")
    return {
        label: {"color": colours[label], "ls": lines[point]}
        for label, point in zip(shown["label"], shown["point"], strict=True)
    }


def _series_colours(series: pd.DataFrame) -> dict[str, tuple]:
    """A colour for each label: one arm's grid points from dark to light, arms' own hues."""
    labels = {arm: list(rows["label"]) for arm, rows in series.groupby("arm", sort=False)}
    if len(labels) == 1 and len(series) > 1:
        shades = plt.cm.viridis(np.linspace(0, 0.88, len(series)))
        return dict(zip(series["label"], shades, strict=True))
    free = cycle(colour for colour in _COLOURS if colour not in map(ARM_COLOURS.get, labels))
    colours = {}
    for arm, names in labels.items():
        base = np.array(to_rgb(ARM_COLOURS.get(arm) or next(free)))
        amounts = np.linspace(-0.6, 0.45, len(names)) if len(names) > 1 else [0.0]
        for name, amount in zip(names, amounts, strict=True):  # towards white, then black
            colours[name] = tuple(base + (float(amount < 0) - base) * abs(amount))
    return colours


def _scale(axis, values: pd.Series | np.ndarray) -> None:
    """Logarithmic where positive values span more than a factor of two."""
    if (values > 0).all() and values.max() >= 2 * values.min():
        log_axis(axis)
