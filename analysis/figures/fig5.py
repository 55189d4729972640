"""Figure 5 (section 4.2): norms and scalar multipliers over the width, η and λ fixed.

Matrix norms; activation norms, those that the model fixes and those that are free in the residual
stream; multipliers, learned and fixed factor together, with the slopes that muP expects. Solid: the
multipliers begin ∝ 1/d; dashed: at 1; dotted: s is fixed at 1, the contrast. The legends give
exponents fitted over all widths of the solid lines, mean and 95% interval over seeds. Lines are
medians; of the solid ones the seeds are drawn too.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.drawing.axes import series
from analysis.drawing.style import TEXT_WIDTH, caption, plain_log_axis
from analysis.quantities import width_scaling as ws
from analysis.quantities.stats import with_interval
from analysis.tables.context import Context
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
STYLES = {ws.LEARNED: "-", ws.FROM_ONE: "--", ws.FIXED: ":"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, quantity, seed, width, value, exponent (the same for all widths)."""
    table = tables["width_scaling"]
    found = []

    def put(panel: str, arm: str, quantity: str, values: pd.DataFrame) -> None:
        fitted = ws.exponents(values)
        rows = values.stack().rename("value").reset_index()
        found.append(
            rows.assign(panel=panel, arm=arm, quantity=quantity, exponent=rows["seed"].map(fitted))
        )

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
    return pd.concat(found)[columns].sort_values(columns[:-2], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels with their legends beside, and one of the lines below."""
    figure, axes = plt.subplots(2, 2, figsize=(TEXT_WIDTH, 4.6), sharex=True)
    figure.get_layout_engine().set(rect=(0, 0.08, 1, 0.92), w_pad=0.05)
    for axis, (title, label, panel, names) in zip(axes.flat, PANELS, strict=True):
        for quantity in names:
            rows = numbers[(numbers["panel"] == panel) & (numbers["quantity"] == quantity)]
            for arm, style in STYLES.items():
                of = rows[rows["arm"] == arm]
                if of.empty:  # a fixed s is no multiplier
                    continue
                if arm == ws.LEARNED:
                    series(axis, of, "width", COLOURS[quantity], line=style, marker="o", ms=3)
                else:  # beside it, and of all seeds the median alone
                    middle = of.groupby("width")["value"].median()
                    axis.plot(middle.index, middle, color=COLOURS[quantity], ls=style, lw=1.0)
            fitted = rows[rows["arm"] == ws.LEARNED].drop_duplicates("seed")["exponent"]
            said = with_interval(fitted, 2).replace("-0.00", "0.00").replace("-", "−")
            axis.plot([], [], "o-", ms=3, color=COLOURS[quantity], label=f"{quantity}\n{said}")
        _widths(axis, numbers["width"])
        beside = 1.1 if panel == "multipliers" else 1.0  # of the names of the slopes
        axis.legend(loc="upper left", bbox_to_anchor=(beside, 1.03), title="exponent (solid)",
                    fontsize=6.5, title_fontsize=6.5)  # fmt: skip
        axis.set(yscale="log", ylabel=label)
        axis.set_title(title, loc="left")
    for axis in axes[1]:
        axis.set_xlabel("width d")
    plain_log_axis(axes[0, 0])
    axes[0, 1].yaxis.set_minor_formatter(NullFormatter())
    axes[0, 1].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0, 1].yaxis.set_major_formatter("{x:g}")
    _guides(axes[1, 1], numbers[numbers["panel"] == "multipliers"])
    lines = [plt.Line2D([], [], color="#444444", ls=style) for style in STYLES.values()]
    said = [f"learned, {start}" for start in ws.STARTS.values()] + ["s = 1"]
    figure.legend(lines, said, ncols=len(said), loc="lower center", bbox_to_anchor=(0.5, 0.03))
    caption(figure, context)
    return figure


def _widths(axis, widths: pd.Series) -> None:
    values = sorted(widths.unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(values, [str(value) for value in values])
    axis.minorticks_off()


def _guides(axis, rows: pd.DataFrame) -> None:
    """Lines ∝ d⁻¹ and d⁻² from where the projector's and Q·K's multipliers begin."""
    d = np.array(sorted(rows["width"].unique()), dtype=float)
    rows = rows[rows["arm"] == ws.LEARNED]
    for quantity, exponent in (("projector", -1.0), ("Q·K", -2.0)):
        values = rows[rows["quantity"] == quantity].groupby("width")["value"].median()
        start = float(values.iloc[0])
        axis.plot(d, start * (d / d[0]) ** exponent, color="#777777", lw=0.8, ls="-.", zorder=1)
        axis.annotate(f"$d^{{{exponent:g}}}$", (d[-1], start * (d[-1] / d[0]) ** exponent),
                      fontsize=7, color="#555555", xytext=(5, -3),
                      textcoords="offset points")  # fmt: skip
