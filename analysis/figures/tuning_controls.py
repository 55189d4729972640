"""Controls of the tuning ablation: other learning rates, another start or placement (ours).

Each point is a seed: the loss after the decay minus that of the model without multipliers whose
base LR alone is tuned. Left of 0 is better. Small tensors are norms, convolutions and biases. The
colour says what multipliers an arm has.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_COLOURS, NEUTRAL, OPTIMIZER_NAMES
from analysis.quantities import tuning_ablation as tuning
from analysis.quantities.losses import final_losses
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("tuning_controls",)
# From top to bottom, by the end of the arms' names after the optimizer's.
CONTROLS = {
    "_NONE": "none: base LR tuned",
    "_LR": "none: LR of small tensors × 4",
    "_FULL": "none: and forward factors tuned",
    "_LRM_NONE": "vectors: base LR tuned",
    "_LRM_HALF": "vectors: their own LR × 1/2",
    "_LRM_QUARTER": "vectors: their own LR × 1/4",
    "_LRM_IRREDUNDANT": "vectors: no redundant ones",
    "_LRM_VECTORS": "vectors: LR of small tensors × 4",
    "_LRM_VECTORS_HALF": "vectors: LR of small tensors × 4,\ntheir own × 1/2",
    "_LRM_VECTORS_QUARTER": "vectors: LR of small tensors × 4,\ntheir own × 1/4",
    "_LRM_VECTORS_START": "vectors: LR of small tensors × 4,\nstart at tuned forward factors",
    "_SCALAR_NONE": "scalars: base LR tuned",
    "_SCALAR_VECTORS": "scalars: LR of small tensors × 4",
}
OPTIMIZERS = {arms: OPTIMIZER_NAMES[name] for arms, name in tuning.OPTIMIZERS.items()}
# By what stands first in the name.
KINDS = {"_LRM": ("vector multipliers", ARM_COLOURS["VPN"], "^"),
         "_SCALAR": ("one scalar for each matrix", ARM_COLOURS["SPN"], "s"),
         "": ("without multipliers", ARM_COLOURS["FPN"], "o")}  # fmt: skip


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: optimizer, control, seed, loss, change (against ``_NONE`` of the same seed)."""
    last = final_losses(tables["tuning_controls"])
    optimizer = last["arm"].str.partition("_")[0]
    rows = pd.DataFrame(
        {
            "optimizer": optimizer.map(OPTIMIZERS),
            "control": last["arm"].str.slice(4),
            "seed": last["seed"],
            "loss": last["value"],
        }
    )
    base = rows[rows["control"] == "_NONE"].set_index(["optimizer", "seed"])["loss"]
    pairs = pd.MultiIndex.from_frame(rows[["optimizer", "seed"]])
    rows["change"] = rows["loss"] - base.reindex(pairs).to_numpy()
    return rows.sort_values(["optimizer", "control", "seed"], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """A panel for each optimizer, the arms from top to bottom."""
    figure, axes = page(1, 2, 4.0, w_pad=0.06, sharex=True, sharey=True)
    names = list(CONTROLS)
    for axis, letter, optimizer in zip(axes, "ab", OPTIMIZERS.values(), strict=True):
        for control, rows in numbers[numbers["optimizer"] == optimizer].groupby("control"):
            height = -names.index(control)
            _, colour, marker = next(look for name, look in KINDS.items() if name in control)
            axis.plot(rows["change"], [height] * len(rows), marker, color=colour, ms=3.6, mew=0,
                      alpha=0.6)  # fmt: skip
            axis.plot([rows["change"].mean()] * 2, [height - 0.3, height + 0.3], color=colour,
                      lw=1.8)  # fmt: skip
        run = numbers.loc[numbers["optimizer"] == optimizer, "control"]
        for control in set(names) - set(run):
            axis.text(0.03, -names.index(control), "not run", ha="left", va="center", fontsize=6,
                      color="#777777", transform=axis.get_yaxis_transform())  # fmt: skip
        axis.axvline(0, **NEUTRAL)
        axis.set_xlabel("Δ validation loss (nats)")
        axis.xaxis.set_major_locator(MaxNLocator(5))
        label(axis, f"{letter}   {optimizer}")
    axes[0].set_yticks([-i for i in range(len(names))], list(CONTROLS.values()), fontsize=6)
    axes[0].set_ylim(-len(names) + 0.4, 0.6)
    handles = [key(name, color=colour, marker=marker, ls="")
               for name, colour, marker in reversed(KINDS.values())]  # fmt: skip
    legend_below(figure, [*handles, key("mean over seeds", lw=1.8, color="#777777")], 4)
    return caption(figure, context, "small tensors: norms, convolutions, biases")
