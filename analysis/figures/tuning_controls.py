"""Controls of the tuning ablation: other learning rates, another start or placement (ours).

Each point is a seed: the loss after the decay minus that of the model without multipliers whose
base LR alone is tuned. Left of 0 is better. Small tensors are norms, convolutions and biases. The
colour says what multipliers an arm has; AdamW is solid, and Muon, hollow, stands below it where it
was run. Two arrows lead from AdamW's mean with the base LR tuned to that with a larger LR of small
tensors.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.page import caption, key, legend_below, page
from analysis.drawing.style import (
    ARM_LOOKS,
    NEUTRAL,
    NO_MULTIPLIERS,
    OPTIMIZER_NAMES,
    SMALL,
    shade,
)
from analysis.quantities import tuning_ablation as tuning
from analysis.quantities.losses import final_losses
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("tuning_controls",)
# From top to bottom: the arm and heading of each group, and its controls by the end of the arms'
# names after the optimizer's.
GROUPS = (
    ("FPN", NO_MULTIPLIERS, {
        "_NONE": "base LR tuned (the zero)",
        "_LR": "LR of small tensors × 4",
        "_FULL": "all LRs and forward factors tuned",
    }),
    ("VPN", "vector multipliers", {
        "_LRM_NONE": "base LR tuned",
        "_LRM_HALF": "LR of vectors × 1/2",
        "_LRM_QUARTER": "LR of vectors × 1/4",
        "_LRM_IRREDUNDANT": "without redundant vectors",
        "_LRM_VECTORS": "LR of small tensors × 4",
        "_LRM_VECTORS_HALF": "LR small × 4, LR vectors × 1/2",
        "_LRM_VECTORS_QUARTER": "LR small × 4, LR vectors × 1/4",
        "_LRM_VECTORS_START": "LR small × 4, start at tuned factors",
    }),
    ("SPN", "one scalar for each matrix", {
        "_SCALAR_NONE": "base LR tuned",
        "_SCALAR_VECTORS": "LR of small tensors × 4",
    }),
)  # fmt: skip
# By control of which the message speaks: that from which its arrow comes.
GAINS = {"_LR": "_NONE", "_LRM_VECTORS": "_LRM_NONE"}
MESSAGE = "AdamW, {seeds}: LR of small tensors × 4 gains with vectors too"
OPTIMIZERS = {arms: OPTIMIZER_NAMES[name] for arms, name in tuning.OPTIMIZERS.items()}
# How far above its row's middle an optimizer stands, where both were run, and what fills its marks.
LIFTS = dict(zip(OPTIMIZERS.values(), (0.19, -0.19), strict=True))
FILLS = dict(zip(OPTIMIZERS.values(), ({}, {"markerfacecolor": "white"}), strict=True))


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
    """The arms from top to bottom, and at each the optimizers."""
    figure, axis = page(1, 1, 4.0)
    n = numbers["seed"].nunique()
    said = MESSAGE.format(seeds="one seed" if n == 1 else f"{n} seeds")
    figure.suptitle(said, x=0.01, ha="left", fontsize=7.5, weight="bold")
    lines = []  # of a heading or a control: name, arm, end of the arms' names
    for arm, heading, controls in GROUPS:
        lines += [(heading, arm, None), *((name, arm, end) for end, name in controls.items())]
    for place, (_, arm, control) in enumerate(lines):
        if control is None and place:
            axis.axhline(-place + 0.5, color="#bbbbbb", lw=0.6)
        own = numbers[numbers["control"] == control]
        both = own["optimizer"].nunique() > 1
        for optimizer, rows in own.groupby("optimizer"):
            height = -place + both * LIFTS[optimizer]
            look = ARM_LOOKS[arm] | {"ms": 3.4, "mew": 0.7, "alpha": 0.7, "ls": ""}
            axis.plot(rows["change"], [height] * len(rows), **look | FILLS[optimizer])
            axis.plot([rows["change"].mean()] * 2, [height - 0.17, height + 0.17],
                      color=shade(look["color"], -0.3), lw=1.8)  # fmt: skip
        if control in GAINS:
            _gain(axis, numbers, control, -place, shade(ARM_LOOKS[arm]["color"], -0.25))
    axis.axvline(0, **NEUTRAL)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(f"← better   loss − loss of {NO_MULTIPLIERS}, base LR tuned (nats)")
    axis.set_yticks([-place for place in range(len(lines))], [name for name, *_ in lines])
    for tick, (_, arm, control) in zip(axis.get_yticklabels(), lines, strict=True):
        tick.set(fontsize=SMALL)
        if control is None:
            tick.set(fontsize=7, weight="bold", color=shade(ARM_LOOKS[arm]["color"], -0.15))
    axis.set_ylim(-len(lines) + 0.4, 0.6)
    grey = {"color": "#444444", "marker": "o", "ms": 3.4, "mew": 0.7, "ls": ""}
    handles = [key(name, **grey | FILLS[name]) for name in OPTIMIZERS.values()]
    handles.append(key("mean over seeds", color="#444444", marker="|", ms=6, mew=1.8, ls=""))
    arrow = {"color": "#444444", "marker": "$\\leftarrow$", "ms": 9, "mew": 0, "ls": ""}
    handles.append(key("gain by LR × 4, AdamW", **arrow))
    legend_below(figure, handles, len(handles))
    note = "small tensors: norms, convolutions, biases; no hollow mark: not run with Muon"
    return caption(figure, context, f"points: seeds\n{note}")


def _gain(axis, numbers: pd.DataFrame, control: str, height: float, colour: str) -> None:
    """An arrow with AdamW's mean change from what ``GAINS`` names to ``control``."""
    adam = OPTIMIZER_NAMES["Adam"]
    own = numbers[numbers["optimizer"] == adam].groupby("control")["change"].mean()
    if not {control, GAINS[control]} <= set(own.index):
        return
    both = numbers.loc[numbers["control"] == control, "optimizer"].nunique() > 1
    height += both * LIFTS[adam]
    start, end = own[GAINS[control]], own[control]
    arrow = {"arrowstyle": "->", "color": colour, "lw": 0.8, "shrinkA": 0, "shrinkB": 3}
    axis.annotate("", (end, height), (start, height), arrowprops=arrow, zorder=1)
    axis.annotate(f"{end - start:.3f}".replace("-", "−"), ((start + end) / 2, height), (0, 1.5),
                  textcoords="offset points", ha="center", va="bottom", fontsize=SMALL,
                  color=colour)  # fmt: skip
