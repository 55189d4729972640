"""What is compared: ``rows.yaml``, read and checked. No torch here."""

from __future__ import annotations

import fnmatch
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lrm.errors import UserError
from lrm.model.config import Strict
from lrm.plan.config import validate
from lrm.plan.experiment import Experiment, Header
from lrm.plan.run import TrainRun
from lrm.plan.yaml import mapping, read_yaml

ROWS = Path(__file__).with_name("rows.yaml")


class Variant(Strict):
    """One side of a row; its settings are a layer like an experiment's arm."""

    implementation: Literal["suite", "transformers"] = "suite"
    probes: bool = False
    tries: tuple[dict[str, tuple[Any, ...]], ...] = ()
    follows: str | None = None  # starts from what was chosen for that variant


class Row(Strict):
    """Tokens per second of one variant over another's, on each of some configurations."""

    name: str
    of: str
    against: str
    at: tuple[str, ...] = Field(min_length=1)


class Single(Strict):
    """A measurement of one variant alone."""

    of: str
    at: str


class Whole(Single):
    """A whole run of ``steps`` steps."""

    steps: int = Field(ge=1)


class Rows(Strict):
    """The lists of ``rows.yaml``."""

    cores: int = Field(ge=1)
    rows: tuple[Row, ...] = ()
    parts: tuple[Single, ...] = ()
    memory: tuple[Single, ...] = ()
    whole: tuple[Whole, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """One variant on one configuration, with everything decided: what a worker builds."""

    variant: str
    configuration: str
    picks: dict[str, Any]
    implementation: str
    attention: str
    probes: bool
    run: TrainRun

    @property
    def threads(self) -> int:
        """Threads of each process."""
        return self.run.execution.threads

    @property
    def tokens(self) -> int:
        """Tokens of one step of one process."""
        train = self.run.settings.train
        return train.batch_size * train.sequence_length

    def describe(self) -> dict[str, Any]:
        """For the record: how this variant is run."""
        return {
            "variant": self.variant,
            "implementation": self.implementation,
            "picks": self.picks,
            "threads": self.threads,
            "execution": self.run.execution.model_dump(mode="json"),
            "settings": self.run.settings.model_dump(mode="json"),
        }


class Bench:
    """The plan of one benchmark: its rows, and how a variant becomes a candidate."""

    def __init__(self, path: Path, cores: int):
        body = read_yaml(path)
        # Reasons for leaving out are kept in the record, which is no place for a user's folders.
        self.path = Path(path.name)
        self._common, self._configurations, variants = (
            mapping({key: body.pop(key, {})}, key, str(path))
            for key in ("common", "configurations", "variants")
        )
        for name in self._configurations:
            mapping(self._configurations, name, f"{path}: configurations")
        self._settings, self._variants = {}, {}
        for name in variants:
            said, where = dict(mapping(variants, name, f"{path}: variants")), f"{path}: {name}"
            self._settings[name] = mapping(
                {"settings": said.pop("settings", {})}, "settings", where
            )
            self._variants[name] = validate(Variant, said, where)
        self.rows: Rows = validate(Rows, body, str(path))
        self.cores = min(self.rows.cores, cores)
        singles = (*self.rows.parts, *self.rows.memory, *self.rows.whole)
        variants_named = {name for row in self.rows.rows for name in (row.of, row.against)}
        variants_named |= {single.of for single in singles}
        variants_named |= {v.follows for v in self._variants.values() if v.follows}
        at_named = {name for row in self.rows.rows for name in row.at} | {s.at for s in singles}
        for kind, named, known in (("variant", variants_named, self._variants),
                                   ("configuration", at_named, self._configurations)):  # fmt: skip
            for name in sorted(named - known.keys()):
                raise UserError(f"{path}: no {kind} {name!r}; there are {', '.join(known)}")

    def narrow(self, only: str) -> None:
        """Keep the rows whose name matches ``only``.

        The other measurements are named parts, memory and whole. Raises UserError where nothing
        is left.
        """
        lists = {name: getattr(self.rows, name) for name in ("parts", "memory", "whole")}
        names = [row.name for row in self.rows.rows] + list(lists)
        if not fnmatch.filter(names, only):
            raise UserError(f"--only {only!r} selects nothing; there are {', '.join(names)}")
        kept = {n: found if fnmatch.fnmatch(n, only) else () for n, found in lists.items()}
        kept["rows"] = tuple(row for row in self.rows.rows if fnmatch.fnmatch(row.name, only))
        self.rows = self.rows.model_copy(update=kept)

    def tries(self, variant: str) -> tuple[dict[str, tuple[Any, ...]], ...]:
        """The stages of choices of a variant."""
        return self._variants[variant].tries

    def follows(self, variant: str) -> str | None:
        """The variant whose choices this one starts from."""
        return self._variants[variant].follows

    def candidate(
        self,
        variant: str,
        configuration: str,
        picks: dict[str, Any] | None = None,
        changes: tuple[str, ...] = (),
    ) -> Candidate:
        """``variant`` on ``configuration`` with ``picks``; ``changes`` as in ``--set``.

        Raises UserError where this version's settings do not know it.
        """
        picks = picks or {}
        said = self._variants[variant]
        body = {
            **self._configurations[configuration],
            "scales": {"tiny": self._common},
            "arms": {variant: self._settings[variant]},
        }
        settings = {key: value for key, value in picks.items() if key != "attention"}
        overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        experiment = Experiment("bench", self.path, Header(title="bench"), body)
        [run] = experiment.runs("tiny", [0], [*overrides, *changes])
        if run.execution.threads > self.cores:
            raise UserError(f"{run.execution.threads} threads need more than {self.cores} cores")
        attention = picks.get("attention", "eager")
        return Candidate(
            variant, configuration, picks, said.implementation, attention, said.probes, run
        )

    def corpora(self) -> set[tuple]:
        """Every (data settings, vocabulary) that the rows read."""
        names = {at for row in self.rows.rows for at in row.at}
        names |= {s.at for s in (*self.rows.parts, *self.rows.memory, *self.rows.whole)}
        found = set()
        for name in names:
            body = {**self._configurations[name], "scales": {"tiny": self._common}}
            experiment = Experiment("bench", self.path, Header(title="bench"), body)
            settings = experiment.runs("tiny", [0])[0].settings
            found.add((settings.data, settings.model.vocab_size))
        return found


def combinations(stage: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Every choice of one value for each key."""
    for values in itertools.product(*stage.values()):
        yield dict(zip(stage, values, strict=True))
