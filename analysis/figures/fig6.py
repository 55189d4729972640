"""Figure 6 (section 4.3): multipliers' gradients in or out of the norm that clips.

a: loss over the first steps. b: gradient norms of the first steps, of all tensors and of all but
multipliers: solid the one that is compared with the threshold of clipping, thin and dotted the
other. Lines of both are medians, bands the middle half of the seeds. c: training loss less that of
the arm whose multipliers are left out of the norm, over the whole training, batch by batch the same
data, averaged over neighbouring steps. d: the same around the beginning of the decay, and its
numbers at the end. Lines of both are means, bands their 95% intervals.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import decay_line, each, mean
from analysis.drawing.page import caption, finding, headline, key, label, legend_below, page
from analysis.drawing.style import (
    ARM_COLOURS,
    NEUTRAL,
    NO_MULTIPLIERS,
    SMALL,
    plain_log_axis,
    shade,
)
from analysis.quantities.grad_clipping import EXCLUDED, INCLUDED, NONE, early, gradient_norms
from analysis.quantities.losses import in_bins
from analysis.quantities.stats import interval, with_interval
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("grad_clipping",)
COLOURS = {
    EXCLUDED: ARM_COLOURS["SPN"],
    INCLUDED: shade(ARM_COLOURS["SPN"], 0.4),
    NONE: ARM_COLOURS["FPN"],
}
NAMES = {
    EXCLUDED: "scalars, left out of the clipping norm",
    INCLUDED: "scalars, in the clipping norm",
    NONE: NO_MULTIPLIERS,
}
SHORT = {INCLUDED: "in the norm", NONE: NO_MULTIPLIERS}
MESSAGE = "Multipliers dominate the early norm; left out of clipping they keep a lead to the end"
# The norm that clipping compares with its threshold, and the other.
CLIPPED = {EXCLUDED: "tensors", INCLUDED: "all", NONE: "all"}
NORMS = {"all": "all gradients", "tensors": "all but multipliers'"}
OTHER = {"ls": (0, (1, 1.2)), "lw": 0.7}
# Losses are averaged over so many parts of the training.
PARTS = 40
BAND = (0.25, 0.75)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, quantity, seed, step, value, the clipping threshold, and the step
    at which the decay begins."""
    table = tables["grad_clipping"]
    losses = table.pick(stat="train_loss")
    first = early(losses).assign(panel="loss", quantity="loss")
    norms = early(gradient_norms(table)).assign(panel="norm")
    binned = in_bins(losses, max(1, int(losses["step"].max()) // PARTS))
    means = binned.pivot_table("value", ["seed", "step"], "arm", aggfunc="mean")
    gaps = means[[INCLUDED, NONE]].sub(means[EXCLUDED], axis=0)
    columns = ["panel", "arm", "quantity", "seed", "step", "value"]
    rows = pd.concat([first, norms, stacked(gaps, panel="gap", quantity="loss")])[columns]
    rows["threshold"] = table.settings["train"]["clip_norm"]
    rows["decay"] = table.stage_end
    return rows.sort_values(columns, ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels, one legend below."""
    figure, axes = page(2, 2, 4.4, w_pad=0.05, h_pad=0.05)
    headline(figure, MESSAGE, context)
    a, b, c, d = axes.flat
    panels = {panel: numbers[numbers["panel"] == panel] for panel in ("loss", "norm", "gap")}
    looks = {
        (arm, quantity): {"color": colour} | ({} if quantity in ("loss", CLIPPED[arm]) else OTHER)
        for arm, colour in COLOURS.items()
        for quantity in ("loss", "all", "tensors")
        if arm != NONE or quantity != "tensors"  # without multipliers both norms are one
    }
    for axis, rows in ((a, panels["loss"]), (b, panels["norm"])):
        each(axis, rows, "step", looks, by=["arm", "quantity"], band=BAND)
        axis.set_xlabel("step")
    shown = "the loss falls fastest\n     when multipliers are left out"
    label(a, f"a   First steps: {finding(context, shown, 'loss')}", ylabel="training loss (nats)")
    threshold = numbers["threshold"].iloc[0]
    b.axhline(threshold, **NEUTRAL | {"color": "black"})
    b.margins(y=0.14)
    plain_log_axis(b)
    shown = "multipliers dominate;\n     out of the norm, nothing is clipped"
    label(b, f"b   First steps: {finding(context, shown, 'norm')}", ylabel="gradient norm")
    _name(b, panels["norm"], threshold)
    gaps = panels["gap"]
    means = gaps.groupby(["arm", "step"])["value"].mean().unstack(0)
    for axis, rows in ((c, gaps), (d, _late(gaps))):
        for arm in SHORT:
            mean(axis, rows[rows["arm"] == arm], "step", color=COLOURS[arm], zorder=3)
        axis.axhline(0, color=COLOURS[EXCLUDED], lw=1.2, zorder=1)
        decay_line(axis, numbers["decay"].iloc[0])
        axis.set(xlabel="step", ylabel="training loss −\nthat if left out (nats)")
    peak, last = means.max(), means.iloc[-1]
    shown = (
        f"The leads over “in the norm” ({peak[INCLUDED]:.2f})\n"
        f"     and “no multipliers” ({peak[NONE]:.2f}) shrink"
    )
    label(c, f"c   {finding(context, shown, 'Leads over the whole training')}")
    shown = (
        f"In LR decay one lead stays ({last[INCLUDED]:.3f}),\n"
        f"     the other regrows ({last[NONE]:.3f})"
    )
    label(d, f"d   {finding(context, shown, 'Leads around LR decay')}")
    c.annotate("LR decay →", (numbers["decay"].iloc[0], 0.97), (-3, 0), ha="right", va="top",
               xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=SMALL,
               color="#555555")  # fmt: skip
    low, high = d.get_ylim()
    room = 0.15 * (high - min(0, low))  # for the numbers at the end
    d.set_ylim(min(0, low) - room, high + room)
    _name_last(d, _late(gaps))
    handles = [key(NAMES[arm], color=colour) for arm, colour in COLOURS.items()]
    handles += [
        key("b: norm compared with the threshold", color="#444444"),
        key("b: norm not used for clipping", color="#444444", **OTHER),
    ]
    legend_below(figure, handles, 2)
    note = "b: without multipliers the two norms coincide"
    if numbers["seed"].nunique() > 1:
        note += "\na, b: medians, middle half of seeds; c, d: means with 95% intervals"
    return caption(figure, context, note)


def _late(rows: pd.DataFrame) -> pd.DataFrame:
    """The decay, and as many steps before it."""
    return rows[rows["step"] >= 2 * rows["decay"].iloc[0] - rows["step"].max()]


def _name_last(axis, rows: pd.DataFrame) -> None:
    """Mean and 95% interval of both differences at the last step, and a name for the line at 0."""
    last = rows["step"].max()
    values = rows[rows["step"] == last].groupby("arm")["value"]
    look = {"textcoords": "offset points", "fontsize": SMALL,
            "bbox": {"color": "white", "pad": 0.4}}  # fmt: skip
    for arm, side in ((NONE, "high"), (INCLUDED, "low")):
        found = interval(values.get_group(arm))
        height = getattr(found, side) if found.n > 1 else found.mean
        said = with_interval(values.get_group(arm)).replace("-", "−")
        above = side == "high"
        axis.annotate(f"{SHORT[arm]}: {said}", (last, height), (0, 3 if above else -5), ha="right",
                      va="bottom" if above else "top", color=shade(COLOURS[arm], -0.35),
                      **look)  # fmt: skip
    axis.annotate("left out of the norm", (rows["step"].min(), 0), (0, -3), va="top",
                  color=COLOURS[EXCLUDED], **look)  # fmt: skip


def _name(axis, rows: pd.DataFrame, threshold: float) -> None:
    """Words beside the threshold, above the upper group of lines and below the lower one."""
    look = {"textcoords": "offset points", "fontsize": SMALL}
    said = f"threshold {threshold:g}; solid lines above it are clipped"
    axis.annotate(said, (rows["step"].min(), threshold), (0, -2), va="top", **look)
    seen = rows[rows["step"] >= rows["step"].median()].groupby(["quantity", "step"])["value"]
    upper, lower = (
        seen.quantile(share)[name] for share, name in zip(BAND[::-1], NORMS, strict=True)
    )
    last = rows["step"].max()
    axis.annotate(NORMS["all"], (last, upper.max()), (0, 3), ha="right", va="bottom", **look)
    axis.annotate(NORMS["tensors"], (last, lower.min()), (0, -3), ha="right", va="top", **look)
