"""Figure 11 (section 5.2): scores and the loss difference over the last stages.

Top left: average score over the tasks that count, of every checkpoint and seed, thin; thick, means
over seeds of the running mean over the checkpoints of about one stage. Top right: validation loss
with vector multipliers minus loss without, every seed thin, means thick. Below: the thick lines of
the first panel for each task that counts. Dotted, the decay begins and ends.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.page import caption, key, label, legend_below, sheet
from analysis.drawing.style import ARM_COLOURS, NEUTRAL, OPTIMIZER_NAMES
from analysis.quantities import long_run
from analysis.quantities.long_run import OPTIMIZERS, WITH, WITHOUT
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("long_run",)
JUDGING_ALONE = True
COLOURS = {WITHOUT: ARM_COLOURS["FPN"], WITH: ARM_COLOURS["VPN"]}
NAMES = {WITHOUT: "without", WITH: "with multipliers"}
LINES = {"Adam": "-", "Muon": "--"}
# Of panel b.
GAPS = {"Adam": "black", "Muon": "#8a8a8a"}
STAGES = {"color": "#555555", "lw": 0.9, "ls": ":"}


def counted(table: Tables) -> tuple[str, ...]:
    """The tasks that count, as the criteria say; where none does, the average is that of all."""
    return long_run.counted(table, criteria_of("long_run")["L1"]["thresholds"])


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, optimizer, multipliers, seed, step, value, smooth, chance, tasks, decay and
    minimum, the steps at which the decay begins and ends.

    ``panel`` is score, gap or a task's name. ``smooth`` is the mean over as many checkpoints as the
    last stage has, those up to this one. Of single tasks both are means over seeds.
    """
    table = tables["long_run"]
    constant, decayed, _ = long_run.stages(table)
    every = long_run.tasks(table)
    names = counted(table) or tuple(every)
    scores = long_run.scores(table)
    score = long_run.over_tasks(scores, names)
    gap = long_run.gains(long_run.losses(table))
    gap.columns = pd.MultiIndex.from_product([gap.columns, [WITH]], names=score.columns.names)
    steps = score.index.get_level_values("step")
    window = int((steps.unique() > decayed).sum())
    panels = {"score": score, "gap": gap}
    for name in names:
        panels[name] = scores.xs(name, axis=1, level="task").groupby("step").mean()
    parts = []
    for panel, values in panels.items():
        runs = values.groupby("seed") if "seed" in values.index.names else values
        smooth = runs.rolling(window, 1).mean()
        smooth = smooth.droplevel(0) if runs is not values else smooth
        tidy = [frame.melt(ignore_index=False).reset_index() for frame in (values, smooth)]
        parts.append(tidy[0].assign(smooth=tidy[1]["value"], panel=panel))
    chance = 100 * float(np.mean([every[name]["chance"] for name in names]))
    rows = pd.concat(parts, ignore_index=True).astype({"seed": "Int64"})
    rows = rows.assign(chance=chance, tasks=len(names), decay=constant, minimum=decayed)
    columns = ["panel", "optimizer", "multipliers", "seed", "step", "value", "smooth", "chance",
               "tasks", "decay", "minimum"]  # fmt: skip
    return rows[columns].sort_values(columns[:5], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels, and below them one for each task that counts."""
    figure = sheet(4.7)
    above, below = figure.subfigures(2, 1, height_ratios=(2.9, 1.6))
    left, right = above.subplots(1, 2)
    panels = dict(tuple(numbers.groupby("panel")))
    names = [name for name in panels if name not in ("score", "gap")]
    small = below.subplots(1, len(names), sharex=True, squeeze=False)[0]
    for axis, name in zip((left, right, *small), ("score", "gap", *names), strict=True):
        for (optimizer, kind), own in panels[name].groupby(["optimizer", "multipliers"]):
            colour = GAPS[optimizer] if name == "gap" else COLOURS[kind]
            line = {"color": colour, "ls": LINES[optimizer]}
            for _, seed in own.groupby("seed"):  # of single tasks there are none
                axis.plot(seed["step"], seed["value"], lw=0.5, alpha=0.5, **line)
            mean = own.groupby("step")["value" if name == "gap" else "smooth"].mean()
            axis.plot(mean.index, mean, lw=1.2 if name in names else 1.6, **line)
        for place in (numbers["decay"].iloc[0], numbers["minimum"].iloc[0]):
            axis.axvline(place, **STAGES, zorder=1)
        axis.set_xlabel("step")
    right.axhline(0, **NEUTRAL)
    several = "s" if len(names) > 1 else ""
    label(left, f"a   Average score of {len(names)} task{several}", ylabel="score (%)")
    label(right, "b   Loss, with − without (below 0: a gain)", ylabel="Δ validation loss (nats)")
    for letter, axis, name in zip("cdefghijkl", small, names, strict=False):
        label(axis, f"{letter}   {name}")
        axis.xaxis.set_major_locator(MaxNLocator(2))
    small[0].set_ylabel("score (%)")
    handles = [
        key(f"{OPTIMIZER_NAMES[optimizer]}, {NAMES[kind]}", COLOURS[kind], ls=LINES[optimizer])
        for optimizer in OPTIMIZERS.values()
        for kind in (WITHOUT, WITH)
    ]
    handles += [
        *(key(f"b: {OPTIMIZER_NAMES[name]}", colour, ls=LINES[name])
          for name, colour in GAPS.items()),
        key("decay begins, ends", **STAGES),
    ]  # fmt: skip
    legend_below(figure, handles, 4)
    late = numbers.loc[numbers["step"] > numbers["minimum"], "step"].nunique()
    note = f"thin: seeds; thick: means, but for b also over the last {late} checkpoints"
    return caption(
        figure, context, f"{note}\nguessing would score {numbers['chance'].iloc[0]:.0f}%"
    )
