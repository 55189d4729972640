"""Figure 11 of the second paper: theorem 9.2 on magnitude and direction apart (OR), in simulation.

a: the rate −dL/dt of OR over that of the standard vector at the same state, along a trajectory and
at random states that have its conserved quantities, and at those that have not (ours). b: how far
OR lies below the standard vector, against ⅔(1 − 1/d)‖W⋆‖⁴t³. c: both losses for columns of one
norm, with the closed form.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.page import caption, label, page
from analysis.drawing.style import ARM_COLOURS, NEUTRAL, NOISE_COLOUR
from analysis.quantities.sv_theory import balanced_course
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"sv_theory": ("FLOW design=or *",)}
STANDARD, OR = ARM_COLOURS["SPN"], ARM_COLOURS["FPN"]
# Gaussian teachers of panel b.
_NAMED = {"large": "3 W⋆", "gaussian": "W⋆", "small": "0.3 W⋆"}
_STATES = {"kept": "β² − ‖V‖²\n= 1", "any": "any\n(ours)"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, of (a teacher or states), seed, stat, time, value.

    The first seed's courses, and the gap's predicted coefficient.
    """
    table = tables["sv_theory"]
    flow = table.pick(arm="FLOW", design="or")
    flow = flow[flow["seed"] == flow["seed"].min()]
    wanted = {"a": ("rate_ratio", ("gaussian",)), "b": ("gap", tuple(_NAMED))}
    rows = []
    times = flow[flow["stat"] == "time"].set_index(["tensor", "step"])["value"]
    for panel, (stat, teachers) in wanted.items():
        rows.append(_course(flow, times, panel, stat, teachers))
    [said] = table.runs.loc[table.runs["run"] == flow["run"].iloc[0], "description"]
    inputs = said["settings"]["theory"]["inputs"]
    for stat in ("loss", "reference_loss"):
        course = _course(flow, times, "c", stat, ("balanced",)).sort_values("time")
        # Until t = 0.001 both follow e^{−2t}.
        start = course["value"].iloc[0] * np.exp(2 * course["time"].iloc[0])
        closed = dict(zip(("time", "value"), balanced_course(start, inputs, stat == "loss"),
                          strict=True))  # fmt: skip
        rows += [course, course.head(1).drop(columns=list(closed)).merge(
            pd.DataFrame(closed), how="cross").assign(stat=f"{stat}_closed_form")]  # fmt: skip
    slopes = flow[(flow["stat"] == "predicted_coefficient") & flow["tensor"].isin(list(_NAMED))]
    rows.append(slopes.assign(panel="b", time=np.nan))
    vectors = table.pick_vectors(arm="FLOW", design="or", stat="rate_ratios", tensor=tuple(_STATES))
    vectors = vectors[vectors["seed"] == flow["seed"].min()]
    rows.append(vectors.explode("value").assign(panel="a", time=np.nan))
    columns = ["panel", "tensor", "seed", "stat", "time", "value"]
    found = pd.concat(rows)[columns].rename(columns={"tensor": "of"})
    return found.astype({"value": float, "time": float}).reset_index(drop=True)


def _course(flow: pd.DataFrame, times: pd.Series, panel: str, stat: str, of: tuple[str, ...]):
    rows = flow[(flow["stat"] == stat) & flow["tensor"].isin(of)]
    index = pd.MultiIndex.from_frame(rows[["tensor", "step"]])
    return rows.assign(panel=panel, time=times.reindex(index).to_numpy())


def draw(numbers: pd.DataFrame, context: Context):
    """Three panels."""
    figure, axes = page(1, 3, 2.75, w_pad=0.04, width_ratios=[1.2, 1, 0.95])
    panels = dict(tuple(numbers.groupby("panel")))
    _rates(axes[0], panels["a"])
    _early(axes[1], panels["b"])
    _balanced(axes[2], panels["c"])
    return caption(figure, context, "lines: first seed")


