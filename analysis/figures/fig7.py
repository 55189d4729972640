"""Figure 7 (section 5.1): four tiers of tuning, without and with multipliers; what tuning costs.

Top AdamW, bottom Muon. Left: loss after the decay at each tier; points are seeds, a thin line joins
the two arms of a seed, bars are means. Where the search kept nothing at a tier, its runs are those
of the tier before: they are pale, and a tier where no arm has runs of its own has no column.
Middle: loss with vector multipliers minus loss without, over training, batch by batch the same
data, averaged over a window of steps; means of each tier with 95% intervals over seeds. Right
(ours): the loss that an arm saves against NONE without multipliers, over the FLOPs that the search
had spent when it had found the arm's tuning; numbers are tiers, bars are 95% intervals. The csv has
the number of trials too.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import decay_line, name_ends
from analysis.drawing.page import caption, key, key_of_decay, label, legend_below, page
from analysis.drawing.style import (
    ARM_LOOKS,
    NEUTRAL,
    NO_MULTIPLIERS,
    OPTIMIZER_NAMES,
    SMALL,
    shade,
)
from analysis.quantities import tuning_ablation as tuning
from analysis.quantities.stats import interval, with_interval
from analysis.quantities.tuning_ablation import OPTIMIZERS, SCALAR, TIERS, WITH, WITHOUT
from analysis.tables.context import Context
from analysis.tables.find import NothingFound
from analysis.tables.results import Tables

EXPERIMENTS = ("tuning_ablation",)
LOOKS = {WITHOUT: ARM_LOOKS["FPN"], SCALAR: ARM_LOOKS["SPN"], WITH: ARM_LOOKS["VPN"]}
NAMES = {
    WITHOUT: NO_MULTIPLIERS,
    SCALAR: "one scalar for each matrix",
    WITH: "vector multipliers",
}
# Where the arms of a tier stand beside it.
PLACES = {WITHOUT: -0.28, SCALAR: 0.0, WITH: 0.28}
# The more is tuned, the darker the vectors' green; dashes tell them apart too.
TIER_LOOKS = {
    tier: {"color": shade(LOOKS[WITH]["color"], share), "ls": dashes}
    for tier, share, dashes in zip(
        TIERS, (0.45, 0.0, -0.4, -0.8), ((0, (1, 1)), "--", "-.", "-"), strict=True
    )
}
TITLES = {
    "AdamW": ("AdamW: vectors trail", "The early lead is lost", "Scalars are cheap"),
    "Muon": ("Muon: vectors trail", "Tiers differ in sign", "Scalars are cheap"),
}
# Differences are averaged over about so many parts of the training.
WINDOWS = 25
# Runs that a tier shares with the one before.
AGAIN = {"alpha": 0.22}
NO_LOG = "There is no log\nof the search:\nrun make tune."


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, optimizer, multipliers, tier, seed, step, value, trials, flops, window and
    decay, the step at which it begins.

    Panel ``loss`` holds losses after the decay, ``gap`` losses with minus without in the ``window``
    of steps that ends at ``step``, ``cost`` gains over NONE without multipliers.
    """
    table = tables["tuning_ablation"]
    settings = table.settings
    every, steps = settings["probes"]["every"], settings["train"]["steps"]
    probes = max(1, round(steps / WINDOWS / every))
    final = tuning.losses(table)
    gaps = -tuning.gaps(table, probes)
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


def _tidy(table: pd.DataFrame, **columns) -> pd.DataFrame:
    """A row for each finite number of a table, with the names of its rows and columns."""
    rows = table.melt(ignore_index=False).reset_index().dropna(subset="value")
    if "step" not in rows:
        rows["step"] = np.nan
    return rows.assign(**columns)


