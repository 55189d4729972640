"""Controls of the tuning ablation: other learning rates, another start or placement (ours).

Each point is a seed, of which a marker tells: the loss after the decay minus that of the model
without multipliers whose base LR alone is tuned, the line at 0. Left of it is better. Small tensors
are norms, convolutions and biases. The colour says what multipliers an arm has; AdamW is solid, and
Muon, hollow, stands below it where it was run. Bars are means. Two arrows lead from AdamW's mean
with the base LR tuned to that with a larger LR of small tensors.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.page import caption, headline, key, legend_below, page
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
        "_LR": "LR of small tensors × 4",
        "_FULL": "all LRs and forward factors tuned",
    }),
    ("VPN", "vector multipliers", {
        "_LRM_NONE": "base LR tuned",
        "_LRM_HALF": "LR of vectors × 1/2",
        "_LRM_QUARTER": "LR of vectors × 1/4",
        "_LRM_IRREDUNDANT": "without redundant vectors",
        "_LRM_VECTORS": "LR of small tensors × 4",
        "_LRM_VECTORS_HALF": "… and LR of vectors × 1/2",
        "_LRM_VECTORS_QUARTER": "… and LR of vectors × 1/4",
        "_LRM_VECTORS_START": "… and start at tuned factors",
    }),
    ("SPN", "one scalar for each matrix", {
        "_SCALAR_NONE": "base LR tuned",
        "_SCALAR_VECTORS": "LR of small tensors × 4",
    }),
)  # fmt: skip
# By control of which the message speaks: that from which its arrow comes.
GAINS = {"_LR": "_NONE", "_LRM_VECTORS": "_LRM_NONE"}
MESSAGE = (
    "AdamW, {seeds}: the larger LR of small tensors gains {with_} with vectors, {without}\n"
    "without. The fully tuned model without multipliers still leads"
)
OPTIMIZERS = {arms: OPTIMIZER_NAMES[name] for arms, name in tuning.OPTIMIZERS.items()}
# How far above its row's middle an optimizer stands, where both were run, and what fills its marks.
LIFTS = dict(zip(OPTIMIZERS.values(), (0.19, -0.19), strict=True))
FILLS = dict(zip(OPTIMIZERS.values(), ({}, {"markerfacecolor": "white"}), strict=True))
SEEDS = "oDs^v"  # their markers
# Of a mean, behind the points: a bar with room in it.
BAR = {"marker": [(-0.3, -1), (0.3, -1), (0.3, 1), (-0.3, 1), (-0.3, -1)], "ms": 6.5, "mew": 0.7,
       "ls": ""}  # fmt: skip


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
    figure, axis = page(1, 1, 4.2)
    seeds = dict(zip(sorted(numbers["seed"].unique()), SEEDS, strict=False))
    n = len(seeds)
    without, with_ = (-_gain(numbers, control) for control in GAINS)
    headline(figure, MESSAGE.format(seeds="one seed" if n == 1 else f"{n} seeds",
                                    with_=_said(with_), without=_said(without)))  # fmt: skip
    lines = []  # of a heading or a control: name, arm, end of the arms' names
    for arm, heading, controls in GROUPS:
        lines += [(heading, arm, None), *((name, arm, end) for end, name in controls.items())]
    for place, (_, arm, control) in enumerate(lines):
        if control is None and place:
            axis.axhline(-place + 0.5, color="#bbbbbb", lw=0.6)
        own = numbers[numbers["control"] == control]
        both = own["optimizer"].nunique() > 1
        colour = ARM_LOOKS[arm]["color"]
        for optimizer, rows in own.groupby("optimizer"):
            height = -place + both * LIFTS[optimizer]
            mean = BAR | {"color": shade(colour, -0.3)} | FILLS[optimizer]
            axis.plot(rows["change"].mean(), height, **mean, zorder=2)
            for seed, marker in seeds.items():
                look = {"color": colour, "marker": marker, "ms": 3.2, "mew": 0.7, "ls": ""}
                change = rows.loc[rows["seed"] == seed, "change"]
                axis.plot(change, [height] * len(change), **look | FILLS[optimizer], zorder=4)
        if control in GAINS:
            _arrow(axis, numbers, control, -place + 0.42, shade(colour, -0.25))
    axis.axvline(0, **NEUTRAL)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    low, high = axis.get_xlim()
    axis.set_xlim(low, max(high, 0.06 * (high - low)))
    axis.set_xlabel(f"loss − loss of {NO_MULTIPLIERS}, base LR tuned (nats)")
    axis.annotate("← better", (0, 0), (0, -22), xycoords="axes fraction",
                  textcoords="offset points", va="bottom", fontsize=7)  # fmt: skip
    axis.set_yticks([-place for place in range(len(lines))], [name for name, *_ in lines])
    for tick, (_, arm, control) in zip(axis.get_yticklabels(), lines, strict=True):
        tick.set(fontsize=SMALL)
        if control is None:
            tick.set(fontsize=7, weight="bold", color=shade(ARM_LOOKS[arm]["color"], -0.15))
    axis.set_ylim(-len(lines) + 0.4, 0.6)
    _legend(figure, seeds)
    note = "small tensors: norms, convolutions, biases; no hollow mark: not run with Muon"
    return caption(figure, context, note)


def _legend(figure, seeds: dict[int, str]) -> None:
    grey = {"color": "#444444", "ms": 3.4, "mew": 0.7, "ls": ""}
    handles = [key(name, marker="o", **grey | FILLS[name]) for name in OPTIMIZERS.values()]
    handles += [key(f"seed {seed}", marker=marker, **grey) for seed, marker in seeds.items()]
    handles.append(key("mean over seeds", **grey | BAR))
    arrow = {"color": "#444444", "marker": "$\\leftarrow$", "ms": 9, "mew": 0, "ls": ""}
    handles.append(key("gain by LR × 4, AdamW", **arrow))
    legend_below(figure, handles, 3)


def _gain(numbers: pd.DataFrame, control: str) -> float:
    """AdamW's mean change from what ``GAINS`` names to ``control``; NaN where one has not run."""
    own = numbers[numbers["optimizer"] == OPTIMIZER_NAMES["Adam"]]
    means = own.groupby("control")["change"].mean()
    return means.get(control, np.nan) - means.get(GAINS[control], np.nan)


def _said(change: float) -> str:
    return f"{change:.3f}".replace("-", "−")


def _arrow(axis, numbers: pd.DataFrame, control: str, height: float, colour: str) -> None:
    """An arrow above the points, with AdamW's ``_gain``."""
    gain = _gain(numbers, control)
    if np.isnan(gain):
        return
    own = numbers[numbers["optimizer"] == OPTIMIZER_NAMES["Adam"]]
    end = own.loc[own["control"] == control, "change"].mean()
    arrow = {"arrowstyle": "->", "color": colour, "lw": 0.8, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", (end, height), (end - gain, height), arrowprops=arrow, zorder=1)
    axis.annotate(_said(gain), (end - gain / 2, height), (0, 1), textcoords="offset points",
                  ha="center", va="bottom", fontsize=SMALL, color=colour)  # fmt: skip
