"""Table 2 (section 5.2): scores of each task and arm at the end of the long run.

Percentages, means over the checkpoints at the minimum LR and over seeds, with 95% intervals; below
the two arms of an optimizer their difference, paired by seed. Tasks in grey do not count: without
multipliers their score lies too near to chance or to 100, that of these seeds or, where the
criteria name the tasks, of one before. Below, the paper's own table, of other tasks and one run an
arm. The last lines say how large the spread between seeds would have to be for chance to explain
the paper's differences, and how large it is here: an order of magnitude, and ours.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.page import caption, text_page
from analysis.drawing.style import OPTIMIZER_NAMES
from analysis.figures.fig11 import NAMES, counted
from analysis.quantities import long_run
from analysis.quantities.long_run import ARMS, WITH, WITHOUT
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("long_run",)
JUDGING_ALONE = True
AVERAGE, PERPLEXITY = "average", "perplexity"
# The paper's table 2.
PAPER_TASKS = ("HellaSwag", "ARC-C", "MMLU", "MMLU-PRO", "BBH", "GSM8K", "MATH lvl5", AVERAGE)
PAPER = {
    ("Adam", WITHOUT): (48.91, 38.70, 44.18, 18.26, 9.70, 48.35, 7.52, 30.80),
    ("Adam", WITH): (49.89, 38.73, 45.33, 19.92, 12.03, 49.10, 9.07, 32.01),
    ("Muon", WITHOUT): (50.31, 39.04, 47.98, 18.96, 10.13, 48.02, 8.69, 31.88),
    ("Muon", WITH): (50.56, 39.39, 47.96, 19.32, 13.52, 50.63, 9.49, 32.98),
}
_GREY = "#9a9a9a"
_HEIGHT = 6.0  # inches
_LINE = 1 / _HEIGHT  # an inch, in shares of the height


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, optimizer, multipliers, task, half, counts, seed, value.

    Panel ``here`` holds scores in percent and the perplexity of held-out text; ``paper`` the
    paper's scores; ``spread`` the standard deviations over seeds: by optimizer that which would
    explain the paper's difference of averages, and, without an optimizer, ours.
    """
    table = tables["long_run"]
    every, counts = long_run.tasks(table), counted(table)
    late = long_run.at_minimum(table, long_run.scores(table))
    rows = late.melt(ignore_index=False).reset_index()
    average = long_run.over_tasks(late, counts or tuple(every))
    perplexity = np.exp(long_run.at_minimum(table, long_run.losses(table)))
    for name, values in ((AVERAGE, average), (PERPLEXITY, perplexity)):
        more = values.melt(ignore_index=False).reset_index()
        rows = pd.concat([rows, more.assign(task=name)], ignore_index=True)
    rows["half"] = rows["task"].map(lambda name: every[name]["half"] if name in every else None)
    rows["counts"] = ~rows["task"].isin(set(every) - set(counts))
    paper = pd.DataFrame(
        [
            {"panel": "paper", "optimizer": optimizer, "multipliers": kind, "task": task,
             "value": value, "counts": True}
            for (optimizer, kind), values in PAPER.items()
            for task, value in zip(PAPER_TASKS, values, strict=True)
        ]
    )  # fmt: skip
    spread = [
        {"panel": "spread", "optimizer": name, "task": AVERAGE, "counts": True,
         "value": long_run.needed_spread(PAPER[name, WITH][-1] - PAPER[name, WITHOUT][-1])}
        for name in OPTIMIZER_NAMES
    ]  # fmt: skip
    own = long_run.seed_spread(average)
    if np.isfinite(own):
        spread.append({"panel": "spread", "task": AVERAGE, "counts": True, "value": own})
    found = pd.concat([rows.assign(panel="here"), paper, pd.DataFrame(spread)], ignore_index=True)
    found["seed"] = found["seed"].astype("Int64")
    columns = ["panel", "optimizer", "multipliers", "task", "half", "counts", "seed", "value"]
    return found[columns]


def draw(numbers: pd.DataFrame, context: Context):
    """Two tables, one above the other, and what is said of spreads."""
    figure, _, write = text_page(_HEIGHT)
    here = numbers[numbers["panel"] == "here"]
    top = _table(write, here, 0.98, f"here, at {context.scale}")
    paper = numbers[numbers["panel"] == "paper"]
    bottom = _table(
        write, paper, top - 0.25 * _LINE, "the paper: 0.5 billion parameters, one run an arm"
    )
    spread = numbers[numbers["panel"] == "spread"]
    needed = {row.optimizer: row.value for row in spread.dropna(subset="optimizer").itertuples()}
    told = " and ".join(f"{value:.2f} ({OPTIMIZER_NAMES[name]})" for name, value in needed.items())
    own = spread[spread["optimizer"].isna()]["value"]
    said = "Here that takes two seeds and two arms."
    if len(own):
        said = f"Here it is {own.iloc[0]:.2f}, on other tasks."
    lines = (
        "Chance alone would explain the paper's gains in 5% of cases, if the average of one run",
        f"had a standard deviation of {told} points, beside what the arms",
        f"of a seed share. {said}",
    )
    for line, text in enumerate(lines):
        write(0, bottom - (0.15 + 0.157 * line) * _LINE, text)
    return caption(figure, context, "± 95% over seeds")


def _table(write, rows: pd.DataFrame, top: float, title: str) -> float:
    """Write one table below ``top``, its tasks' names turned; the height at which it ends."""
    names = list(dict.fromkeys(rows["task"]))
    left, width = 0.26, (1 - 0.26) / len(names)
    several = rows.groupby(["task", "optimizer", "multipliers"]).size().max() > 1
    high = (0.32 if several else 0.167) * _LINE
    lines = [
        (OPTIMIZER_NAMES[optimizer] + ", " + NAMES.get(kind, "with − without"), optimizer, kind)
        for optimizer in dict(ARMS.values())
        for kind in (WITHOUT, WITH, None)
    ]
    write(0.0, top, title, fontsize=7.5, weight="bold")
    first = top - (0.98 if rows["half"].notna().any() else 0.83) * _LINE
    for place, name in enumerate(names):
        own = rows[rows["task"] == name]
        x, style = left + width * (place + 0.5), {} if own["counts"].all() else {"color": _GREY}
        half = f"\n({own['half'].iloc[0]})" if own["half"].notna().any() else ""
        write(x, first + 0.15 * _LINE, name + half, ha="center", va="bottom", rotation=90, **style)
        for line, (text, optimizer, kind) in enumerate(lines):
            y = first - high * line
            if not place:
                write(0.0, y, text)
            seen = interval(_values(own[own["optimizer"] == optimizer], kind))
            mean = f"{seen.mean:{'.2f' if kind else '+.2f'}}".replace("-", "−")
            write(x, y, mean, ha="center", **style)
            if seen.n > 1:
                said = f"± {(seen.high - seen.low) / 2:.2f}"
                write(x, y - 0.108 * _LINE, said, ha="center", fontsize=5.8, **style)
    return first - high * len(lines)


def _values(rows: pd.DataFrame, kind: str | None) -> pd.Series:
    """Of one task and optimizer: by seed the score of ``kind``, or what multipliers change."""
    seeds = rows["seed"].fillna(0)  # the paper names none
    arms = rows.assign(seed=seeds).pivot(index="seed", columns="multipliers", values="value")
    arms = arms.reindex(columns=[WITHOUT, WITH])
    return (arms[kind] if kind else arms[WITH] - arms[WITHOUT]).dropna()
