"""The MLP sweep on variants of the model (appendix B): do they separate the arms?

From S = 1 to 8, without multipliers and with three scalar ones: left the loss that is lost, then
the factor by which the outputs of MLP, SSM and attention grow (geometric mean over layers).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import dots
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_LOOKS, NEUTRAL
from analysis.quantities.losses import final_losses
from analysis.quantities.mlp_scale import BLOCKS
from analysis.quantities.norms import at_step
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale_design",)
DESIGNS = {
    "PLAIN": "baseline",
    "HEADS": "multi-head attention",
    "NORM": "SSM RMSNorm",
    "BOTH": "both",
}
# Look and name without multipliers, and with them.
LOOKS = {
    False: (ARM_LOOKS["FPN"], "no multipliers"),
    True: (ARM_LOOKS["SPN"], "three scalar multipliers"),
}
TITLES = {"loss": "a   Loss"}
TITLES |= {block: f"{letter}   {block} output" for letter, block in zip("bcd", BLOCKS, strict=True)}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: design, learned, quantity (loss, or a block), seed, value.

    Differences of the loss in nats per token, of the outputs' norms in logs.
    """
    table = tables["mlp_scale_design"]
    norms = at_step(table.pick(stat="activation_norm"), table.stage_end)
    logs = norms.assign(value=np.log(norms["value"]))
    quantities = {name: logs[logs["tensor"] == tensor] for name, tensor in BLOCKS.items()}
    parts = []
    for quantity, rows in ({"loss": final_losses(table)} | quantities).items():
        wide = rows.pivot_table("value", ["arm", "seed"], "S", aggfunc="mean")  # over layers
        low, high = sorted(wide.columns)
        change = (wide[high] - wide[low]).rename("value").reset_index()
        parts.append(change.assign(quantity=quantity))
    changes = pd.concat(parts, ignore_index=True)
    changes["learned"] = changes["arm"].str.endswith("_LRM")
    changes["design"] = changes["arm"].str.removesuffix("_LRM")
    return changes[["design", "learned", "quantity", "seed", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels."""
    figure, axes = page(1, 4, 2.2, w_pad=0.03, sharey=True)
    groups = dict(tuple(numbers.groupby(["quantity", "learned", "design"])["value"]))
    for axis, (quantity, title) in zip(axes, TITLES.items(), strict=True):
        for learned, (look, _) in LOOKS.items():
            named = {name: groups[quantity, learned, own] for own, name in DESIGNS.items()}
            colours, raised = dict.fromkeys(named, look["color"]), -0.16 if learned else 0.16
            before = len(axis.lines)
            dots(axis, named, colours, raised=raised)
            for line in axis.lines[before:]:
                if line.get_marker() == "o":
                    line.set_marker(look["marker"])
        axis.axvline(0, **NEUTRAL)
        axis.margins(x=0.15)
        of = "loss" if quantity == "loss" else "RMS norm"
        said = "at S = 8 −\nat S = 1 (nats)" if quantity == "loss" else "at S = 8 /\nat S = 1"
        label(axis, title, xlabel=f"{of} {said}")
    ends = np.array([axis.dataLim.intervalx for axis in axes[1:]])
    for axis in axes[1:]:
        axis.set_xlim(ends.min() - 0.3, ends.max() + 0.3)
        _name_factors(axis)
    handles = [key(name, ls="", **look) for look, name in LOOKS.values()]
    handles.append(key("mean, 95%", color="#444444", lw=1.2, marker="|", ms=8, mew=1.8))
    legend_below(figure, handles, 3)
    return caption(figure, context, "points: seeds")


def _name_factors(axis) -> None:
    """Factors such as × 10 at the ticks of an axis of their logarithms."""
    low, high = axis.get_xlim()
    factors = [f for f in (0.01, 0.1, 1, 10, 100) if low < np.log(f) < high]
    if len(factors) > 3:
        factors = factors[:: len(factors) - 3] if len(factors) % 2 else factors[1::2]
    elif len(factors) < 3:
        factors = [f for f in (0.25, 0.5, 1, 2, 4, 8, 16) if low < np.log(f) < high]
    axis.set_xticks(np.log(factors), [f"×{f:g}" for f in factors])
