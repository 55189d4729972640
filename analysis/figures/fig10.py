"""Figure 10 (appendix): norms of outputs over training, a line a width.

The embedding's, those of attention and MLP (geometric mean over layers), and the projector's, which
are the logits. The arm is the one whose learned scalar multipliers drift as far as the paper's:
their LR is above the usual one. From the dotted line on the LR decays. Lines are medians,
bands the range of seeds; the axes of outputs span as many decades, and that of logits, which
would lie on each other there, has its own range. Under each title stands the exponent of the
width, of the geometric mean of the last probes before that line, mean and 95% interval over seeds.
The first steps, in which norms move by decades, are left out; the csv has them. The SSM's output is
missing, since its course is not published.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import decay_line, each, end, name_ends
from analysis.drawing.page import caption, finding, headline, label, page
from analysis.drawing.style import BANDS_RANGE, SMALL, colour_of_width, plain_log_axis, shade, widen
from analysis.quantities.norms import over_layers
from analysis.quantities.stats import with_interval
from analysis.quantities.width_scaling import DRIFT, LEARNED, drifting, exponents
from analysis.tables.context import Context, planned
from analysis.tables.results import Tables

EXPERIMENTS = ("width_scaling",)
# Of panels: what is drawn, and what the published runs show of it.
OUTPUTS = {
    "embedding": ("a   Embedding", ": grows; smaller where wide"),
    "attention.out": ("b   Attention", ": no dependence on d seen"),
    "mlp.down": ("c   MLP", ": smaller where wide"),
    "projector": ("d   Logits", ": 11% apart, at the end 20%"),
}
MESSAGE = (
    "Until LR decay the outputs of embedding and MLP grow, and so do logits. With the\n"
    "width these outputs fall, logits hardly do, and attention's shows no trend"
)
# The share of the steps that is left out at the start.
TRANSIENT = 0.27
# So many probes before the decay make the level of which exponents speak.
LEVEL = 4


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: tensor, width, seed, step, value, and the step after which the LR decays."""
    table = tables["width_scaling"]
    parts = []
    for tensor in OUTPUTS:
        norms = table.pick(arm=drifting(table), stat="activation_norm", tensor=tensor)
        parts.append(over_layers(norms).assign(tensor=tensor))
    columns = ["tensor", "width", "seed", "step", "value"]
    rows = pd.concat(parts)[columns].sort_values(columns[:-1], ignore_index=True)
    return rows.assign(decays_from=table.stage_end)


def draw(numbers: pd.DataFrame, context: Context):
    """Two rows of two panels, the wider the darker."""
    figure, axes = page(2, 2, 4.6, w_pad=0.05, h_pad=0.05, sharex=True)
    headline(figure, MESSAGE, context)
    widths = sorted(numbers["width"].unique())
    looks = {width: {"color": colour_of_width(width), "lw": 1.4} for width in widths}
    shown = numbers[numbers["step"] >= TRANSIENT * numbers["step"].max()]
    for axis, (tensor, (title, found)) in zip(axes.flat, OUTPUTS.items(), strict=True):
        rows = shown[shown["tensor"] == tensor]
        each(axis, rows, "step", looks, by="width", alpha=0.15)
        decay_line(axis, rows["decays_from"].max())
        plain_log_axis(axis)
        name = "logits" if tensor == "projector" else "the output"
        title += finding(context, found, "")
        label(axis, f"{title}\n{_exponent(numbers[numbers['tensor'] == tensor])}",
              ylabel=f"RMS norm of {name}")  # fmt: skip
    outputs = axes.flat[:-1]
    most = max(np.ptp(np.log10(axis.get_ylim())) for axis in outputs)
    for axis in outputs:
        widen(axis, most)
    axes.flat[-1].yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    for axis in axes[-1]:
        axis.set_xlabel(f"step, from {shown['step'].min():.0f} on")
    first = axes.flat[0]
    first.annotate("LR decay →", (numbers["decays_from"].max(), 0.04),
                   xycoords=("data", "axes fraction"), xytext=(-4, 0), textcoords="offset points",
                   ha="right", va="bottom", fontsize=SMALL)  # fmt: skip
    arms = planned("width_scaling", context)
    lr = arms.get(DRIFT, arms[LEARNED])["multipliers"]["lr"]
    times = lr / arms[LEARNED]["multipliers"]["lr"]
    note = (
        f"learned scalars, multipliers' LR: {times:.2g} × that of figure 5; first steps left out; "
        "a–c span the same decades, d fewer"
    )
    # Other arms have seeds that this one lacks.
    seeds = sorted(map(int, numbers["seed"].unique()))
    if len(seeds) > 1:
        note += f"\n{BANDS_RANGE}; exponents: {LEVEL} last probes before LR decay, mean, 95%"
    caption(figure, dataclasses.replace(context, seeds=seeds), note)
    # Names need the height that the caption leaves.
    figure.get_layout_engine().execute(figure)
    for axis, tensor in zip(axes.flat, OUTPUTS, strict=True):
        rows = shown[shown["tensor"] == tensor]
        ends = {
            f"$d$ = {width}": (end(own, "step"), shade(looks[width]["color"], -0.2))
            for width, own in rows.groupby("width")
        }
        name_ends(axis, ends, at=1.05)
    return figure


def _exponent(rows: pd.DataFrame) -> str:
    """How the norm goes with the width d before the decay: one probe alone may be off."""
    before = rows[rows["step"] <= rows["decays_from"]]
    last = before[before["step"].isin(sorted(before["step"].unique())[-LEVEL:])]
    logs = np.log(last["value"]).groupby([last["seed"], last["width"]]).mean()
    fitted = with_interval(exponents(np.exp(logs).unstack()), 2)
    number, _, ends = fitted.replace("-", "−").partition(" ")
    return rf"     $\propto d^{{{number}}}$ {ends}"
