"""The second paper's figure 11: theorem 9.2 on magnitude and direction apart (OR), in simulation.

a, b: the rate −dL/dt of OR over that of the standard vector at the same state: along a trajectory
(a), and at random states that have its conserved quantities, at those that have not, and at a state
that was made to be slow (b; the last two are ours). c: how far OR lies below the standard vector,
against ⅔(1 − 1/d)‖teacher‖⁴t³. d: both losses for columns of one norm, with the closed form.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.designs import LOOKS
from analysis.drawing.page import caption, label, page
from analysis.drawing.style import NEUTRAL, SMALL
from analysis.quantities.sv_theory import balanced_course
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"sv_theory": ("FLOW design=or *",)}
STANDARD, OR, ANY = LOOKS["standard"][0], LOOKS["or"][0], "#222222"
MESSAGE = "OR (length β and direction of γ learned apart) against the standard vector γ: one draw"
# Gaussian teachers of panel c, and until when the series describes them.
_NAMED = {"large": "teacher × 3", "gaussian": "teacher", "small": "teacher × 0.3"}
_EARLY = 0.3
_STATES = {"kept": "random, as\non a flow", "any": "random, any\n(ours)"}
_MADE, _MADE_NAME = "counterexample", "counterexample\n(ours)"
# Below this ratio of rates a state counts as slower.
_SLOWER = 0.99


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, of (a teacher or states), seed, stat, time, value.

    The first seed's courses and states, and the gap's predicted coefficient; the counterexample of
    every seed.
    """
    table = tables["sv_theory"]
    flow = table.pick(arm="FLOW", design="or")
    made = flow[(flow["tensor"] == _MADE) & (flow["stat"] == "rate_ratio")]
    flow = flow[flow["seed"] == flow["seed"].min()]
    wanted = {"a": ("rate_ratio", ("gaussian",)), "c": ("gap", tuple(_NAMED))}
    rows = [made.assign(panel="b", time=np.nan)]
    times = flow[flow["stat"] == "time"].set_index(["tensor", "step"])["value"]
    for panel, (stat, teachers) in wanted.items():
        rows.append(_course(flow, times, panel, stat, teachers))
    [said] = table.runs.loc[table.runs["run"] == flow["run"].iloc[0], "description"]
    inputs = said["settings"]["theory"]["inputs"]
    for stat in ("loss", "reference_loss"):
        course = _course(flow, times, "d", stat, ("balanced",)).sort_values("time")
        # Until t = 0.001 both follow e^{−2t}.
        start = course["value"].iloc[0] * np.exp(2 * course["time"].iloc[0])
        closed = dict(zip(("time", "value"), balanced_course(start, inputs, stat == "loss"),
                          strict=True))  # fmt: skip
        rows += [course, course.head(1).drop(columns=list(closed)).merge(
            pd.DataFrame(closed), how="cross").assign(stat=f"{stat}_closed_form")]  # fmt: skip
    slopes = flow[(flow["stat"] == "predicted_coefficient") & flow["tensor"].isin(list(_NAMED))]
    rows.append(slopes.assign(panel="c", time=np.nan))
    vectors = table.pick_vectors(arm="FLOW", design="or", stat="rate_ratios", tensor=tuple(_STATES))
    vectors = vectors[vectors["seed"] == flow["seed"].min()]
    rows.append(vectors.explode("value").assign(panel="b", time=np.nan))
    columns = ["panel", "tensor", "seed", "stat", "time", "value"]
    found = pd.concat(rows)[columns].rename(columns={"tensor": "of"})
    return found.astype({"value": float, "time": float}).reset_index(drop=True)


