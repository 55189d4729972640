"""What an experiment's YAML says of the evaluation of its runs, and an evaluation as a run.

``lrm.exchange.evaluation`` carries it out; ``experiments/long_run`` is an example. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from lrm.errors import UserError
from lrm.model.config import Strict
from lrm.plan import cost
from lrm.plan.cost import Estimate
from lrm.plan.identity import NUMERICS_VERSION
from lrm.plan.run import Run
from lrm.plan.schedule import snapshot_steps

# Raised by hand whenever the same documents give other examples.
SUITE_VERSION = 6
# Tokens of an example with one of its choices, for estimates; how many choices there are; and the
# characters of context in front of such an example.
_TOKENS, CHOICES, _CONTEXT = 80, 4, 160
# What an evaluation takes of the time that the scale's rate gives, measured in the long run at
# mini: 7 minutes for 21 checkpoints with 3200 examples each, two at once on two AMD cores.
_SHARE = 0.7


def harness_version() -> str:
    """That of EleutherAI's harness; UserError where it is not installed."""
    try:
        return metadata.version("lm_eval")
    except metadata.PackageNotFoundError:
        raise UserError(
            "lm-eval is not installed; run pip install 'lrm-suite[evaluation]'"
        ) from None


class Task(Strict):
    """A task of the harness; what is not stated is the task's own.

    ``chance`` is the score of a model that guesses. ``half`` is the half of the tasks that it
    belongs to, if to any.
    """

    half: Literal["knowledge", "reasoning"] | None = None
    metric: str = "acc"
    # One of the task's ways to read an answer; multiple choice has none.
    answer_filter: str = "none"
    chance: float = Field(0.0, ge=0, lt=1)
    shots: int | None = Field(None, ge=0)
    version: float | None = None


# The offline suite, which ``lrm.exchange.evaluation.suite`` makes.
SUITE = {
    "imports": Task(half="knowledge", chance=1 / CHOICES),
    "arguments": Task(half="knowledge", chance=1 / CHOICES),
    "docstrings": Task(half="knowledge", chance=1 / CHOICES),
    "brackets": Task(half="reasoning", chance=1 / CHOICES),
    "strings": Task(half="reasoning", chance=1 / CHOICES),
    "assignments": Task(half="reasoning", chance=1 / CHOICES),
    "lookups": Task(half="reasoning", chance=1 / CHOICES),
    "indentation": Task(half="reasoning", chance=1 / CHOICES),
}


class Suite(Strict):
    """The offline suite: made of held-out documents, with ``examples`` of each task.

    ``context`` is how many characters of a document stand before a question, at most. Runs of
    another seed are asked other questions: else the draw of questions, which all would share, would
    move every seed alike, and an interval over seeds would know nothing of it. ``tasks`` are those
    that are scored; without any, all.
    """

    examples: int = Field(200, ge=1, le=100_000)
    context: int = Field(_CONTEXT, ge=20, le=100_000)
    seed: int = 0
    tasks: tuple[str, ...] = ()

    @field_validator("tasks")
    @classmethod
    def _tasks_are_known(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        for name in tasks:
            if name not in SUITE:
                raise ValueError(f"tasks: {name}: no task of the suite; one of {', '.join(SUITE)}")
        return tuple(name for name in SUITE if name in tasks)

    @property
    def chosen(self) -> dict[str, Task]:
        """The tasks that are scored, by name."""
        return {name: task for name, task in SUITE.items() if name in (self.tasks or SUITE)}

    def of_run(self, seed: int) -> Suite:
        """The suite for runs of this seed; arms share it."""
        return self.model_copy(update={"seed": self.seed + seed})


class Evaluation(Strict):
    """The tasks with which the snapshots of every run are evaluated.

    Either the offline ``suite``, or ``tasks`` by the harness's own names.
    """

    suite: Suite | None = None
    tasks: dict[str, Task] = {}

    @model_validator(mode="after")
    def _there_are_tasks(self) -> Evaluation:
        if bool(self.suite) == bool(self.tasks):
            raise ValueError("give either suite or tasks, and null for the other")
        return self

    @property
    def all_tasks(self) -> dict[str, Task]:
        """By name."""
        return dict(self.tasks) or self.suite.chosen


@dataclass(frozen=True, kw_only=True)
class EvaluationRun(Run):
    """The snapshots of the run ``after`` are evaluated, one after another."""

    kind = "evaluation"
    performed_by = "lrm.exchange.evaluation.run:run"
    reads_corpus = True

    evaluation: Evaluation

    @classmethod
    def of(cls, run: Run, evaluation: Evaluation) -> EvaluationRun:
        """The evaluation of a run that trains; UserError where it keeps no snapshot."""
        if not snapshot_steps(run.settings.train):
            raise UserError(
                f"{run.label}: evaluation is of snapshots, and train.snapshots is 0; set it to 1 "
                "or more"
            )
        return cls(
            run.experiment, run.scale, run.arm, run.grid, run.seed, run.settings, run.execution,
            run.cost, run.corpus, after=run, evaluation=evaluation,
        )  # fmt: skip

    @property
    def label(self) -> str:
        return f"evaluation {super().label}"

    @property
    def steps(self) -> tuple[int, ...]:
        """Those of the snapshots."""
        return snapshot_steps(self.settings.train)

    def content(self) -> dict[str, Any]:
        """What is trained stands in the id of ``after``."""
        said = self.evaluation.model_dump(mode="json", exclude_defaults=True)
        return {
            "numerics": NUMERICS_VERSION,
            "kind": self.kind,
            "arm": self.arm,
            "grid": self.grid,
            "seed": self.seed,
            "after": self.after_id,
            "evaluation": {**said, "version": SUITE_VERSION},
        }

    def estimate(self) -> Estimate:
        train, suite = self.settings.train, self.evaluation.suite
        # Of the harness's own tasks: about what the seven of the paper have.
        examples = suite.examples * len(suite.chosen) if suite else 50_000
        if suite:
            size = max(1.0, suite.context / _CONTEXT)
        else:  # each example stands behind others, where there are shots
            shots = [task.shots or 0 for task in self.evaluation.tasks.values()]
            size = 1 + sum(shots) / len(shots)
        tokens = len(self.steps) * examples * CHOICES * size * _TOKENS
        forward = cost.flops_per_token(self.settings.model, train.sequence_length) / 3
        return cost.of_one_device(1, _SHARE * tokens * forward, self.cost)

    def summary(self) -> str:
        return f"{len(self.steps)} snapshots, {len(self.evaluation.all_tasks)} tasks"

    def describe(self) -> dict[str, Any]:
        tasks = {
            name: task.model_dump(mode="json") for name, task in self.evaluation.all_tasks.items()
        }
        suite = self.evaluation.suite
        return {
            **super().describe(),
            "suite": suite and {**suite.model_dump(mode="json"), "version": SUITE_VERSION},
            "tasks": tasks,
        }
