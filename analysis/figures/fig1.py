"""Figure 1 (section 3): the norm sweeps of the projector, and the MLP's in the last panel.

(a) loss after the decay; (b) logits norm; (c) ‖W‖ and ‖c‖ with Brownian motion; (d, e) their
trajectories at strong and weak weight decay; (f) loss after the decay of the MLP sweep, without
multipliers and with three scalar ones, by Adam and by Muon. Norms are read at the end of the
constant stage. Lines are medians, bands the range of seeds.
Shaded: S at which the multiplier cannot follow (``travel`` in criteria.yaml); nothing is
judged there, and the trajectories are those of the outermost S inside.
"""

from __future__ import annotations

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
from analysis.quantities.mlp_scale import ARMS as MLP_ARMS
from analysis.quantities.mlp_scale import MlpSweep
from analysis.quantities.norms import at_step
from analysis.quantities.projector import ProjectorSweep
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

# The MLP's sweep is drawn without the extremes; and `make fig1` trains the same.
EXPERIMENTS = {"projector": (), "mlp_scale": ("* S=0.[25]*", "* S=[1-8] *")}
ARMS = {
    "FPN": ARM_LOOKS["FPN"] | {"label": "FPN: no multiplier"},
    "SPN": ARM_LOOKS["SPN"] | {"label": "SPN: learned scalar"},
    "VPN": ARM_LOOKS["VPN"] | {"label": "VPN: learned vector"},
}
MLP_LOOKS = {"Adam": {"marker": "o"}, "Muon": {"marker": "s", "ls": "--"}}
NOISE = {"color": NOISE_COLOUR, "marker": "x", "label": "Brownian motion"}
MLP = {
    arm: {"color": ARM_COLOURS[like], **look}
    for optimizer, look in MLP_LOOKS.items()
    for arm, like in zip(MLP_ARMS[optimizer], ("FPN", "SPN"), strict=True)
}
# Lines of panel c by kind, arm and quantity. They nearly agree: markers of several sizes keep each
# in sight. Without a multiplier ‖c‖ says nothing.
NORMS = {("brownian", "VPN", "W"): NOISE | {"ms": 8, "lw": 0.7}}
NORMS |= {
    ("train", arm, "W"): look | {"lw": 0.7, "ms": size, "markerfacecolor": face, "mew": 0.8}
    for (arm, look), size, face in zip(ARMS.items(), (2, 6, 4), (None, "none", "none"), strict=True)
}
NORMS |= {
    (kind, arm, "c"): NORMS[kind, arm, "W"] | {"ls": ":"}
    for kind, arm in (("brownian", "VPN"), ("train", "SPN"), ("train", "VPN"))
}
S_LABEL = r"norm scale $S$"


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
    figure, axes = page(2, 3, 4.0, w_pad=0.04, h_pad=0.05)
    (a, b, c), (d, e, f) = axes
    panels = dict(tuple(numbers.groupby("panel")))
    loss = "loss (nats per token)"
    each(a, panels["a"], "S", ARMS)
    s_axis(a, panels["a"], S_LABEL)
    label(a, "a   Loss after the decay", ylabel=loss)
    each(b, panels["b"], "S", ARMS)
    s_axis(b, panels["b"], S_LABEL)
    plain_log_axis(b)
    label(b, "b   Norm of logits", ylabel="RMS of centred logits")
    each(c, panels["c"], "S", NORMS, by=["kind", "arm", "quantity"])
    s_axis(c, panels["c"], S_LABEL)
    label(c, r"c   Norms of $W$ and $c$", yscale="log", ylabel=r"$\|W\|$, $\|c\|$ (RMS)")
    _name_norms(c, panels["c"])
    stage_end = panels["b"]["step"].max()
    for axis, panel, arms in ((d, "d", ARMS), (e, "e", ("SPN", "VPN"))):
        norm = r"$\|W\|$" if panel == "d" else r"$\|c\|$"
        axis.set_yscale("log")
        axis.margins(y=0.2)
        _paths(axis, panels[panel], arms, stage_end)
        axis.axvline(stage_end, color="#999999", lw=0.7, ls=":", zorder=1)
        label(axis, f"{panel}   {norm} while training", xlabel="step", ylabel=f"{norm} (RMS)")
    each(f, panels["f"], "S", MLP, ms=3)
    s_axis(f, panels["f"], r"norm scale $S$ of the MLP")
    for optimizer, arms in MLP_ARMS.items():
        rows = panels["f"][panels["f"]["arm"].isin(arms)]
        s = sorted(rows["S"].unique())[:2]
        height = rows.loc[rows["S"].isin(s), "value"].max()
        f.text(s[0], height, optimizer, va="bottom", fontsize=6.3)
    label(f, "f   MLP sweep: loss", ylabel=loss)
    legend_below(figure, _legend(numbers), 4)
    return caption(figure, context, "bands: range of seeds")


def _name_norms(axis, rows: pd.DataFrame) -> None:
    """‖W‖ and ‖c‖ beside their leftmost points; both cross, and have the same colours."""
    first = rows[rows["S"] == rows["S"].min()]
    c = first[first["quantity"] == "c"]
    texts = (
        (r"$\|c\|$", c.loc[c["kind"] == "train", "value"].max(), 4),
        (r"$\|c\|$ of noise", c.loc[c["kind"] == "brownian", "value"].max(), -4),
        (r"$\|W\|$", first.loc[first["quantity"] == "W", "value"].min(), -4),
    )
    low, high = axis.get_ylim()
    axis.set_ylim(low / 3, high * 3)
    for text, height, up in texts:
        _beside(axis, text, (rows["S"].min(), height), up)


def _paths(axis, rows: pd.DataFrame, arms, stage_end: int) -> None:
    """Strong weight decay solid, weak dashed, each named above its lines where the decay begins."""
    colours = {("train", arm): ARM_COLOURS[arm] for arm in arms}
    colours["brownian", "VPN"] = NOISE_COLOUR
    for s, line in ((rows["S"].min(), "-"), (rows["S"].max(), "--")):
        own = rows[rows["S"] == s]
        looks = {name: {"color": colour, "ls": line} for name, colour in colours.items()}
        each(axis, own, "step", looks, by=["kind", "arm"])
        late = own[(own["step"] > 0.75 * stage_end) & (own["step"] <= stage_end)]
        height = late.loc[(late["kind"] == "train") & late["arm"].isin(arms), "value"].max()
        _beside(axis, f"S = {power_of_two(s)}", (0.95 * stage_end, height), 3, ha="right")


def _beside(axis, text: str, point: tuple[float, float], up: int, **look) -> None:
    """A text so many points above (or below) a point."""
    look = {"va": "bottom" if up > 0 else "top", "fontsize": 6.3} | look
    axis.annotate(text, point, xytext=(0, up), textcoords="offset points", **look)


def _legend(numbers: pd.DataFrame) -> list:
    return [
        *(key(**look) for look in ARMS.values()),
        key(**NOISE),
        key("f: no multipliers", ARM_COLOURS["FPN"]),
        key("f: three learned scalars", ARM_COLOURS["SPN"]),
        key("d, e: the decay begins", color="#999999", lw=0.7, ls=":"),
        *key_of_shade(numbers),
    ]