def _course(flow: pd.DataFrame, times: pd.Series, panel: str, stat: str, of: tuple[str, ...]):
    rows = flow[(flow["stat"] == stat) & flow["tensor"].isin(of)]
    index = pd.MultiIndex.from_frame(rows[["tensor", "step"]])
    return rows.assign(panel=panel, time=times.reindex(index).to_numpy())


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels: the rates above, the losses below."""
    figure, axes = page(2, 2, 4.3, w_pad=0.06, h_pad=0.05, height_ratios=[1, 1.15])
    figure.suptitle(MESSAGE, x=0.01, ha="left", fontsize=7.5, weight="bold")
    panels = dict(tuple(numbers.groupby("panel")))
    _flow(axes[0, 0], panels["a"])
    _states(axes[0, 1], panels["b"])
    _early(axes[1, 0], panels["c"])
    _balanced(axes[1, 1], panels["d"])
    # Every point and line but the counterexample's is of one draw, whose courses are published.
    drawn = sorted(map(int, numbers.loc[numbers["of"] != _MADE, "seed"].dropna().unique()))
    made = numbers.loc[numbers["of"] == _MADE, "seed"].nunique()
    note = (
        f"no intervals (counterexample: {made} draws)   "
        f"b: as on a flow: β² − ‖V‖² = 1, V: the matrix; slower: ratio below {_SLOWER:g}"
    )
    return caption(figure, dataclasses.replace(context, seeds=drawn), note)


def _flow(axis, rows: pd.DataFrame) -> None:
    axis.plot(rows["time"], rows["value"], color=OR)
    axis.set_xscale("log")
    axis.set_xticks([0.001, 0.03, 1], ["0.001", "0.03", "1"])
    axis.xaxis.set_minor_locator(NullLocator())
    _of_rates(axis)
    label(axis, "a   Along its flow: OR at least as fast", xlabel="time t",
          ylabel="rate of OR / standard's")  # fmt: skip


def _states(axis, rows: pd.DataFrame) -> None:
    spread, slower = np.random.default_rng(0), {}
    for place, state in enumerate(_STATES):
        values = rows.loc[(rows["stat"] == "rate_ratios") & (rows["of"] == state), "value"]
        jitter = place + spread.uniform(-0.3, 0.3, len(values))
        colour = OR if state == "kept" else ANY
        axis.scatter(jitter, values, s=4, color=colour, alpha=0.45, lw=0)
        slower[state] = f"{(values < _SLOWER).sum()} of {len(values)}"
        axis.text(place, 0.135, f"{slower[state]}\nslower", ha="center", va="bottom",
                  fontsize=SMALL, color=colour)  # fmt: skip
    made = rows.loc[rows["of"] == _MADE, "value"]
    last = len(_STATES)
    axis.plot([last] * len(made), made, "*", color=ANY, ms=6, mew=0, alpha=0.7)
    if len(made):
        axis.text(last, 1.12 * made.max(), f"{made.mean():.2f}", ha="center", va="bottom",
                  fontsize=SMALL)  # fmt: skip
    axis.set(xlim=(-0.6, last + 0.6))
    axis.set_xticks(range(last + 1), [*_STATES.values(), _MADE_NAME], fontsize=SMALL)
    axis.tick_params(axis="x", length=0)
    axis.grid(axis="x", visible=False)
    _of_rates(axis)
    label(axis, f"b   At other states: {slower['any']} slower")


def _of_rates(axis) -> None:
    """The y axis of a and b."""
    axis.axhline(1, **NEUTRAL, ls=":")
    axis.set(yscale="log", ylim=(0.125, 2.9))
    axis.set_yticks([0.25, 0.5, 1, 2], ["¼", "½", "1", "2"])
    axis.yaxis.set_minor_locator(NullLocator())


def _early(axis, rows: pd.DataFrame) -> None:
    gaps = rows[(rows["stat"] == "gap") & (rows["time"] <= _EARLY)]
    for teacher, name in _NAMED.items():
        own = gaps[gaps["of"] == teacher].sort_values("time")
        slope = rows.loc[(rows["of"] == teacher) & (rows["stat"] == "predicted_coefficient")]
        slope = -slope["value"].iloc[0]
        axis.plot(own["time"], -own["value"], color=OR, marker="o", ms=2.2, lw=0, zorder=3)
        axis.plot(own["time"], own["time"] ** 3 * slope, color="#222222", lw=0.9)
        first = own.iloc[0]
        axis.annotate(name, (first["time"], -first["value"]), (-4, 0), ha="right", va="center",
                      fontsize=SMALL, textcoords="offset points", color="#444444")  # fmt: skip
    earliest = gaps["time"].min()
    axis.set(xscale="log", yscale="log", xlim=(earliest / 25, 1.3 * _EARLY),
             ylim=(-gaps["value"].max() / 8, -20 * gaps["value"].min()))  # fmt: skip
    axis.set_xticks([0.001, 0.01, 0.1], ["0.001", "0.01", "0.1"])
    axis.xaxis.set_minor_locator(NullLocator())
    said = "lines:\n" r"$\frac{2}{3}(1-\frac{1}{d})\,\|\mathrm{teacher}\|^4\,t^3$" "\n($d$ inputs)"
    axis.text(0.98, 0.03, said, transform=axis.transAxes, ha="right", va="bottom", fontsize=7)
    label(axis, "c   From t = 0: OR ahead as t³", xlabel="time t",
          ylabel=r"$L_\mathrm{standard} - L_\mathrm{OR}$")  # fmt: skip


def _balanced(axis, rows: pd.DataFrame) -> None:
    looks = {"reference_loss": (STANDARD, "standard vector", 0.36), "loss": (OR, "OR", 0.3)}
    for stat, (colour, name, share) in looks.items():
        own = rows[rows["stat"] == stat].sort_values("time")
        closed = rows[rows["stat"] == f"{stat}_closed_form"].sort_values("time")
        seen = own[own["value"] > 1e-7 * own["value"].max()]
        axis.plot(closed["time"], closed["value"], color="#222222", lw=0.9)
        axis.plot(seen["time"], seen["value"], "o", color=colour, ms=2.8, zorder=3)
        middle = closed.iloc[(closed["time"] - share * own["time"].max()).abs().argmin()]
        axis.annotate(name, (middle["time"], middle["value"]), (8, 6), color=colour, fontsize=7,
                      textcoords="offset points", va="center")  # fmt: skip
    axis.text(0.97, 0.05, "lines:\nclosed form", transform=axis.transAxes, ha="right", fontsize=7)
    last = rows.loc[rows["stat"] == "reference_loss", "time"].max()
    axis.set(yscale="log", xlim=(0, 1.05 * last))
    axis.yaxis.set_minor_locator(NullLocator())
    label(axis, "d   Columns of one norm: OR is faster", xlabel="time t", ylabel="loss")
