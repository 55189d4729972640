"""The second paper's figure 11: theorem 9.2 on magnitude and direction apart (OR), in simulation.

a, b: the rate −dL/dt of OR over that of the standard vector at the same state: along a trajectory
(a), and at random states that have its conserved quantities, at those that have not, and at a state
that was made to be slow (b; the last two are ours). c: how far OR lies below the standard vector,
against ⅔(1 − 1/d)‖teacher‖⁴t³. d: both losses for columns of one norm, with the closed form. Lines
and points are of the first draw, whose courses are published; of the others two times are (crosses
in a). Dashes and shares in b are of every draw.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.designs import LOOKS
from analysis.drawing.page import caption, finding, headline, label, page
from analysis.drawing.style import NEUTRAL, SMALL, shade
from analysis.quantities.sv_theory import balanced_course
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"sv_theory": ("FLOW design=or *",)}
STANDARD, OR = LOOKS["standard"][0], LOOKS["or"][0]
MESSAGE = "OR is at least as fast along its own flow, but not at every state"
# Of panels: what the published draws show, and the plain title of others.
TITLES = (
    ("Along its flow OR is at least as fast", "Along the flow of OR"),
    ("At other states it can be slower", "At other states"),
    ("At first OR's advantage grows as t³", "The first of the courses"),
    ("One draw, equal norms: OR is faster", "One draw, equal norms"),
)
# Gaussian teachers of panel c, and until when the series describes them.
_NAMED = {"large": "$3 W_{*}$", "gaussian": "$W_{*}$", "small": "$0.3 W_{*}$"}
_EARLY = 0.3
_STATES = {"kept": "random, as\non a flow", "any": "random, any\n(ours)"}
_MADE, _MADE_NAME = "counterexample", "counter-\nexample\n(ours)"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, of (a teacher or states), seed, stat, time, value.

    The first seed's courses and states, and the gap's predicted coefficient. Of every seed: the
    ratio of rates at the samples that are published, by what share of the rate OR is ever slower
    with any teacher, and of states the share that is slower and the least ratio.
    """
    table = tables["sv_theory"]
    every = table.pick(arm="FLOW", design="or")
    flow = every[every["seed"] == every["seed"].min()]
    states = every[every["tensor"].isin([*_STATES, _MADE])]
    states = states[states["stat"].isin(["rate_ratio", "slower_share"])]
    deficits = every[every["stat"] == "rate_deficit"]
    deficits = deficits[~deficits["tensor"].isin([*_STATES, _MADE])]
    wanted = {"a": ("rate_ratio", ("gaussian",)), "c": ("gap", tuple(_NAMED))}
    rows = [states.assign(panel="b", time=np.nan), deficits.assign(panel="a", time=np.nan)]
    times = flow[flow["stat"] == "time"].set_index(["tensor", "step"])["value"]
    others = every[every["seed"] != every["seed"].min()]
    rows.append(_course(others, times, "a", *wanted["a"]))
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
    figure, axes = page(2, 2, 4.85, w_pad=0.06, h_pad=0.05, height_ratios=[1.2, 1.1])
    headline(figure, MESSAGE, context)
    panels = dict(tuple(numbers.groupby("panel")))
    _flow(axes[0, 0], panels["a"])
    _states(axes[0, 1], panels["b"])
    _early(axes[1, 0], panels["c"])
    _balanced(axes[1, 1], panels["d"])
    for letter, axis, titles in zip("abcd", axes.flat, TITLES, strict=True):
        label(axis, f"{letter}   {finding(context, *titles)}")
    draws = numbers["seed"].nunique()
    n = f"n = {draws} draw{'s' * (draws > 1)}"
    if draws > 1:
        n += " (lines and points: of the first)"
    note = (
        r"OR: $\gamma = \beta\,\mathrm{Norm}(\alpha)$, learned as $\beta$ and $\alpha$; "
        "the standard vector is γ itself   "
        r"rate: $-dL/dt$" "\n"
        r"$W_{*}$: a Gaussian teacher   b: as on a flow: β² − ‖W‖² = 1"
    )  # fmt: skip
    if draws > 1:
        note += (
            f"\nb: points: one draw; dashes, star: the least of each of {draws} draws; "
            "as on a flow all lie at 1\n"
            f"a, line: teacher $W_{{*}}$; "
            f"crosses: {draws - 1} other draws at two times, which coincide within each cross"
        )
    deficits = panels["a"][panels["a"]["stat"] == "rate_deficit"]
    if len(deficits) and deficits["value"].max() == 0:
        said = f"{deficits['seed'].nunique()} draws × {deficits['of'].nunique()} teachers"
        note += f"\na: in {said} OR is slower at no time"
    return caption(figure, context, note, n=n)


