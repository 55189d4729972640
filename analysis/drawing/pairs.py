"""Pairs of arms: the gap of the training loss, and beside it that of the loss after the decay."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import dots, median
from analysis.drawing.gaps import by_stage, told_of_points, write_above
from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import MEDIANS, NEUTRAL
from analysis.quantities.designs import course_of_gap, gap
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

# By name: the two arms, colour and marker.
Pairs = Mapping[str, tuple[str, str, str, str]]


def numbers_of(table: Tables, pairs: Pairs) -> pd.DataFrame:
    """Columns: panel, name, seed, share (of the steps), value (nats per token)."""
    rows, there = [], set(table.trained["arm"])
    for name, (arm, against, *_) in pairs.items():
        if not {arm, against} <= there:  # a smaller scale may lack a pair
            continue
        rows.append(stacked(course_of_gap(table, arm, against), panel="a", name=name))
        last = gap(table, arm, against).rename("value").reset_index()
        rows.append(last.assign(panel="b", name=name))
    return pd.concat(rows, ignore_index=True)[["panel", "name", "seed", "share", "value"]]


def draw_pairs(numbers: pd.DataFrame, context: Context, pairs: Pairs, message: str,
               robust: Collection[str] = ()) -> Figure:  # fmt: skip
    """Two panels of those ``pairs`` that have numbers, under ``message``.

    Of the pairs in ``robust`` the median is drawn of the loss after the decay, not the mean.
    """
    pairs = {name: pair for name, pair in pairs.items() if name in set(numbers["name"])}
    figure, axes = page(1, 2, 2.5, w_pad=0.06, width_ratios=[1.2, 1])
    headline(figure, message, context)
    panels = dict(tuple(numbers.groupby("panel")))
    for name, (_, _, colour, _) in pairs.items():
        rows = panels["a"][panels["a"]["name"] == name]
        median(axes[0], rows, "share", color=colour, alpha=0.12)
    axes[0].axhline(0, **NEUTRAL)
    label(axes[0], "a   Over training", xlabel="share of the steps",
          ylabel="training loss,\nunified − standard (nats)")  # fmt: skip
    named, hollow = by_stage(panels["b"], list(pairs))
    colours = {name: colour for name, (_, _, colour, _) in pairs.items()}
    markers = {name: marker for name, (*_, marker) in pairs.items()}
    dots(axes[1], named, colours, markers=markers, hollow=hollow, below=0.28,
         robust=robust)  # fmt: skip
    axes[1].axvline(0, **NEUTRAL)
    axes[1].xaxis.set_major_locator(MaxNLocator(4))
    axes[1].grid(axis="y", visible=False)
    axes[1].tick_params(axis="y", length=0)
    low, high = panels["b"]["value"].min(), max(panels["b"]["value"].max(), 0)
    axes[1].set_xlim(low - 0.15 * (high - low), high + 0.35 * (high - low))
    axes[1].set_ylim(-0.6, len(pairs) - 0.4)
    write_above(axes[1], panels["b"], list(pairs), robust=robust)
    label(axes[1], "b   After the decay", xlabel="← better   unified − standard (nats)")
    legend_below(figure, [key(name, color=colour) for name, colour in colours.items()], 3)
    # Pairs that are read apart may have other seeds.
    counts = panels["b"].groupby("name")["seed"].nunique()
    differ = context.others or set(counts) != {len(context.seeds)}
    told = [f"{name}: n = {counts[name]}" for name in pairs] if differ else []
    apart = "\n" if robust else "; "  # one line has no room for both where bars are of two kinds
    bands = f"a: {MEDIANS}{apart}" if panels["a"]["seed"].nunique() > 1 else ""
    note = f"{bands}b: {told_of_points(panels['b'], robust)}"
    return caption(figure, context, note, n=", ".join(told))
