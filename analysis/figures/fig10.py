"""Figure 10 (appendix): norms of outputs over training, a line a width.

Left the embedding's, in the middle those of attention and MLP (geometric mean over layers), right
the projector's, which are the logits. With learned scalar multipliers that drift as far as the
paper's.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis.drawing.axes import each
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import plain_log_axis
from analysis.quantities.norms import over_layers
from analysis.quantities.width_scaling import drifting
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("width_scaling",)
OUTPUTS = {
    "embedding": "a   Embedding",
    "attention.out": "b   Attention",
    "mlp.down": "c   MLP",
    "projector": "d   Projector (logits)",
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: tensor, width, seed, step, value."""
    table = tables["width_scaling"]
    parts = []
    for tensor in OUTPUTS:
        norms = table.pick(arm=drifting(table), stat="activation_norm", tensor=tensor)
        parts.append(over_layers(norms).assign(tensor=tensor))
    columns = ["tensor", "width", "seed", "step", "value"]
    return pd.concat(parts)[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels, widths from light to dark."""
    figure, axes = page(1, 4, 2.5, below=0.13, w_pad=0.03)
    widths = sorted(numbers["width"].unique())
    colours = plt.get_cmap("viridis_r")(np.linspace(0.1, 0.95, len(widths)))
    looks = {width: {"color": colour} for width, colour in zip(widths, colours, strict=True)}
    for axis, (tensor, title) in zip(axes, OUTPUTS.items(), strict=True):
        each(axis, numbers[numbers["tensor"] == tensor], "step", looks, by="width")
        label(axis, title, yscale="log", xlabel="step")
    for axis in (axes[0], axes[-1]):
        plain_log_axis(axis)
    axes[0].set_ylabel("norm of the output")
    handles = [key(f"d = {width}", **look) for width, look in looks.items()]
    legend_below(figure, handles, len(widths), 0.04)
    return caption(figure, context)
