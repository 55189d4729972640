"""What an experiment's YAML says of a search for hyperparameters. No torch here.

``lrm.sweep.tuning`` carries it out; ``experiments/tuning_search`` is an example.
"""

from __future__ import annotations

import fnmatch
from typing import Annotated, Literal

from pydantic import Field, model_validator

from lrm.cli import FIRST_JUDGING_SEED
from lrm.model.config import Strict
from lrm.plan import groups

# What a stage may tune of a group: its LR, its weight decay or its forward factors.
Quantity = Literal["lr", "weight_decay", "forward"]
# Stands in a group for the LR of all multipliers.
MULTIPLIERS = "multipliers"
Factor = Annotated[float, Field(gt=0)]
Spread = Annotated[float, Field(gt=0)]  # nats


class Stage(Strict):
    """One tier of the search: which factors of which groups it may change, on top of those before.

    Without ``tune`` only the base LR is swept.
    """

    tune: Quantity | None = None
    groups: tuple[str, ...] = ()
    # Of its short runs, where the search's is too short for what the stage changes to act.
    length: float | None = Field(None, gt=0, lt=1)
    # Of each group the factors to try, where they are not those of the search.
    changes: dict[str, tuple[Factor, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _there_is_something_to_tune(self) -> Stage:
        if bool(self.tune) != bool(self.groups):
            raise ValueError("tune and groups belong together: give both, or neither")
        if unknown := [group for group in self.changes if group not in self.groups]:
            raise ValueError(f"changes: {unknown[0]!r} is none of the stage's groups")
        return self


class Search(Strict):
    """A search by stages, for each arm of the experiment by itself, under the same rules.

    Losses are compared seed by seed. A change of a group is kept if its mean gain exceeds
    ``errors`` standard errors of paired differences over ``seeds``, in runs of ``length`` times the
    scale's steps. What a stage has found is then compared at full length, on ``confirm_seeds``.
    """

    # Names of groups, each a list of patterns as in rules; ``multipliers`` is the multipliers' LR.
    groups: dict[str, tuple[str, ...]]
    stages: dict[str, Stage] = Field(min_length=1)
    # Patterns of arms that have the first stage alone.
    first_stage_only: tuple[str, ...] = ()
    # Arms that the log has under another name too: of its trials they take over those that compute
    # what they ask for.
    trials_of: dict[str, str] = Field(default_factory=dict)
    # Base LRs lie on a grid of this ratio around the arm's, with so many on either side at first.
    lr_ratio: float = Field(2**0.5, gt=1, le=4)
    reach: int = Field(2, ge=1, le=8)
    factors: tuple[Factor, ...] = Field((0.5, 2.0), min_length=1)
    # Patterns of arms that try, in a stage, these factors of these groups and no others: for a
    # search that only asks whether what another one has kept holds here too. It ends in front of
    # the first stage that would try something and is not named.
    only_changes: dict[str, dict[str, dict[str, tuple[Factor, ...]]]] = Field(default_factory=dict)
    # A group whose factor was kept may go further in the same direction.
    rounds: int = Field(2, ge=1, le=8)
    seeds: tuple[int, ...] = Field((0, 1), min_length=2)
    confirm_seeds: tuple[int, ...] = Field((2, 3), min_length=2)
    errors: float = Field(2.0, ge=0)
    # Where the changes of a stage do not gain together in full runs, the one that gained most in
    # short runs is tried alone.
    retry: bool = False
    # Changes are tried in short runs at the base LR that is best in those, which is settled anew
    # for each stage: it depends on their length, and on what the stages before have changed.
    # Without this they are tried at that of full runs, which is lower, so that short runs gain by
    # whatever raises an LR.
    short_lr: bool = False
    # Where multipliers start at another value than 1, their weight decay is divided by it, so that
    # a step takes off the same share. Without this it is that of the others.
    scaled_decay: bool = False
    # In full runs, too, a gain counts against the spread of all differences of the arm, where that
    # is larger than its own. Two seeds are alike now and then.
    pooled: bool = False
    # In full runs a gain counts against this standard deviation of a paired difference, in nats,
    # and against no other: the same for every arm, so that a noisy one is not held to more.
    spread: float | None = Field(None, gt=0)
    # As ``spread``, for changes in short runs: by patterns of ``<arm>_<stage>``. Where none fits,
    # the larger counts of the change's own standard deviation and that of its round.
    short_spread: dict[str, Spread] = Field(default_factory=dict)
    length: float = Field(0.5, gt=0, lt=1)
    # A run whose training loss at a third of its steps is so much worse, in nats, than that of what
    # it is compared with is stopped.
    hopeless: float = Field(0.15, gt=0)
    # At most so many runs for an arm; null: as many as the rules ask for.
    trials: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _groups_are_known(self) -> Search:
        for name, stage in self.stages.items():
            for group in stage.groups:
                if group not in self.groups:
                    known = ", ".join(self.groups)
                    raise ValueError(f"stages.{name}: no group {group!r}; the groups are {known}")
                if stage.tune != "lr" and MULTIPLIERS in self.groups[group]:
                    raise ValueError(
                        f"stages.{name}: group {group!r} holds the multipliers, of which only "
                        "the lr is tuned"
                    )
        return self

    @model_validator(mode="after")
    def _changes_are_of_its_stages(self) -> Search:
        for pattern, stages in self.only_changes.items():
            for name, changes in stages.items():
                where = f"only_changes.{pattern}.{name}"
                if name not in self.stages:
                    raise ValueError(f"{where}: no such stage; there are {', '.join(self.stages)}")
                there = self.stages[name].groups
                if unknown := [group for group in changes if group not in there]:
                    raise ValueError(
                        f"{where}: {unknown[0]!r} is no group of this stage; "
                        f"{'its groups are ' + ', '.join(there) if there else 'it has none'}"
                    )
        return self

    @model_validator(mode="after")
    def _seeds_explore(self) -> Search:
        for name in ("seeds", "confirm_seeds"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name}: a seed is there twice; take it out")
        if (last := max(*self.seeds, *self.confirm_seeds)) >= FIRST_JUDGING_SEED:
            raise ValueError(f"seed {last} is one of those that judge; take some below "
                             f"{FIRST_JUDGING_SEED}")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _the_first_sweep_fits(self) -> Search:
        if self.trials is not None and self.trials < 2 * self.reach + 1:
            raise ValueError(
                f"trials: {self.trials} are fewer than the {2 * self.reach + 1} base LRs with "
                f"which a search of reach {self.reach} begins"
            )
        return self

    def stages_of(self, arm: str) -> dict[str, Stage]:
        """The stages of an arm, each with what it may change."""
        names = list(self.stages)
        if any(fnmatch.fnmatchcase(arm, pattern) for pattern in self.first_stage_only):
            names = names[:1]
        found = {name: self.stages[name] for name in names}
        for pattern, stages in self.only_changes.items():
            if fnmatch.fnmatchcase(arm, pattern):
                own = {}
                for name, stage in found.items():
                    if name in stages:
                        update = {"groups": tuple(stages[name]), "changes": stages[name]}
                        own[name] = stage.model_copy(update=update)
                    elif stage.groups:
                        break
                    else:
                        own[name] = stage
                found = own
        return found

    def short_spread_of(self, arm: str, stage: str) -> float | None:
        """The ``short_spread`` of the first pattern that fits, if any."""
        fitting = (spread for pattern, spread in self.short_spread.items()
                   if fnmatch.fnmatchcase(f"{arm}_{stage}", pattern))  # fmt: skip
        return next(fitting, None)

    def patterns(self, group: str) -> tuple[str, ...]:
        """The patterns of a group, without ``multipliers``."""
        said = [each for each in self.groups[group] if each != MULTIPLIERS]
        return tuple(pattern for each in said for pattern in groups.patterns(each))

    def has_multipliers(self, group: str) -> bool:
        """Whether the multipliers' own LR belongs to a group."""
        return MULTIPLIERS in self.groups[group]
