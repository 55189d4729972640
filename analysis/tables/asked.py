"""What there is of an experiment whose claims read a part of its runs each.

Claims and figures read whole seeds, or what an entry of ``criteria.yaml`` names under ``only``
(``find``). Who lists or explores runs wants both.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import pandas as pd
import pyarrow.parquet

from analysis.tables.criteria import criteria_of
from analysis.tables.find import RESULTS, NothingFound, find
from analysis.tables.results import Tables
from lrm.plan.experiment import NoSuchRun


def find_asked(
    experiment: str, scale: str, source: str, results: Path = RESULTS
) -> list[tuple[dict, Path]]:
    """(``run.json``, folder) of runs whose seed is whole, or has all that an entry reads.

    Raises NothingFound where there are none.
    """
    every = find(experiment, scale, source, results, "all")
    asked: set[str] = set()
    # Whole seeds first: mostly there is nothing else.
    for only in ((), *sorted(_patterns(experiment))):
        if len(asked) < len(every):
            with contextlib.suppress(NothingFound, NoSuchRun):
                found = find(experiment, scale, source, results, only=only)
                asked |= {description["id"] for description, _ in found}
    if not asked:
        return find(experiment, scale, source, results)  # tells what is incomplete
    return [(description, path) for description, path in every if description["id"] in asked]


def _patterns(experiment: str) -> set[tuple[str, ...]]:
    """What entries name under ``only``."""
    entries = criteria_of(experiment).values()
    return {tuple(entry["only"]) for entry in entries if "only" in entry}


def load_asked(
    experiment: str, scale: str = "tiny", source: str = "runs", results: Path = RESULTS
) -> Tables:
    """The tables of the runs that ``find_asked`` finds."""
    found = find_asked(experiment, scale, source, results)
    ids = {description["id"] for description, _ in found}
    every = Tables.load(experiment, scale, source, results, configuration="all")

    def of_asked(table: str) -> pd.DataFrame:
        files = {path / f"{table}.parquet" for _, path in found}
        if not any(pyarrow.parquet.read_metadata(file).num_rows for file in files):
            return every.scalars.iloc[:0]  # theory logs no vectors
        frame = getattr(every, table)
        return frame[frame["run"].isin(ids)]

    reads = (functools.partial(of_asked, table) for table in ("scalars", "vectors"))
    return Tables(every.runs[every.runs["run"].isin(ids)].reset_index(drop=True), *reads)
