"""Tables of experiments whose arms a search has tuned: with its log, what was tried and its cost.

A search writes one JSON line per trial (``lrm.sweep.tuning.trials``). Its log is published beside
the presets that it found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis.tables.find import EXPERIMENTS, RESULTS, NothingFound, relative
from analysis.tables.results import Tables
from lrm.plan.experiment import load
from lrm.plan.yaml import PRESETS
from lrm.store.digests import digest, is_listed, read_listed
from lrm.store.files import read_records

# What is read of a record; it holds more.
_FIELDS = {"id", "arm", "stage", "seed", "outcome", "loss", "tokens", "flops"}


class TunedTables(Tables):
    """``Tables`` of an experiment that names the search behind its arms under ``tuned_by``."""

    def __init__(
        self,
        runs: pd.DataFrame,
        scalars: pd.DataFrame | Callable[[], pd.DataFrame],
        vectors: pd.DataFrame | Callable[[], pd.DataFrame] | None = None,
        trials: pd.DataFrame | Callable[[], pd.DataFrame] | None = None,
    ):
        super().__init__(runs, scalars, vectors)
        self._given["trials"] = trials

    def of_seeds(self, seeds: Collection[int]) -> TunedTables:
        """The tables of these seeds alone; the search serves all seeds."""
        tables = super().of_seeds(seeds)
        reads = (tables._given[name] for name in ("scalars", "vectors"))
        return TunedTables(tables.runs, *reads, lambda: self.trials)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial of the search.

        Columns are the fields of its log: id, arm, stage, point, seed, steps, outcome, loss,
        tokens, flops, …. Raises NothingFound where there is no log.
        """
        return self._table("trials")


def load_tables(
    experiment: str, scale: str, source: str, results: Path, only: Collection[str] = ()
) -> Tables:
    """``Tables.load``, with the log of the search where one has tuned the experiment's arms."""
    if not _search_of(experiment):
        return Tables.load(experiment, scale, source, results, only=only)
    tables = TunedTables.load(experiment, scale, source, results, only=only)
    tables._given["trials"] = functools.partial(read_trials, experiment, scale, source, results)
    return tables


def _search_of(experiment: str) -> str | None:
    return load(EXPERIMENTS / experiment / "config.yaml").header.tuned_by


def log_of(experiment: str, scale: str, source: str, results: Path) -> Path:
    """The log of the search that the experiment's YAML names under ``tuned_by``.

    For a user's own runs it is the log of the user's own search, if that has found the presets that
    runs use. Else it is the published log, where there is one: a search that was stopped has not
    spent what these cost. Raises NothingFound, which names the command that makes a log.
    """
    name = _search_of(experiment)
    if name is None:
        raise NothingFound(f"no search has tuned the arms of {experiment}")
    published = RESULTS if source == "runs" else results
    paths = [published / "reference" / scale / f"{name}.jsonl"]
    if source == "runs":
        own = results / "tuning" / scale / f"{name}.jsonl"
        paths.insert(0 if _found_what_is_used(own.parent, name, scale) else 1, own)
    for path in paths:
        if path.exists() or is_listed(path):
            return path
    raise NothingFound(
        f"there is no log of {name} at {scale}, {relative(paths[0])}; run make tune "
        f"SEARCH={name} SCALE={scale}"
    )


def _found_what_is_used(folder: Path, search: str, scale: str) -> bool:
    """Whether the presets in ``folder`` are those of this search that runs use at ``scale``."""
    said = f"SEARCH={search} SCALE={scale}`".encode()
    used = {file.name: file.read_bytes() for file in (PRESETS / "tuned" / scale).glob("*.yaml")}
    own = {file.name: file.read_bytes() for file in folder.glob("*.yaml")}
    return all(own.get(name) == text for name, text in used.items() if said in text)


def _read_log(path: Path) -> bytes:
    """What a log holds: a published one as its manifest lists it."""
    return read_listed(path) if path.parent.parent.name == "reference" else path.read_bytes()


def digest_of_log(experiment: str, scale: str, source: str, results: Path) -> str:
    """Of the log that ``read_trials`` reads; raises as ``log_of`` does."""
    return digest(_read_log(log_of(experiment, scale, source, results)))


def read_trials(experiment: str, scale: str, source: str, results: Path) -> pd.DataFrame:
    """One row per trial, with the fields of the log as columns.

    Raises NothingFound where there is no log, and UserError where it is damaged.
    """
    path = log_of(experiment, scale, source, results)
    content = _read_log(path)
    remedy = "remove that line, and make tune runs the trial again"
    found = read_records(content, _FIELDS, relative(path), "a trial", remedy)
    records = {r["id"]: {k: v for k, v in r.items() if k != "digest"} for r in found}
    if not records:
        raise NothingFound(f"{relative(path)} holds no trial yet; run make tune "
                           f"SEARCH={path.stem} SCALE={scale}")  # fmt: skip
    return pd.DataFrame(records.values())
