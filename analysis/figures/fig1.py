"""Figure 1 (section 3): the norm sweeps of the projector, and the MLP's in the last panel.

(a) loss after the decay; (b) logits norm; (c) ‖W‖ and ‖c‖ with Brownian motion; (d, e) their
trajectories at strong and weak weight decay; (f) loss after the decay of the MLP sweep, without
multipliers and with three scalar ones. Norms are read at the end of the constant stage.
Shaded: S at which the multiplier cannot follow (``travel`` in criteria.yaml); nothing is
judged there, and the trajectories are those of the outermost S inside.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.axes import each, s_axis
from analysis.drawing.page import caption, key, key_of_shade, label, legend_below, page
from analysis.drawing.style import (
    ARM_COLOURS,
    ARM_LOOKS,
    NOISE_COLOUR,
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

# The MLP's sweep is AdamW's, without the extremes; and `make fig1` trains the same.
EXPERIMENTS = {"projector": (), "mlp_scale": ("ADAM* S=0.[25]*", "ADAM* S=[1-8] *")}
ARMS = {
    "FPN": ARM_LOOKS["FPN"] | {"label": "FPN: no multiplier"},
    "SPN": ARM_LOOKS["SPN"] | {"label": "SPN: learned scalar"},
    "VPN": ARM_LOOKS["VPN"] | {"label": "VPN: learned vector"},
}
NOISE = {"color": NOISE_COLOUR, "marker": "x", "label": "Adam Brownian motion (ABM)"}
MLP = {
    arm: {"color": ARM_COLOURS[like], "ls": "--", "marker": "D", "ms": 3, "label": name}
    for arm, like, name in (
        ("ADAM", "FPN", "MLP: no multipliers"),
        ("ADAM_LRM", "SPN", "MLP: three learned scalars"),
    )
}
# Lines of panel c by kind, arm and quantity. Without a multiplier ‖c‖ says nothing.
NORMS = {("train", arm, "W"): look for arm, look in ARMS.items()}
NORMS |= {
    ("train", arm, "c"): ARMS[arm] | {"ls": ":", "markerfacecolor": "white"}
    for arm in ("SPN", "VPN")
}
NORMS |= {("brownian", "VPN", "W"): NOISE, ("brownian", "VPN", "c"): NOISE | {"ls": ":"}}
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
    logits = table.pick(tensor="projector", stat="centred_norm")
    inside = judged or sorted(frame["S"].unique())
    paths = norms[norms["S"].isin([inside[0], inside[-1]])]
    mlp = tables["mlp_scale"]
    mlp_judged = MlpSweep(mlp).judged(criteria_of("mlp_scale")["M4"])
    parts = {
        "a": final_losses(table).assign(quantity="loss"),
        "b": at_step(logits, table.stage_end).assign(quantity="centred logits"),
        "c": at_step(norms, table.stage_end),
        "d": paths[paths["quantity"] == "W"],
        "e": paths[paths["quantity"] == "c"],
        "f": final_losses(mlp).assign(quantity="loss"),
    }
    rows = pd.concat([part.assign(panel=panel) for panel, part in parts.items()])
    of_mlp = rows["panel"] == "f"
    rows["judged"] = rows["S"].isin(judged).where(~of_mlp, rows["S"].isin(mlp_judged))
    columns = ["panel", "kind", "arm", "S", "judged", "seed", "step", "quantity", "value"]
    return rows[columns].sort_values(columns[:-1], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Six panels, and the legend below."""
    figure, axes = page(2, 3, 5.0, below=0.125, w_pad=0.06, h_pad=0.06)
    (a, b, c), (d, e, f) = axes
    panels = dict(tuple(numbers.groupby("panel")))
    loss = "loss after decay (nats per token)"
    each(a, panels["a"], "S", ARMS)
    s_axis(a, panels["a"], S_LABEL)
    label(a, "a   Final loss", ylabel=loss)
    each(b, panels["b"], "S", ARMS)
    s_axis(b, panels["b"], S_LABEL)
    plain_log_axis(b)
    label(b, "b   Logits norm", ylabel="RMS of centred logits")
    each(c, panels["c"], "S", NORMS, by=["kind", "arm", "quantity"])
    s_axis(c, panels["c"], S_LABEL)
    _guides(c, panels["c"])
    label(c, r"c   Norms of $W$ and $c$", yscale="log", ylabel=r"$\|W\|$ (filled), $\|c\|$ (open)")
    stage_end = panels["b"]["step"].max()
    for axis, panel, arms in ((d, "d", ARMS), (e, "e", ("SPN", "VPN"))):
        norm = r"$\|W\|$" if panel == "d" else r"$\|c\|$"
        _paths(axis, panels[panel], arms)
        axis.axvline(stage_end, color="#999999", lw=0.7, ls=":", zorder=1)
        label(axis, f"{panel}   Trajectories of {norm}", yscale="log", xlabel="step", ylabel=norm)
    each(f, panels["f"], "S", MLP)
    s_axis(f, panels["f"], MLP_LABEL, every=2)
    label(f, "f   MLP sweep: final loss", ylabel=loss)
    legend_below(figure, _legend(numbers), 4, 0.025)
    return caption(figure, context)


def _guides(axis, norms: pd.DataFrame) -> None:
    """Slopes 1 and −1, a little off the data."""
    noise = norms[(norms["kind"] == "brownian") & (norms["arm"] == "VPN")]
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


def _paths(axis, rows: pd.DataFrame, arms) -> None:
    """Strong weight decay solid, weak dashed."""
    colours = {("train", arm): ARM_COLOURS[arm] for arm in arms}
    colours["brownian", "VPN"] = NOISE_COLOUR
    for s, line in ((rows["S"].min(), "-"), (rows["S"].max(), "--")):
        looks = {name: {"color": colour, "ls": line} for name, colour in colours.items()}
        each(axis, rows[rows["S"] == s], "step", looks, by=["kind", "arm"])


def _legend(numbers: pd.DataFrame) -> list:
    paths = numbers.loc[numbers["panel"] == "d", "S"]
    strong, weak = power_of_two(paths.min()), power_of_two(paths.max())
    handles = [
        *(key(**look) for look in (*ARMS.values(), NOISE)),
        key(f"d, e: strong WD, S = {strong}"),
        key(f"d, e: weak WD, S = {weak}", ls="--"),
        key("d, e: the decay begins", color="#999999", lw=0.7, ls=":"),
        *(key(**look) for look in MLP.values()),
        *key_of_shade(numbers),
    ]
    if numbers["seed"].nunique() > 1:
        handles.append(key("thick: median; thin: each seed", lw=0.5, alpha=0.6))
    return handles
