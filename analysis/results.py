"""Runs on disk → one tidy table.

``load`` gives scalars (one row per measurement), ``load_vectors`` whole rows, columns and
multipliers, ``load_runs`` one row per run. Two sources: ``runs``, what this user has trained,
and ``reference``, what is published with the suite; they are never mixed.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import zlib
from collections.abc import Collection
from pathlib import Path

import pandas as pd

from lrm.compose import load as load_experiment
from lrm.errors import UserError
from lrm.rundir import is_complete, read_description

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
SOURCES = ("runs", "reference")
_COLUMNS = ["experiment", "run", "kind", "arm", "seed", "scale", "corpus"]


class NothingFound(UserError):
    """No finished run is there."""


def load(
    experiment: str,
    scale: str = "tiny",
    source: str = "runs",
    results: Path = RESULTS,
    configuration: str = "current",
    only: Collection[str] = (),
) -> pd.DataFrame:
    """The tidy frame of an experiment's finished runs.

    Columns: experiment, run, kind (train or brownian), arm, seed, scale, corpus, each grid axis,
    step, tensor, layer (missing for tensors outside layers), stat, value. Norms are root mean
    squares, losses in nats per token. ``configuration="current"`` keeps the runs that the
    experiment's YAML asks for today, of the seeds that are complete; ``"all"`` keeps every run.
    ``only``, patterns of labels as in ``run.py --only``, keeps those alone and asks for no others.

    Raises NothingFound, a UserError, where nothing is there, naming the command that makes it.
    """
    return _load("scalars", experiment, scale, source, results, configuration, only)


def load_vectors(
    experiment: str,
    scale: str = "tiny",
    source: str = "runs",
    results: Path = RESULTS,
    configuration: str = "current",
    only: Collection[str] = (),
) -> pd.DataFrame:
    """The same columns as ``load``, with ``value`` an array (row norms, multipliers, …)."""
    return _load("vectors", experiment, scale, source, results, configuration, only)


def load_runs(
    experiment: str,
    scale: str = "tiny",
    source: str = "runs",
    results: Path = RESULTS,
    configuration: str = "current",
    only: Collection[str] = (),
) -> pd.DataFrame:
    """One row per finished run: identity, grid axes, and ``description``, its ``run.json``."""
    rows = [
        {**_identity(description), "description": description}
        for description, _ in find(experiment, scale, source, results, configuration, only)
    ]
    return pd.DataFrame(rows)


def relative(path: Path) -> str:
    """``path`` as seen from the repository, where it lies inside; else as it is.

    For notebooks and errors shown in them: what is published names no folder of a machine.
    """
    inside = path.resolve().is_relative_to(ROOT)
    return path.resolve().relative_to(ROOT).as_posix() if inside else str(path)


def corpus_name(runs: pd.DataFrame) -> str:
    """The one corpus of these runs; UserError where there are several: figures never mix them."""
    names = {d["corpus"]["hash"]: d["corpus"]["name"] for d in runs["description"] if d["corpus"]}
    if len(names) != 1:
        raise UserError(
            f"these runs come from {len(names)} corpora ({', '.join(names.values())}); keep the "
            "runs of one: make clean-runs, or another RESULTS folder"
        )
    return next(iter(names.values()))


def _load(table, experiment, scale, source, results, configuration, only) -> pd.DataFrame:
    found = find(experiment, scale, source, results, configuration, only)
    if source == "reference":  # one file holds all runs
        whole = read_table(found[0][1] / f"{table}.parquet")
        of_run = dict(list(whole.drop(columns="run").groupby(whole["run"], observed=True)))
        # Vectors are published of some seeds only.
        frames = [(of_run[d["id"]], d) for d, _ in found if d["id"] in of_run]
    else:
        frames = [(read_table(path / f"{table}.parquet"), d) for d, path in found]
    return pd.concat([_with_identity(frame, d) for frame, d in frames], ignore_index=True)


def _with_identity(frame: pd.DataFrame, description: dict) -> pd.DataFrame:
    split = frame["tensor"].str.partition("@")
    rest = split[2].str.partition(".")
    suffix = rest[2].where(rest[2] == "", "." + rest[2])
    identity = _identity(description)
    columns = {name: [value] * len(frame) for name, value in identity.items()}
    return pd.DataFrame(
        {
            **columns,
            "step": frame["step"].to_numpy(),
            "tensor": (split[0] + suffix).to_numpy(),
            "layer": pd.to_numeric(rest[0], errors="coerce").astype("Int64").to_numpy(),
            "stat": frame["stat"].to_numpy(),
            "value": frame["value"].to_numpy(),
        }
    )


def _identity(description: dict) -> dict:
    corpus = description["corpus"]
    identity = {**description, "run": description["id"], "corpus": corpus and corpus["hash"]}
    return {name: identity[name] for name in _COLUMNS} | description["grid"]


def find(
    experiment: str, scale: str, source: str, results: Path, configuration: str,
    only: Collection[str] = (),
) -> list[tuple[dict, Path]]:  # fmt: skip
    """(``run.json``, folder of its tables) of every run that was asked for; see ``load``."""
    if source not in SOURCES:
        raise UserError(f"unknown source {source!r}; use one of {', '.join(SOURCES)}")
    if source == "reference":
        folder = results / "reference" / scale / experiment
        if not (folder / "runs.json.gz").exists():
            raise NothingFound(
                f"there is no reference of {experiment} at {scale} in {relative(folder)}"
            )
        found = [(description, folder) for description in _published(folder / "runs.json.gz")]
    else:
        folder = results / "runs" / experiment
        paths = [path.parent for path in sorted(folder.glob("*/done.json"))]
        found = [(read_description(path), path) for path in paths if is_complete(path)]
        found = [(d, path) for d, path in found if d["scale"] == scale]
    if configuration == "current":
        every, found = len(found), _current(experiment, scale, found, only)
        outdated = f" ({every} incomplete or of another configuration)" if every else ""
    else:
        outdated = ""
    if not found:
        raise NothingFound(
            f"no finished {source} of {experiment} at {scale} in {relative(folder)}{outdated}; run "
            f"python experiments/{experiment}/run.py --scale {scale}"
        )
    return found


def _current(
    experiment: str, scale: str, found: list[tuple[dict, Path]], only: Collection[str]
) -> list[tuple[dict, Path]]:
    """Those that the experiment's YAML asks for today, of the seeds that are complete.

    A seed of which some arm or grid point is missing would bias every comparison.
    """
    plan = load_experiment(ROOT / "experiments" / experiment / "config.yaml")
    have = {description["id"] for description, _ in found}
    seeds = sorted({d["seed"] for d, _ in found if d["kind"] == "train"})
    wanted: set[str] = set()
    for corpus in {d["corpus"]["hash"] for d, _ in found if d["corpus"]}:
        for seed in seeds:
            runs = plan.runs(scale, [seed], only=only)
            ids = {dataclasses.replace(run, corpus=corpus).id for run in runs}
            if ids <= have:
                wanted |= ids
    return [(description, path) for description, path in found if description["id"] in wanted]


def unfinished(experiment: str, scale: str, results: Path = RESULTS) -> dict[int, list[str]]:
    """Own seeds that ``load`` leaves out: by seed the labels of runs that have not finished.

    They were stopped, diverged, or have not begun while others of the seed have. Of several
    corpora a seed counts by the one of which least is missing.
    """
    folder = results / "runs" / experiment
    every = [(read_description(path.parent), path.parent) for path in folder.glob("*/run.json")]
    every = [(d, path) for d, path in every if d["scale"] == scale]
    finished = {d["id"] for d, path in every if is_complete(path)}
    begun = [d for d, _ in every if d["kind"] == "train"]
    have = {d["id"] for d in begun}
    plan = load_experiment(ROOT / "experiments" / experiment / "config.yaml")
    found: dict[int, list[str]] = {}
    for seed in sorted({d["seed"] for d in begun}):
        runs, of_corpora = plan.runs(scale, [seed]), []
        for corpus in {d["corpus"]["hash"] for d in begun}:
            labels = {dataclasses.replace(run, corpus=corpus).id: run.label for run in runs}
            if labels.keys() & have:
                of_corpora.append([label for id, label in labels.items() if id not in finished])
        if missing := min(of_corpora, key=len, default=[]):
            found[seed] = missing
    return found


def _published(path: Path) -> list[dict]:
    try:
        return json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{path} is damaged ({error}); restore it from the repository") from None


def read_table(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is missing or damaged ({error}); remove {path.parent} and run again"
        ) from None
