"""Runs on disk → tidy tables: one row per run, one per measurement, one per vector.

Losses are in nats per token, and norms are root mean squares.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.tables.checked import checked
from analysis.tables.find import RESULTS, find
from lrm.cli import FIRST_JUDGING_SEED as FIRST_JUDGING_SEED
from lrm.errors import UserError

# Rows are chosen from tables again and again; of texts that Arrow keeps that copies every letter.
pd.set_option("mode.string_storage", "python")

_IDENTITY = ["experiment", "run", "kind", "arm", "seed", "scale", "corpus"]


class Tables:
    """What the runs of an experiment measured; files are read when first asked for.

    Quantities are functions of this, and may keep their results in it (``kept``).
    """

    def __init__(
        self,
        runs: pd.DataFrame,
        scalars: pd.DataFrame | Callable[[], pd.DataFrame],
        vectors: pd.DataFrame | Callable[[], pd.DataFrame] | None = None,
    ):
        self.runs = runs
        self._given = {"scalars": scalars, "vectors": vectors}
        self.kept: dict[tuple, object] = {}
        self._codes: dict[tuple[str, str], tuple[np.ndarray, pd.Index]] = {}

    @classmethod
    def load(
        cls,
        experiment: str,
        scale: str = "tiny",
        source: str = "runs",
        results: Path = RESULTS,
        configuration: str = "current",
        only: Collection[str] = (),
    ) -> Tables:
        """The tables of the runs that ``find`` finds, whose arguments these are."""
        runs = find(experiment, scale, source, results, configuration, only)
        described = [_identity(d) | {"description": d} for d, _ in runs]
        reads = (functools.partial(_read, table, runs) for table in ("scalars", "vectors"))
        return cls(pd.DataFrame(described), *reads)

    def of_seeds(self, seeds: Collection[int]) -> Tables:
        """The tables of these seeds alone; Brownian motions serve all seeds."""
        chosen = self.runs[(self.runs["kind"] == "brownian") | self.runs["seed"].isin(seeds)]

        def of_chosen(table: str) -> pd.DataFrame:
            frame = getattr(self, table)
            return frame[frame["run"].isin(chosen["run"])]

        reads = (functools.partial(of_chosen, table) for table in ("scalars", "vectors"))
        return Tables(chosen, *reads)

    @cached_property
    def scalars(self) -> pd.DataFrame:
        """One row per measurement.

        Columns: experiment, run, kind (train, brownian, …), arm, seed, scale, corpus, each axis of
        the grid, step, tensor, layer (missing for tensors outside layers), stat, value.
        """
        return self._table("scalars")

    @cached_property
    def vectors(self) -> pd.DataFrame:
        """One row per vector. Columns as in ``scalars``; ``value`` is an array (row norms, …)."""
        return self._table("vectors")

    def _table(self, name: str) -> pd.DataFrame:
        given = self._given[name]
        return given() if callable(given) else given

    def pick(self, **columns) -> pd.DataFrame:
        """The rows of ``scalars`` in which each column has this value, or one of this tuple."""
        return self._pick("scalars", columns)

    def pick_vectors(self, **columns) -> pd.DataFrame:
        """The rows of ``vectors``, in the same way."""
        return self._pick("vectors", columns)

    def _pick(self, table: str, columns: dict) -> pd.DataFrame:
        """Compares each column as small integers, which it makes once."""
        frame = getattr(self, table)
        chosen = np.ones(len(frame), dtype=bool)
        for column, values in columns.items():
            if (table, column) not in self._codes:
                codes, there = pd.factorize(frame[column])
                self._codes[table, column] = codes, pd.Index(there)
            codes, there = self._codes[table, column]
            values = values if isinstance(values, tuple) else (values,)
            chosen &= np.append(there.isin(values), False)[codes]  # a missing value has code -1
        return frame[chosen]

    @property
    def trained(self) -> pd.DataFrame:
        """The trained ones of ``runs``."""
        return self.runs[self.runs["kind"] == "train"]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the trained runs."""
        return sorted(self.trained["seed"].unique())

    @cached_property
    def settings(self) -> dict:
        """The settings of the first trained run (those that arms share are everyone's)."""
        return self.trained.iloc[0]["description"]["settings"]

    @property
    def stage_end(self) -> int:
        """The step at which the constant stage of the first trained run ends."""
        return stage_end(self.settings)


