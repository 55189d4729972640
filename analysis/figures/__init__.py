"""One module per figure, each with

* ``EXPERIMENTS``: the experiments that it reads, or a mapping from them to patterns of
  labels, as in ``run.py --only``, of the runs that it needs of each (none: all);
* ``numbers(tables)``: the plotted numbers as one frame, which becomes the figure's csv;
* ``draw(numbers, context) -> Figure``.

``tables`` maps an experiment's name to its ``Tables``; ``context`` says scale, seeds and corpus.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis import results
from analysis.norms import stage_end
from lrm.errors import UserError


@dataclass(frozen=True)
class Context:
    """What a figure states about itself."""

    scale: str
    seeds: list[int]
    corpus: str
    source: str  # runs or reference
    # Seeds of the other experiments, where they are not these.
    others: dict[str, list[int]] = field(default_factory=dict)


class Tables:
    """An experiment's tables, read when first asked for."""

    def __init__(
        self,
        experiment: str,
        scale: str,
        source: str,
        folder: Path,
        only: Collection[str] = (),
    ):
        self._where = (experiment, scale, source, folder, "current", only)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run."""
        return results.load_runs(*self._where)

    @cached_property
    def scalars(self) -> pd.DataFrame:
        """The tidy frame."""
        return results.load(*self._where)

    @cached_property
    def vectors(self) -> pd.DataFrame:
        """Row norms and the like."""
        return results.load_vectors(*self._where)

    @property
    def seeds(self) -> list[int]:
        """The seeds of the trained runs."""
        return sorted(self.runs.loc[self.runs["kind"] == "train", "seed"].unique())

    @cached_property
    def settings(self) -> dict:
        """The settings of the first trained run (those that arms share are everyone's)."""
        trained = self.runs[self.runs["kind"] == "train"]
        return trained.iloc[0]["description"]["settings"]

    @property
    def stage_end(self) -> int:
        """The step at which the constant stage ends."""
        return stage_end(self.settings)


def tables_of(figure, scale: str, source: str, folder: Path) -> dict[str, Tables]:
    """The tables that the module ``figure`` asks for."""
    wanted = figure.EXPERIMENTS
    wanted = wanted if isinstance(wanted, dict) else dict.fromkeys(wanted, ())
    return {name: Tables(name, scale, source, folder, only) for name, only in wanted.items()}


def context_of(tables: dict[str, Tables], scale: str, source: str) -> Context:
    """What a figure of these tables states; UserError where they would mix corpora."""
    corpora = {results.corpus_name(table.runs) for table in tables.values()}
    if len(corpora) > 1:
        raise UserError(f"{', '.join(tables)} come from the corpora {', '.join(sorted(corpora))}")
    (_, first), *rest = tables.items()
    others = {name: table.seeds for name, table in rest if table.seeds != first.seeds}
    return Context(scale, first.seeds, corpora.pop(), source, others)
