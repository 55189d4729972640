"""One resolved run: what is done, what it costs, and what its directory is named by.

Each kind of run is a class. A run that trains no model is one more subclass of ``Run``, which an
experiment's YAML names (``run: package.module:Class``). No torch here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from lrm.errors import UserError
from lrm.model.config import Strict
from lrm.model.tensors import check_pattern, matches
from lrm.plan import cost, groups
from lrm.plan.config import Execution, Settings
from lrm.plan.cost import Cost, Estimate
from lrm.plan.identity import NUMERICS_VERSION, weights_hash
from lrm.plan.rules import TensorPlan, resolve
from lrm.store.rundir import is_complete

Report = Callable[[int, float], None]  # of the steps done and the loss
Note = Callable[[str], None]


class Brownian(Strict):
    """Brownian motion beside the runs: of which tensors, with which arms' settings.

    It is that of their optimizer; the paper's is Adam's (ABM).
    """

    match: tuple[str, ...] = Field(min_length=1)
    arms: tuple[str, ...] = Field(min_length=1)  # names, or patterns of them
    draws: int = Field(64, ge=2, le=1 << 14)
    # The embedding's rows have a gradient only in steps whose batch holds their token.
    occurrences: bool = False
    # The matched matrices as linear layers, whose outputs are measured (table 1). The arms are for
    # this alone, and train nothing.
    linear_layers: bool = False
    # Each seed has noise of its own, as each has a training of its own; else one run serves all.
    seeded: bool = False

    @field_validator("match")
    @classmethod
    def _groups_are_spelled_out(cls, match: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(pattern for said in match for pattern in groups.patterns(said))

    @model_validator(mode="after")
    def _tokens_have_rows(self) -> Brownian:
        if self.occurrences and "embedding" not in self.match:
            raise ValueError("occurrences are those of the embedding's tokens; match it too")
        return self

    @model_validator(mode="after")
    def _only_layers_have_seeds(self) -> Brownian:
        if self.seeded and not self.linear_layers:
            raise ValueError("seeded is for linear layers; Brownian motion serves all seeds")
        return self


@dataclass(frozen=True)
class Run(ABC):
    """One resolved run of any kind: its identity, its cost, and how it is carried out."""

    kind: ClassVar[str]  # the column of the tidy frame
    # The function that carries it out, ``package.module:function``. It is called with the run, its
    # directory, the folder of corpora and a ``Report``. It is named and not imported, because it
    # stands in a room above this one and may load torch, which a planner must not.
    performed_by: ClassVar[str]
    # The function for several runs of one shape at once, where there is one. It is called with
    # pairs of run and directory in place of those two, and returns the error of each, or None.
    performed_together_by: ClassVar[str | None] = None
    # Whether it trains a model: its layers are compiled, and several processes may share it.
    trains: ClassVar[bool] = False
    # Whether the settings' model is what it is about: then it carries the plan of every tensor.
    has_model: ClassVar[bool] = False

    experiment: str
    scale: str
    arm: str
    grid: dict[str, Any]
    seed: int
    settings: Settings
    execution: Execution
    cost: Cost
    # Hash of the corpus; filled in once it is built.
    corpus: str | None = None
    # The run whose multipliers this one begins with.
    after: Run | None = None
    # Hash of each claim's criterion as it stood when the run was planned.
    criteria: dict[str, str] = field(default_factory=dict, compare=False)
    # What the rules make of each tensor; none where there is no model.
    plans: tuple[TensorPlan, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        if self.settings.theory is not None and self.kind != TheoryRun.kind:
            raise UserError(
                f"{self.experiment}: theory is for runs without training; write "
                "run: lrm.plan.run:TheoryRun, or take it out"
            )
        if self.has_model:
            object.__setattr__(self, "plans", resolve(self.settings))

    @abstractmethod
    def estimate(self) -> Estimate:
        """What it costs on the scale's machine."""

    def summary(self) -> str:
        """What it is, in a few words for the dry run."""
        return f"{self.settings.train.steps} steps"

    @property
    def label(self) -> str:
        """For people and for ``--only``; nothing is ever parsed out of it."""
        points = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                  for name, value in self.grid.items()]  # fmt: skip
        return " ".join([self.arm, *points, f"seed={self.seed}"])

    @property
    def reads_corpus(self) -> bool:
        """Whether it needs data."""
        return False

    @property
    def id(self) -> str:
        """Hash of everything that changes the mathematics, and of what the run is called."""
        return _hash(self.content())

    @property
    def computation(self) -> str:
        """The same for runs that differ by the names of their arms and grids alone."""
        named = ("arm", "grid")
        content = {key: value for key, value in self.content().items() if key not in named}
        # The threads and the precision decide the bits.
        return _hash({**content, "execution": self.execution.model_dump(mode="json")})

    def content(self) -> dict[str, Any]:
        """What ``id`` is the hash of."""
        if not self.has_id:
            raise ValueError("a run's id needs the hash of its corpus")
        # Defaults are left out, so that a new setting with an inert default changes no id;
        # whoever changes a default raises NUMERICS_VERSION.
        settings = self.settings.model_dump(mode="json", exclude_defaults=True)
        # What was read is told by its hash, however it was spelled.
        settings.pop("data", None)
        if self.settings.train.start is not None:
            settings["train"]["start"] = weights_hash(Path(self.settings.train.start))
        return {
            "numerics": NUMERICS_VERSION,
            "kind": self.kind,
            "arm": self.arm,
            "grid": self.grid,
            "seed": self.seed,
            "settings": settings,
            **({"corpus": self.corpus} if self.reads_corpus else {}),
            **({"after": self.after_id} if self.after is not None else {}),
        }

    @property
    def after_id(self) -> str | None:
        """The id of ``after``, which reads the same corpus."""
        return self.after and dataclasses.replace(self.after, corpus=self.corpus).id

    @property
    def has_id(self) -> bool:
        """Whether its corpus is built, or it needs none; before that it has no directory."""
        return self.corpus is not None or not self.reads_corpus

    def is_finished(self, results: Path) -> bool:
        """Whether it is, in the folder ``results``."""
        return self.has_id and is_complete(self.path(results))

    def path(self, results: Path) -> Path:
        """Where it lies: ``results/runs/<experiment>/<id>``."""
        return results / "runs" / self.experiment / self.id

    def describe(self) -> dict[str, Any]:
        """What the run is, for ``run.json``: the columns of the tidy frame and the settings."""
        return {
            "experiment": self.experiment,
            "id": self.id,
            "kind": self.kind,
            "scale": self.scale,
            "arm": self.arm,
            "grid": self.grid,
            "seed": self.seed,
            "label": self.label,
            "criteria": self.criteria,
            "after": self.after_id,
            "settings": self.settings.model_dump(mode="json"),
        }

    def execute(
        self,
        path: Path,
        corpora: Path,
        report: Report = lambda step, loss: None,
        note: Note = lambda line: None,
        group: Any = None,  # lrm.train.distributed.Group
    ) -> None:
        """Carry it out in its directory; nothing happens where it has finished.

        ``note`` gets lines for people. All processes of ``group`` call this alike, where the run
        trains a model. Raises UserError for bad input.
        """
        module, _, function = self.performed_by.partition(":")
        together = {"note": note, "group": group} if self.trains else {}
        getattr(importlib.import_module(module), function)(self, path, corpora, report, **together)


