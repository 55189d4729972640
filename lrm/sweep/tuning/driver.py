"""Brings the searches of several arms, their runs and the log together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lrm.plan.experiment import Experiment
from lrm.plan.run import Run, TrainRun
from lrm.plan.search import Search, Stage
from lrm.sweep.tuning import presets
from lrm.sweep.tuning.points import Point, layer
from lrm.sweep.tuning.stages import ArmSearch, Decision, Trial
from lrm.sweep.tuning.trials import TrialLog, TrialRun, has_ended, outcome
from lrm.sweep.twins import Job


class ArmTuning:
    """The search of one arm: which runs it asks for, and what they told.

    ``finished`` says whether it asks for no more.
    """

    def __init__(
        self,
        experiment: Experiment,
        base: TrainRun,
        stages: Mapping[str, Stage],
        log: TrialLog,
    ):
        """``base`` is the arm's run where the search begins."""
        self.name, self.finished = base.arm, False
        self._experiment, self._base, self._log = experiment, base, log
        self._rules: Search = experiment.search(base.scale)
        self.stages = stages
        # The arm whose trials it takes over.
        self.shares = self._rules.trials_of.get(self.name)
        self.search = ArmSearch(self._rules, stages, self.name)
        self._asking = self.search.run()
        self._asked: dict[Trial, TrialRun] = {}
        self._early: dict[Trial, float | None] = {}

    def advance(self, results: Path) -> list[Job]:
        """The runs that it asks for next; none while it waits for another, and none at the end.

        Losses of runs that are in the log, or on disk, are answered at once.
        """
        while not self.finished:
            # All that have ended are logged, also where one of them has not.
            records = {trial: self._record(trial, run, results)
                       for trial, run in self._asked.items()}  # fmt: skip
            losses: dict[Trial, float] = {}
            for trial, record in records.items():
                if record is None:
                    return []
                loss = record["loss"]
                losses[trial] = math.inf if loss is None else loss
                self._early[trial] = record["early_loss"]
            try:
                asked = self._asking.send(losses or None)
            except StopIteration:
                self.finished = True
                return []
            self._asked = {trial: self.run_of(trial) for trial in asked}
            jobs = {run.id: (run, run.path(results)) for trial, run in self._asked.items()
                    if self._record(trial, run, results) is None}  # fmt: skip
            if jobs:
                return list(jobs.values())
        return []

    def _record(self, trial: Trial, run: TrialRun, results: Path) -> dict[str, Any] | None:
        """What the log says of a run; one that has ended and is not yet in it is added."""
        if run.id in self._log.records:
            return self._log.records[run.id]
        path = run.path(results)
        found = self._taken_over(run)
        if found is None and has_ended(path):
            found = outcome(run, path)
        if found is None:
            return None
        self._log.add(
            {
                **found,
                "id": run.id,
                "arm": self.name,
                "stage": list(self.stages)[len(self.search.decisions)],
                "point": presets.record_of(trial.point),
                "seed": trial.seed,
                "steps": run.settings.train.steps,
            }
        )
        return self._log.records[run.id]

    def _taken_over(self, run: TrialRun) -> dict[str, Any] | None:
        """The record of a run of the arm ``shares`` that computes the same."""
        if self.shares is None:
            return None
        return self._log.records.get(dataclasses.replace(run, arm=self.shares).id)

    def run_of(self, trial: Trial) -> TrialRun:
        """The run of a trial, with the limit above which it is stopped."""
        whole = self._base.settings.train.steps
        steps = whole if trial.full else max(1, round((trial.length or self._rules.length) * whole))
        given = layer(trial.point, self._rules, self._base)
        override = () if steps == whole else (f"train.steps={steps}",)
        scale = self._base.scale
        settings = self._experiment.settings(scale, self.name, given, override)
        return TrialRun(
            self._experiment.name, scale, self.name, {}, trial.seed, *settings,
            corpus=self._base.corpus, said=self._said(trial.point), limit=self._limit(trial),
        )  # fmt: skip

    def _said(self, point: Point) -> str:
        """What is new in a point, for the lines of progress."""
        known = self.search.incumbent.said if self.search.incumbent else ()
        return ", ".join([f"LR {point.lr:+d}", *(t for t in point.said if t not in known)])

    def _limit(self, trial: Trial) -> float | None:
        """Above which training loss a run is stopped: that of the point in hand, and a margin."""
        incumbent = self.search.incumbent
        if incumbent is None or trial.point == incumbent:
            return None
        early = self._early.get(dataclasses.replace(trial, point=incumbent))
        return None if early is None else early + self._rules.hopeless

    @property
    def goes_on(self) -> bool:
        """Whether the log holds a run that it has asked for."""
        asked = self._asked.values()
        return bool(self.search.losses) or any(run.id in self._log.records for run in asked)

    @property
    def records(self) -> list[dict[str, Any]]:
        """Those of the arm in the log: what was spent on it, under other rules too."""
        return [record for record in self._log.records.values() if record["arm"] == self.name]

    def preset(self, decision: Decision) -> tuple[str, str]:
        """Name and text of what a stage has found."""
        names = list(self.stages)
        before = names[: names.index(decision.stage) + 1]
        records = [record for record in self.records if record["stage"] in before]
        name = f"{self.name}_{decision.stage}"
        found = layer(decision.point, self._rules, self._base)
        search = f"SEARCH={self._experiment.name} SCALE={self._base.scale}"
        command = f"make tune {search}"
        stages = {each: self.stages[each] for each in before}
        return name, presets.text(name, command, decision, found, self._rules, stages, records)


class Tuning:
    """The searches of all arms. Their runs share the workers of one sweep."""

    def __init__(self, arms: list[ArmTuning], results: Path):
        self.arms, self._results = arms, results

    def first(self) -> list[Job]:
        """What there is to run at the beginning."""
        return [job for arm in self.arms for job in arm.advance(self._results)]

    def following(self, run: Run) -> list[Job]:
        """What there is to run after ``run``, for which its arm may have waited alone.

        So may one that takes over the trials of that arm.
        """
        return [job for arm in self.arms if run.arm in (arm.name, arm.shares)
                for job in arm.advance(self._results)]  # fmt: skip

    def presets(self) -> Iterator[tuple[str, str]]:
        """Name and text of every tier that is decided."""
        for arm in self.arms:
            for decision in arm.search.decisions:
                yield arm.preset(decision)
