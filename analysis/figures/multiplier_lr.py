"""The multipliers' own LR: what the loss exceeds that at the best LR by, and the norm, at three S.

a to c: loss after the decay less that at the best of the LRs, paired by seed; the best is that of
the arm's mean. Below the dashes: as good as the best by the criterion. d to f: the norm that the
multipliers reach from 1. Lines are means, bands their 95% intervals; those of the norm are as
narrow as its lines. Dotted: the LR of the projector experiment.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.axes import mean
from analysis.drawing.page import caption, headline, key, label, legend_below, page, written_of
from analysis.drawing.style import (
    ARM_LOOKS,
    NEUTRAL,
    S_MEANS,
    SMALL,
    plain_log_axis,
    power_of_two,
)
from analysis.quantities.losses import final_losses
from analysis.quantities.norms import at_step
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("multiplier_lr",)
MESSAGE = (
    "LM head: one LR, 6·10⁻³, is within 0.05 nats of the best of five;\n"
    "for the vector at S = 1/8 this is open"
)
# As good as the best by the criterion.
WITHIN = {"color": "#555555", "lw": 0.8, "ls": (0, (4, 2)), "zorder": 1}
# What each S shows, of the loss and of the norm.
TITLES = {
    0.125: ("small LRs\n     are too slow for both", "grows"),
    2.0: ("large LRs\n     harm the vector most", "falls"),
    8.0: ("smallest LR harms\n     both, largest the vector", "falls"),
}
# The norms that are drawn at least: none touches the edge.
LEAST_NORM = 0.04
NAMES = {"SPN": "SPN (learned scalar)", "VPN": "VPN (learned vector)"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, S, c_lr, seed, loss, excess (nats), norm (‖c‖ where the constant stage ends).

    The excess is over the loss of the same seed at the LR that is best for the arm at this S.
    """
    table = tables["multiplier_lr"]
    keys = ["arm", "S", "c_lr", "seed"]
    losses = final_losses(table)[[*keys, "value"]].rename(columns={"value": "loss"})
    means = losses.groupby(keys[:-1], as_index=False)["loss"].mean()
    best = means.loc[means.groupby(["arm", "S"])["loss"].idxmin(), keys[:-1]]
    least = losses.merge(best, on=keys[:-1]).rename(columns={"loss": "least"})
    losses = losses.merge(least[["arm", "S", "seed", "least"]], on=["arm", "S", "seed"])
    losses["excess"] = losses["loss"] - losses.pop("least")
    norms = table.pick(kind="train", tensor="norm.final", stat="effective_norm")
    norms = at_step(norms, table.stage_end)[[*keys, "value"]]
    return losses.merge(norms.rename(columns={"value": "norm"}), on=keys)


def draw(numbers: pd.DataFrame, context: Context):
    """One column per S: excess of the loss above, norm below, against the multipliers' LR."""
    scales = sorted(numbers["S"].unique())
    shared = {"sharex": True, "sharey": "row", "squeeze": False}
    figure, axes = page(2, len(scales), 3.95, w_pad=0.04, height_ratios=[1.5, 1], **shared)
    headline(figure, MESSAGE, context)
    criterion = criteria_of("multiplier_lr")["MLR"]
    chosen, matters = criterion["multiplier_lr"], criterion["thresholds"]["excess"]
    letters, known = iter("abcdefghijkl"), written_of(context)
    told = TITLES if known else {}
    rates = sorted(numbers["c_lr"].unique())
    for place, (line, quantity) in enumerate(zip(axes, ("excess", "norm"), strict=True)):
        for axis, s in zip(line, scales, strict=True):
            for arm, rows in numbers[numbers["S"] == s].groupby("arm"):
                rows = rows.assign(value=rows[quantity])
                mean(axis, rows, "c_lr", **ARM_LOOKS[arm])
            axis.set_xscale("log")
            axis.set_xticks(rates, [f"{1e3 * rate:g}" for rate in rates])
            axis.axvline(chosen, **NEUTRAL, ls=":")
            axis.xaxis.set_minor_locator(NullLocator())
            head = f"S = {power_of_two(s)}:" + (r" $\|c\|$" if quantity == "norm" else "")
            title = f"{head} {told.get(s, ('', ''))[place]}".rstrip(": ")
            label(axis, f"{next(letters)}   {title}")
    for column in axes.T:
        column[0].axhline(matters, **WITHIN)
        column[1].set_xlabel("LR of the multipliers (10⁻³)")
        plain_log_axis(column[1])
        column[0].axhline(0, **NEUTRAL)
        column[1].axhline(1, **NEUTRAL)
    low, high = axes[1, 0].get_ylim()
    axes[1, 0].set_ylim(min(low, LEAST_NORM), high)
    axes[1, 0].annotate("start", (rates[-1], 1), (0, -2), textcoords="offset points",
                        ha="right", va="top", fontsize=SMALL)  # fmt: skip
    axes[0, 0].set_ylabel("loss − loss at the\nbest LR (nats)")
    axes[1, 0].set_ylabel(r"RMS norm $\|c\|$")
    handles = [key(NAMES[arm], **ARM_LOOKS[arm]) for arm in NAMES]
    handles.append(key(f"{1e3 * chosen:g}·10⁻³, as in the projector experiment", **NEUTRAL, ls=":"))
    handles.append(key(f"{matters:g} nats above the best: limit of the test", **WITHIN))
    legend_below(figure, handles, 2)
    note = f"{S_MEANS}, of the LM head\nbest: the LR of the least mean loss over these seeds"
    if numbers["seed"].nunique() > 1:
        note += ", which biases excesses upwards"
        note += "\nat S = 1/8 the best LR is the largest tried" if known else ""
        note += "\nlines: means; bands: 95%, in d to f narrower than the lines"
    return caption(figure, context, note)
