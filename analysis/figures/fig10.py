"""Figure 10 (appendix): norms of outputs over training, a line a width.

Left the embedding's, in the middle those of attention and MLP (geometric mean over layers), right
the projector's, which are the logits. The arm is the one whose learned scalar multipliers drift as
far as the paper's: their LR is five times the usual one. From the dotted line on the LR decays.
Lines are medians, bands the range of seeds. In each panel stands the exponent of the width, fitted
where the decay begins, mean and 95% interval over seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import each, end, name_ends
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_COLOURS, NEUTRAL, SMALL, plain_log_axis, shade
from analysis.quantities.norms import over_layers
from analysis.quantities.stats import with_interval
from analysis.quantities.width_scaling import drifting, exponents
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("width_scaling",)
OUTPUTS = {
    "embedding": "a   Embedding",
    "attention.out": "b   Attention",
    "mlp.down": "c   MLP",
    "projector": "d   Logits",
}


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
    """Four panels, the wider the darker."""
    figure, axes = page(1, 4, 2.3, w_pad=0.015)
    widths = sorted(numbers["width"].unique())
    shades = np.linspace(0.35, -0.75, len(widths))
    looks = {
        width: {"color": shade(ARM_COLOURS["SPN"], share)}
        for width, share in zip(widths, shades, strict=True)
    }
    for axis, (tensor, title) in zip(axes, OUTPUTS.items(), strict=True):
        rows = numbers[numbers["tensor"] == tensor]
        each(axis, rows, "step", looks, by="width")
        axis.axvline(rows["decays_from"].max(), **NEUTRAL, ls=":")
        label(axis, title, xlabel="step")
        plain_log_axis(axis)
        _exponent(axis, rows)
    axes[0].set_ylabel("RMS norm of the output")
    legend_below(figure, [key("LR decay begins", **NEUTRAL, ls=":")], 1)
    note = (
        "learned scalars, multipliers' LR × 5; lines: medians; bands: range; exponents: mean, 95%"
    )
    caption(figure, context, note)
    # Names need the height that legend and caption leave.
    figure.get_layout_engine().execute(figure)
    rows = numbers[numbers["tensor"] == next(iter(OUTPUTS))]
    ends = {
        f"d = {width}": (end(own, "step"), looks[width]["color"])
        for width, own in rows.groupby("width")
    }
    name_ends(axes[0], ends, size=6.5)
    return figure


def _exponent(axis, rows: pd.DataFrame) -> None:
    """How the norm goes with the width d where the decay begins, above the lines."""
    last = rows.loc[rows["step"] <= rows["decays_from"], "step"].max()
    norms = rows[rows["step"] == last].pivot(index="seed", columns="width", values="value")
    low, high = np.log(axis.get_ylim())
    axis.set_ylim(np.exp([low, high + 0.2 * (high - low)]))
    fitted = with_interval(exponents(norms), 2).replace("-0.00", "0.00").replace("-", "−")
    number, _, ends = fitted.partition(" ")
    axis.text(0.97, 0.98, f"∝ d$^{{{number}}}$\n{ends}", transform=axis.transAxes, ha="right",
              va="top", fontsize=SMALL, linespacing=1.3,
              bbox={"color": "white", "pad": 0.5})  # fmt: skip
