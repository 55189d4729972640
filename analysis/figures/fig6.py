"""Figure 6 (section 4.3): multipliers' gradients in or out of the norm that clips.

Left: loss over the first steps. Middle: gradient norms of the first steps, of all tensors but
multipliers and of all; the threshold of clipping. Right: loss less that of the arm whose
multipliers are left out of the norm, over the whole training, batch by batch the same data,
averaged over neighbouring steps; linear within the dotted lines, logarithmic outside.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import SymmetricalLogLocator

from analysis.drawing.axes import each
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_COLOURS
from analysis.quantities.grad_clipping import EXCLUDED, INCLUDED, NONE, early, gradient_norms
from analysis.quantities.losses import in_bins
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("grad_clipping",)
COLOURS = {EXCLUDED: ARM_COLOURS["SPN"], INCLUDED: ARM_COLOURS["FPN"], NONE: "#777777"}
NAMES = {
    EXCLUDED: "multipliers left out of the norm",
    INCLUDED: "multipliers in the norm",
    NONE: "no multipliers",
}
LINES = {"loss": "-", "all": "-", "tensors": ":"}
# Losses are averaged over so many parts of the training.
PARTS = 40
# Smaller differences of the loss stand on a linear axis.
LINEAR = 0.02


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, quantity, seed, step, value, and the clipping threshold."""
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
    return rows.sort_values(columns, ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels."""
    figure, axes = page(1, 3, 2.75, below=0.16, w_pad=0.05)
    looks = {
        (arm, quantity): {"color": colour, "ls": line}
        for arm, colour in COLOURS.items()
        for quantity, line in LINES.items()
    }
    for axis, panel in zip(axes, ("loss", "norm", "gap"), strict=True):
        each(axis, numbers[numbers["panel"] == panel], "step", looks, by=["arm", "quantity"])
        axis.set_xlabel("step")
    label(axes[0], "a   First steps: loss", ylabel="training loss (nats per token)")
    threshold = numbers["threshold"].iloc[0]
    axes[1].axhline(threshold, color="black", lw=0.8, ls="--", zorder=1)
    norm = "gradient norm before clipping"
    label(axes[1], "b   First steps: gradient norm", yscale="log", ylabel=norm)
    axes[2].axhline(0, color=COLOURS[EXCLUDED], lw=1.2, zorder=1)
    axes[2].set_yscale("symlog", linthresh=LINEAR)
    for edge in (-LINEAR, LINEAR):
        axes[2].axhline(edge, color="#999999", lw=0.7, ls=":", zorder=1)
    axes[2].yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=LINEAR))
    axes[2].yaxis.set_major_formatter("{x:g}")
    label(axes[2], "c   Loss, difference", ylabel="loss − loss of the blue arm")
    handles = [key(NAMES[arm], color=colour) for arm, colour in COLOURS.items()]
    handles += [
        key("b: of all gradients"),
        key("b: without those of multipliers", ls=":"),
        key(f"b: clipping at {threshold:g}", lw=0.8, ls="--"),
    ]
    legend_below(figure, handles, 3, 0.04)
    return caption(figure, context, "c: linear within the dotted lines")