def _flow(axis, rows: pd.DataFrame) -> None:
    ratios = rows[rows["stat"] == "rate_ratio"]
    first = ratios["seed"] == ratios["seed"].min()
    axis.plot(ratios.loc[first, "time"], ratios.loc[first, "value"], color=OR)
    others = ratios[~first]
    axis.plot(others["time"], others["value"], "x", color="black", ms=3.5, mew=0.7, zorder=3)
    axis.axhline(1, **NEUTRAL, ls=":")
    axis.set(xscale="log", ylim=(0.9, 1.9))
    axis.set_xticks([0.001, 0.03, 1], ["0.001", "0.03", "1"])
    axis.set_yticks([1, 1.25, 1.5, 1.75])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set(xlabel="time t", ylabel="rate of OR / standard's\nat the same state")


def _states(axis, rows: pd.DataFrame) -> None:
    """Ratios of the first draw and the least of each; above them the share that is slower."""
    spread, columns = np.random.default_rng(0), [*_STATES, _MADE]
    shares = rows[rows["stat"] == "slower_share"].groupby("of")["value"].mean()
    least = rows[rows["stat"] == "rate_ratio"].groupby("of")["value"]
    heading = f"share at which OR is slower, {rows['seed'].nunique()} draws:"
    axis.text(-0.52, 5.8, heading, va="center", fontsize=SMALL)
    axis.axhline(1, **NEUTRAL | {"zorder": 0.5}, ls=":")
    for place, state in enumerate(columns):
        values = rows.loc[(rows["stat"] == "rate_ratios") & (rows["of"] == state), "value"]
        jitter = place + spread.uniform(-0.3, 0.3, len(values))
        axis.scatter(jitter, values, s=4, color=OR, alpha=0.45, lw=0)
        axis.text(place, 3.8, f"{shares[state]:.0%}", ha="center", va="center", fontsize=SMALL)
        own = least.get_group(state)
        look = {"marker": "_", "ms": 9} if state in _STATES else {"marker": "*", "ms": 6, "mew": 0}
        axis.plot([place] * len(own), own, ls="", color=shade(OR, -0.5), **{"mew": 0.6} | look)
    axis.axhline(2.8, color="#dddddd", lw=0.6)
    axis.set(yscale="log", xlim=(-0.6, len(columns) - 0.4), ylim=(0.055, 7.5))
    axis.set_yticks([1 / 16, 0.25, 0.5, 1, 2], ["1/16", "1/4", "1/2", "1", "2"])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xticks(range(len(columns)), [*_STATES.values(), _MADE_NAME], fontsize=SMALL)
    axis.tick_params(axis="x", length=0)
    axis.grid(axis="x", visible=False)
    axis.set_ylabel("rate of OR / standard's\nat the same state")


def _early(axis, rows: pd.DataFrame) -> None:
    gaps = rows[(rows["stat"] == "gap") & (rows["time"] <= _EARLY)]
    for teacher, name in _NAMED.items():
        own = gaps[gaps["of"] == teacher].sort_values("time")
        slope = rows.loc[(rows["of"] == teacher) & (rows["stat"] == "predicted_coefficient")]
        slope = -slope["value"].iloc[0]
        axis.plot(own["time"], -own["value"], color=OR, marker="o", ms=2.2, lw=0, zorder=3)
        axis.plot(own["time"], own["time"] ** 3 * slope, color="#222222", lw=0.9)
        last = own.iloc[-1]
        axis.annotate(name, (last["time"], -last["value"]), (5, -1), ha="left", va="center",
                      fontsize=SMALL, textcoords="offset points", color="#444444")  # fmt: skip
    earliest = gaps["time"].min()
    axis.set(xscale="log", yscale="log", xlim=(earliest / 1.3, 4 * _EARLY),
             ylim=(-gaps["value"].max() / 8, -20 * gaps["value"].min()))  # fmt: skip
    axis.set_xticks([0.001, 0.01, 0.1], ["0.001", "0.01", "0.1"])
    axis.xaxis.set_minor_locator(NullLocator())
    said = "lines:\n" r"$\frac{2}{3}(1-\frac{1}{n})\,\|\mathrm{teacher}\|^4\,t^3$" "\n($n$ inputs)"
    axis.text(0.98, 0.03, said, transform=axis.transAxes, ha="right", va="bottom", fontsize=7,
              bbox={"color": "white", "pad": 1})  # fmt: skip
    axis.set(xlabel="time t", ylabel=r"$L_\mathrm{standard} - L_\mathrm{OR}$")


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
    axis.set(xlabel="time t", ylabel="loss")
