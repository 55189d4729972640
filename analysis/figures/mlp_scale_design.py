"""The MLP sweep on variants of the model (appendix B): do they separate the arms?

From S = 1 to 8, without multipliers and with three scalar ones: left the loss that is lost, then
how the outputs of MLP, SSM and attention grow (logs, mean over layers).
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from analysis.drawing.style import ARM_COLOURS, TEXT_WIDTH, caption
from analysis.quantities.losses import final_losses
from analysis.quantities.mlp_scale import BLOCKS
from analysis.quantities.norms import at_step
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale_design",)
DESIGNS = {
    "PLAIN": "grouped queries,\nno inner norm",
    "HEADS": "multi-head\nattention",
    "NORM": "RMSNorm inside\nthe SSM",
    "BOTH": "both",
}
COLOURS = {False: ARM_COLOURS["FPN"], True: ARM_COLOURS["SPN"]}
NAMES = {False: "without multipliers", True: "three scalar multipliers"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: design, learned, quantity (loss, or a block), seed, value.

    Differences of the loss in nats per token, of the outputs' norms in logs.
    """
    table = tables["mlp_scale_design"]
    found = [_change(final_losses(table)).assign(quantity="loss")]
    outputs = at_step(table.pick(stat="activation_norm"), table.stage_end)
    for block, tensor in BLOCKS.items():
        rows = outputs[outputs["tensor"] == tensor]
        rows = rows.assign(value=np.log(rows["value"]))
        found.append(_change(rows).assign(quantity=block))
    found = pd.concat(found, ignore_index=True)
    found["learned"] = found["arm"].str.endswith("_LRM")
    found["design"] = found["arm"].str.removesuffix("_LRM")
    return found[["design", "learned", "quantity", "seed", "value"]]


def _change(rows: pd.DataFrame) -> pd.DataFrame:
    """From the smaller S to the larger; means over layers."""
    wide = rows.pivot_table("value", ["arm", "seed"], "S", aggfunc="mean")
    low, high = sorted(wide.columns)
    return (wide[high] - wide[low]).rename("value").reset_index()


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels."""
    figure, axes = plt.subplots(1, 4, figsize=(TEXT_WIDTH, 2.4), sharey=True)
    figure.get_layout_engine().set(rect=(0, 0.16, 1, 0.84), w_pad=0.03)
    titles = {"loss": "a   Loss", **{b: f"{letter}   {b} output"
                                     for letter, b in zip("bcd", BLOCKS, strict=True)}}  # fmt: skip
    order = list(reversed(DESIGNS))
    for axis, (quantity, title) in zip(axes, titles.items(), strict=True):
        for learned, colour in COLOURS.items():
            rows = numbers[(numbers["quantity"] == quantity) & (numbers["learned"] == learned)]
            for height, design in enumerate(order):
                values = rows.loc[rows["design"] == design, "value"]
                at = height + (0.14 if not learned else -0.14)
                axis.plot(values, [at] * len(values), "o", color=colour, alpha=0.5, ms=3.5)
                axis.plot(values.mean(), at, "|", color=colour, ms=10, mew=2)
        axis.axvline(0, color="#999999", lw=0.8, ls=":")
        axis.set_title(title, loc="left")
        axis.set_xlabel("nats per token" if quantity == "loss" else "ln of the growth")
    axes[0].set_yticks(range(len(order)), [DESIGNS[design] for design in order])
    axes[0].set_ylim(-0.6, len(order) - 0.4)
    handles = [Line2D([], [], ls="", marker="o", color=colour, label=NAMES[learned])
               for learned, colour in COLOURS.items()]  # fmt: skip
    figure.legend(handles=handles, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 0.04))
    caption(figure, context, r"from $S_{MLP}$ = 1 to 8; points: seeds; bars: means")
    return figure
