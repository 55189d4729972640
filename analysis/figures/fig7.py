"""Figure 7 (section 5.1): four tiers of tuning, without and with multipliers; what tuning costs.

Top AdamW, bottom Muon. Left: loss after the decay at each tier; dots are seeds, a thin line joins
the two arms of a seed, bars are means. Middle: loss with vector multipliers minus loss without,
over training, batch by batch the same data, averaged over a window of steps; thin the mean of each
tier, thick that of all four with its 95% interval; dotted, the decay begins. Right (ours): what an
arm gains over NONE without multipliers, against the FLOPs that the search had spent when it had
found the arm's tuning, from tier to tier; lines are 95% intervals. The tier is the colour inside a
marker. The csv has the number of trials too.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_COLOURS, NEUTRAL, OPTIMIZER_NAMES
from analysis.quantities import tuning_ablation as tuning
from analysis.quantities.stats import interval
from analysis.quantities.tuning_ablation import OPTIMIZERS, SCALAR, TIERS, WITH, WITHOUT
from analysis.tables.context import Context
from analysis.tables.find import NothingFound
from analysis.tables.results import Tables

EXPERIMENTS = ("tuning_ablation",)
COLOURS = {
    WITHOUT: ARM_COLOURS["FPN"],
    SCALAR: ARM_COLOURS["SPN"],
    WITH: ARM_COLOURS["VPN"],
}
MARKERS = {WITHOUT: "o", SCALAR: "s", WITH: "^"}
NAMES = {
    WITHOUT: "without multipliers",
    SCALAR: "one scalar for each matrix",
    WITH: "vector multipliers",
}
# Where the arms of a tier stand beside it.
PLACES = {WITHOUT: -0.28, SCALAR: 0.0, WITH: 0.28}
# A tier in which the search kept nothing has the line of the tier before: dashes show both.
TIER_LOOKS = {
    tier: {"color": colour, "ls": line, "lw": width}
    for tier, colour, line, width in zip(
        TIERS, plt.get_cmap("viridis")([0.0, 0.36, 0.68, 0.9]),
        ("-", "-", (0, (2, 2)), "-"), (1.0, 1.9, 1.3, 1.0), strict=True,
    )
}  # fmt: skip
DECAY = {"color": "#555555", "lw": 0.9, "ls": ":"}
# Differences are averaged over about so many parts of the training.
WINDOWS = 25
NO_LOG = "There is no log of the search:\nrun make tune."


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
    figure, axes = page(2, 3, 4.8, w_pad=0.05, h_pad=0.05, width_ratios=[1.15, 1, 1])
    panels = dict(tuple(numbers.groupby(["panel", "optimizer"])))
    for row, optimizer in zip(axes, OPTIMIZERS.values(), strict=True):
        _losses(row[0], panels["loss", optimizer])
        row[0].set_ylabel(f"{OPTIMIZER_NAMES[optimizer]}\nvalidation loss (nats)")
        _gaps(row[1], panels["gap", optimizer])
        row[1].set_ylabel("Δ training loss (nats)")
        row[2].set(xlabel="FLOPs of the search", ylabel="gain over NONE without (nats)")
        if ("cost", optimizer) in panels:
            _costs(row[2], panels["cost", optimizer])
        else:
            row[2].set(xticks=[], yticks=[])
            row[2].text(0.5, 0.5, NO_LOG, transform=row[2].transAxes, ha="center", va="center",
                        fontsize=7, color="#444444")  # fmt: skip
    titles = ("a   Loss after the decay", "b   Loss, with − without", "c   Gain and cost")
    for axis, title in zip(axes[0], titles, strict=True):
        label(axis, title)
    axes[1, 0].set_xlabel("what is tuned")
    axes[1, 1].set_xlabel("step")
    _legend(figure, numbers["seed"].nunique() > 1)
    window = int(numbers["window"].iloc[0])
    return caption(figure, context, f"b: means over {window} steps")


def _legend(figure, several: bool) -> None:
    handles = [
        key(NAMES[kind], color=colour, marker=MARKERS[kind], ls="")
        for kind, colour in COLOURS.items()
    ]
    handles += [
        key("a: mean over seeds", lw=1.8, color="#777777"),
        key("a: the same seed", lw=0.6, color="#bbbbbb"),
        key("b: the decay begins", **DECAY),
        *(key(f"b, c: {tier}", **look, marker="o", ms=2.5) for tier, look in TIER_LOOKS.items()),
        key("b: mean of the tiers" + (", 95%" if several else ""), lw=1.8),
    ]
    legend_below(figure, handles, 4)


def _losses(axis, rows: pd.DataFrame) -> None:
    """Every seed of every arm, tier by tier; pairs of a seed are joined."""
    for place, tier in enumerate(TIERS):
        own = rows[rows["tier"] == tier]
        table = own.pivot(index="seed", columns="multipliers", values="value")
        ends = [place + PLACES[WITHOUT], place + PLACES[WITH]]
        axis.plot(ends, table[[WITHOUT, WITH]].T, color="#bbbbbb", lw=0.6, zorder=1)
        for kind in table:
            x, colour = place + PLACES[kind], COLOURS[kind]
            look = {"color": colour, "ms": 3.2, "mew": 0, "alpha": 0.6}
            axis.plot([x] * len(table), table[kind], MARKERS[kind], **look)
            mean = table[kind].mean()
            axis.plot([x - 0.12, x + 0.12], [mean] * 2, color=colour, lw=1.8, zorder=4)
    axis.set_xticks(range(len(TIERS)), TIERS)
    axis.grid(axis="x", visible=False)
    axis.yaxis.set_major_locator(MaxNLocator(6))
    axis.set_xlim(-0.5, len(TIERS) - 0.5)


def _gaps(axis, rows: pd.DataFrame) -> None:
    """Means over seeds of each tier, and of all tiers with the interval over seeds."""
    means = rows.groupby(["step", "tier"])["value"].mean().unstack()
    for tier in TIERS:
        axis.plot(means.index, means[tier], **TIER_LOOKS[tier], zorder=3)
    each = rows.groupby(["step", "seed"])["value"].mean().unstack()
    middle = [interval(values) for values in each.to_numpy()]
    axis.plot(each.index, [one.mean for one in middle], color="black", lw=1.8, zorder=4)
    if each.shape[1] > 1:
        low, high = [one.low for one in middle], [one.high for one in middle]
        axis.fill_between(each.index, low, high, color="black", alpha=0.15, lw=0)
    axis.axhline(0, **NEUTRAL)
    axis.axvline(rows["decay"].iloc[0], **DECAY, zorder=2)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _costs(axis, rows: pd.DataFrame) -> None:
    """Means with intervals, and a line through the tiers of an arm."""
    unit = 10.0 ** np.floor(np.log10(rows["flops"].max()))
    rows = rows.assign(flops=rows["flops"] / unit)
    for kind, own in rows.groupby("multipliers"):
        each = own.groupby("tier").agg({"flops": "first", "value": lambda values: interval(values)})
        each = each.loc[[tier for tier in TIERS if tier in each.index]]
        gains = [gain.mean for gain in each["value"]]
        axis.plot(each["flops"], gains, color=COLOURS[kind], lw=0.8)
        look = {"marker": MARKERS[kind], "ms": 4.5, "mec": COLOURS[kind], "zorder": 3}
        for tier, flops, gain in each.itertuples():
            if gain.n > 1:
                axis.plot([flops] * 2, [gain.low, gain.high], color=COLOURS[kind], lw=1.0)
            axis.plot(flops, gain.mean, color=TIER_LOOKS[tier]["color"], **look)
    axis.axhline(0, **NEUTRAL)
    axis.margins(x=0.12, y=0.1)
    axis.set_xlim(0, axis.get_xlim()[1])
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.set_xlabel(rf"FLOPs of the search ($10^{{{np.log10(unit):.0f}}}$)")