def _rates(axis, rows: pd.DataFrame) -> None:
    course = rows[rows["stat"] == "rate_ratio"]
    axis.axhline(1, **NEUTRAL, ls=":")
    axis.plot(course["time"], course["value"], color=OR)
    axis.set_xscale("log")
    axis.set_yscale("log")
    end = course["time"].max()
    spread = np.random.default_rng(0)
    for number, (state, name) in enumerate(_STATES.items()):
        values = rows.loc[(rows["stat"] == "rate_ratios") & (rows["of"] == state), "value"]
        place = end * 10 ** (1.8 + 2.7 * number)
        colour = OR if state == "kept" else NOISE_COLOUR
        jitter = place * 10 ** spread.uniform(-0.5, 0.5, len(values))
        axis.scatter(jitter, values, s=4, color=colour, alpha=0.45, lw=0)
        axis.text(place, 5.6, name, ha="center", va="center", fontsize=6, color=colour)
    axis.text(course["time"].min(), 2.0, "along its flow", fontsize=6.5, color=OR, va="bottom")
    axis.text(end * 10**0.6, 9.5, "random states", fontsize=6.5, color="#444444")
    axis.set_xticks([0.001, 1], ["0.001", "1"])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.axvline(end * 10**0.4, **NEUTRAL)
    axis.set_xlim(course["time"].min() / 1.5, place * 10**1.2)
    axis.set_ylim(0.18, 13.0)
    axis.set_yticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"])
    axis.yaxis.set_minor_locator(NullLocator())
    label(axis, "a   Faster at the same state", ylabel="rate of OR / standard vector's")
    axis.set_xlabel("time t", loc="left")


def _early(axis, rows: pd.DataFrame) -> None:
    for teacher, name in _NAMED.items():
        own = rows[(rows["of"] == teacher) & (rows["stat"] == "gap")].sort_values("time")
        slope = rows.loc[(rows["of"] == teacher) & (rows["stat"] == "predicted_coefficient")]
        own = own[own["time"] <= 1]
        axis.plot(own["time"], -own["value"], color=OR, marker="o", ms=2.2, lw=0, zorder=3)
        axis.plot(own["time"], own["time"] ** 3 * -slope["value"].iloc[0], color="#222222", lw=0.9)
        first = own.iloc[0]
        axis.annotate(name, (first["time"], -first["value"]), (-4, 0), ha="right", va="center",
                      fontsize=6.5, textcoords="offset points", color="#444444")  # fmt: skip
    gaps = rows[rows["stat"] == "gap"]
    earliest = gaps["time"].min()
    lowest = -gaps.loc[gaps["time"] == earliest, "value"].max()
    axis.set(xscale="log", yscale="log", ylim=(lowest / 300, -8 * gaps["value"].min()),
             xlim=(earliest / 60, 1.6))  # fmt: skip
    axis.set_xticks([0.001, 1], ["0.001", "1"])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.text(0.97, 0.06, "lines:\n" + r"$\frac{2}{3}(1-\frac{1}{d})\,\|W_\star\|^4\,t^3$",
              transform=axis.transAxes, ha="right", fontsize=7)  # fmt: skip
    label(axis, "b   Below it from the start", xlabel="time t",
          ylabel=r"$L_\mathrm{standard} - L_\mathrm{OR}$")  # fmt: skip


def _balanced(axis, rows: pd.DataFrame) -> None:
    looks = {"reference_loss": (STANDARD, "standard vector", 0.18), "loss": (OR, "OR", 0.3)}
    for stat, (colour, name, share) in looks.items():
        own = rows[rows["stat"] == stat].sort_values("time")
        closed = rows[rows["stat"] == f"{stat}_closed_form"].sort_values("time")
        seen = own[own["value"] > 1e-7 * own["value"].max()]
        axis.plot(closed["time"], closed["value"], color="#222222", lw=0.9)
        axis.plot(seen["time"], seen["value"], "o", color=colour, ms=2.8, zorder=3)
        middle = closed.iloc[(closed["time"] - share * own["time"].max()).abs().argmin()]
        axis.annotate(name, (middle["time"], middle["value"]), (6, 0), color=colour, fontsize=7,
                      textcoords="offset points", va="center")  # fmt: skip
    axis.text(0.97, 0.05, "lines:\nclosed form", transform=axis.transAxes, ha="right", fontsize=7)
    last = rows.loc[rows["stat"] == "reference_loss", "time"].max()
    axis.set(yscale="log", xlim=(0, 1.05 * last))
    axis.yaxis.set_minor_locator(NullLocator())
    label(axis, "c   One norm", xlabel="time t", ylabel="loss")
