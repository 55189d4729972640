"""Figure 6 (section 4.3): multipliers' gradients in or out of the norm that clips.

Left: loss over the first steps. Middle: gradient norms of the first steps, of all tensors but
multipliers and of all; the threshold of clipping. Right: loss less that of the arm whose
multipliers are left out of the norm, over the whole training, batch by batch the same data,
averaged over neighbouring steps; linear within the dotted lines, logarithmic outside.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import SymmetricalLogLocator

from analysis.drawing.axes import series
from analysis.drawing.style import ARM_COLOURS, TEXT_WIDTH, caption
from analysis.quantities.grad_clipping import EXCLUDED, INCLUDED, NONE, early, gradient_norms
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("grad_clipping",)
COLOURS = {EXCLUDED: ARM_COLOURS["SPN"], INCLUDED: ARM_COLOURS["FPN"], NONE: "#777777"}
NAMES = {
    EXCLUDED: "multipliers left out of the norm",
    INCLUDED: "multipliers in the norm",
    NONE: "no multipliers",
}
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
    width = max(1, int(losses["step"].max()) // PARTS)
    binned = losses.assign(step=((losses["step"] - 1) // width + 1) * width)
    means = binned.pivot_table("value", ["seed", "step"], "arm", aggfunc="mean")
    gaps = means[[INCLUDED, NONE]].sub(means[EXCLUDED], axis=0).stack().rename("value")
    gaps = gaps.reset_index().assign(panel="gap", quantity="loss")
    columns = ["panel", "arm", "quantity", "seed", "step", "value"]
    found = pd.concat([part[columns] for part in (first, norms, gaps)])
    found["threshold"] = table.settings["train"]["clip_norm"]
    return found.sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels."""
    figure, axes = plt.subplots(1, 3, figsize=(TEXT_WIDTH, 2.75))
    figure.get_layout_engine().set(rect=(0, 0.16, 1, 0.84), w_pad=0.05)
    by_panel = dict(tuple(numbers.groupby("panel")))
    for arm, colour in COLOURS.items():
        for axis, panel in zip(axes, ("loss", "norm", "gap"), strict=True):
            rows = by_panel[panel][by_panel[panel]["arm"] == arm]
            for quantity, line in (("loss", "-"), ("all", "-"), ("tensors", ":")):
                series(axis, rows[rows["quantity"] == quantity], "step", colour, line=line)
    axes[0].set(ylabel="training loss (nats per token)", xlabel="step")
    axes[0].set_title("a   First steps: loss", loc="left")
    threshold = numbers["threshold"].iloc[0]
    axes[1].axhline(threshold, color="black", lw=0.8, ls="--", zorder=1)
    axes[1].set(yscale="log", xlabel="step", ylabel="gradient norm before clipping")
    axes[1].set_title("b   First steps: gradient norm", loc="left")
    axes[2].axhline(0, color=COLOURS[EXCLUDED], lw=1.2, zorder=1)
    axes[2].set_yscale("symlog", linthresh=LINEAR)
    for edge in (-LINEAR, LINEAR):
        axes[2].axhline(edge, color="#999999", lw=0.7, ls=":", zorder=1)
    axes[2].yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=LINEAR))
    axes[2].yaxis.set_major_formatter("{x:g}")
    axes[2].set(xlabel="step", ylabel="loss − loss of the blue arm")
    axes[2].set_title("c   Loss, difference", loc="left")
    handles = [Line2D([], [], color=colour, label=NAMES[arm]) for arm, colour in COLOURS.items()]
    handles += [
        Line2D([], [], color="black", label="b: of all gradients"),
        Line2D([], [], color="black", ls=":", label="b: without those of multipliers"),
        Line2D([], [], color="black", lw=0.8, ls="--", label=f"b: clipping at {threshold:g}"),
    ]
    figure.legend(handles=handles, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 0.04))
    caption(figure, context, "c: linear within the dotted lines")
    return figure
