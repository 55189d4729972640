"""Figure 11 (section 5.2): the average score and the loss difference over the last stages.

Left: average score over the tasks that count, of every checkpoint and seed, thin; thick, means over
seeds of the running mean over the checkpoints of about one stage. Right: validation loss with
vector multipliers minus loss without, every seed thin, means thick. Dotted, the decay begins and
ends; dashed, the scores that guessing has on average.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.page import caption, key, label, legend_below, page
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
GUESSING = NEUTRAL | {"lw": 0.8, "ls": (0, (6, 4))}


def counted(table: Tables) -> tuple[str, ...]:
    """The tasks that count, as the criteria say; where none does, the average is that of all."""
    return long_run.counted(table, criteria_of("long_run")["L1"]["thresholds"])


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel (score, gap), optimizer, multipliers, seed, step, value, smooth, chance,
    tasks, decay and minimum, the steps at which the decay begins and ends.

    ``smooth`` is the mean over as many checkpoints as the last stage has, those up to this one.
    """
    table = tables["long_run"]
    constant, decayed, _ = long_run.stages(table)
    every = long_run.tasks(table)
    names = counted(table) or tuple(every)
    score = long_run.over_tasks(long_run.scores(table), names)
    gap = long_run.gains(long_run.losses(table))
    gap.columns = pd.MultiIndex.from_product([gap.columns, [WITH]], names=score.columns.names)
    steps = score.index.get_level_values("step")
    window = int((steps.unique() > decayed).sum())
    parts = []
    for panel, values in (("score", score), ("gap", gap)):
        smooth = values.groupby("seed").transform(lambda one: one.rolling(window, 1).mean())
        tidy = [frame.melt(ignore_index=False).reset_index() for frame in (values, smooth)]
        parts.append(tidy[0].assign(smooth=tidy[1]["value"], panel=panel))
    chance = 100 * float(np.mean([every[name]["chance"] for name in names]))
    rows = pd.concat(parts, ignore_index=True)
    rows = rows.assign(chance=chance, tasks=len(names), decay=constant, minimum=decayed)
    columns = ["panel", "optimizer", "multipliers", "seed", "step", "value", "smooth", "chance",
               "tasks", "decay", "minimum"]  # fmt: skip
    return rows[columns].sort_values(columns[:5], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, (left, right) = page(1, 2, 2.9)
    for axis, panel in ((left, "score"), (right, "gap")):
        rows = numbers[numbers["panel"] == panel]
        for (optimizer, kind), own in rows.groupby(["optimizer", "multipliers"]):
            colour, line = COLOURS[kind], LINES[optimizer]
            if panel == "gap":
                colour = GAPS[optimizer]
            for _, seed in own.groupby("seed"):
                axis.plot(seed["step"], seed["value"], color=colour, lw=0.5, alpha=0.5, ls=line)
            column = "smooth" if panel == "score" else "value"
            mean = own.groupby("step")[column].mean()
            axis.plot(mean.index, mean, color=colour, lw=1.6, ls=line)
        for place in (rows["decay"].iloc[0], rows["minimum"].iloc[0]):
            axis.axvline(place, **STAGES, zorder=1)
        axis.set_xlabel("step")
    left.axhline(numbers["chance"].iloc[0], **GUESSING)
    right.axhline(0, **NEUTRAL)
    count = numbers["tasks"].iloc[0]
    several = "s" if count > 1 else ""
    label(left, f"a   Average score of {count} task{several}", ylabel="score (%)")
    label(right, "b   Loss, with − without (below 0: a gain)", ylabel="Δ validation loss (nats)")
    handles = [
        key(
            f"a: {OPTIMIZER_NAMES[optimizer]}, {NAMES[kind]}",
            color=COLOURS[kind],
            ls=LINES[optimizer],
        )
        for optimizer in OPTIMIZERS.values()
        for kind in (WITHOUT, WITH)
    ]
    handles += [
        *(key(f"b: {OPTIMIZER_NAMES[name]}", colour, ls=LINES[name])
          for name, colour in GAPS.items()),
        key("decay begins, ends", **STAGES),
        key("a: guessing", **GUESSING),
    ]  # fmt: skip
    legend_below(figure, handles, 3)
    late = numbers.loc[numbers["step"] > numbers["minimum"], "step"].nunique()
    return caption(
        figure, context, f"thin: seeds; thick: means, in a also over the last {late} checkpoints"
    )
