"""Controls of the tuning ablation: other learning rates, another start or placement (ours).

Each point is a seed: the loss after the decay minus that of the model without multipliers whose
base LR alone is tuned. Left of 0 is better. Small tensors are norms, convolutions and biases. The
colour says what multipliers an arm has.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_LOOKS, NEUTRAL, OPTIMIZER_NAMES, shade
from analysis.quantities import tuning_ablation as tuning
from analysis.quantities.losses import final_losses
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("tuning_controls",)
# From top to bottom: the arm and heading of each group, and its controls by the end of the arms'
# names after the optimizer's.
GROUPS = (
    ("FPN", "no multipliers", {
        "_LR": "LR of small tensors × 4",
        "_FULL": "tuned LR and forward factors",
    }),
    ("VPN", "vector multipliers", {
        "_LRM_NONE": "base LR tuned",
        "_LRM_HALF": "their own LR × 1/2",
        "_LRM_QUARTER": "their own LR × 1/4",
        "_LRM_IRREDUNDANT": "no redundant ones",
        "_LRM_VECTORS": "LR of small tensors × 4",
        "_LRM_VECTORS_HALF": "the same, their own × 1/2",
        "_LRM_VECTORS_QUARTER": "the same, their own × 1/4",
        "_LRM_VECTORS_START": "the same, start at tuned factors",
    }),
    ("SPN", "one scalar for each matrix", {
        "_SCALAR_NONE": "base LR tuned",
        "_SCALAR_VECTORS": "LR of small tensors × 4",
    }),
)  # fmt: skip
OPTIMIZERS = {arms: OPTIMIZER_NAMES[name] for arms, name in tuning.OPTIMIZERS.items()}


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
    figure, axes = page(1, 2, 3.7, w_pad=0.06, sharex=True, sharey=True)
    lines = []  # of a heading or a control: name, arm, end of the arms' names
    for arm, heading, controls in GROUPS:
        lines += [(heading, arm, None), *((name, arm, end) for end, name in controls.items())]
    for axis, letter, optimizer in zip(axes, "ab", OPTIMIZERS.values(), strict=True):
        own = numbers[numbers["optimizer"] == optimizer].groupby("control")["change"]
        for place, (_, arm, control) in enumerate(lines):
            if control is None:
                if place:
                    axis.axhline(-place + 0.5, color="#bbbbbb", lw=0.6)
            elif control in own.groups:
                values, look = own.get_group(control), ARM_LOOKS[arm]
                axis.plot(values, [-place] * len(values), ms=3.6, mew=0, alpha=0.6, ls="", **look)
                axis.plot([values.mean()] * 2, [-place - 0.33, -place + 0.33],
                          color=look["color"], lw=1.8)  # fmt: skip
            else:
                axis.text(0.03, -place, "not run", ha="left", va="center", fontsize=6.5,
                          color="#777777", transform=axis.get_yaxis_transform())  # fmt: skip
        axis.axvline(0, **NEUTRAL)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.grid(axis="y", visible=False)
        axis.annotate("← better", (0, 0.992), (-4, 0), xycoords=axis.get_xaxis_transform(),
                      textcoords="offset points", ha="right", va="top", fontsize=6.5,
                      color="#444444")  # fmt: skip
        axis.set_xlabel("loss − loss of no multipliers,\nbase LR tuned (nats)")
        axis.tick_params(axis="y", length=0)
        label(axis, f"{letter}   {optimizer}")
    axes[0].set_yticks([-place for place in range(len(lines))], [name for name, *_ in lines])
    for said, (_, arm, control) in zip(axes[0].get_yticklabels(), lines, strict=True):
        said.set(fontsize=6.5)
        if control is None:
            said.set(fontsize=7, weight="bold", color=shade(ARM_LOOKS[arm]["color"], -0.15))
    axes[0].set_ylim(-len(lines) + 0.4, 0.6)
    n = len(context.seeds)
    words = f"points: the {n} exploration seeds, which judge nothing; bars: their means"
    legend_below(figure, [key(words, lw=0)], 1, handlelength=0, handletextpad=0)
    return caption(figure, context, "small tensors: norms, convolutions, biases")