def kept(quantity):
    """Compute a function of ``Tables`` and hashable arguments once for the same tables.

    It may also be a method of an object that has ``tables``. Who calls it must not change what it
    returns.
    """

    @functools.wraps(quantity)
    def once(owner, *arguments, **named):
        results = getattr(owner, "tables", owner).kept
        key = (quantity, arguments, tuple(named.items()))
        if key not in results:
            results[key] = quantity(owner, *arguments, **named)
        return results[key]

    return once


def load(*arguments, **named) -> pd.DataFrame:
    """``Tables.load(…).scalars``."""
    return Tables.load(*arguments, **named).scalars


def load_vectors(*arguments, **named) -> pd.DataFrame:
    """``Tables.load(…).vectors``."""
    return Tables.load(*arguments, **named).vectors


def load_runs(*arguments, **named) -> pd.DataFrame:
    """``Tables.load(…).runs``."""
    return Tables.load(*arguments, **named).runs


def stage_end(settings: dict) -> int:
    """The step at which the constant stage of a run of these settings ends."""
    return settings["train"]["steps"] - settings["schedule"]["decay_steps"]


def seeded(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that belong to one seed: all but Brownian motions."""
    return runs[runs["kind"] != "brownian"]


def corpus_name(runs: pd.DataFrame) -> str:
    """The one corpus of these runs, or ``none`` where none of them reads text.

    UserError where there are several: figures never mix them.
    """
    names = {d["corpus"]["hash"]: d["corpus"]["name"] for d in runs["description"] if d["corpus"]}
    if len(names) > 1:
        raise UserError(
            f"these runs come from {len(names)} corpora ({', '.join(names.values())}); keep the "
            "runs of one: make clean-runs, or another RESULTS folder"
        )
    return next(iter(names.values()), "none")


def read_table(path: Path) -> pd.DataFrame:
    """A Parquet file; UserError where it is missing or damaged."""
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is missing or damaged ({error}); remove {path.parent} and run again"
        ) from None


read_table = checked(read_table)


def _read(table: str, runs: list[tuple[dict, Path]]) -> pd.DataFrame:
    """The scalars or vectors of these runs, in their order."""
    folders = dict.fromkeys(folder for _, folder in runs)
    frames = [read_table(folder / f"{table}.parquet") for folder in folders]
    whole = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    if "run" in whole:  # what is published stands in one file
        codes, ids = pd.factorize(whole["run"])
        place = pd.Index([d["id"] for d, _ in runs]).get_indexer(ids)[codes]
        order = np.argsort(place, kind="stable")
        order = order[place[order] >= 0]
        whole, place = whole.iloc[order], place[order]
    else:
        place = np.repeat(np.arange(len(runs)), list(map(len, frames)))
    identity = pd.DataFrame([_identity(description) for description, _ in runs])
    codes, names = pd.factorize(whole["tensor"])
    tensors, layers = zip(*map(_split, names), strict=True)
    stats, stat_names = pd.factorize(whole["stat"])
    return (
        identity.take(place)
        .reset_index(drop=True)
        .assign(
            step=whole["step"].to_numpy(),
            tensor=pd.array(tensors, dtype="str").take(codes),
            layer=np.array(layers)[codes],
            stat=pd.array(list(stat_names), dtype="str").take(stats),
            value=whole["value"].to_numpy(),
        )
    )


def _split(name: str) -> tuple[str, float]:
    """``mlp.up@3.row`` as ``mlp.up.row`` and 3; nan outside of layers."""
    base, _, rest = name.partition("@")
    layer, dot, part = rest.partition(".")
    return base + dot + part, float(layer or math.nan)


def _identity(description: dict) -> dict:
    corpus = description["corpus"]
    identity = {**description, "run": description["id"], "corpus": corpus and corpus["hash"]}
    return {name: identity[name] for name in _IDENTITY} | description["grid"]
