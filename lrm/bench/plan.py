"""What is compared: ``rows.yaml``, read and checked. No torch here."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lrm.errors import UserError
from lrm.model.config import Strict
from lrm.plan.config import validate
from lrm.plan.experiment import Experiment, Header
from lrm.plan.run import TrainRun
from lrm.plan.yaml import read_yaml

ROWS = Path(__file__).with_name("rows.yaml")


class Variant(Strict):
    """One side of a row; ``settings`` is a layer like an experiment's arm."""

    implementation: Literal["suite", "transformers"] = "suite"
    probes: bool = False
    search: tuple[dict[str, tuple[Any, ...]], ...] = ()
    follows: str | None = None  # starts from what was chosen for that variant
    settings: dict[str, Any] = {}


class Row(Strict):
    """Tokens per second of one variant over another's, on each of some configurations."""

    name: str
    of: str
    against: str
    at: tuple[str, ...] = Field(min_length=1)


class Rounds(Strict):
    """Several variants in turn: tokens per second of each over those of every one before it.

    ``set`` holds changes of settings for all of them, as in ``--set``.
    """

    name: str
    variants: tuple[str, ...] = Field(min_length=2)
    at: tuple[str, ...] = Field(min_length=1)
    set: tuple[str, ...] = ()


class Single(Strict):
    """A measurement of one variant alone."""

    of: str
    at: str


class Whole(Single):
    """A whole run of ``steps`` steps."""

    steps: int = Field(ge=1)


class Plan(Strict):
    """The contents of ``rows.yaml``; ``common`` and configurations are layers of settings."""

    cores: int = Field(ge=1)
    common: dict[str, Any] = {}
    configurations: dict[str, dict[str, Any]] = {}
    variants: dict[str, Variant] = {}
    rows: tuple[Row, ...] = ()
    rounds: tuple[Rounds, ...] = ()
    parts: tuple[Single, ...] = ()
    memory: tuple[Single, ...] = ()
    whole: tuple[Whole, ...] = ()

    @property
    def singles(self) -> tuple[Single, ...]:
        """All measurements of one variant alone."""
        return (*self.parts, *self.memory, *self.whole)

    @property
    def contests(self) -> tuple[Rounds, ...]:
        """Everything in which variants are set against each other; a row is one of two."""
        rows = (Rounds(name=r.name, variants=(r.against, r.of), at=r.at) for r in self.rows)
        return (*rows, *self.rounds)

    @property
    def configurations_used(self) -> set[str]:
        """Names of the configurations on which anything is measured."""
        used = {name for contest in self.contests for name in contest.at}
        return used | {each.at for each in self.singles}


@dataclass(frozen=True)
class Candidate:
    """One variant on one configuration, with everything decided: what a worker builds.

    ``choices`` are the settings that the search has decided.
    """

    variant: str
    choices: dict[str, Any]
    implementation: str
    probes: bool
    run: TrainRun

    @property
    def attention(self) -> str:
        """The implementation of attention that transformers uses."""
        return self.choices.get("attention", "eager")

    @property
    def threads(self) -> int:
        """Threads of each process."""
        return self.run.execution.threads

    @property
    def tokens(self) -> int:
        """Tokens of one step of one process, of all runs that it trains at once."""
        train = self.run.settings.train
        return self.at_once * train.batch_size * train.sequence_length

    @property
    def at_once(self) -> int:
        """Runs that each process trains at once."""
        return self.run.execution.at_once

    def describe(self) -> dict[str, Any]:
        """For the record: how this variant is run."""
        return {
            "variant": self.variant,
            "implementation": self.implementation,
            "picks": self.choices,
            "threads": self.threads,
            "execution": self.run.execution.model_dump(mode="json"),
            "settings": self.run.settings.model_dump(mode="json"),
        }


class Bench:
    """The plan of one benchmark, and how a variant becomes a candidate."""

    def __init__(self, path: Path, cores: int):
        # Layers of settings are expanded as they were read.
        self._layers = read_yaml(path)
        # Reasons for leaving out are kept in the record, which is no place for a user's folders.
        self._path = Path(path.name)
        self.plan: Plan = validate(Plan, self._layers, str(path))
        self.cores = min(self.plan.cores, cores)
        variants = {name for contest in self.plan.contests for name in contest.variants}
        variants |= {each.of for each in self.plan.singles}
        variants |= {each.follows for each in self.plan.variants.values() if each.follows}
        for kind, used, defined in (
            ("variant", variants, self.plan.variants),
            ("configuration", self.plan.configurations_used, self.plan.configurations),
        ):
            for name in sorted(used - defined.keys()):
                raise UserError(f"{path}: no {kind} {name!r}; there are {', '.join(defined)}")

    def narrow(self, only: Sequence[str]) -> None:
        """Keep the rows and rounds whose name matches one of ``only``.

        The other measurements are named parts, memory and whole. Raises UserError where nothing
        is left.
        """
        names = [*(each.name for each in self.plan.contests), "parts", "memory", "whole"]
        selected: set[str] = set()
        for pattern in only:
            matching = fnmatch.filter(names, pattern)
            if not matching:
                there = ", ".join(dict.fromkeys(names))
                raise UserError(f"--only {pattern!r} selects nothing; there are {there}")
            selected.update(matching)
        kept = {name: () for name in ("parts", "memory", "whole") if name not in selected}
        for kind in ("rows", "rounds"):
            kept[kind] = tuple(each for each in getattr(self.plan, kind) if each.name in selected)
        self.plan = self.plan.model_copy(update=kept)

    def candidate(
        self,
        variant: str,
        configuration: str,
        choices: dict[str, Any] | None = None,
        overrides: tuple[str, ...] = (),
    ) -> Candidate:
        """``variant`` on ``configuration`` with ``choices``; ``overrides`` as in ``--set``.

        Raises UserError where this version's settings do not know it.
        """
        choices, described = choices or {}, self.plan.variants[variant]
        chosen = [f"{k}={json.dumps(value)}" for k, value in choices.items() if k != "attention"]
        settings = self._layers["variants"][variant].get("settings", {})
        run = self._run(configuration, {variant: settings}, [*chosen, *overrides])
        if run.execution.threads > self.cores:
            raise UserError(f"{run.execution.threads} threads need more than {self.cores} cores")
        return Candidate(variant, choices, described.implementation, described.probes, run)

    def corpora(self) -> set[tuple]:
        """Every (data settings, vocabulary) that the rows read."""
        runs = [self._run(name, {"any": {}}, []) for name in self.plan.configurations_used]
        return {(run.settings.data, run.settings.model.vocab_size) for run in runs}

    def _run(self, configuration: str, arms: dict[str, Any], overrides: list[str]) -> TrainRun:
        layer = self._layers["configurations"][configuration]
        body = {**layer, "scales": {"tiny": self._layers.get("common", {})}, "arms": arms}
        experiment = Experiment("bench", self._path, Header(title="bench"), body)
        runs = experiment.runs("tiny", [0], overrides)
        if len(runs) != 1:
            raise UserError(
                f"{self._path}: a grid makes {len(runs)} runs of {configuration!r}; make each a "
                "configuration of its own"
            )
        return runs[0]
