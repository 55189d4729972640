"""Figure 1 (section 3): the norm sweeps of the projector, and the MLP's in the last panel.

(a) loss after the decay; (b) logits norm; (c) ‖W‖ and ‖c‖ with Brownian motion; (d, e) their
trajectories at strong and weak weight decay; (f) loss after the decay of the MLP sweep, without
multipliers and with three scalar ones. Norms are read at the end of the constant stage.
Shaded: S at which the multiplier cannot follow (``travel`` in criteria.yaml); nothing is
judged there, and the trajectories are those of the outermost S inside.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.drawing.axes import s_axis, series
from analysis.drawing.style import (
    ARM_COLOURS,
    ARM_MARKERS,
    NOISE_COLOUR,
    TEXT_WIDTH,
    caption,
    plain_log_axis,
    power_of_two,
)
from analysis.quantities.losses import final_losses
from analysis.quantities.mlp_scale import MlpSweep
from analysis.quantities.norms import at_step
from analysis.quantities.projector import ProjectorSweep
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

# Of the MLP's sweep AdamW's, without the extremes; and `make fig1` trains the same.
EXPERIMENTS = {"projector": (), "mlp_scale": ("ADAM* S=0.[25]*", "ADAM* S=[1-8] *")}
ARMS = ("FPN", "SPN", "VPN")
NAMES = {
    "FPN": "FPN: no multiplier",
    "SPN": "SPN: learned scalar",
    "VPN": "VPN: learned vector",
}
MLP_NAMES = {"ADAM": "MLP: no multipliers", "ADAM_LRM": "MLP: three learned scalars"}
MLP_COLOURS = {"ADAM": ARM_COLOURS["FPN"], "ADAM_LRM": ARM_COLOURS["SPN"]}
S_LABEL = r"$S$   ($\eta_P \to \eta_P S,\ \lambda_P \to \lambda_P / S$)"
MLP_LABEL = r"$S_{MLP}$   (all three matrices)"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, kind (train or brownian), arm, S, judged, seed, step, quantity, value."""
    table = tables["projector"]
    frame = table.scalars
    judged = ProjectorSweep(table).judged(criteria_of("projector")["P4"])
    norms = frame[
        ((frame["tensor"] == "projector") & (frame["stat"] == "weight_norm"))
        | ((frame["tensor"] == "norm.final") & (frame["stat"] == "effective_norm"))
        | (frame["kind"].eq("brownian") & frame["stat"].eq("weight_norm"))
    ].copy()
    norms["quantity"] = norms["tensor"].map({"projector": "W"}).fillna("c")
    losses = final_losses(table).assign(quantity="loss")
    logits = table.pick(tensor="projector", stat="centred_norm")
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
    found = pd.concat([found, _mlp(tables["mlp_scale"]).assign(panel="f")])
    return found[columns].sort_values(columns[:-1], ignore_index=True)


def _mlp(table: Tables) -> pd.DataFrame:
    judged = MlpSweep(table).judged(criteria_of("mlp_scale")["M4"])
    losses = final_losses(table)
    return losses.assign(quantity="loss", judged=losses["S"].isin(judged))


def draw(numbers: pd.DataFrame, context: Context):
    """Six panels, and the legend below."""
    figure, axes = plt.subplots(2, 3, figsize=(TEXT_WIDTH, 5.0))
    figure.get_layout_engine().set(rect=(0, 0.125, 1, 0.875), w_pad=0.06, h_pad=0.06)
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
    for arm, colour in MLP_COLOURS.items():
        rows = by_panel["f"][by_panel["f"]["arm"] == arm]
        series(panels["f"], rows, "S", colour, line="--", marker="D", ms=3)
    s_axis(panels["f"], by_panel["f"], MLP_LABEL, every=2)
    panels["f"].set_ylabel("loss after decay (nats per token)")
    panels["f"].set_title("f   MLP sweep: final loss", loc="left")
    _legend(figure, numbers)
    caption(figure, context)
    return figure


def _sweep(axis, frame: pd.DataFrame, label: str) -> None:
    for arm in ARMS:
        series(axis, frame[frame["arm"] == arm], "S", ARM_COLOURS[arm], marker=ARM_MARKERS[arm])
    s_axis(axis, frame, S_LABEL)
    axis.set_ylabel(label)


def _norms(axis, frame: pd.DataFrame) -> None:
    for arm in ARMS:
        rows = frame[(frame["arm"] == arm) & (frame["kind"] == "train")]
        colour, marker = ARM_COLOURS[arm], ARM_MARKERS[arm]
        series(axis, rows[rows["quantity"] == "W"], "S", colour, marker=marker)
        if arm != "FPN":
            rows = rows[rows["quantity"] == "c"]
            series(axis, rows, "S", colour, line=":", marker=marker, markerfacecolor="white")
    noise = frame[(frame["kind"] == "brownian") & (frame["arm"] == "VPN")]
    for quantity, line in (("W", "-"), ("c", ":")):
        rows = noise[noise["quantity"] == quantity]
        series(axis, rows, "S", NOISE_COLOUR, marker="x", line=line)
    s_axis(axis, frame, S_LABEL)
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
            series(axis, arm_rows, "step", ARM_COLOURS[arm], line=line)
        noise = rows[(rows["kind"] == "brownian") & (rows["arm"] == "VPN")]
        series(axis, noise, "step", NOISE_COLOUR, line=line)
    axis.axvline(decay_from, color="#999999", lw=0.7, ls=":", zorder=1)
    axis.set(yscale="log", xlabel="step", ylabel=label)


def _legend(figure, numbers: pd.DataFrame) -> None:
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
    handles += [
        Line2D([], [], color=MLP_COLOURS[arm], marker="D", ms=3, linestyle="--", label=name)
        for arm, name in MLP_NAMES.items()
    ]
    if not numbers["judged"].all():
        handles.append(Patch(color="#efefef", label="not judged"))
    if numbers["seed"].nunique() > 1:
        handles.append(
            Line2D([], [], color="black", lw=0.5, alpha=0.6, label="thick: median; thin: each seed")
        )
    figure.legend(handles=handles, loc="lower center", ncols=4, bbox_to_anchor=(0.5, 0.025))
