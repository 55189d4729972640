"""Figure 1 (section 3): the norm sweeps of the projector, and the MLP's in the last panel.

(a) loss after the decay; (b) logits norm; (c) ‖W‖ and ‖c‖ with Brownian motion; (d, e) their
trajectories at strong and weak weight decay; (f) loss after the decay of the MLP sweep, without
multipliers and with three scalar ones, by AdamW and by Muon. Norms are read at the end of the
constant stage. Lines are medians, bands the range of seeds.
Shaded: S at which the multiplier cannot follow (``travel`` in criteria.yaml); nothing is
judged there, and the trajectories are those of the outermost S inside.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import decay_line, each, s_axis
from analysis.drawing.page import (
    caption,
    key,
    key_of_decay,
    key_of_shade,
    label,
    legend_below,
    page,
)
from analysis.drawing.style import (
    ARM_COLOURS,
    ARM_LOOKS,
    BANDS_RANGE,
    BROWNIAN,
    NO_MULTIPLIERS,
    NOISE_COLOUR,
    OPTIMIZER_LOOKS,
    OPTIMIZER_NAMES,
    SMALL,
    plain_log_axis,
    power_of_two,
    shade,
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
    "FPN": ARM_LOOKS["FPN"] | {"label": f"frozen scale (FPN; in f {NO_MULTIPLIERS})"},
    "SPN": ARM_LOOKS["SPN"] | {"label": "learned scalar (SPN; in f three)"},
    "VPN": ARM_LOOKS["VPN"] | {"label": "learned vector (VPN)"},
}
# Wide and pale below what is trained, from which it often cannot be told.
NOISE = {"color": shade(NOISE_COLOUR, 0.5), "lw": 3.5, "label": BROWNIAN}
MLP = {
    arm: ARM_LOOKS[like] | look
    for optimizer, look in OPTIMIZER_LOOKS.items()
    for arm, like in zip(MLP_ARMS[optimizer], ("FPN", "SPN"), strict=True)
}
# Lines of panel c by kind, arm and quantity. Without a multiplier ‖c‖ says nothing.
NORMS = {("brownian", "VPN", "W"): NOISE | {"zorder": 2}}
NORMS |= {("train", arm, "W"): look | {"lw": 0.8, "ms": 3} for arm, look in ARMS.items()}
NORMS |= {
    (kind, arm, "c"): NORMS[kind, arm, "W"] | {"ls": ls}
    for kind, arm, ls in (("brownian", "VPN", "-"), ("train", "SPN", ":"), ("train", "VPN", ":"))
}
# Arms that nearly agree stand side by side: factors of S.
ASIDE = {"FPN": 4**-0.11, "SPN": 1.0, "VPN": 4**0.11}
# The range of losses in panel a; where nothing is judged, seeds may lie above it.
LOSSES = (3.45, 4.45)
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
    _cut(a, panels["a"])
    each(b, panels["b"], "S", ARMS)
    s_axis(b, panels["b"], S_LABEL)
    plain_log_axis(b)
    label(b, "b   Norm of logits", ylabel="RMS of centred logits")
    aside = panels["c"]["arm"].map(ASIDE).where(panels["c"]["kind"] == "train", 1.0)
    each(c, panels["c"].assign(at=panels["c"]["S"] * aside), "at", NORMS,
         by=["kind", "arm", "quantity"], band=None)  # fmt: skip
    s_axis(c, panels["c"], S_LABEL)
    label(c, r"c   Norms of $W$ and $c$", yscale="log", ylabel=r"$\|W\|$, $\|c\|$ (RMS)")
    _name_norms(c, panels["c"])
    stage_end = panels["b"]["step"].max()
    for axis, panel, arms in ((d, "d", ARMS), (e, "e", ("SPN", "VPN"))):
        norm = r"$\|W\|$" if panel == "d" else r"$\|c\|$"
        axis.set_yscale("log")
        axis.margins(y=0.24)
        _paths(axis, panels[panel], arms, stage_end)
        decay_line(axis, stage_end)
        label(axis, f"{panel}   {norm} while training", xlabel="step", ylabel=f"{norm} (RMS)")
    each(f, panels["f"], "S", MLP, ms=3)
    s_axis(f, panels["f"], r"norm scale $S$ of the MLP")
    for optimizer, arms in MLP_ARMS.items():
        rows = panels["f"][panels["f"]["arm"].isin(arms)]
        s = sorted(rows["S"].unique())[:2]
        height = rows.loc[rows["S"].isin(s), "value"].max()
        f.text(s[0], height, OPTIMIZER_NAMES[optimizer], va="bottom", fontsize=SMALL)
    label(f, "f   MLP sweep: loss", ylabel=loss)
    legend_below(figure, _legend(numbers), 3)
    return caption(figure, context, f"{BANDS_RANGE}, none in c")


def _cut(axis, rows: pd.DataFrame) -> None:
    """The range ``LOSSES`` where all medians lie in it, as at the scale ``tiny``."""
    middle = rows.groupby(["arm", "S"])["value"].median()
    if LOSSES[0] < middle.min() and middle.max() < LOSSES[1]:
        axis.set_ylim(LOSSES)


def _name_norms(axis, rows: pd.DataFrame) -> None:
    """‖W‖ and ‖c‖ beside their leftmost points; both cross, and have the same colours."""
    first = rows[rows["S"] == rows["S"].min()]
    c = first[first["quantity"] == "c"]
    texts = (
        (r"$\|c\|$", c.loc[c["kind"] == "train", "value"].max(), 4),
        ("Brownian\nmotion's " + r"$\|c\|$", c.loc[c["kind"] == "brownian", "value"].max(), -4),
        (r"$\|W\|$", first.loc[first["quantity"] == "W", "value"].min(), -4),
    )
    low, high = axis.get_ylim()
    axis.set_ylim(low / 3, high * 3)
    for text, height, up in texts:
        _beside(axis, text, (rows["S"].min(), height), up)


def _paths(axis, rows: pd.DataFrame, arms, stage_end: int) -> None:
    """Strong and weak weight decay, named above the upper lines and below the lower ones."""
    looks = {("brownian", "VPN"): NOISE | {"zorder": 2}}
    looks |= {("train", arm): {"color": ARM_COLOURS[arm]} for arm in arms}
    late = rows[(rows["step"] > 0.5 * stage_end) & (rows["step"] <= stage_end)]
    late = late[late["arm"].isin(arms) & (late["kind"] == "train")].groupby("S")["value"]
    top = late.median().idxmax()
    for s, decay in ((rows["S"].min(), "strong"), (rows["S"].max(), "weak")):
        each(axis, rows[rows["S"] == s], "step", looks, by=["kind", "arm"])
        height = (late.max() if s == top else late.min())[s]
        said = f"S = {power_of_two(s)} ({decay} decay)"
        _beside(axis, said, (0.985 * stage_end, height), 3 if s == top else -6, ha="right")


def _beside(axis, text: str, point: tuple[float, float], up: int, **look) -> None:
    """A text so many points above (or below) a point."""
    look = {"va": "bottom" if up > 0 else "top", "fontsize": SMALL} | look
    axis.annotate(text, point, xytext=(0, up), textcoords="offset points", **look)


def _legend(numbers: pd.DataFrame) -> list:
    return [
        *(key(**look) for look in ARMS.values()),
        key(**NOISE),
        key_of_decay(),
        *key_of_shade(numbers),
    ]
