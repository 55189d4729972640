"""Figure 5 (section 4.2): norms and scalar multipliers over the width, η and λ fixed.

Left: matrix norms. Middle: activation norms; thin and dotted the same without learnable multipliers
(s fixed), the contrast. Right: learned multipliers with the slopes that muP expects; the legends
give exponents fitted over all widths, mean and 95% interval over seeds.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis import width_scaling as ws
from analysis.figures import Context, Tables
from analysis.stats import with_interval
from analysis.style import TEXT_WIDTH, caption, plain_log_axis
from analysis.sweep_axes import series

EXPERIMENTS = ("width_scaling",)
COLOURS = {
    "embedding": "#999999", "attention": "#0072B2", "SSM": "#009E73", "MLP": "#D55E00",
    "projector": "#CC79A7", "logits": "#CC79A7", "Q·K": "#0072B2", "dt": "#009E73",
    "gate": "#E69F00", "attention output": "#56B4E9", "SSM output": "#44AA99",
    "MLP output": "#D55E00",
}  # fmt: skip
PANELS = ("matrices", "activations", "multipliers")


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, arm, quantity, seed, width, value, exponent (the same for all widths)."""
    table = tables["width_scaling"]
    given = (table.scalars, table.runs)
    found = []

    def put(panel: str, arm: str, quantity: str, values: pd.DataFrame) -> None:
        fitted = ws.exponents(values)
        rows = values.stack().rename("value").reset_index()
        found.append(
            rows.assign(panel=panel, arm=arm, quantity=quantity, exponent=rows["seed"].map(fitted))
        )

    for group in ws.MATRICES:
        put("matrices", ws.LEARNED, group, ws.matrices(*given, ws.LEARNED, group))
    for name in ws.ACTIVATIONS:
        for arm in (ws.LEARNED, ws.FIXED, ws.SCALED):
            put("activations", arm, name, ws.activations(*given, arm, name))
    for name in ws.MULTIPLIERS:
        put("multipliers", ws.LEARNED, name, ws.multipliers(*given, name))
        put("alignment", ws.LEARNED, name, ws.alignment(*given, name))
    columns = ["panel", "arm", "quantity", "seed", "width", "value", "exponent"]
    return pd.concat(found)[columns].sort_values(columns[:-2], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels with their legends below."""
    figure, axes = plt.subplots(1, 3, figsize=(TEXT_WIDTH, 3.9))
    figure.get_layout_engine().set(rect=(0, 0.04, 1, 0.96), w_pad=0.05)
    for axis, panel in zip(axes, PANELS, strict=True):
        rows = numbers[(numbers["panel"] == panel) & (numbers["arm"] == ws.LEARNED)]
        for quantity in (name for name in COLOURS if name in set(rows["quantity"])):
            of = rows[rows["quantity"] == quantity]
            series(axis, of, "width", COLOURS[quantity], marker="o", ms=3)
            fitted = of.drop_duplicates("seed")["exponent"]
            said = with_interval(fitted, 2).replace("-0.00", "0.00").replace("-", "−")
            axis.plot([], [], "o-", ms=3, color=COLOURS[quantity], label=f"{quantity}  {said}")
        _widths(axis, numbers["width"])
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), title="exponent of d",
                    fontsize=6.5, title_fontsize=6.5)  # fmt: skip
    fixed = numbers[(numbers["panel"] == "activations") & (numbers["arm"] == ws.FIXED)]
    for quantity, of in fixed.groupby("quantity"):
        series(axes[1], of, "width", COLOURS[quantity], line=":")
    axes[0].set(ylabel="‖W‖")
    plain_log_axis(axes[0])
    axes[1].set(yscale="log", ylabel="norm of the activation")
    axes[2].set(yscale="log", ylabel="|s|")
    axes[0].set_title("a   Matrices", loc="left")
    axes[1].set_title("b   Activations (dotted: s fixed)", loc="left")
    axes[2].set_title("c   Multipliers", loc="left")
    _guides(axes[2], numbers[numbers["panel"] == "multipliers"])
    caption(figure, context)
    return figure


def _widths(axis, widths: pd.Series) -> None:
    values = sorted(widths.unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(values, [str(value) for value in values])
    axis.minorticks_off()
    axis.set_xlabel("width d")


def _guides(axis, rows: pd.DataFrame) -> None:
    """Lines ∝ d⁻¹ and d⁻² from where the projector's and Q·K's multipliers begin."""
    d = np.array(sorted(rows["width"].unique()), dtype=float)
    for quantity, exponent in (("projector", -1.0), ("Q·K", -2.0)):
        values = rows[rows["quantity"] == quantity].groupby("width")["value"].median()
        start = float(values.iloc[0])
        axis.plot(d, start * (d / d[0]) ** exponent, color="#777777", lw=0.8, ls="--", zorder=1)
        axis.annotate(f"$d^{{{exponent:g}}}$", (d[-1], start * (d[-1] / d[0]) ** exponent),
                      fontsize=7, color="#555555", xytext=(2, -2),
                      textcoords="offset points")  # fmt: skip
