"""Figure 2 (section 3.1): scales over depth that scalar multipliers learn.

(a) norms of the blocks' outputs with multipliers over those without, layer by layer; (b) the
multipliers at the end of each block; (c) those inside the blocks, Q's times K's and B's times C's
(of the former only the product matters). Norms are root mean squares, read at the end of the
constant stage. Dashed in a and b: the same initial values with another order of the data. Grey in
b and c: where a single multiplier would be if it did a Brownian motion (ABM).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import median
from analysis.drawing.page import caption, key, label, page
from analysis.drawing.style import NOISE_COLOUR, log_axis
from analysis.quantities import scale_diversity as scales
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("scale_diversity",)
ARMS = ("SCALAR", "SCALAR_ORDER")
# Okabe-Ito again; those of the arms stay with the arms.
LOOKS = {
    "attention": {"color": "#CC79A7", "marker": "o"},
    "SSM": {"color": "#56B4E9", "marker": "s"},
    "MLP": {"color": "#E69F00", "marker": "^"},
}
AGAIN = {"ls": (0, (3, 2)), "lw": 0.9}
OPEN = {"ms": 2.5, "markerfacecolor": "white"}
_DOTTED = {"ls": ":", "lw": 1.0, **OPEN}
# The internal ones that are drawn. The others stand in the csv.
INNER = {
    "gate": LOOKS["MLP"],
    "up": LOOKS["MLP"] | _DOTTED,
    "Q·K": LOOKS["attention"],
    "V": LOOKS["attention"] | _DOTTED,
    "dt": LOOKS["SSM"],
    "x": LOOKS["SSM"] | _DOTTED,
}
# Half of the draws of a Brownian motion lie between these, as do half of the seeds in a band.
QUANTILES = (0.25, 0.75)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, quantity, arm, layer, seed, value.

    Panel a holds ratios of norms, b and c |s|; ``ABM 0.25`` and ``ABM 0.75`` are quantiles of |s|
    over draws of the Brownian motion.
    """
    table = tables["scale_diversity"]
    ends = {block: (tensor,) for block, tensor in scales.BLOCKS.items()}
    parts = []
    for arm in ARMS:
        for block, logs in scales.log_ratios(table, arm).items():
            parts.append(stacked(np.exp(logs), panel="a", quantity=block, arm=arm))
        for panel, multipliers in (("b", ends), ("c", scales.INTERNAL)):
            for name, tensors in multipliers.items():
                values = np.exp(scales.log_multipliers(table, tensors, arm))
                parts.append(stacked(values, panel=panel, quantity=name, arm=arm))
    limits = np.quantile(scales.scalar_draws(table), QUANTILES)
    names = [f"ABM {share:g}" for share in QUANTILES]
    for panel in "bc":
        noise = {"panel": panel, "arm": "SCALAR", "quantity": names, "value": limits}
        parts.append(pd.DataFrame(noise))
    columns = ["panel", "quantity", "arm", "layer", "seed", "value"]
    rows = pd.concat(parts).astype({"layer": "Int64", "seed": "Int64"})
    return rows[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels side by side, each with its legend below."""
    figure, axes = page(1, 3, 3.25, below=0.04, w_pad=0.05)
    groups = dict(tuple(numbers.astype({"layer": float}).groupby(["panel", "arm", "quantity"])))
    look = {"x": "layer", "band": QUANTILES, "alpha": 0.22}
    for axis, panel in zip(axes, "ab", strict=False):
        for block in scales.BLOCKS:
            median(axis, groups[panel, "SCALAR", block], **look, **LOOKS[block])
            again = look | LOOKS[block] | AGAIN | OPEN | {"band": None}
            median(axis, groups[panel, "SCALAR_ORDER", block], **again)
    for quantity, inner in INNER.items():
        band = None if "ls" in inner else QUANTILES
        median(axes[2], groups["c", "SCALAR", quantity], **look | inner | {"band": band})
    titles = {
        "a": ("a   Block outputs, ratio", "RMS with / without multipliers"),
        "b": ("b   End multipliers", r"$|s|$"),
        "c": ("c   Internal multipliers", r"$|s|$ (or product of two)"),
    }
    for axis, (panel, (title, name)) in zip(axes, titles.items(), strict=True):
        rows = numbers[numbers["panel"] == panel]
        limits = rows.loc[rows["quantity"].str.startswith("ABM"), "value"]
        if len(limits):
            span = {"color": NOISE_COLOUR, "alpha": 0.13, "lw": 0, "zorder": 0}
            axis.axhspan(limits.min(), limits.max(), **span)
        axis.axhline(1.0, color="#999999", lw=0.7, zorder=1)
        if rows["value"].max() > 2 * rows["value"].min():
            log_axis(axis, rows["value"])
        else:
            axis.set_yscale("log")
            low, high = axis.get_ylim()
            ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
            axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_ylim(low, high)
            axis.minorticks_off()
        layers = sorted(rows["layer"].dropna().unique())
        label(axis, title, xlabel="layer", ylabel=name, xticks=layers[:: -(-len(layers) // 9)])
    _legends(axes, numbers["seed"].nunique())
    return caption(figure, context)


def _legends(axes, seeds: int) -> None:
    middle = [key("median" if seeds > 1 else "one seed")]
    if seeds > 1:
        middle.append(Patch(color="black", alpha=0.22, lw=0, label="half of the seeds"))
    noise = r"ABM of one $|s|$: half of the draws"
    middle.append(Patch(color=NOISE_COLOUR, alpha=0.13, lw=0, label=noise))
    blocks = [key(block, **look) for block, look in LOOKS.items()]
    inner = [key(name, **look) for name, look in INNER.items()]
    entries = ([*blocks, key("other data order", **AGAIN)], middle, inner)
    for axis, handles, columns in zip(axes, entries, (2, 1, 3), strict=True):
        axis.legend(handles=handles, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.2),
                    handlelength=2.2, columnspacing=1.0, borderaxespad=0.0)  # fmt: skip