def draw(numbers: pd.DataFrame, context: Context):
    """A row of three panels for each optimizer."""
    figure, axes = page(2, 3, 4.6, w_pad=0.03, h_pad=0.05, width_ratios=[1.15, 0.95, 1.0])
    panels = dict(tuple(numbers.groupby(["panel", "optimizer"])))
    letters = iter("abcdef")
    spent = numbers["flops"].max()
    for row, optimizer in zip(axes, OPTIMIZERS.values(), strict=True):
        _losses(row[0], panels["loss", optimizer])
        _gaps(row[1], panels["gap", optimizer])
        if ("cost", optimizer) in panels:
            _costs(row[2], panels["cost", optimizer], 10.0 ** np.floor(np.log10(spent)))
        else:
            row[2].set(xticks=[], yticks=[])
            row[2].text(0.5, 0.5, NO_LOG, transform=row[2].transAxes, ha="center", va="center",
                        fontsize=7, color="#444444")  # fmt: skip
        for axis, title in zip(row, TITLES[OPTIMIZER_NAMES[optimizer]], strict=True):
            label(axis, f"{next(letters)}   {title}")
        row[0].set_ylabel("validation loss (nats)")
        row[1].set_ylabel("Δ training loss (nats)\n← vectors better")
        row[2].set_ylabel(f"loss saved against NONE,\n{NO_MULTIPLIERS} (nats)")
    for column in axes.T:
        _share(column)
    for axis in axes[:, 0]:
        low, high = axis.get_ylim()
        axis.set_ylim(top=high + 0.15 * (high - low))  # for what stands at the top
    for axis, of_gaps in zip(axes[:, 1], OPTIMIZERS.values(), strict=True):
        name_ends(axis, _gap_ends(panels["gap", of_gaps]), at=1.05)
    axes[1, 0].set_xlabel("what is tuned")
    axes[1, 1].set_xlabel("step")
    _legend(figure)
    intervals = "; bands, bars in c and f: 95%" if numbers["seed"].nunique() > 1 else ""
    window = int(numbers["window"].iloc[0])
    return caption(figure, context, f"b, e: means over {window} steps{intervals}")


def _share(axes) -> None:
    """One range for all of ``axes``, of x and of y."""
    x, y = (np.array([(axis.get_xlim(), axis.get_ylim()) for axis in axes])[:, i] for i in (0, 1))
    for axis in axes:
        axis.set(xlim=(x.min(), x.max()), ylim=(y.min(), y.max()))


def _legend(figure) -> None:
    handles = [key(NAMES[kind], **look, ls="") for kind, look in LOOKS.items()]
    handles += [
        key("mean over seeds", lw=1.8, color="#777777"),
        key("the same seed", lw=0.6, color="#aaaaaa"),
        key_of_decay(),
        key("pale: the search kept nothing, runs of the tier before", color="#777777", marker="o",
            ls="", **AGAIN),
    ]  # fmt: skip
    legend_below(figure, handles, 3, handletextpad=0.4)


def _losses(axis, rows: pd.DataFrame) -> None:
    """Every seed of every arm, tier by tier; pairs of a seed are joined.

    Tiers that share all their runs share a column.
    """
    tables = {
        tier: rows[rows["tier"] == tier].pivot(index="seed", columns="multipliers", values="value")
        for tier in TIERS
    }
    columns: list[list[str]] = []
    for tier, table in tables.items():
        if columns and table[[WITHOUT, WITH]].equals(tables[columns[-1][0]][[WITHOUT, WITH]]):
            columns[-1].append(tier)
        else:
            columns.append([tier])
    last: dict[str, pd.Series] = {}
    places = [np.mean([TIERS.index(tier) for tier in tiers]) for tiers in columns]
    for place, (tier, *_) in zip(places, columns, strict=True):
        table = tables[tier]
        ends = [place + PLACES[WITHOUT], place + PLACES[WITH]]
        axis.plot(ends, table[[WITHOUT, WITH]].T, color="#bbbbbb", lw=0.6, zorder=1)
        for kind in table:
            x, look = place + PLACES[kind], LOOKS[kind]
            again = kind in last and last[kind].equals(table[kind])
            own = {"ls": "", "ms": 3.2, "mew": 0, "alpha": 0.6} | (AGAIN if again else {})
            axis.plot([x] * len(table), table[kind], **look | own)
            bar = {"lw": 0.9 if again else 1.8, "zorder": 4}
            axis.plot([x - 0.12, x + 0.12], [table[kind].mean()] * 2, color=look["color"], **bar)
            last[kind] = table[kind]
    names = [
        "\n".join((", ".join(str(1 + TIERS.index(tier)) for tier in tiers), " = ".join(tiers)))
        for tiers in columns
    ]
    axis.set_xticks(places, names)
    axis.grid(axis="x", visible=False)
    axis.yaxis.set_major_locator(MaxNLocator(6))
    axis.set_xlim(-0.5, len(TIERS) - 0.5)
    full = tables[TIERS[-1]]
    said = with_interval(full[WITH] - full[WITHOUT], 3).replace("-", "−")
    axis.text(0.98, 0.98, f"vectors − none at {TIERS[-1]}:\n{said}", transform=axis.transAxes,
              ha="right", va="top", fontsize=SMALL, linespacing=1.15)  # fmt: skip


