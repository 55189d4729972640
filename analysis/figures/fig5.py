"""Figure 5 (section 4.2): norms and scalar multipliers over the width, η and λ fixed.

Matrix norms; activation norms, those that the model fixes and those that are free in the residual
stream; multipliers, learned and fixed factor together, with the slopes that muP expects. Solid: the
multipliers begin ∝ 1/d; dashed: at 1; dotted: s is fixed at 1, the contrast. The legends give
exponents fitted over all widths of the solid lines, mean and 95% interval over seeds. Lines are
medians; of the solid ones the seeds are drawn too.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import median, series
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import plain_log_axis, plain_ticks
from analysis.quantities import width_scaling as ws
from analysis.quantities.stats import with_interval
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = ("width_scaling",)
COLOURS = {
    "embedding": "#999999", "attention": "#0072B2", "SSM": "#009E73", "MLP": "#D55E00",
    "projector": "#CC79A7", "logits": "#CC79A7", "Q·K": "#0072B2", "dt": "#009E73",
    "gate": "#E69F00", "attention output": "#56B4E9", "SSM output": "#44AA99",
    "MLP output": "#D55E00",
}  # fmt: skip
# Panels of the drawing: title, axis, quantities' panel, and which of them.
PANELS = (
    ("a   Matrices", "‖W‖", "matrices", tuple(ws.MATRICES)),
    ("b   Activations", "norm", "activations", (*ws.FIXED_BY_MODEL, *ws.GATE)),
    ("c   Outputs to the stream", "norm", "activations", tuple(ws.FREE_IN_STREAM)),
    ("d   Multipliers", "|s|", "multipliers", tuple(ws.MULTIPLIERS)),
)
# The lines of the other arms beside the solid ones of LEARNED.
BESIDE = {ws.FROM_ONE: "--", ws.FIXED: ":"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, quantity, seed, width, value, exponent (the same for all widths)."""
    table = tables["width_scaling"]
    parts = []

    def put(panel: str, arm: str, quantity: str, values: pd.DataFrame) -> None:
        rows = stacked(values, panel=panel, arm=arm, quantity=quantity)
        parts.append(rows.assign(exponent=rows["seed"].map(ws.exponents(values))))

    for arm in (ws.LEARNED, ws.FROM_ONE, ws.FIXED, ws.SCALED):
        for group in ws.MATRICES:
            put("matrices", arm, group, ws.matrices(table, arm, group))
        for name in ws.ACTIVATIONS:
            put("activations", arm, name, ws.activations(table, arm, name))
    for arm in ws.STARTS:
        for name in ws.MULTIPLIERS:
            put("multipliers", arm, name, ws.multipliers(table, name, arm))
            put("alignment", arm, name, ws.alignment(table, name, arm))
    columns = ["panel", "arm", "quantity", "seed", "width", "value", "exponent"]
    return pd.concat(parts)[columns].sort_values(columns[:-2], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels with their legends beside, and one of the lines below."""
    figure, axes = page(2, 2, 4.6, below=0.08, w_pad=0.05, sharex=True)
    widths = sorted(numbers["width"].unique())
    groups = dict(tuple(numbers.groupby(["panel", "quantity", "arm"])))
    for axis, (title, name, panel, quantities) in zip(axes.flat, PANELS, strict=True):
        for quantity in quantities:
            look = {"color": COLOURS[quantity], "marker": "o", "ms": 3}
            learned = groups[panel, quantity, ws.LEARNED]
            fitted = with_interval(learned.drop_duplicates("seed")["exponent"], 2)
            fitted = fitted.replace("-0.00", "0.00").replace("-", "−")
            series(axis, learned, "width", **look, label=f"{quantity}\n{fitted}")
            for arm, line in BESIDE.items():
                if (panel, quantity, arm) in groups:  # a fixed s is no multiplier
                    beside = {"color": COLOURS[quantity], "ls": line, "lw": 1.0, "zorder": 2}
                    median(axis, groups[panel, quantity, arm], "width", band=None, **beside)
        axis.set_xscale("log", base=2)
        axis.set_xticks(widths, [str(width) for width in widths])
        axis.minorticks_off()
        right = 1.1 if panel == "multipliers" else 1.0  # the names of the slopes stand there
        axis.legend(loc="upper left", bbox_to_anchor=(right, 1.03), title="exponent (solid)",
                    fontsize=6.5, title_fontsize=6.5)  # fmt: skip
        label(axis, title, yscale="log", ylabel=name)
    for axis in axes[1]:
        axis.set_xlabel("width d")
    plain_log_axis(axes[0, 0])
    plain_ticks(axes[0, 1].yaxis, (1, 2, 5))
    _guides(axes[1, 1], {name: groups["multipliers", name, ws.LEARNED] for name in ws.MULTIPLIERS})
    said = [f"learned, {start}" for start in ws.STARTS.values()] + ["s = 1"]
    lines = zip(said, ("-", *BESIDE.values()), strict=True)
    legend_below(figure, [key(text, color="#444444", ls=line) for text, line in lines], len(said))
    return caption(figure, context)


def _guides(axis, multipliers: dict[str, pd.DataFrame]) -> None:
    """Lines ∝ d⁻¹ and d⁻² from where the projector's and Q·K's multipliers begin."""
    for quantity, exponent in (("projector", -1.0), ("Q·K", -2.0)):
        values = multipliers[quantity].groupby("width")["value"].median()
        d = values.index.to_numpy(dtype=float)
        guide = float(values.iloc[0]) * (d / d[0]) ** exponent
        axis.plot(d, guide, color="#777777", lw=0.8, ls="-.", zorder=1)
        axis.annotate(f"$d^{{{exponent:g}}}$", (d[-1], guide[-1]), fontsize=7, color="#555555",
                      xytext=(5, -3), textcoords="offset points")  # fmt: skip
