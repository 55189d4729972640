"""Controls of the projector sweep: loss and ‖W‖ / ABM with one thing changed at a time."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D

from analysis.drawing.style import ARM_COLOURS, ARM_MARKERS, TEXT_WIDTH, caption, power_of_two
from analysis.quantities.losses import final_losses
from analysis.quantities.norms import at_stage_ends, at_step
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("projector_controls",)
# Arm → (base, what is changed), from top to bottom.
CONTROLS = {
    "FPN": ("FPN", "as in the sweep"),
    "VPN": ("VPN", "as in the sweep"),
    "FPN_COMPENSATED": ("FPN", "output factor 1/S"),
    "FPN_LEARNED_SMALL": ("FPN", "learned factor, fixed from the start"),
    "FPN_LEARNED_LARGE": ("FPN", "learned factor, fixed from the start"),
    "FPN_BATCH_QUARTER": ("FPN", "batch × 1/4"),
    "VPN_BATCH_QUARTER": ("VPN", "batch × 1/4"),
    "FPN_BATCH_FOURFOLD": ("FPN", "batch × 4"),
    "VPN_BATCH_FOURFOLD": ("VPN", "batch × 4"),
    "FPN_INIT_QUARTER": ("FPN", "initial norm × 1/4"),
    "VPN_INIT_QUARTER": ("VPN", "initial norm × 1/4"),
    "FPN_INIT_FOURFOLD": ("FPN", "initial norm × 4"),
    "VPN_INIT_FOURFOLD": ("VPN", "initial norm × 4"),
    "FPN_BETA2": ("FPN", r"$\beta_2$ = 0.99"),
    "VPN_BETA2": ("VPN", r"$\beta_2$ = 0.99"),
    "FPN_CLIPPED": ("FPN", "clipped at every step"),
    "VPN_CLIPPED": ("VPN", "clipped at every step"),
    "VPN_LONG": ("VPN", "4 times as long"),
}
CENTRE = "FPN_CENTRE"  # S = 1, drawn as a line


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, S, seed, loss, weight_norm, over_noise.

    ‖W‖ is read at the end of each run's constant stage; Brownian motion is that of the same
    optimizer, batch and length do not enter it.
    """
    table = tables["projector_controls"]
    last = final_losses(table).set_index("run")
    trained, noise = (
        table.pick(kind=kind, tensor="projector", stat="weight_norm")
        for kind in ("train", "brownian")
    )
    resting = at_stage_ends(trained, table.trained).set_index("run")
    noise = at_step(noise, table.stage_end).set_index(["arm", "S"])["value"]
    found = last[["arm", "S", "seed"]].assign(loss=last["value"], weight_norm=resting["value"])
    # The centre, S = 1, has no Brownian twin and needs none.
    twins = ["VPN_BETA2" if arm in ("FPN_BETA2", "VPN_BETA2") else "VPN" for arm in found["arm"]]
    found["over_noise"] = [
        norm / noise.get((twin, s), float("nan"))
        for norm, twin, s in zip(found["weight_norm"], twins, found["S"], strict=True)
    ]
    return found.reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Losses at both S, then ‖W‖ over Brownian motion at both S."""
    centre = numbers.loc[numbers["arm"] == CENTRE, "loss"].mean()
    numbers = numbers[numbers["arm"] != CENTRE]
    scales = sorted(numbers["S"].unique())
    figure, axes = plt.subplots(1, 4, figsize=(TEXT_WIDTH, 3.1), sharey=True)
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.89))
    names = list(dict.fromkeys(what for _, what in CONTROLS.values()))
    heights = {name: len(names) - place for place, name in enumerate(names)}
    for axis, s in zip(axes[:2], scales, strict=True):
        _dots(axis, numbers[numbers["S"] == s], "loss", heights)
        axis.axvline(centre, color=ARM_COLOURS["FPN"], lw=0.8, ls=":")
        axis.set_title(f"loss, S = {power_of_two(s)}")
        axis.set_xlabel("nats per token")
    for axis, s in zip(axes[2:], scales, strict=True):
        _dots(axis, numbers[numbers["S"] == s], "over_noise", heights)
        axis.axvline(1.0, color="#555555", lw=0.8, ls=":")
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
        axis.set_xticks([0.5, 1, 2, 4])
        axis.set_title(rf"$\|W\|$ / ABM, S = {power_of_two(s)}")
    axes[0].set_yticks(list(heights.values()), list(heights))
    handles = [
        Line2D([], [], color=ARM_COLOURS[arm], marker=ARM_MARKERS[arm], ls="", label=label)
        for arm, label in (("FPN", "FPN (no multiplier)"), ("VPN", "VPN (learned vector)"))
    ]
    line = {"color": ARM_COLOURS["FPN"], "lw": 0.8, "ls": ":"}
    handles.append(Line2D([], [], label="FPN at S = 1", **line))
    figure.legend(handles=handles, loc="upper center", ncols=3)
    caption(figure, context)
    return figure


def _dots(axis, frame: pd.DataFrame, column: str, heights: dict[str, int]) -> None:
    for arm, rows in frame.groupby("arm"):
        base, what = CONTROLS[arm]
        places = [heights[what]] * len(rows)
        axis.plot(rows[column], places, ls="", marker=ARM_MARKERS[base], color=ARM_COLOURS[base])
