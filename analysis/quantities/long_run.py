"""The long run (section 5.2): scores of tasks and losses over its last stages, and their gaps.

Scores are percentages, losses nats. A gain is what is better with multipliers than without: a
higher score, a lower loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.tables.results import Tables, kept
from lrm.errors import UserError
from lrm.plan.config import Settings

OPTIMIZERS = {"ADAM": "Adam", "MUON": "Muon"}
WITHOUT, WITH = "none", "vector"
_LEVELS = ["optimizer", "multipliers"]
# Optimizer and multipliers of each arm.
ARMS = {
    f"{optimizer}{infix}_FULL": (name, kind)
    for optimizer, name in OPTIMIZERS.items()
    for kind, infix in ((WITHOUT, ""), (WITH, "_LRM"))
}
HALVES = ("knowledge", "reasoning")
_TASK = "task."
# Two-sided 95% of a normal deviate.
_NORMAL = 1.96


def stages(tables: Tables) -> tuple[int, int, int]:
    """The steps at which the constant stage, the decay and the run end."""
    settings = tables.settings
    steps, schedule = settings["train"]["steps"], settings["schedule"]
    return steps - schedule["decay_steps"], steps - schedule["minimum_steps"], steps


def base_lrs(tables: Tables) -> dict[str, float]:
    """The base LR of each arm that has run."""
    trained = tables.runs[tables.runs["kind"] == "train"].drop_duplicates("arm").set_index("arm")
    settings = {arm: trained.loc[arm, "description"]["settings"]
                for arm in ARMS if arm in trained.index}  # fmt: skip
    return {arm: Settings.model_validate(said).base_lr for arm, said in settings.items()}


def tasks(tables: Tables) -> dict[str, dict]:
    """The tasks that runs were evaluated with: half, chance and metric, by name."""
    evaluations = tables.runs[tables.runs["kind"] == "evaluation"]
    return evaluations.iloc[0]["description"]["tasks"]


@kept
def scores(tables: Tables) -> pd.DataFrame:
    """Percentages: (seed, step) of checkpoints × (optimizer, multipliers, task)."""
    _check_questions(tables)
    rows = tables.pick(kind="evaluation", stat="score")
    rows = rows.assign(task=rows["tensor"].str.removeprefix(_TASK), value=100 * rows["value"])
    table = rows.pivot(index=["seed", "step"], columns=["arm", "task"], values="value")
    names = tasks(tables)
    table = table.reindex(columns=pd.MultiIndex.from_product([ARMS, names]))
    table.columns = pd.MultiIndex.from_tuples(
        [(*ARMS[arm], task) for arm, task in table.columns], names=[*_LEVELS, "task"]
    )
    return table


def _check_questions(tables: Tables) -> None:
    """UserError where arms of one seed were asked different questions: they are not paired."""
    evaluations = tables.runs[tables.runs["kind"] == "evaluation"]
    for seed, own in evaluations.groupby("seed"):
        found = {one.get("execution", {}).get("suite") for one in own["description"]}
        if len(found) > 1:
            raise UserError(
                f"long_run: seed {seed}: its arms were asked different questions; remove the "
                f"evaluations of that seed ({', '.join(sorted(own['arm']))}) and evaluate again"
            )


@kept
def losses(tables: Tables) -> pd.DataFrame:
    """Validation losses: (seed, step) of evaluated checkpoints × (optimizer, multipliers)."""
    return validated(tables).loc[scores(tables).index]


def validated(tables: Tables) -> pd.DataFrame:
    """As ``losses``, of all steps with a validation."""
    rows = tables.pick(kind="train", stat="validation_loss")
    table = rows.pivot(index=["seed", "step"], columns="arm", values="value")
    table = table.reindex(columns=list(ARMS))
    table.columns = pd.MultiIndex.from_tuples(ARMS.values(), names=_LEVELS)
    return table


def at_minimum(tables: Tables, table: pd.DataFrame) -> pd.DataFrame:
    """Means over the checkpoints of the last stage, at the minimum LR, by seed."""
    return _mean(table, stages(tables)[1], np.inf)


def while_constant(tables: Tables, table: pd.DataFrame) -> pd.DataFrame:
    """Means over the checkpoints of the constant stage, by seed."""
    return _mean(table, 0, stages(tables)[0])


def _mean(table: pd.DataFrame, after: float, until: float) -> pd.DataFrame:
    steps = table.index.get_level_values("step")
    chosen = table[(steps > after) & (steps <= until)]
    return chosen.groupby("seed").agg(lambda column: column.mean(skipna=False))


def counted(tables: Tables, limits: dict) -> tuple[str, ...]:
    """The tasks that count: those named for the scale, or else those clear of chance and of 100.

    ``limits`` are thresholds of a criterion: ``tasks``, names by scale, and ``clear``. Names stand
    there once runs that judge nothing have been looked at. Raises UserError for one that the
    runs were not evaluated with.
    """
    every, named = tasks(tables), limits.get("tasks", {}).get(tables.runs["scale"].iloc[0])
    if named is None:
        return _clear(tables, limits["clear"])
    for name in named:
        if name not in every:
            raise UserError(f"experiments/long_run/criteria.yaml: tasks: {name}: no task of these "
                            f"runs; one of {', '.join(every)}")  # fmt: skip
    return tuple(name for name in every if name in named)


@kept
def _clear(tables: Tables, clear: float) -> tuple[str, ...]:
    """The tasks that without multipliers are clear of chance and of 100, by so many points.

    The score is that at the minimum LR, the mean over seeds and both optimizers. None counts before
    both have run: else the tasks, and with them verdicts, would change when the second comes.
    """
    late = at_minimum(tables, scores(tables)).xs(WITHOUT, axis=1, level="multipliers")
    plain = late.mean()
    means = plain.groupby("task").agg(lambda each: each.mean(skipna=False))
    return tuple(
        name
        for name, task in tasks(tables).items()
        if 100 * task["chance"] + clear <= means[name] <= 100 - clear
    )


def average(tables: Tables, limits: dict, half: str | None = None, fewest: int = 1) -> pd.DataFrame:
    """Mean score over the tasks that count, of one half or of all; nan where fewer than ``fewest``.

    ``limits`` as of ``counted``.

    Rows (seed, step), columns (optimizer, multipliers).
    """
    every, chosen = tasks(tables), counted(tables, limits)
    names = [name for name in chosen if half in (None, every[name]["half"])]
    return over_tasks(scores(tables), names if len(names) >= fewest else [])


def over_tasks(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Means over these tasks of the columns of ``scores``; nan where one is missing, or none given.

    Columns (optimizer, multipliers).
    """
    found = {
        pair: table[pair][list(names)].mean(axis=1, skipna=False) if names else np.nan
        for pair in ARMS.values()
    }
    return pd.DataFrame(found, index=table.index).rename_axis(columns=_LEVELS)


def gains(table: pd.DataFrame) -> pd.DataFrame:
    """What is higher with multipliers than without: a column for each optimizer."""
    with_them = table.xs(WITH, axis=1, level="multipliers")
    return with_them - table.xs(WITHOUT, axis=1, level="multipliers")


def seed_spread(table: pd.DataFrame) -> float:
    """Standard deviation of one run in what the arms of its seed, in columns, do not share.

    Arms of a seed have the same questions, batches and initial values, and what these do to all of
    them moves no difference. Two arms of a seed differ by √2 times this.
    """
    whole = table.dropna()
    rest = whole.sub(whole.mean(axis=1), axis=0)
    rest -= rest.mean()
    free = (whole.shape[0] - 1) * (whole.shape[1] - 1)
    return float(np.sqrt((rest**2).to_numpy().sum() / free)) if free > 0 else np.nan


def needed_spread(difference: float) -> float:
    """The spread of one run with which chance makes two runs differ so much in 5% of cases."""
    return abs(difference) / (_NORMAL * np.sqrt(2))
