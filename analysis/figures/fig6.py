"""Figure 6 (section 4.3): multipliers' gradients in or out of the norm that clips.

a: loss over the first steps. b: gradient norms of the first steps, of all tensors and of all but
multipliers; the threshold of clipping. c: loss less that of the arm whose multipliers are left out
of the norm, over the whole training, batch by batch the same data, averaged over neighbouring
steps. d: the same around the beginning of the decay, and at the end its mean with 95% interval.
Lines are medians, bands the middle half of the seeds.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import decay_line, each
from analysis.drawing.page import caption, key, key_of_decay, label, legend_below, page
from analysis.drawing.style import (
    ARM_COLOURS,
    BANDS_HALF,
    NEUTRAL,
    NO_MULTIPLIERS,
    SMALL,
    plain_log_axis,
    shade,
)
from analysis.quantities.grad_clipping import EXCLUDED, INCLUDED, NONE, early, gradient_norms
from analysis.quantities.losses import in_bins
from analysis.quantities.stats import with_interval
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("grad_clipping",)
COLOURS = {
    EXCLUDED: ARM_COLOURS["SPN"],
    INCLUDED: shade(ARM_COLOURS["SPN"], 0.4),
    NONE: ARM_COLOURS["FPN"],
}
NAMES = {
    EXCLUDED: "scalars, left out of the norm",
    INCLUDED: "scalars, in the norm",
    NONE: NO_MULTIPLIERS,
}
LINES = {"loss": "-", "all": "-", "tensors": ":"}
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
    figure, axes = page(2, 2, 3.9, w_pad=0.05, h_pad=0.05)
    axes = axes.flat
    looks = {
        (arm, quantity): {"color": colour, "ls": line}
        for arm, colour in COLOURS.items()
        for quantity, line in LINES.items()
    }
    panels = {panel: numbers[numbers["panel"] == panel] for panel in ("loss", "norm", "gap")}
    panels["late"] = _late(panels["gap"])
    for axis, rows in zip(axes, panels.values(), strict=True):
        each(axis, rows, "step", looks, by=["arm", "quantity"], band=BAND)
        axis.set_xlabel("step")
    label(
        axes[0], "a   First steps: fastest when left out", ylabel="training loss (nats per token)"
    )
    threshold = numbers["threshold"].iloc[0]
    axes[1].axhline(threshold, **NEUTRAL | {"color": "black"})
    axes[1].margins(y=0.14)
    plain_log_axis(axes[1])
    label(axes[1], "b   First steps: multipliers dominate", ylabel="gradient norm")
    _name(axes[1], panels["norm"], threshold)
    peak, last = _lead(panels["gap"])
    titles = f"c   The lead shrinks from {peak:.2f}", f"d   At the end {last:.2f} remains"
    for axis, title in zip((axes[2], axes[3]), titles, strict=True):
        axis.axhline(0, color=COLOURS[EXCLUDED], lw=1.2, zorder=1)
        decay_line(axis, numbers["decay"].iloc[0])
        label(axis, title, ylabel="loss − loss if left out (nats)")
    low, high = axes[3].get_ylim()
    room = 0.15 * (high - min(0, low))  # for the numbers at the end
    axes[3].set_ylim(min(0, low) - room, high + room)
    _name_last(axes[3], panels["late"])
    handles = [key(NAMES[arm], color=colour) for arm, colour in COLOURS.items()]
    handles += [key_of_decay("c, d: the decay begins")]
    legend_below(figure, handles, len(handles))
    note = f"b: {NO_MULTIPLIERS}: both norms are one"
    if numbers["seed"].nunique() > 1:
        note += f"; {BANDS_HALF}; d: numbers: means, 95%"
    return caption(figure, context, note)


def _late(rows: pd.DataFrame) -> pd.DataFrame:
    """The decay, and as many steps before it."""
    return rows[rows["step"] >= 2 * rows["decay"].iloc[0] - rows["step"].max()]


def _lead(rows: pd.DataFrame) -> tuple[float, float]:
    """The largest lead over the arm with multipliers in the norm, and the last, both drawn."""
    middle = rows[rows["arm"] == INCLUDED].groupby("step")["value"].median()
    return middle.max(), middle.iloc[-1]


def _name_last(axis, rows: pd.DataFrame) -> None:
    """Mean and 95% interval of both differences at the last step, above the band and below 0."""
    last = rows["step"].max()
    values = rows[rows["step"] == last].groupby("arm")["value"]
    top = values.get_group(NONE).quantile(BAND[1])
    for arm, height, side, gap in ((NONE, top, "bottom", 3), (INCLUDED, 0.0, "top", -3)):
        said = with_interval(values.get_group(arm)).replace("-", "−")
        axis.annotate(f"{NAMES[arm]}: {said}", (last, height), ha="right", va=side, xytext=(0, gap),
                      textcoords="offset points", fontsize=SMALL,
                      color=shade(COLOURS[arm], -0.35),
                      bbox={"color": "white", "pad": 0.5})  # fmt: skip


def _name(axis, rows: pd.DataFrame, threshold: float) -> None:
    """Words beside the threshold and the two groups of lines."""
    axis.annotate("↑ clipped", (rows["step"].median(), threshold), ha="center", va="bottom",
                  xytext=(0, 2), textcoords="offset points", fontsize=SMALL)  # fmt: skip
    seen = rows[rows["step"] >= rows["step"].median()].groupby(["quantity", "step"])["value"]
    for quantity, text in (("all", "all gradients"), ("tensors", "all but multipliers'")):
        height = seen.quantile(BAND[1])[quantity].max()
        axis.annotate(text, (rows["step"].max(), height), ha="right", va="bottom",
                      xytext=(0, 3), textcoords="offset points", fontsize=SMALL)  # fmt: skip
