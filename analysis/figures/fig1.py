"""Figure 1 (section 3): the projector norm sweep; its MLP panel belongs to another experiment.

(a) loss after the decay; (b) logits norm; (c) ‖W‖ and ‖c‖ with Brownian motion; (d, e) their
trajectories at strong and weak weight decay. Norms are read at the end of the constant stage.
Shaded: S at which the multiplier cannot follow (the travel rule of criteria.yaml); nothing is
judged there, and the trajectories are those of the outermost S inside.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.criteria import CRITERIA
from analysis.figures import Context, Tables
from analysis.norms import at_step
from analysis.projector_claims import Sweep
from analysis.style import (
    ARM_COLOURS,
    ARM_MARKERS,
    NOISE_COLOUR,
    TEXT_WIDTH,
    caption,
    plain_log_axis,
    power_of_two,
)
from lrm.compose import read_yaml

EXPERIMENTS = ("projector",)
ARMS = ("FPN", "SPN", "VPN")
NAMES = {
    "FPN": "FPN: no multiplier",
    "SPN": "SPN: learned scalar",
    "VPN": "VPN: learned vector",
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, kind (train or brownian), arm, S, judged, seed, step, quantity, value."""
    table = tables["projector"]
    frame = table.scalars
    judged = Sweep(frame, table.runs).judged(read_yaml(CRITERIA)["P4"])
    norms = frame[
        ((frame["tensor"] == "projector") & (frame["stat"] == "weight_norm"))
        | ((frame["tensor"] == "norm.final") & (frame["stat"] == "effective_norm"))
        | (frame["kind"].eq("brownian") & frame["stat"].eq("weight_norm"))
    ].copy()
    norms["quantity"] = norms["tensor"].map({"projector": "W"}).fillna("c")
    losses = frame[frame["stat"] == "validation_loss"]
    losses = at_step(losses, losses["step"].max()).assign(quantity="loss")
    logits = frame[(frame["tensor"] == "projector") & (frame["stat"] == "centred_norm")]
    logits = at_step(logits, table.stage_end).assign(quantity="centred logits")
    inside = judged or sorted(frame["S"].unique())
    paths = norms[norms["S"].isin([inside[0], inside[-1]])]
    parts = {
        "a": losses,
        "b": logits,
        "c": at_step(norms, table.stage_end),
        "d": paths[paths["quantity"] == "W"],
        "e": paths[paths["quantity"] == "c"],
    }
    columns = ["panel", "kind", "arm", "S", "judged", "seed", "step", "quantity", "value"]
    found = pd.concat([part.assign(panel=panel) for panel, part in parts.items()])
    found["judged"] = found["S"].isin(judged)
    return found[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Five panels and the legend in the place of the sixth."""
    figure, axes = plt.subplots(2, 3, figsize=(TEXT_WIDTH, 4.5))
    figure.get_layout_engine().set(rect=(0, 0.035, 1, 0.965), w_pad=0.06, h_pad=0.06)
    panels = dict(zip("abcdef", axes.flat, strict=True))
    by_panel = dict(tuple(numbers.groupby("panel")))
    stage_end = by_panel["b"]["step"].max()
    _sweep(panels["a"], by_panel["a"], "loss after decay (nats per token)")
    panels["a"].set_title("a   Final loss", loc="left")
    _sweep(panels["b"], by_panel["b"], "RMS of centred logits")
    plain_log_axis(panels["b"])
    panels["b"].set_title("b   Logits norm", loc="left")
    _norms(panels["c"], by_panel["c"])
    panels["c"].set_title(r"c   Norms of $W$ and $c$", loc="left")
    _paths(panels["d"], by_panel["d"], r"$\|W\|$", stage_end)
    panels["d"].set_title(r"d   Trajectories of $\|W\|$", loc="left")
    _paths(panels["e"], by_panel["e"], r"$\|c\|$", stage_end)
    panels["e"].set_title(r"e   Trajectories of $\|c\|$", loc="left")
    _legend(panels["f"], numbers)
    caption(figure, context)
    return figure


def _sweep(axis, frame: pd.DataFrame, label: str) -> None:
    for arm in ARMS:
        _series(axis, frame[frame["arm"] == arm], "S", ARM_COLOURS[arm], marker=ARM_MARKERS[arm])
    _s_axis(axis, frame)
    axis.set_ylabel(label)


def _series(axis, frame: pd.DataFrame, x: str, colour: str, line="-", **marker) -> None:
    """The median over seeds; with several seeds also every seed, and the band that they span."""
    if frame.empty:
        return
    grouped = frame.groupby(x)["value"]
    middle = grouped.median()
    axis.plot(middle.index, middle, color=colour, linestyle=line, zorder=3, **marker)
    if frame["seed"].nunique() > 1:
        axis.fill_between(middle.index, grouped.min(), grouped.max(), color=colour, alpha=0.2, lw=0)
        for _, seed in frame.groupby("seed"):
            seed = seed.sort_values(x)
            axis.plot(seed[x], seed["value"], color=colour, linestyle=line, lw=0.5, alpha=0.6)


def _s_axis(axis, frame: pd.DataFrame) -> None:
    values = sorted(frame["S"].unique())
    axis.set_xscale("log", base=4)
    axis.set_xticks(values, [power_of_two(value) for value in values])
    axis.minorticks_off()
    _shade(axis, frame)
    axis.set_xlabel(r"$S$   ($\eta_P \to \eta_P S,\ \lambda_P \to \lambda_P / S$)")


def _shade(axis, frame: pd.DataFrame) -> None:
    """Grey over the S that are not judged."""
    judged = frame.loc[frame["judged"], "S"]
    if judged.empty:
        return
    left, right = axis.get_xlim()
    axis.set_xlim(left, right)
    values = np.array(sorted(frame["S"].unique()))
    below, above = values[values < judged.min()], values[values > judged.max()]
    style = {"color": "#efefef", "lw": 0, "zorder": 0}
    if below.size:
        axis.axvspan(left, np.sqrt(below[-1] * judged.min()), **style)
    if above.size:
        axis.axvspan(np.sqrt(above[0] * judged.max()), right, **style)


def _norms(axis, frame: pd.DataFrame) -> None:
    for arm in ARMS:
        rows = frame[(frame["arm"] == arm) & (frame["kind"] == "train")]
        colour, marker = ARM_COLOURS[arm], ARM_MARKERS[arm]
        _series(axis, rows[rows["quantity"] == "W"], "S", colour, marker=marker)
        if arm != "FPN":
            rows = rows[rows["quantity"] == "c"]
            _series(axis, rows, "S", colour, line=":", marker=marker, markerfacecolor="white")
    noise = frame[(frame["kind"] == "brownian") & (frame["arm"] == "VPN")]
    for quantity, line in (("W", "-"), ("c", ":")):
        rows = noise[noise["quantity"] == quantity]
        _series(axis, rows, "S", NOISE_COLOUR, marker="x", line=line)
    _s_axis(axis, frame)
    _guides(axis, noise)
    axis.set_yscale("log")
    axis.set_ylabel(r"$\|W\|$ (filled), $\|c\|$ (open)")


def _guides(axis, noise: pd.DataFrame) -> None:
    """Slopes 1 and −1, a little off the data."""
    w = noise[noise["quantity"] == "W"].set_index("S")["value"]
    s = np.array([w.index.min(), w.index.max()])
    middle = np.sqrt(s.prod())
    level = np.exp(np.interp(np.log(middle), np.log(w.index), np.log(w)))
    style = {"color": "#aaaaaa", "lw": 0.8, "ls": (0, (1, 1)), "zorder": 1}
    axis.plot(s, 0.35 * level * s / middle, **style)
    axis.plot(s, 3.0 * middle / s, **style)
    text = {"fontsize": 6.5, "color": "#888888"}
    axis.text(middle, 0.12 * level, r"$\propto S$", **text)
    axis.text(middle * 1.1, 4.5, r"$\propto 1/S$", **text)


def _paths(axis, frame: pd.DataFrame, label: str, decay_from: int) -> None:
    """Strong weight decay solid, weak dashed."""
    strong, weak = frame["S"].min(), frame["S"].max()
    learned = frame[frame["quantity"].eq("W") | frame["arm"].ne("FPN")]
    for scale, line in ((strong, "-"), (weak, "--")):
        rows = learned[learned["S"] == scale]
        for arm in ARMS:
            arm_rows = rows[(rows["arm"] == arm) & (rows["kind"] == "train")]
            _series(axis, arm_rows, "step", ARM_COLOURS[arm], line=line)
        noise = rows[(rows["kind"] == "brownian") & (rows["arm"] == "VPN")]
        _series(axis, noise, "step", NOISE_COLOUR, line=line)
    axis.axvline(decay_from, color="#999999", lw=0.7, ls=":", zorder=1)
    axis.set(yscale="log", xlabel="step", ylabel=label)


def _legend(axis, numbers: pd.DataFrame) -> None:
    axis.axis("off")
    paths = numbers.loc[numbers["panel"] == "d", "S"]
    strong, weak = power_of_two(paths.min()), power_of_two(paths.max())
    handles = [
        Line2D([], [], color=ARM_COLOURS[arm], marker=ARM_MARKERS[arm], label=NAMES[arm])
        for arm in ARMS
    ]
    handles += [
        Line2D([], [], color=NOISE_COLOUR, marker="x", label="Adam Brownian motion (ABM)"),
        Line2D([], [], color="black", linestyle="-", label=f"d, e: strong WD, S = {strong}"),
        Line2D([], [], color="black", linestyle="--", label=f"d, e: weak WD, S = {weak}"),
        Line2D([], [], color="#999999", lw=0.7, linestyle=":", label="d, e: the decay begins"),
    ]
    if not numbers["judged"].all():
        handles.append(Patch(color="#efefef", label="a–c: not judged, c cannot follow freely"))
    if numbers["seed"].nunique() > 1:
        handles.append(
            Line2D([], [], color="black", lw=0.5, alpha=0.6, label="thick: median; thin: each seed")
        )
    axis.legend(handles=handles, loc="center", title="Projector experiment", title_fontsize=8)
