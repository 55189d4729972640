"""Which finished runs there are: a user's own, or those published with the suite."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from analysis.tables.checked import complete
from analysis.tables.run_list import RUN_LIST, read_run_list
from lrm.errors import UserError, printable
from lrm.plan.experiment import load
from lrm.plan.run import BrownianRun
from lrm.store.rundir import is_complete, read_description

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
EXPERIMENTS = ROOT / "experiments"
SOURCES = ("runs", "reference")


class NothingFound(UserError):
    """No finished run is there."""


def relative(path: Path) -> str:
    """``path`` as seen from the repository, where it lies inside; else as it is.

    For notebooks and errors shown in them: what is published names no folder of a machine.
    """
    inside = path.resolve().is_relative_to(ROOT)
    return path.resolve().relative_to(ROOT).as_posix() if inside else str(path)


def find(
    experiment: str,
    scale: str,
    source: str,
    results: Path,
    configuration: str = "current",
    only: Collection[str] = (),
) -> list[tuple[dict, Path]]:
    """(``run.json``, folder of its tables) of every run that was asked for.

    ``source`` is ``runs``, what this user has trained, or ``reference``, what is published; they
    are never mixed. ``configuration="current"`` keeps the runs that the experiment's YAML asks for
    today, of the seeds that are complete; ``"all"`` keeps every run. ``only``, patterns of labels
    as in ``run.py --only``, keeps those alone and asks for no others.

    Raises NothingFound, a UserError, where nothing is there, naming the command that makes it.
    """
    if source not in SOURCES:
        raise UserError(f"unknown source {source!r}; use one of {', '.join(SOURCES)}")
    if source == "reference":
        folder = results / "reference" / scale / experiment
        if not (folder / RUN_LIST).exists():
            raise NothingFound(
                f"there is no reference of {experiment} at {scale} in {relative(folder)}"
            )
        runs = [(description, folder) for description in read_run_list(folder / RUN_LIST)]
    else:
        folder = results / "runs" / experiment
        paths = [path.parent for path in sorted(folder.glob("*/done.json"))]
        runs = [(read_description(path), path) for path in paths if is_complete(path)]
        runs = [(d, path) for d, path in runs if d["scale"] == scale]
    outdated = ""
    if configuration == "current":
        if runs:
            outdated = f" ({len(runs)} incomplete or of another configuration)"
        runs = _current(experiment, scale, runs, only)
    if not runs:
        raise NothingFound(
            f"no finished {source} of {experiment} at {scale} in {relative(folder)}{outdated}; run "
            f"python experiments/{experiment}/run.py --scale {scale}"
        )
    return runs


def _current(
    experiment: str, scale: str, runs: list[tuple[dict, Path]], only: Collection[str]
) -> list[tuple[dict, Path]]:
    """The runs that the experiment's YAML asks for today, of the seeds that are complete.

    A seed of which some arm or grid point is missing would bias every comparison.
    """
    have = {description["id"] for description, _ in runs}
    wanted: set[str] = set()
    for _, labels in _asked_for(experiment, scale, [d for d, _ in runs], only):
        if labels.keys() <= have:
            wanted |= labels.keys()
    return [(description, path) for description, path in runs if description["id"] in wanted]


def _asked_for(
    experiment: str, scale: str, descriptions: list[dict], only: Collection[str] = ()
) -> Iterator[tuple[int, dict[str, str]]]:
    """(seed, labels by id) of the runs that the YAML asks for, for each seed and corpus in
    ``descriptions``; Brownian motions belong to every seed."""
    begun = [description for description in descriptions if description["kind"] != "brownian"]
    seeds = sorted({description["seed"] for description in begun})
    if not seeds:
        return
    runs = load(EXPERIMENTS / experiment / "config.yaml").runs(scale, seeds, only=only)
    # None where no run reads a corpus.
    for corpus in {d["corpus"]["hash"] for d in begun if d["corpus"]} or {None}:
        ids = [(run, dataclasses.replace(run, corpus=corpus).id) for run in runs]
        for seed in seeds:
            yield seed, {id: run.label for run, id in ids
                         if isinstance(run, BrownianRun) or run.seed == seed}  # fmt: skip


def unfinished(experiment: str, scale: str, results: Path = RESULTS) -> dict[int, list[str]]:
    """Own seeds that ``find`` leaves out: by seed the labels of runs that have not finished.

    They were stopped, diverged, or have not begun while others of the seed have. Of several
    corpora a seed counts by the one of which least is missing.
    """
    folder = results / "runs" / experiment
    every = [(read_description(path.parent), path.parent) for path in folder.glob("*/run.json")]
    every = [(d, path) for d, path in every if d["scale"] == scale]
    finished = {d["id"] for d, path in every if is_complete(path)}
    have = {d["id"] for d, _ in every if d["kind"] != "brownian"}
    missing: dict[int, list[list[str]]] = {}
    for seed, labels in _asked_for(experiment, scale, [d for d, _ in every]):
        if labels.keys() & have:
            left = [label for id, label in labels.items() if id not in finished]
            missing.setdefault(seed, []).append(left)
    least = {seed: min(of_corpora, key=len) for seed, of_corpora in missing.items()}
    return {seed: labels for seed, labels in least.items() if labels}


def left_out_line(experiment: str, seed: int, labels: Sequence[str]) -> str:
    """What is told of a seed of ``unfinished``."""
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return (
        f"left out: {experiment}, seed {seed}: stopped, diverged or not begun: "
        f"{printable(labels[0])}{more}"
    )


find = complete(find)
