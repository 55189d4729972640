"""Three answers to one question: how do scales become independent of the width? (ours)

muP by hand, learned scalars, and steepest descent of each layer, beside AdamW at one LR; all were
tuned with equal effort at one width. a: the exponent of the width in the best factor on all LRs; 0
is a factor that stays. b: what the best factor of the smallest width costs at the largest. c: the
loss at the largest width, each at its best factor there, less that of muP; left of 0 is better.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import dots
from analysis.drawing.page import caption, headline, label, page
from analysis.drawing.style import NEUTRAL, SMALL
from analysis.figures.bm_fig2 import LOOKS
from analysis.quantities.transfer import best_loss, drift, losses, regret, widths
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"steepest_width": "BM4"}
MUP = "ADAMW_MUP"
ANSWERS = (MUP, "ADAMW_SCALARS", "STEEPEST", "ADAMW_DECAY", "ADAMW")
PANELS = {
    "exponent": ("a   Best factor", "exponent of the width"),
    "cost": ("b   Carried from {small:g} to {large:g}", "← better   cost (nats)"),
    "loss": ("c   Best loss, width {large:g}", "← better   loss − muP's (nats)"),
}
MESSAGE = (
    "Carried from width 32 to 256 the best factor costs nothing with muP or steepest\n"
    "descent. At one LR it costs a nat, and half a nat with decay, with or without scalars"
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: quantity, recipe, seed, value; small and large are the widths."""
    table, parts = tables["steepest_width"], []
    of_widths = widths(losses(table, MUP, "u"))
    small, large = of_widths[0], of_widths[-1]
    reference = best_loss(table, MUP, large, "u")
    for recipe in ANSWERS:
        found = {"exponent": drift(table, recipe, "u")}
        if large in widths(losses(table, recipe, "u")):  # at smoke one recipe has one width
            found["cost"] = regret(table, recipe, large, "u")
            if recipe != MUP:
                found["loss"] = best_loss(table, recipe, large, "u") - reference
        for quantity, values in found.items():
            rows = values.rename_axis("seed").rename("value").reset_index()
            parts.append(rows.assign(quantity=quantity, recipe=recipe, small=small, large=large))
    return pd.concat(parts, ignore_index=True).dropna(subset="value")


def draw(numbers: pd.DataFrame, context: Context):
    """A line for each answer, in three panels."""
    figure, axes = page(1, len(PANELS), 2.4, w_pad=0.05)
    headline(figure, MESSAGE, context)
    ends = {name: numbers[name].iloc[0] for name in ("small", "large")}
    colours, markers = ({LOOKS[r][2]: LOOKS[r][n] for r in ANSWERS} for n in (0, 1))
    for axis, (quantity, (title, what)) in zip(axes, PANELS.items(), strict=True):
        rows = numbers[numbers["quantity"] == quantity]
        named = {LOOKS[r][2]: rows.loc[rows["recipe"] == r, "value"] for r in ANSWERS}
        dots(axis, named, colours, markers=markers, below=0.28)
        axis.axvline(0, **NEUTRAL)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0, labelsize=SMALL)
        axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        label(axis, title.format(**ends), xlabel=what)
        axis.label_outer()
    axes[-1].annotate("0 by definition", (0, len(ANSWERS) - 1), (4, 0), va="center",
                      textcoords="offset points", fontsize=SMALL, color="#555555")  # fmt: skip
    note = (
        "points: seeds; bars: means, 95%; intervals of b leave out the choice of the factor\n"
        "b: 0 where the same factor is best at both widths; decay: of matrices, without scalars"
    )
    return caption(figure, context, note)
