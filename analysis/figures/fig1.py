"""Figure 1 (section 3): the norm sweeps of the projector, and the MLP's in the last panel.

(a) loss after the decay; (b) logits norm; (c) ‖W‖ and ‖c‖ with Brownian motion; (d, e) their
trajectories at strong and weak weight decay; (f) loss after the decay of the MLP sweep, without
multipliers and with three scalar ones, by AdamW and by Muon, and the paired difference at the
largest S, mean and 95% interval. Norms are read at the end of the constant stage. Lines are
medians, bands the range of seeds.
Shaded: S at which the multiplier cannot travel far enough (``travel`` in criteria.yaml); nothing
is judged there, and the trajectories are those of the outermost S inside.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from analysis.drawing.axes import decay_line, each, s_axis
from analysis.drawing.page import (
    caption,
    finding,
    headline,
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
    DASHED_KEYS,
    NO_MULTIPLIERS,
    NOISE_COLOUR,
    OPTIMIZER_LOOKS,
    OPTIMIZER_NAMES,
    S_MEANS,
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
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

# The MLP's sweep is drawn without the extremes; and `make fig1` trains the same.
EXPERIMENTS = {"projector": (), "mlp_scale": ("* S=0.[25]*", "* S=[1-8] *")}
ARMS = {
    "FPN": ARM_LOOKS["FPN"] | {"label": "frozen scale (FPN)"},
    "SPN": ARM_LOOKS["SPN"] | {"label": "learned scalar (SPN)"},
    "VPN": ARM_LOOKS["VPN"] | {"label": "learned vector (VPN)"},
}
# Where over training lines have markers, in shares of the diagonal: those that agree take turns.
MARKED = {"FPN": (0.08, 0.3), "SPN": (0.18, 0.3), "VPN": (0.28, 0.3)}
# Wide and pale below what is trained, from which it often cannot be told.
NOISE = {"color": shade(NOISE_COLOUR, 0.5), "lw": 3.5}
NOISE["label"] = f"noise: {BROWNIAN} (W and c)"
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
MESSAGE = (
    "LM head: learned scales undo most of the harm of a badly set norm (a to e);\n"
    "MLP: part of it with AdamW, most of it with Muon (f)"
)
# Of panels: what the published runs show, and the plain title of others.
TITLES = {
    "a": ("Frozen: worse at both ends;\n     learned: far less", "Loss after LR decay"),
    "b": ("Frozen: logits grow with\n     S; learned: they stay", "Norm of the logits"),
    "c": ("Learned $\\|c\\|$ makes up\n     for $\\|W\\|$", "Norms $\\|W\\|$ and $\\|c\\|$"),
    "d": ("Learned $\\|W\\|$ ends near\n     noise's; above at S = 1/8", "$\\|W\\|$ over training"),
    "e": ("Learned $\\|c\\|$: far from\n     noise's", "$\\|c\\|$ over training"),
}
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
    figure, axes = page(2, 3, 5.1, w_pad=0.04, h_pad=0.05)
    headline(figure, MESSAGE, context)
    (a, b, c), (d, e, f) = axes
    titles = {panel: f"{panel}   {finding(context, *both)}" for panel, both in TITLES.items()}
    panels = dict(tuple(numbers.groupby("panel")))
    loss = "loss (nats per token)"
    each(a, panels["a"], "S", ARMS)
    s_axis(a, panels["a"], S_LABEL)
    label(a, titles["a"], ylabel=loss)
    _cut(a, panels["a"])
    each(b, panels["b"], "S", ARMS)
    s_axis(b, panels["b"], S_LABEL)
    plain_log_axis(b)
    label(b, titles["b"], ylabel="RMS of centred logits")
    aside = panels["c"]["arm"].map(ASIDE).where(panels["c"]["kind"] == "train", 1.0)
    each(c, panels["c"].assign(at=panels["c"]["S"] * aside), "at", NORMS,
         by=["kind", "arm", "quantity"])  # fmt: skip
    s_axis(c, panels["c"], S_LABEL)
    label(c, titles["c"], yscale="log", ylabel=r"$\|W\|$, $\|c\|$ (RMS)")
    _name_norms(c, panels["c"])
    stage_end = panels["b"]["step"].max()
    for axis, panel, arms in ((d, "d", ARMS), (e, "e", ("SPN", "VPN"))):
        norm = r"$\|W\|$" if panel == "d" else r"$\|c\|$"
        axis.set_yscale("log")
        axis.margins(y=0.24)
        _paths(axis, panels[panel], arms, stage_end)
        decay_line(axis, stage_end)
        label(axis, titles[panel], xlabel="step", ylabel=f"{norm} (RMS)")
    each(f, panels["f"], "S", MLP, ms=3)
    s_axis(f, panels["f"], r"norm scale $S$ of the MLP")
    _name_mlp(f, panels["f"])
    less = f"MLP: scalars lose less\n    at S = {panels['f']['S'].max():g}"
    label(f, f"f   {finding(context, less, 'MLP: loss')}", ylabel=loss)
    legend_below(figure, _legend(numbers), 2, **DASHED_KEYS)
    # Panel f is of another experiment.
    others = dict(zip("f", context.others.values(), strict=False))
    context = dataclasses.replace(context, others=others)
    note = f"{S_MEANS}\nW: LM head; c: learned scale of its inputs"
    if panels["f"]["seed"].nunique() > 1:
        note += "; f: mean difference of a seed's two runs ± 95%"
        note += (
            f"\n{BANDS_RANGE}, in c to e mostly narrower than the lines; marks in c: side by side"
        )
    return caption(figure, context, note)


def _cut(axis, rows: pd.DataFrame) -> None:
    """The range ``LOSSES`` where all medians lie in it, as at the scale ``tiny``."""
    middle = rows.groupby(["arm", "S"])["value"].median()
    if LOSSES[0] < middle.min() and middle.max() < LOSSES[1]:
        axis.set_ylim(LOSSES)
        worst = rows.loc[rows["value"].idxmax()]
        if worst["value"] > LOSSES[1]:
            s = sorted(rows["S"].unique())
            ha, within = ("right", s[-2:][0]) if worst["S"] > 1 else ("left", s[:2][-1])
            colour = shade(ARM_COLOURS[worst["arm"]], -0.15)
            said = f"↑ seeds up to {worst['value']:.1f}"
            axis.annotate(said, (within, 0.99), xycoords=("data", "axes fraction"), ha=ha,
                          va="top", fontsize=SMALL, color=colour)  # fmt: skip
            # Two strokes on the band, where the axis cuts it.
            place = np.sqrt(within * worst["S"])
            for height in (0.97, 1.0):
                axis.plot(place, height, marker=[(-1, -0.4), (1, 0.4)], ms=6, color=colour,
                          transform=axis.get_xaxis_transform(), clip_on=False)  # fmt: skip


def _name_mlp(axis, rows: pd.DataFrame) -> None:
    """An optimizer above its lines, the other below, and on top what the scalars change."""
    s = sorted(rows["S"].unique())
    middle = min(s, key=lambda one: abs(np.log(one)))
    own = {name: rows[rows["arm"].isin(arms)] for name, arms in MLP_ARMS.items()}
    of_middle = {name: each[each["S"] == middle]["value"] for name, each in own.items()}
    upper, lower = sorted(own, key=lambda name: of_middle[name].median(), reverse=True)
    low, high = axis.get_ylim()
    low -= 0.13 * (high - low)
    # The lines stay below what is written on top, and so does the name above them.
    room = max((high - low) / 0.7, (of_middle[upper].max() - low) / 0.58)
    axis.set_ylim(low, low + room)
    _beside(axis, OPTIMIZER_NAMES[upper], (middle, of_middle[upper].max()), 2)
    _beside(axis, OPTIMIZER_NAMES[lower], (middle, of_middle[lower].min()), -2)
    last = rows[rows["S"] == s[-1]].pivot(index="seed", columns="arm", values="value")
    said = [f"scalars − none, S = {s[-1]:g}:"]
    for name, (frozen, learned) in MLP_ARMS.items():
        gain = interval(last[learned] - last[frozen])
        half = f" ± {(gain.high - gain.low) / 2:.3f}" if gain.n > 1 else ""
        said.append(f"{OPTIMIZER_NAMES[name]} {gain.mean:.3f}{half}".replace("-", "−"))
    axis.text(0.03, 0.99, "\n".join(said), transform=axis.transAxes, va="top", fontsize=SMALL,
              linespacing=1.15)  # fmt: skip


def _name_norms(axis, rows: pd.DataFrame) -> None:
    """‖W‖ and ‖c‖ at the least S, and the noise's ‖c‖ above its band."""
    low, high = axis.get_ylim()
    axis.set_ylim(low / 3, high * 3)
    trained = rows[rows["kind"] == "train"]
    for norm, dashes, up in (("c", "dotted", 4), ("W", "solid", -4)):
        own = trained[trained["quantity"] == norm].groupby("S")["value"]
        s = rows["S"].min()
        height = (own.max() if up > 0 else own.min())[s]
        _beside(axis, rf"$\|{norm}\|$: {dashes}", (s, height), up, ha="left")
    noise = rows[(rows["kind"] == "brownian") & (rows["quantity"] == "c")]
    place = np.exp(np.log(noise["S"]).mean()) * 2
    _beside(axis, r"noise's $\|c\|$", (place, noise["value"].max()), 3, ha="center")


