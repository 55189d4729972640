"""Figure 10 (appendix): norms of outputs over training, a line a width.

The embedding's, those of attention and MLP (geometric mean over layers), and the projector's, which
are the logits. The arm is the one whose learned scalar multipliers drift as far as the paper's:
their LR is five times the usual one. From the dotted line on the LR decays. Lines are medians,
bands the range of seeds. Under each title stands the exponent of the width, fitted at the dotted
line, mean and 95% interval over seeds. The first steps, in which norms move by decades, are left
out; the csv has them.
"""

from __future__ import annotations

import dataclasses

import pandas as pd

from analysis.drawing.axes import decay_line, each, end, name_ends
from analysis.drawing.page import caption, label, page
from analysis.drawing.style import SMALL, plain_log_axis, ramp, shade, widen
from analysis.quantities.norms import over_layers
from analysis.quantities.stats import with_interval
from analysis.quantities.width_scaling import drifting, exponents
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("width_scaling",)
OUTPUTS = {
    "embedding": "a   Embedding: grows; larger where narrow",
    "attention.out": "b   Attention: no dependence seen",
    "mlp.down": "c   MLP: smaller where wide",
    "projector": "d   Logits: nearly one level until LR decay",
}
# The share of the steps that is left out at the start.
TRANSIENT = 0.18


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
    figure, axes = page(2, 2, 4.0, w_pad=0.05, h_pad=0.05, sharex=True)
    widths = sorted(numbers["width"].unique())
    looks = {
        width: {"color": colour, "lw": 1.4}
        for width, colour in zip(widths, ramp(len(widths)), strict=True)
    }
    shown = numbers[numbers["step"] >= TRANSIENT * numbers["step"].max()]
    for axis, (tensor, title) in zip(axes.flat, OUTPUTS.items(), strict=True):
        rows = shown[shown["tensor"] == tensor]
        each(axis, rows, "step", looks, by="width", alpha=0.15)
        decay_line(axis, rows["decays_from"].max())
        plain_log_axis(axis)
        widen(axis, 0.4)
        label(axis, f"{title}\n{_exponent(numbers[numbers['tensor'] == tensor])}")
    for axis in axes[:, 0]:
        axis.set_ylabel("RMS norm of the output")
    for axis in axes[-1]:
        axis.set_xlabel(f"step, from {shown['step'].min():.0f} on")
    first = axes.flat[0]
    first.annotate("LR decay begins,\nexponents fitted", (numbers["decays_from"].max(), 0.04),
                   xycoords=("data", "axes fraction"), xytext=(-4, 0), textcoords="offset points",
                   ha="right", va="bottom", fontsize=SMALL)  # fmt: skip
    note = "learned scalars, multipliers' LR: 5 × that of figure 5; axes differ"
    # Other arms have seeds that this one lacks.
    seeds = sorted(map(int, numbers["seed"].unique()))
    if len(seeds) > 1:
        note += "\nlines: medians; bands: range of seeds; exponents: mean, 95%"
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
    """How the norm goes with the width d at the last step before the decay."""
    last = rows.loc[rows["step"] <= rows["decays_from"], "step"].max()
    norms = rows[rows["step"] == last].pivot(index="seed", columns="width", values="value")
    fitted = with_interval(exponents(norms), 2).replace("-0.00", "0.00").replace("-", "−")
    number, _, ends = fitted.partition(" ")
    return rf"     $\propto d^{{{number}}}$ {ends}"
