"""Drawings of ``tables``: a panel per table, a colour per arm and grid point."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from scipy.stats import gaussian_kde, norm

from analysis.drawing.style import ARM_COLOURS, NOISE_COLOUR, TEXT_WIDTH, caption, plain_log_axis
from analysis.explore.tables import is_norms, noise_spectrum
from analysis.tables.context import Context

# Okabe-Ito as in style.py, and on.
_COLOURS = (*ARM_COLOURS.values(), "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_POINTS = 241
# A density of fewer values says more of its smoothing than of them.
_FEWEST = 8
# A line through fewer steps would show a course that nobody measured.
_FEWEST_STEPS = 5
# The share of values that each end of a panel may leave out: one row may be twelve times the mean.
_TAIL = 0.02


def draw_course(courses: pd.DataFrame | Iterable[pd.DataFrame], context: Context):
    """One panel per ``course``. A colour is an arm at a grid point; its seeds share it.

    Dashed: Brownian motion. Dots: fewer than five steps are there, which no line joins. Returns
    the Figure.
    """
    courses = _as_list(courses)
    figure, axes = _panels(len(courses))
    colours = _series_colours(courses)
    dots = False
    for axis, rows in zip(axes, courses, strict=True):
        several = rows.loc[rows["kind"] == "train", "seed"].nunique() > 1
        for _, one in rows.groupby("run", sort=False):
            noise = one["kind"].iloc[0] == "brownian"
            look = {"color": colours[one["label"].iloc[0]], "zorder": 3 if noise else 2}
            if len(one) < _FEWEST_STEPS:
                dots = True
                axis.plot(one["step"], one["value"], "D" if noise else "o", ms=3, alpha=0.8, **look)
            else:
                width = 1.0 if several and not noise else 1.4
                axis.plot(one["step"], one["value"], "--" if noise else "-", lw=width, **look)
        first = rows.iloc[0] if len(rows) else None
        if first is None:
            _nothing(axis)
        else:
            _scale(axis, rows["value"])
            unit = "\n".join(filter(None, (_unit(first["stat"]), first["over"])))
            axis.set(title=_title(first), xlabel="step", ylabel=unit)
    handles = _key(courses, colours)
    if any((rows["kind"] == "brownian").any() for rows in courses):
        handles.append(Line2D([], [], color=NOISE_COLOUR, ls="--", label="Brownian motion"))
    if dots:
        label = "at these steps only"
        handles.append(Line2D([], [], color=NOISE_COLOUR, ls="", marker="o", ms=3, label=label))
    _finish(figure, handles, context)
    return figure


def draw_distribution(distributions: pd.DataFrame | Iterable[pd.DataFrame], context: Context):
    """One panel per ``distribution``: densities (Scott's width), or singular values in order.

    Colours as in ``draw_course``. Dotted: pure noise of that shape, where there is such a thing.
    Ticks on the axis instead of a density: fewer than eight values, or all alike. Multipliers that
    differ tenfold between runs stand on a logarithmic axis. A panel may leave out the outermost 2%
    of a run's values. Returns the Figure.
    """
    distributions = _as_list(distributions)
    figure, axes = _panels(len(distributions))
    colours = _series_colours(distributions)
    for axis, table in zip(axes, distributions, strict=True):
        if table.empty:
            _nothing(axis)
            continue
        draw = _spectra if table["stat"].iloc[0] == "singular_values" else _densities
        draw(axis, table, colours)
        steps = sorted(table["step"].unique())
        where = ", ".join(filter(None, (_title(table.iloc[0]), table["over"].iloc[0])))
        axis.set_title(f"{where}\nstep {', '.join(map(str, steps))}")
    handles = _key(distributions, colours)
    if any(table["noise"].notna().any() for table in distributions):
        handles.append(Line2D([], [], color="black", ls=":", lw=1, label="pure noise"))
    _finish(figure, handles, context)
    return figure


def _spectra(axis, table: pd.DataFrame, colours: dict) -> None:
    for row in table.to_dict("records"):
        order = np.arange(1, len(row["values"]) + 1)
        axis.loglog(order, row["values"], "-o", color=colours[row["label"]], markevery=[0], ms=3)
    for rows, columns in sorted(set(zip(table["rows"], table["columns"], strict=True))):
        noise = noise_spectrum(rows, columns)
        axis.loglog(np.arange(1, len(noise) + 1), noise, ":", color="black", lw=1, zorder=4)
    axis.xaxis.set_major_formatter("{x:g}")
    _scale(axis, np.concatenate(list(table["values"])))
    axis.set(xlabel="direction", ylabel="singular value / ‖W‖")


def _densities(axis, table: pd.DataFrame, colours: dict) -> None:
    stat = table["stat"].iloc[0]
    logarithmic = not is_norms(stat) and _far_apart(table["values"])
    there, back = (np.log, np.exp) if logarithmic else (np.asarray, np.asarray)
    widths = sorted(set(table["noise"].dropna()))
    grid = _grid(table["values"].map(there), widths)
    ticks, curves = 0, []
    for row in table.to_dict("records"):
        values, colour = there(row["values"]), colours[row["label"]]
        if len(values) < _FEWEST or np.ptp(values) < 1e-6 * (1 + np.abs(values).max()):
            low = 0.04 * ticks  # one line of ticks above the other
            axis.vlines(back(values), low, low + 0.035, color=colour, lw=1.4,
                        transform=axis.get_xaxis_transform())  # fmt: skip
            ticks += 1
        else:
            curves.append((gaussian_kde(values)(grid), colour))
    peaks = [curve.max() for curve, _ in curves]
    # Without noise to compare with, a narrow one must not flatten the others.
    alone = bool(curves) and not widths and max(peaks) > 10 * min(peaks)
    for (curve, colour), peak in zip(curves, peaks, strict=True):
        axis.plot(back(grid), curve / peak if alone else curve, color=colour)
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


def _as_list(frames: pd.DataFrame | Iterable[pd.DataFrame]) -> list[pd.DataFrame]:
    return [frames] if isinstance(frames, pd.DataFrame) else list(frames)


def _panels(count: int):
    columns = 2 if count == 4 else min(3, count)
    lines = -(-count // columns)
    width = TEXT_WIDTH if count > 1 else 0.65 * TEXT_WIDTH
    size = (width, 0.5 + 2.1 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    return figure, axes.flat[:count]


def _series_colours(tables: list[pd.DataFrame]) -> dict[str, tuple]:
    """A colour for each label: one arm's grid points from dark to light, arms' own hues."""
    series = pd.concat([table[["arm", "label"]] for table in tables]).drop_duplicates()
    labels = {arm: list(rows["label"]) for arm, rows in series.groupby("arm", sort=False)}
    if len(labels) == 1:
        (only,) = labels.values()
        if len(only) > 1:
            return dict(zip(only, plt.cm.viridis(np.linspace(0, 0.88, len(only))), strict=True))
    free = cycle(colour for colour in _COLOURS if colour not in map(ARM_COLOURS.get, labels))
    found = {}
    for arm, names in labels.items():
        found |= _shades(ARM_COLOURS.get(arm) or next(free), names)
    return found


def _shades(colour: str, names: list[str]) -> dict[str, tuple]:
    """Around ``colour``, from light to dark."""
    amounts = np.linspace(-0.6, 0.45, len(names)) if len(names) > 1 else [0.0]
    base = np.array(to_rgb(colour))
    return {
        name: tuple(base + (1 - base) * -amount if amount < 0 else base * (1 - amount))
        for name, amount in zip(names, amounts, strict=True)
    }


def _key(tables: list[pd.DataFrame], colours: dict) -> list[Line2D]:
    shown = pd.concat([table[["arm", "label"]] for table in tables]).drop_duplicates()
    return [Line2D([], [], color=colours[name], label=name) for name in shown["label"]]


def _finish(figure, handles: list, context: Context) -> None:
    """Legend at the right, and below what every figure must say."""
    columns = 1 + (len(handles) - 1) // 20
    figure.legend(handles=handles, loc="outside right center", ncols=columns, handlelength=1.6)
    below = 0.18 / figure.get_figheight()
    figure.get_layout_engine().set(rect=(0, below, 1, 1 - below), w_pad=0.06, h_pad=0.05)
    if context.seeds:
        caption(figure, context)
    else:
        text = f"scale: {context.scale}   Brownian motion alone"
        figure.text(0.5, 0.005, text, ha="center", va="bottom", fontsize=6.5, color="#444444")


def _nothing(axis) -> None:
    axis.text(0.5, 0.5, "not kept of these runs", transform=axis.transAxes, ha="center")
    axis.set(xticks=[], yticks=[])


def _title(first: pd.Series) -> str:
    return f"{first['tensor']}{'' if pd.isna(first['layer']) else f', layer {first.layer}'}"


def _unit(stat: str) -> str:
    words = stat.replace("_", " ")
    return f"{words} (nats per token)" if stat.endswith("_loss") else words


def _scale(axis, values: pd.Series | np.ndarray) -> None:
    """Logarithmic where positive values span more than a factor of two."""
    if not (values > 0).all() or values.max() < 2 * values.min():
        return
    if values.max() < 100 * values.min():
        plain_log_axis(axis)
    else:
        axis.set_yscale("log")
        axis.yaxis.set_minor_formatter(NullFormatter())
