"""The tables that a figure reads and makes, and what it states about itself."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from analysis.needs import experiment_of, patterns_of
from analysis.tables.find import EXPERIMENTS, RESULTS, NothingFound
from analysis.tables.results import FIRST_JUDGING_SEED, Tables, corpus_name, seeded
from analysis.tables.trials import load_tables
from lrm.errors import UserError
from lrm.plan.experiment import load
from lrm.store import rundir
from lrm.store.digests import MANIFEST, digest


@dataclass(frozen=True)
class Context:
    """What a figure states about itself."""

    scale: str
    seeds: list[int]
    corpus: str
    source: str  # runs or reference
    # Seeds of the other experiments, where they are not these.
    others: dict[str, list[int]] = field(default_factory=dict)
    # Whether they may be the published runs of which findings are written: not in other folders.
    told: bool = True


def tables_of(figure, scale: str, source: str, folder: Path) -> dict[str, Tables]:
    """The tables that the module ``figure`` asks for, by experiment or part of one.

    Experiments of its ``IF_THERE`` come along where they have runs, and are not asked for else.
    A module whose ``JUDGING_ALONE`` is true averages over seeds without telling them apart: it gets
    the seeds that judge, and those that explore where there are no others.
    """
    wanted = patterns_of(figure.EXPERIMENTS).items()
    found = {
        key: load_tables(experiment_of(key), scale, source, folder, only) for key, only in wanted
    }
    for name in getattr(figure, "IF_THERE", ()):
        with contextlib.suppress(NothingFound):
            found[name] = load_tables(name, scale, source, folder)
    if getattr(figure, "JUDGING_ALONE", False):
        return {name: _judging(table) for name, table in found.items()}
    return found


def _judging(table: Tables) -> Tables:
    judging = [seed for seed in seeds_of(table.runs) if seed >= FIRST_JUDGING_SEED]
    return table.of_seeds(judging) if judging else table


def context_of(tables: dict[str, Tables], scale: str, source: str) -> Context:
    """What a figure of these tables states; UserError where they would mix corpora."""
    corpora = {corpus_name(table.runs) for table in tables.values()}
    if len(corpora) > 1:
        corpora.discard("none")  # simulations read no text, and go with any
    if len(corpora) > 1:
        raise UserError(f"{', '.join(tables)} come from the corpora {', '.join(sorted(corpora))}")
    # Not ``Tables.seeds``, which are those of trained runs: simulations have seeds too.
    seeds = {name: seeds_of(table.runs) for name, table in tables.items()}
    first = next(iter(seeds.values()))
    others = {name: own for name, own in seeds.items() if own != first}
    return Context(scale, first, corpora.pop(), source, others)


def planned(experiment: str, context: Context) -> dict[str, dict]:
    """The settings of each arm of an experiment at the scale of what is drawn."""
    plan = load(EXPERIMENTS / experiment / "config.yaml")
    return {
        run.arm: run.settings.model_dump() for run in plan.runs(context.scale, context.seeds[:1])
    }


def seeds_of(runs: pd.DataFrame) -> list[int]:
    """The seeds of the runs that have one: Brownian motions serve all seeds."""
    return sorted(map(int, seeded(runs)["seed"].unique()))


def published_beside(scale: str, results: Path) -> Path:
    """The folder with the published side of own ``results``: itself, else the suite's own."""
    return results if (results / "reference" / scale).exists() else RESULTS


def digest_of(table: Tables, experiment: str, source: str, folder: Path) -> str:
    """Of the files behind the tables of an experiment as they were written, and of their runs."""
    runs = sorted(table.runs["run"])
    if source == "reference":
        published = folder / "reference" / table.runs["scale"].iloc[0] / experiment
        return digest(" ".join([*runs, digest((published / MANIFEST).read_bytes())]).encode())
    paths = [folder / "runs" / experiment / run for run in runs]
    of_runs = [rundir.digest_of(path) for path in paths if rundir.is_complete(path)]
    return digest(" ".join([*runs, *of_runs]).encode())


def stacked(table: pd.DataFrame, **columns) -> pd.DataFrame:
    """A table such as seeds × widths with one row per ``value``, and these columns added."""
    return table.stack().rename("value").reset_index().assign(**columns)
