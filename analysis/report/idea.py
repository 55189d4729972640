"""``python -m analysis.report.idea``: the method in one picture, for the repository's README.

(a) What is learned, (b) why a matrix's norm is not, by a simulation, (c) what a learned scale does
about it, measured on the LM head (the published numbers of figure 1): medians and ranges over
seeds. A norm is the root mean square of the entries.
"""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from analysis.drawing.axes import s_axis
from analysis.drawing.page import label
from analysis.drawing.pictures import picture
from analysis.drawing.stamp import read_drawn
from analysis.drawing.style import (
    ARM_COLOURS,
    NOISE_COLOUR,
    STYLE_FILE,
    TEXT_WIDTH,
)
from analysis.tables.find import RESULTS, relative
from lrm.cli import guarded
from lrm.store.digests import restore
from lrm.store.files import write_atomic

TARGET = Path(__file__).with_suffix(".png")
PUBLISHED = RESULTS / "reference" / "tiny" / "figures" / "fig1.csv"
# Those of the scale tiny.
LR, WEIGHT_DECAY = 8e-3, 0.5
STARTS = (0.25, 0.0)
_SCALED = ARM_COLOURS["SPN"]


def walk(start: float, lr: float, weight_decay: float, steps: int, entries: int = 4096):
    """‖W‖ before and after each step of pure noise and weight decay, shape (steps + 1,).

    W ← (1 − ηλ) W − η u with u ~ N(0, 1): Adam's update where gradients are only noise, without
    momentum. It ends at sqrt(η / (2λ)), to first order in ηλ.
    """
    draw = np.random.default_rng(0).normal
    values = start * draw(size=entries)
    norms = [np.sqrt(np.mean(values**2))]
    for _ in range(steps):
        values = (1 - lr * weight_decay) * values - lr * draw(size=entries)
        norms.append(np.sqrt(np.mean(values**2)))
    return np.array(norms)


def draw(published: pd.DataFrame):
    """The picture; ``published`` are the numbers of figure 1. Returns the Figure."""
    size = (TEXT_WIDTH, 2.45)
    figure, axes = plt.subplots(1, 3, figsize=size, width_ratios=(0.75, 1, 1))
    _method(axes[0])
    _tug_of_war(axes[1])
    _freed(axes[2], published)
    return figure


def _method(axis) -> None:
    rows, columns = 6, 5
    random = np.random.default_rng(1)

    def cell(x, y, colour, alpha):
        axis.add_patch(Rectangle((x, y), 0.9, 0.9, color=colour, alpha=alpha, lw=0))

    for y in range(rows):
        cell(-1.6, y, ARM_COLOURS["VPN"], random.uniform(0.3, 1))
        for x in range(columns):
            cell(x, y, NOISE_COLOUR, random.uniform(0.15, 0.55))
    for x in range(columns):
        cell(x, rows + 0.7, ARM_COLOURS["VPN"], random.uniform(0.3, 1))
    axis.text(-2, rows / 2, "r", color=ARM_COLOURS["VPN"], ha="right", va="center", size=11)
    axis.text(columns / 2, rows + 1.8, "c", color=ARM_COLOURS["VPN"], ha="center", size=11)
    axis.text(columns / 2, rows / 2, "W", ha="center", va="center", size=13, weight="bold")
    said = r"$\overline{W}_{ij} = r_i\,W_{ij}\,c_j$" "\nW keeps its weight decay;\n"
    said += "r and c have little or none.\nPanel c: one scale s\nin their place."
    axis.text(columns / 2 - 1, -0.3, said, ha="center", va="top", size=7)
    axis.set(xlim=(-3.2, columns + 0.4), ylim=(-4, rows + 2.8), aspect="equal", anchor="N")
    axis.set_axis_off()
    label(axis, "a   Multipliers of rows\n     and columns")


def _tug_of_war(axis) -> None:
    steps, rest = 1000, np.sqrt(LR / (2 * WEIGHT_DECAY))
    for start in STARTS:
        axis.plot(walk(start, LR, WEIGHT_DECAY, steps), color=NOISE_COLOUR)
    axis.axhline(rest, color="black", ls="--", lw=0.9)
    text = {"size": 7, "ha": "center"}
    axis.text(330, 0.19, "weight decay\npulls it down", color=NOISE_COLOUR, **text)
    axis.text(360, 0.015, "gradient noise\npushes it up", color=NOISE_COLOUR, **text)
    axis.text(steps, rest + 0.01, r"theory, $\sqrt{\eta/(2\lambda)}$", ha="right", size=7)
    label(axis, "b   Two starts end\n     at one norm", xlabel="step of pure noise",
          ylabel="RMS of entries, ‖W‖")  # fmt: skip
    axis.set(ylim=(0, 0.27), xlim=(0, steps))


def _freed(axis, published: pd.DataFrame) -> None:
    late = published[(published["panel"] == "c") & (published["kind"] == "train")]
    late = late[late["arm"] == "SPN"]
    found = late.pivot(index=["S", "seed"], columns="quantity", values="value")
    found["product"] = found["W"] * found["c"]
    for quantity, colour, marker in (("W", NOISE_COLOUR, "o"), ("product", _SCALED, "s")):
        spread = found[quantity].groupby("S").agg(["median", "min", "max"])
        axis.plot(spread.index, spread["median"], color=colour, marker=marker, ms=3)
        axis.fill_between(spread.index, spread["min"], spread["max"], color=colour, alpha=0.3, lw=0)
    axis.set_yscale("log")
    s_axis(axis, late, "S = √(η/λ) over the base run's")
    text = {"size": 7, "transform": axis.transAxes}
    axis.text(0.97, 0.6, "‖W‖\nfollows S", color=NOISE_COLOUR, ha="right", **text)
    axis.text(0.1, 0.5, "s‖W‖", color=_SCALED, **text)
    grey = {"color": "#666666", "rotation": 90, "va": "top"} | text
    axis.text(0.03, 0.96, "s not there yet", **grey)
    axis.text(0.97, 0.345, "coarse steps", ha="right", **grey | {"size": 6.5})
    said = f"medians and range\nof {late['seed'].nunique()} seeds"
    axis.text(0.85, 0.03, said, ha="right", **text)
    # Over the S that are not grey: within a seed, and then the mean over seeds.
    freed = found["product"].unstack("S")[late.loc[late["judged"].astype(bool), "S"].unique()]
    share = (freed.max(axis="columns") / freed.min(axis="columns") - 1).mean()
    label(axis, f"c   Before LR decay s‖W‖\n     varies by {share:.0%} on average",
          ylabel="RMS of entries, ‖W‖ or s‖W‖")  # fmt: skip


def main() -> None:
    """Draw the picture beside this file; exits with 2 where figure 1 is missing or damaged."""
    guarded(_main)


def published() -> pd.DataFrame:
    """The published numbers of figure 1. UserError where they are not as they were drawn."""
    return pd.read_csv(io.BytesIO(read_drawn(PUBLISHED, restore(PUBLISHED.parent))))


def _main() -> None:
    matplotlib.use("agg")
    with plt.style.context(STYLE_FILE):
        write_atomic(TARGET, picture(draw(published()), "png"))
    print(f"drew {relative(TARGET)}")


if __name__ == "__main__":
    main()