def execute_together(
    jobs: Sequence[tuple[Run, Path]],
    corpora: Path,
    report: Report = lambda step, loss: None,
    note: Note = lambda line: None,
) -> list[UserError | None]:
    """Carry out runs of one shape (``lrm.sweep.together``) at once; the error of each, or None."""
    module, _, function = jobs[0][0].performed_together_by.partition(":")
    return getattr(importlib.import_module(module), function)(jobs, corpora, report, note=note)


def _hash(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class TrainRun(Run):
    """A model is trained."""

    kind = "train"
    performed_by = "lrm.train.loop:train"
    performed_together_by = "lrm.train.loop:train_together"
    trains = has_model = reads_corpus = True

    def content(self) -> dict[str, Any]:
        experts, micro_batch = self.settings.model.experts, self.execution.micro_batch
        # The balance of experts is that of the tokens that pass together, and a part of the loss.
        apart = experts is not None and experts.balance and micro_batch
        content = {**super().content(), **({"micro_batch": micro_batch} if apart else {})}
        multipliers = (each for plan in self.plans for each in plan.multipliers)
        if self.settings.train.start is not None and any(each.init != 1 for each in multipliers):
            content["start"] = "made up for"  # earlier versions began with another model
        return content

    def estimate(self) -> Estimate:
        return cost.of_training(self.settings, self.plans, self.cost)

    def summary(self) -> str:
        found = self.estimate()
        return (
            f"{found.parameters:,} parameters, {found.tokens:.3g} tokens, {found.flops:.2e} FLOPs"
        )


@dataclass(frozen=True, kw_only=True)
class NoiseRun(Run):
    """The optimizer moves tensors of a model on noise alone."""

    has_model = True

    brownian: Brownian

    def __post_init__(self) -> None:
        super().__post_init__()
        for pattern in self.brownian.match:
            check_pattern(pattern, [plan.address for plan in self.plans], optional=False)
        for plan in self.matched:
            if plan.trainable and plan.optimizer not in ("adamw", "muon"):
                raise UserError(
                    f"brownian: {plan.key} is moved by {plan.optimizer}, and only what AdamW or "
                    "Muon moves is walked; match other tensors, or other arms"
                )
        if self.reads_corpus and any(p.matrix for p in self.matched if p.key == "embedding"):
            raise UserError(
                "brownian.occurrences: rows of the embedding that Muon moves depend on each other; "
                "give the embedding optimizer: adamw"
            )

    @property
    def matched(self) -> tuple[TensorPlan, ...]:
        """The tensors that are moved, with their multipliers."""
        patterns = self.brownian.match
        return tuple(p for p in self.plans if any(matches(said, p.address) for said in patterns))

    @property
    def label(self) -> str:
        return f"ABM {super().label}"

    @property
    def reads_corpus(self) -> bool:
        return self.brownian.occurrences

    def content(self) -> dict[str, Any]:
        content = super().content()
        content["brownian"] = {"match": self.brownian.match, "draws": self.brownian.draws}
        # Of the training only its length enters, of the probes only when they are taken.
        train = self.settings.train
        content["settings"]["train"] = {"steps": train.steps}
        content["settings"]["probes"] = {"every": self.settings.probes.every}
        if self.brownian.occurrences:
            # And the batches.
            batches = ("batch_size", "sequence_length", "data_order")
            content["settings"]["train"] |= {name: getattr(train, name) for name in batches}
            content["occurrences"] = True
        return content

    def estimate(self) -> Estimate:
        optimizer, draws = self.settings.optimizer, self.brownian.draws
        flops = sum(self._flops(plan, optimizer, draws) for plan in self.matched)
        return cost.of_simulation(self.settings.train.steps, flops, self.cost)

    _flops = staticmethod(cost.motion_flops)

    def summary(self) -> str:
        return f"noise only, {self.brownian.draws} draws of {self.settings.train.steps} steps"


class BrownianRun(NoiseRun):
    """Norms are what is measured. One run serves all seeds of an arm."""

    kind = "brownian"
    performed_by = "lrm.noise.brownian:run"


class _Layers(NoiseRun):
    """Matrices are moved as linear layers, whose outputs are measured (table 1)."""

    performed_by = "lrm.noise.linear_layer:run"
    _flops = staticmethod(cost.layer_flops)

    def content(self) -> dict[str, Any]:
        return {**super().content(), "linear_layers": True}


class LayerRun(_Layers, BrownianRun):
    """Linear layers of which one run serves all seeds."""


class SeededLayerRun(_Layers):
    """Linear layers whose noise is that of a seed: a seed that judges has draws of its own."""

    kind = "layer"


class TheoryRun(Run):
    """What a theory says of single layers, or of a model as it begins, as ``settings.theory`` says.

    The model is that of the settings, with what the rules make of its tensors, and reads text.
    """

    kind = "theory"

    @property
    def performed_by(self) -> str:
        return self.settings.theory.performed_by

    @property
    def has_model(self) -> bool:
        return self.settings.theory.of_model

    @property
    def reads_corpus(self) -> bool:
        return self.settings.theory.of_model

    @property
    def matched(self) -> tuple[TensorPlan, ...]:
        """All tensors of the model."""
        return self.plans

    def __post_init__(self) -> None:
        if self.settings.theory is None:
            raise UserError(
                f"{self.experiment}: theory is missing in arm {self.arm}; write theory: "
                "{simulate: flow, design: standard}, or another of lrm/plan/theory.py"
            )
        super().__post_init__()

    def estimate(self) -> Estimate:
        if self.has_model:
            once = cost.of_training(self.settings, self.plans, self.cost)
            return cost.times(once, self.settings.theory.models(self.settings.train.batch_size))
        steps = self.settings.train.steps
        return cost.of_simulation(steps, self.settings.theory.flops, self.cost)

    def summary(self) -> str:
        return f"{self.settings.theory.simulate}, {self.settings.train.steps} steps"
