"""Controls of the projector sweep: loss and ‖W‖ / ABM with one thing changed at a time."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D

from analysis.figures import Context, Tables
from analysis.norms import at_step
from analysis.style import ARM_COLOURS, ARM_MARKERS, TEXT_WIDTH, caption, power_of_two

EXPERIMENTS = ("projector_controls",)
# From top to bottom; the suffix of the arm's name.
CONTROLS = {
    "": "as in the sweep",
    "COMPENSATED": "output factor 1/S",
    "LEARNED_SMALL": "learned factor, fixed from the start",
    "LEARNED_LARGE": "learned factor, fixed from the start",
    "BATCH_QUARTER": "batch × 1/4",
    "BATCH_FOURFOLD": "batch × 4",
    "INIT_QUARTER": "initial norm × 1/4",
    "INIT_FOURFOLD": "initial norm × 4",
    "BETA2": r"$\beta_2$ = 0.99",
    "CLIPPED": "clipped at every step",
    "LONG": "4 times as long",
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, base (FPN or VPN), control, S, seed, loss, weight_norm, over_noise.

    ‖W‖ is read at the end of each run's constant stage; Brownian motion is that of the same
    optimizer, batch and length do not enter it.
    """
    frame = tables["projector_controls"].scalars
    losses = frame[(frame["kind"] == "train") & (frame["stat"] == "validation_loss")]
    # The last validation is that after the decay, the one before it ends the constant stage.
    ends = losses.groupby("run")["step"].agg(["min", "max"])
    last = losses[losses["step"] == losses["run"].map(ends["max"])].set_index("run")
    norms = frame[(frame["tensor"] == "projector") & (frame["stat"] == "weight_norm")]
    trained = norms[norms["kind"] == "train"]
    resting = trained[trained["step"] == trained["run"].map(ends["min"])].set_index("run")
    noise = norms[norms["kind"] == "brownian"]
    noise = at_step(noise, int(ends["min"].min())).set_index(["arm", "S"])["value"]
    found = last[["arm", "S", "seed"]].assign(loss=last["value"], weight_norm=resting["value"])
    found["base"] = found["arm"].str[:3]
    found["control"] = found["arm"].str[4:]
    twin = ["VPN_BETA2" if control == "BETA2" else "VPN" for control in found["control"]]
    found["over_noise"] = [
        norm / noise[arm, s]
        for norm, arm, s in zip(found["weight_norm"], twin, found["S"], strict=True)
    ]
    return found.reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Losses at both S, then ‖W‖ over Brownian motion at both S."""
    scales = sorted(numbers["S"].unique())
    figure, axes = plt.subplots(1, 4, figsize=(TEXT_WIDTH, 3.1), sharey=True)
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.89))
    names = list(dict.fromkeys(CONTROLS.values()))
    heights = {name: len(names) - place for place, name in enumerate(names)}
    for axis, s in zip(axes[:2], scales, strict=True):
        _dots(axis, numbers[numbers["S"] == s], "loss", heights)
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
    figure.legend(handles=handles, loc="upper center", ncols=2)
    caption(figure, context.scale, context.seeds, context.corpus)
    return figure


def _dots(axis, frame: pd.DataFrame, column: str, heights: dict[str, int]) -> None:
    for base, rows in frame.groupby("base"):
        places = [heights[CONTROLS[control]] for control in rows["control"]]
        axis.plot(rows[column], places, ls="", marker=ARM_MARKERS[base], color=ARM_COLOURS[base])
