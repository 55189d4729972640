"""Losses of tiers of tuning, gains over training, and gains over what tuning cost.

Figure 7 says what is drawn; ``messages`` are the figure's own, by scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import decay_line, name_ends
from analysis.drawing.page import caption, headline, key, label, legend_below, sheet
from analysis.drawing.style import (
    ARM_LOOKS,
    NEUTRAL,
    NO_MULTIPLIERS,
    OPTIMIZER_NAMES,
    SMALL,
    shade,
)
from analysis.quantities import tuning_ablation as tuning
from analysis.quantities.stats import interval, with_half
from analysis.quantities.tuning_ablation import OPTIMIZERS, SCALAR, TIERS, WITH, WITHOUT
from analysis.tables.context import Context
from analysis.tables.find import NothingFound
from analysis.tables.trials import TunedTables

LOOKS = {WITHOUT: ARM_LOOKS["FPN"], SCALAR: ARM_LOOKS["SPN"], WITH: ARM_LOOKS["VPN"]}
NAMES = {
    WITHOUT: NO_MULTIPLIERS,
    SCALAR: "one scalar for each matrix",
    WITH: "vector multipliers",
}
SHORT = {SCALAR: "scalars", WITH: "vectors"}
# Where the arms of a tier stand beside it.
PLACES = {SCALAR: -0.28, WITHOUT: 0.0, WITH: 0.28}
# The more is tuned, the darker, in a colour that no arm has; dashes tell tiers apart too.
TIER_LOOKS = {
    tier: {"color": shade("#5E3C99", share), "ls": dashes}
    for tier, share, dashes in zip(
        TIERS, (0.35, 0.1, -0.3, -0.7), ((0, (1, 1)), "--", "-.", "-"), strict=True
    )
}
# What the panels of a row have in common.
SHARED = ({"sharey": True}, {"sharey": True}, {"sharex": True, "sharey": True})
# Differences are averaged over about so many parts of the training.
WINDOWS = 25
# Runs that a tier shares with the one before.
AGAIN = {"markerfacecolor": "white", "mew": 0.7, "alpha": 1}
# Behind words on a grid.
BEHIND = {"color": "white", "pad": 0.8}
# Of the panels, row by row.
LETTERS = "abcdef"
NO_PAIR = "No tier has runs\nwithout and with vectors."
NO_LOG = "There is no log\nof the search:\nrun make tune."


@dataclass(frozen=True)
class Messages:
    """The message of each row, and of which results: the number of tiers by optimizer."""

    tiers: Mapping[str, int]
    rows: tuple[str, ...]


def numbers(table: TunedTables) -> pd.DataFrame:
    """Columns: panel, optimizer, multipliers, tier, seed, step, value, trials, flops, window and
    decay, the step at which it begins.

    Panel ``loss`` holds losses after the decay, ``gap`` losses without minus with in the ``window``
    of steps that ends at ``step``, ``cost`` gains over NONE without multipliers.
    """
    settings = table.settings
    every, steps = settings["probes"]["every"], settings["train"]["steps"]
    probes = max(1, round(steps / WINDOWS / every))
    final = tuning.losses(table)
    gaps = tuning.gaps(table, probes)
    parts = [_tidy(final, panel="loss"), _tidy(gaps, panel="gap", multipliers=WITH)]
    try:
        spent = tuning.costs(table)[["trials", "flops"]].reset_index()
    except NothingFound:
        pass
    else:
        gains = []
        for name in OPTIMIZERS.values():
            own = final.xs(name, axis=1, level="optimizer", drop_level=False)
            gains.append(_tidy(own.rsub(final[name, WITHOUT, "NONE"], axis=0), panel="cost"))
        parts.append(pd.concat(gains).merge(spent.dropna()))
    rows = pd.concat(parts, ignore_index=True)
    # The last window may be shorter.
    rows = rows.assign(step=rows["step"].clip(upper=steps).astype("Int64"), window=probes * every,
                       decay=table.stage_end)  # fmt: skip
    rows["trials"] = rows.get("trials", pd.Series(dtype=float)).astype("Int64")
    columns = ["panel", "optimizer", "multipliers", "tier", "seed", "step", "value", "trials",
               "flops", "window", "decay"]  # fmt: skip
    return rows.reindex(columns=columns).sort_values(columns[:6], ignore_index=True)


def _tiers(rows: pd.DataFrame) -> list[str]:
    """Those with runs: a search may not have come to the last."""
    there = set(rows["tier"])
    return [tier for tier in TIERS if tier in there]


def by_optimizer(numbers: pd.DataFrame) -> dict[str, list[str]]:
    """The tiers that each optimizer with runs has."""
    there = dict(tuple(numbers[numbers["panel"] == "loss"].groupby("optimizer")))
    return {name: _tiers(there[name]) for name in OPTIMIZERS.values() if name in there}


def _tidy(table: pd.DataFrame, **columns) -> pd.DataFrame:
    """A row for each finite number of a table, with the names of its rows and columns."""
    rows = table.melt(ignore_index=False).reset_index().dropna(subset="value")
    if "step" not in rows:
        rows["step"] = np.nan
    return rows.assign(**columns)


def draw(
    numbers: pd.DataFrame,
    context: Context,
    messages: Mapping[str, Messages],
    said_of_search: Sequence[str],
):
    """Three rows, each under its message, and in each a panel for each optimizer with runs.

    Where one optimizer alone has runs, its panels are a row. Of one tier gains over costs would
    repeat the first row: what the search cost stands below its arms. ``said_of_search``: lines of
    the caption on what was tuned, and how. Messages that were written of other tiers are not shown.
    """
    panels = dict(tuple(numbers.groupby(["panel", "optimizer"])))
    of_each = by_optimizer(numbers)
    optimizers, tiers = list(of_each), _tiers(numbers)
    spent = numbers["flops"].max()
    unit = 10.0 ** np.floor(np.log10(spent))
    count = 3 if len(tiers) > 1 else 2
    if len(optimizers) == 1:
        figure = sheet(2.9, w_pad=0.04, h_pad=0.03)
        parts = figure.subfigures(1, count, width_ratios=[1.0, 1.1, 1.0][:count])
    else:
        figure = sheet(6.5 if count == 3 else 4.7, w_pad=0.04, h_pad=0.03)
        parts = figure.subfigures(count, 1, height_ratios=[1.2, 1.0, 1.1][:count])
    letters, rows = iter(LETTERS), []
    of_one = OPTIMIZER_NAMES[optimizers[0]]
    alone = iter((f"{of_one}: loss", "gain over training", "gain and cost"))
    written, of_scale = messages.get(context.scale), ("",) * count
    if written and written.tiers == {name: len(each) for name, each in of_each.items()}:
        of_scale = written.rows
    for part, message, shared in zip(parts, of_scale, SHARED[:count], strict=True):
        if message:
            headline(part, message, context, context.scale)
        rows.append(np.atleast_1d(part.subplots(1, len(optimizers), **shared)))
        for axis, optimizer in zip(rows[-1], optimizers, strict=True):
            title = OPTIMIZER_NAMES[optimizer] if len(optimizers) > 1 else next(alone)
            label(axis, f"{next(letters)}   {title}")
    losses, gaps, *costs = rows
    for axis, optimizer in zip(losses, optimizers, strict=True):
        _losses(axis, panels["loss", optimizer])
    for axis, optimizer in zip(gaps, optimizers, strict=True):
        _gaps(axis, panels.get(("gap", optimizer)))
    if costs:
        for axis, optimizer in zip(costs[0], optimizers, strict=True):
            _costs(axis, panels.get(("cost", optimizer)), unit)
        if spent > 0:
            costs[0][0].set_xlim(0, 1.06 * spent / unit)
        costs[0][0].set_ylabel(f"gain over {NO_MULTIPLIERS}\nat NONE (nats)")
    else:
        for axis, optimizer in zip(losses, optimizers, strict=True):
            _name_arms(axis, panels["loss", optimizer], panels.get(("cost", optimizer)), unit)
    low, high = losses[0].get_ylim()
    losses[0].set_ylim(top=high + 0.3 * (high - low))  # for what stands at the top
    losses[0].set_ylabel("validation loss (nats)")
    gaps[0].set_ylabel("training loss (nats),\nno multipliers − vectors")
    _legend(figure, _any_again(panels, optimizers))
    wide = len(optimizers)
    middle, last = (LETTERS[row * wide : (row + 1) * wide] for row in (1, 2))
    intervals = ""
    if numbers["seed"].nunique() > 1:
        bars = f", bars in {' and '.join(last)}" if costs else ""
        intervals = f"; ±, bands{bars}: 95%"
    window = int(numbers["window"].iloc[0])
    note = f"{', '.join(middle)}: means over {window} steps{intervals}"
    # A tier in which the search tried nothing has no cost of its own, and no mark.
    marked: dict[str, list[str]] = {}
    for letter, optimizer in zip(last, optimizers, strict=True) if costs else ():
        if ("cost", optimizer) in panels:
            arms = panels["cost", optimizer].groupby("multipliers")
            there = {tier for _, own in arms for tier in _tried(own)}
            named = ", ".join(tier for tier in tiers if tier in there)
            marked.setdefault(named, []).append(letter)
    of_panels = [f"{', '.join(letters)}, from left: {named}"
                 for named, letters in marked.items() if "," in named]  # fmt: skip
    if of_panels:  # two lists are too long for one line
        note += ("\n" if len(of_panels) > 1 else "; ") + "; ".join(of_panels)
    caption(figure, context, "\n".join((note, *said_of_search)))
    figure.get_layout_engine().execute(figure)  # names keep apart by the axis' height
    for axis, optimizer in zip(gaps, optimizers, strict=True):
        if len(tiers) > 1 and ("gap", optimizer) in panels:
            name_ends(axis, _gap_ends(panels["gap", optimizer]), at=1.05)
    return figure


def _name_arms(axis, rows: pd.DataFrame, costs: pd.DataFrame | None, unit: float) -> None:
    """The arms of the one tier below it, with the FLOPs that the search for each took."""
    spent = {} if costs is None else costs.groupby("multipliers")["flops"].first() / unit
    names, there = {}, set(rows["multipliers"])
    for kind in [kind for kind in PLACES if kind in there]:
        name = SHORT.get(kind, NO_MULTIPLIERS)
        names[PLACES[kind]] = f"{name}\n{spent[kind]:.1f}" if kind in spent else name
    place = axis.get_xticks()[0]
    axis.set_xticks([place + aside for aside in names], names.values())
    if len(spent):
        axis.set_xlabel(rf"numbers: FLOPs of the arm's search ($10^{{{np.log10(unit):.0f}}}$)")


def _any_again(panels: Mapping[tuple, pd.DataFrame], optimizers: Sequence[str]) -> bool:
    """Whether an arm has at some tier the losses of the tier before."""
    for name in optimizers:
        for _, own in panels["loss", name].groupby("multipliers"):
            means = own.groupby("tier")["value"].mean()
            if means.reindex(_tiers(own)).diff().eq(0).any():
                return True
    return False


def _legend(figure, again: bool) -> None:
    """``again``: whether hollow marks are there."""
    handles = [key(NAMES[kind], **look, ls="") for kind, look in LOOKS.items()]
    handles += [
        key("mean over seeds", lw=1.8, color="#777777"),
        key("the same seed", lw=0.6, color="#aaaaaa"),
    ]
    if again:
        said = "hollow, thin bar: nothing kept, as the tier before"
        handles.append(key(said, color="#777777", marker="o", ls="", **AGAIN))
    legend_below(figure, handles, 3, columnspacing=0.9)


def _losses(axis, rows: pd.DataFrame) -> None:
    """Every seed of every arm, tier by tier; the arms of a seed are joined.

    Tiers that share all their runs share a column.
    """
    tables = {
        tier: rows[rows["tier"] == tier].pivot(index="seed", columns="multipliers", values="value")
        for tier in _tiers(rows)
    }
    columns: list[list[str]] = []
    for tier, table in tables.items():
        before = tables[columns[-1][0]] if columns else pd.DataFrame()
        both = table.columns.intersection(before.columns)
        # One arm alone says nothing of the other, which may not have been searched so far.
        if {WITHOUT, WITH} <= set(both) and table[both].equals(before[both]):
            columns[-1].append(tier)
        else:
            columns.append([tier])
    last: dict[str, pd.Series] = {}
    places = [np.mean([TIERS.index(tier) for tier in tiers]) for tiers in columns]
    for place, (tier, *_) in zip(places, columns, strict=True):
        table = tables[tier]
        joined = [kind for kind in PLACES if kind in table]
        ends = [place + PLACES[kind] for kind in joined]
        axis.plot(ends, table[joined].T, color="#bbbbbb", lw=0.6, zorder=1)
        for kind in table:
            x, look = place + PLACES[kind], LOOKS[kind]
            again = kind in last and last[kind].equals(table[kind])
            own = {"ls": "", "ms": 3.2, "mew": 0, "alpha": 0.6, "zorder": 2}
            own |= AGAIN if again else {}
            axis.plot([x] * len(table), table[kind], **look | own)
            bar = {"lw": 0.9 if again else 1.8, "zorder": 4}
            axis.plot([x - 0.12, x + 0.12], [table[kind].mean()] * 2, color=look["color"], **bar)
            last[kind] = table[kind]
    axis.set_xticks(places, [" = ".join(tiers) for tiers in columns])
    axis.grid(axis="x", visible=False)
    axis.yaxis.set_major_locator(MaxNLocator(6))
    axis.set_xlim(-0.5, len(tables) - 0.5)
    _gains(axis, tables)


def _gains(axis, tables: dict[str, pd.DataFrame]) -> None:
    """What each kind of multipliers gains at the first and at the last tier, in its colour."""
    told = [tier for tier, table in tables.items()
            if WITHOUT in table and any(kind in table for kind in SHORT)]  # fmt: skip
    if not told:
        return
    first, last = told[0], told[-1]
    places = {first: (0.02, "left")} | ({last: (0.98, "right")} if last != first else {})
    for tier, (x, side) in places.items():
        table = tables[tier]
        kinds = [kind for kind in SHORT if kind in table]
        lines = [(f"gain at {tier}", "#222222")]
        lines += [(f"{SHORT[kind]} {_said(table[WITHOUT] - table[kind])}", _dark(kind))
                  for kind in kinds]  # fmt: skip
        for place, (text, colour) in enumerate(lines):
            axis.annotate(text, (x, 0.985), (0, -1.25 * SMALL * place), ha=side, va="top",
                          xycoords="axes fraction", textcoords="offset points", color=colour,
                          fontsize=SMALL, bbox=BEHIND)  # fmt: skip


def _dark(kind: str):
    """The colour of words on a kind of multipliers."""
    return shade(LOOKS[kind]["color"], -0.25)


def _said(values: pd.Series) -> str:
    """Mean and half of the interval, with a digit more where three would hide its sign."""
    found = interval(values)
    half = (found.high - found.low) / 2
    hidden = found.low * found.high > 0 and round(abs(found.mean), 3) <= round(half, 3)
    return with_half(values, 4 if hidden else 3)


def _gaps(axis, rows: pd.DataFrame | None) -> None:
    """Means over seeds of each tier, with intervals over seeds."""
    axis.set_xlabel("step")
    if rows is None:
        axis.text(0.5, 0.5, NO_PAIR, transform=axis.transAxes, ha="center", va="center",
                  fontsize=7, color="#444444")  # fmt: skip
        return
    for tier, own in _gap_tables(rows):
        middle = [interval(values) for values in own.to_numpy()]
        look = TIER_LOOKS[tier] | {"zorder": 3}
        axis.plot(own.index, [one.mean for one in middle], **look)
        if own.shape[1] > 1:
            low, high = [one.low for one in middle], [one.high for one in middle]
            axis.fill_between(own.index, low, high, color=look["color"], alpha=0.2, lw=0)
    axis.axhline(0, **NEUTRAL)
    decay_line(axis, rows["decay"].iloc[0])
    axis.annotate("LR decay →", (rows["decay"].iloc[0], 0.97), (-3, 0), ha="right", va="top",
                  xycoords=axis.get_xaxis_transform(), textcoords="offset points",
                  color="#555555", fontsize=SMALL, bbox=BEHIND)  # fmt: skip
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def _gap_tables(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """By tier that has runs a table of steps × seeds."""
    return [
        (tier, rows[rows["tier"] == tier].pivot(index="step", columns="seed", values="value"))
        for tier in _tiers(rows)
    ]


def _gap_ends(rows: pd.DataFrame) -> dict[str, tuple[float, str]]:
    """What ``name_ends`` wants; tiers with the same runs share a name."""
    ends: list[tuple[list[str], pd.DataFrame]] = []
    for tier, own in _gap_tables(rows):
        if ends and ends[-1][1].equals(own):
            ends[-1][0].append(tier)
        else:
            ends.append(([tier], own))
    return {
        " = ".join(tiers): (own.iloc[-1].mean(), shade(TIER_LOOKS[tiers[-1]]["color"], -0.25))
        for tiers, own in ends
    }


def _tried(own: pd.DataFrame) -> list[str]:
    """The tiers of one arm whose search cost something on top of the tier before, in order."""
    spent = own.groupby("tier")["flops"].first().loc[_tiers(own)]
    return list(spent.index[spent.diff() != 0])


def _costs(axis, rows: pd.DataFrame | None, unit: float) -> None:
    """Means with intervals, a line through the tiers of an arm."""
    axis.set_xlabel(rf"FLOPs of search ($10^{{{np.log10(unit):.0f}}}$)")
    if rows is None:
        axis.set(xticks=[], yticks=[], xlabel="")
        axis.text(0.5, 0.5, NO_LOG, transform=axis.transAxes, ha="center", va="center",
                  fontsize=7, color="#444444")  # fmt: skip
        return
    rows = rows.assign(flops=rows["flops"] / unit)
    for kind, own in rows.groupby("multipliers"):
        each = own.groupby("tier").agg({"flops": "first", "value": lambda values: interval(values)})
        each = each.loc[_tried(own)]  # a tier that tried nothing would hide the last one
        look = LOOKS[kind]
        means = [gain.mean for gain in each["value"]]
        # At these the search kept nothing: the loss is that of the tier before.
        again = [n > 0 and mean == means[n - 1] for n, mean in enumerate(means)]
        axis.plot(each["flops"], means, **look | {"lw": 0.8, "marker": ""})
        for (flops, gain), same in zip(each.itertuples(index=False), again, strict=True):
            axis.plot(flops, gain.mean, **look | {"ms": 4.5, "mew": 0} | (AGAIN if same else {}))
            if gain.n > 1 and not same:
                axis.plot([flops] * 2, [gain.low, gain.high], color=look["color"], lw=1.0)
    axis.axhline(0, **NEUTRAL)
    axis.xaxis.set_major_locator(MaxNLocator(6))