def _gaps(axis, rows: pd.DataFrame) -> None:
    """Means over seeds of each tier, with intervals over seeds."""
    for tier, own in _gap_tables(rows):
        middle = [interval(values) for values in own.to_numpy()]
        look = TIER_LOOKS[tier] | {"zorder": 3}
        axis.plot(own.index, [one.mean for one in middle], **look)
        if own.shape[1] > 1:
            low, high = [one.low for one in middle], [one.high for one in middle]
            axis.fill_between(own.index, low, high, color=look["color"], alpha=0.2, lw=0)
    axis.axhline(0, **NEUTRAL)
    decay_line(axis, rows["decay"].iloc[0])
    axis.xaxis.set_major_locator(MaxNLocator(3, integer=True))


def _gap_tables(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """By tier a table of steps × seeds."""
    return [
        (tier, rows[rows["tier"] == tier].pivot(index="step", columns="seed", values="value"))
        for tier in TIERS
    ]


def _gap_ends(rows: pd.DataFrame) -> dict[str, tuple[float, str]]:
    """What ``name_ends`` wants; tiers with the same runs share a name."""
    ends: list[tuple[str, pd.DataFrame]] = []
    for tier, own in _gap_tables(rows):
        if ends and ends[-1][1].equals(own):
            ends[-1] = f"{ends[-1][0]} =\n{tier}", own
        else:
            ends.append((tier, own))
    return {
        name: (own.iloc[-1].mean(), shade(TIER_LOOKS[name.rpartition("\n")[2]]["color"], -0.25))
        for name, own in ends
    }


def _costs(axis, rows: pd.DataFrame, unit: float) -> None:
    """Means with intervals, and a line through the tiers of an arm."""
    rows = rows.assign(flops=rows["flops"] / unit)
    for kind, own in rows.groupby("multipliers"):
        each = own.groupby("tier").agg({"flops": "first", "value": lambda values: interval(values)})
        each = each.loc[[tier for tier in TIERS if tier in each.index]]
        look = LOOKS[kind]
        means = [gain.mean for gain in each["value"]]
        axis.plot(each["flops"], means, **look | {"lw": 0.8, "ms": 4.5})
        for flops, gain in each.itertuples(index=False):
            if gain.n > 1:
                axis.plot([flops] * 2, [gain.low, gain.high], color=look["color"], lw=1.0)
        _number(axis, each, kind != WITH, shade(look["color"], -0.25))
    axis.axhline(0, **NEUTRAL)
    axis.margins(x=0.12, y=0.12)
    low, high = axis.get_ylim()
    axis.set(xlim=(0, axis.get_xlim()[1]), ylim=(low - 0.06 * (high - low), high))
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.set_xlabel(rf"FLOPs of search ($10^{{{np.log10(unit):.0f}}}$)")


def _number(axis, each: pd.DataFrame, up: bool, colour: str) -> None:
    """The numbers of tiers to the left of the upper (or lower) ends of their intervals."""
    for tier, (flops, gain) in each.iterrows():
        wide = gain.n > 1 and gain.low < gain.high
        end = (gain.high if up else gain.low) if wide else gain.mean
        shift, side = ((-3, 0), "top" if up else "bottom") if wide else ((-3, -3), "top")
        axis.annotate(str(1 + TIERS.index(tier)), (flops, end), shift, va=side, ha="right",
                      textcoords="offset points", color=colour, fontsize=SMALL)  # fmt: skip
