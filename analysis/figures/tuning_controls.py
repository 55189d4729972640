"""Controls of the tuning ablation: a larger learning rate of what is no matrix (ours).

Each point is a seed, of which a marker tells: the loss of the model without multipliers whose base
LR alone is tuned, the line at 0, minus the loss of an arm. Right of it is better. The colour says
what multipliers an arm has; AdamW is solid, and Muon, hollow, stands below it where it was run.
Bars are means. Arrows lead from AdamW's mean with the base LR tuned to that with four times the LR
of norms, convolutions and biases. The csv has the other controls too: less LR of multipliers, and
fewer of them.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

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
LARGER = "LR of norms, convolutions, biases × 4"
# From top to bottom: the arm and heading of each group, and its controls by the end of the arms'
# names after the optimizer's.
GROUPS = (
    ("FPN", NO_MULTIPLIERS, {
        "_LR": LARGER,
        "_FULL": "all LRs and forward factors tuned",
    }),
    ("VPN", "vector multipliers", {
        "_LRM_NONE": "base LR tuned",
        "_LRM_VECTORS": LARGER,
        "_LRM_VECTORS_START": "… and begun at the tuned factors",
    }),
    ("SPN", "one scalar for each matrix", {
        "_SCALAR_NONE": "base LR tuned",
        "_SCALAR_VECTORS": LARGER,
    }),
)  # fmt: skip
# By control of which the message speaks: that from which its arrow comes.
STEPS = {"_LR": "_NONE", "_LRM_VECTORS": "_LRM_NONE"}
MESSAGE = (
    "AdamW: LR of norms, convolutions, biases × 4 gains {with_} nats with vectors, {without}\n"
    "without (base LR lower too); on both seeds the fully tuned model without leads"
)
OPTIMIZERS = {arms: OPTIMIZER_NAMES[name] for arms, name in tuning.OPTIMIZERS.items()}
ADAM = OPTIMIZER_NAMES["Adam"]
# How far above its row's middle an optimizer stands, where both were run, and what fills its marks.
LIFTS = dict(zip(OPTIMIZERS.values(), (0.19, -0.19), strict=True))
FILLS = dict(zip(OPTIMIZERS.values(), ({}, {"markerfacecolor": "white"}), strict=True))
SEEDS = "oDs^v"  # their markers
BAR = {"marker": "|", "ms": 10, "mew": 1.6, "ls": ""}  # of a mean


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: optimizer, control, seed, loss, gain (on ``_NONE`` of the same seed)."""
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
    rows["gain"] = base.reindex(pairs).to_numpy() - rows["loss"]
    return rows.sort_values(["optimizer", "control", "seed"], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """The arms from top to bottom, and at each the optimizers."""
    figure, axis = page(1, 1, 3.6)
    seeds = dict(zip(sorted(numbers["seed"].unique()), itertools.cycle(SEEDS), strict=False))
    adam = numbers[numbers["optimizer"] == ADAM].groupby("control")["gain"].mean()
    without, with_ = (_step(adam, control) for control in STEPS)
    headline(figure, MESSAGE.format(with_=_said(with_), without=_said(without)), context)
    lines = []  # of a heading or a control: name, arm, end of the arms' names
    for arm, heading, controls in GROUPS:
        lines += [(heading, arm, None), *((name, arm, end) for end, name in controls.items())]
    heights = {control: -place for place, (*_, control) in enumerate(lines)}
    for place, (_, arm, control) in enumerate(lines):
        if control is None and place:
            axis.axhline(-place + 0.5, color="#bbbbbb", lw=0.6)
        own = numbers[numbers["control"] == control]
        both = own["optimizer"].nunique() > 1
        colour = ARM_LOOKS[arm]["color"]
        for optimizer, rows in own.groupby("optimizer"):
            height = -place + both * LIFTS[optimizer]
            for seed, marker in seeds.items():
                look = {"color": colour, "marker": marker, "ms": 3.6, "mew": 0.7, "ls": ""}
                gain = rows.loc[rows["seed"] == seed, "gain"]
                axis.plot(gain, [height] * len(gain), **look | FILLS[optimizer], zorder=3)
            axis.plot(rows["gain"].mean(), height, color=shade(colour, -0.4), **BAR, zorder=4)
        if control in STEPS:
            from_ = heights.get(STEPS[control], 0.6)
            _arrow(axis, adam, control, (from_, -place + 0.5), shade(colour, -0.25))
    axis.axvline(0, **NEUTRAL)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    low, high = axis.get_xlim()
    axis.set_xlim(min(low, -0.06 * (high - low)), high)
    axis.set_xlabel(f"gain over {NO_MULTIPLIERS}, base LR tuned (nats); better →")
    axis.set_yticks([-place for place in range(len(lines))], [name for name, *_ in lines])
    for tick, (_, arm, control) in zip(axis.get_yticklabels(), lines, strict=True):
        tick.set(fontsize=SMALL)
        if control is None:
            tick.set(fontsize=7, weight="bold", color=shade(ARM_LOOKS[arm]["color"], -0.15))
    axis.set_ylim(-len(lines) + 0.4, 0.6)
    _legend(figure, seeds)
    return caption(
        figure,
        context,
        "no hollow mark: not run with Muon\n"
        "no intervals; zero: no multipliers, base LR tuned, of the same optimizer and seed",
    )


def _legend(figure, seeds: dict[int, str]) -> None:
    grey = {"color": "#444444", "ms": 3.6, "mew": 0.7, "ls": ""}
    fills = {name: fill.get("markerfacecolor", "#444444") for name, fill in FILLS.items()}
    handles = [
        Patch(fc=fill, ec="#444444", lw=0.7, label=f"{said}: {name}")
        for said, (name, fill) in zip(("full", "hollow"), fills.items(), strict=True)
    ]
    handles += [key(f"seed {seed}", marker=marker, **grey) for seed, marker in seeds.items()]
    handles.append(key("mean over seeds", **grey | BAR))
    arrow = {"color": "#444444", "marker": "$\\rightarrow$", "ms": 9, "mew": 0, "ls": ""}
    handles.append(key("gain by LR × 4, AdamW", **arrow))
    legend_below(figure, handles, 3)


def _step(gains: pd.Series, control: str) -> float:
    """How much ``control`` gains on what ``STEPS`` names; NaN where one has not run."""
    return gains.get(control, np.nan) - gains.get(STEPS[control], np.nan)


def _said(gain: float) -> str:
    return f"{gain:.3f}".replace("-", "−")


def _arrow(axis, gains: pd.Series, control: str, heights: tuple[float, float], colour: str) -> None:
    """From the mean of what ``STEPS`` names at the first height, down to the second, and across."""
    gain = _step(gains, control)
    if np.isnan(gain):
        return
    end, (above, height) = gains[control], heights
    axis.plot([end - gain] * 2, [above, height], color=colour, lw=0.8, ls=":", zorder=2)
    arrow = {"arrowstyle": "->", "color": colour, "lw": 0.8, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", (end, height), (end - gain, height), arrowprops=arrow, zorder=2)
    axis.annotate(f"+{_said(gain)}", (end - gain / 2, height), (0, 1), textcoords="offset points",
                  ha="center", va="bottom", fontsize=SMALL, color=colour)  # fmt: skip