def _paths(axis, rows: pd.DataFrame, arms, stage_end: int) -> None:
    """Strong and weak weight decay, named above the upper lines and below the lower ones."""
    looks = {("brownian", "VPN"): NOISE | {"zorder": 2}}
    looks |= {
        ("train", arm): ARM_LOOKS[arm] | {"markevery": MARKED[arm], "ms": 3, "lw": 1}
        for arm in arms
    }
    late = rows[(rows["step"] > 0.5 * stage_end) & (rows["step"] <= stage_end)]
    late = late[late["arm"].isin(arms) & (late["kind"] == "train")].groupby("S")["value"]
    top = late.median().idxmax()
    for s, decay in ((rows["S"].min(), "large"), (rows["S"].max(), "small")):
        each(axis, rows[rows["S"] == s], "step", looks, by=["kind", "arm"])
        height = (late.max() if s == top else late.min())[s]
        said = f"S = {power_of_two(s)} ({decay} λ)"
        _beside(axis, said, (0.985 * stage_end, height), 3 if s == top else -6, ha="right")


def _beside(axis, text: str, point: tuple[float, float], up: int, **look) -> None:
    """A text so many points above (or below) a point."""
    look = {"va": "bottom" if up > 0 else "top", "fontsize": SMALL} | look
    axis.annotate(text, point, xytext=(0, up), textcoords="offset points", **look)


def _legend(numbers: pd.DataFrame) -> list:
    of_mlp = {"FPN": f"; f: {NO_MULTIPLIERS}", "SPN": "; f: three scalars"}
    arms = [look | {"label": look["label"] + of_mlp.get(arm, "")} for arm, look in ARMS.items()]
    other, hollow = OPTIMIZER_NAMES["Muon"], OPTIMIZER_LOOKS["Muon"] | {"marker": "o", "ms": 3}
    return [
        *(key(**look) for look in arms),
        key(**NOISE),
        key(f"f, dashed: {other}", **hollow),
        key_of_decay(),
        *key_of_shade(numbers),
    ]
