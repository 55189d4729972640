"""What there is to explore, and which runs of it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.tables.asked import load_asked
from analysis.tables.context import Context
from analysis.tables.find import RESULTS, NothingFound, relative
from analysis.tables.results import corpus_name, seeded
from analysis.tables.run_list import RUN_LIST
from lrm.errors import UserError

# What tells a run from another, in every table of this package.
IDENTITY = ["run", "kind", "arm", "point", "seed", "label"]


def experiments(scale: str, source: str, results: Path = RESULTS) -> pd.DataFrame:
    """One row per experiment that has a folder there, by name: runs, arms, grid axes, seeds.

    ``note`` says why an experiment has no runs to show. Raises NothingFound where none has.
    """
    root = results / "runs" if source == "runs" else results / source / scale
    pattern = "*/*/run.json" if source == "runs" else f"*/{RUN_LIST}"
    rows = []
    for name in sorted({path.relative_to(root).parts[0] for path in root.glob(pattern)}):
        try:
            runs, note = named(load_asked(name, scale, source, results).runs), ""
        except UserError as error:
            runs, note = _NO_RUNS, str(error)
        own = seeded(runs)
        rows.append(
            {
                "experiment": name,
                "runs": len(own),
                "arms": _few(own["arm"].unique()),
                "grid": _axes(own.get("description", ())),
                "seeds": _stretches(own["seed"].unique()),
                "Brownian": len(runs) - len(own),
                "note": note,
            }
        )
    if not any(row["runs"] + row["Brownian"] for row in rows):
        raise NothingFound(
            f"no finished {source} at {scale} in {relative(root)}; run "
            f"python experiments/projector/run.py --scale {scale}"
        )
    return pd.DataFrame(rows).set_index("experiment")


def _few(names: Collection[str], most: int = 6) -> str:
    """The first of many names, and how many there are beside them."""
    listed = ", ".join(map(str, list(names)[:most]))
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"


def _axes(descriptions: Collection[dict]) -> str:
    """Each axis of the grids with the range of its values, or with its few values."""
    axes: dict[str, set] = {}
    for description in descriptions:
        for name, value in description["grid"].items():
            axes.setdefault(name, set()).add(value)
    said = []
    for name, found in axes.items():
        values = [_shown(value) for value in sorted(found, key=_sortable)]
        ends = f"{values[0]} to {values[-1]} ({len(values)})"
        words = len(values) <= 2 or any(isinstance(value, str) for value in found)
        said.append(f"{name} {_few(values) if words else ends}")
    return "; ".join(said)


def _stretches(seeds: Collection[int]) -> str:
    """Seeds in order; those that follow each other by the first and the last of them."""
    seeds = sorted(map(int, seeds))
    starts = [seed for seed in seeds if seed - 1 not in seeds]
    ends = [seed for seed in seeds if seed + 1 not in seeds]
    pairs = zip(starts, ends, strict=True)
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in pairs)


def default_experiment(there: pd.DataFrame) -> str:
    """``projector`` if it has runs, else the first of ``experiments`` that has."""
    names = list(there.index[there["runs"] + there["Brownian"] > 0])
    return "projector" if "projector" in names else names[0]


def named(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs in order of kind, arm, grid point and seed, with their names.

    Adds ``point``, such as ``S=0.25`` (empty without a grid), and ``label``, arm and point. Where
    several runs are alike in all these, their labels end in the run's id.
    """
    if "label" in runs:
        return runs
    grids = [description["grid"] for description in runs["description"]]
    order = sorted(
        range(len(runs)),
        key=lambda i: (
            runs["kind"].iloc[i] != "train",
            runs["arm"].iloc[i],
            [(name, *_sortable(value)) for name, value in grids[i].items()],
            runs["seed"].iloc[i],
            runs["run"].iloc[i],
        ),
    )
    points = pd.Series([_point(grid) for grid in grids], index=runs.index, dtype=str)
    labelled = runs.assign(point=points, label=(runs["arm"] + " " + points).str.strip())
    alike = labelled.duplicated(["kind", "arm", "point", "seed"], keep=False)
    labelled.loc[alike, "label"] += " " + labelled.loc[alike, "run"].str[:6]
    return labelled.iloc[order].reset_index(drop=True)


_NO_RUNS = pd.DataFrame({name: [] for name in IDENTITY})


def _point(grid: dict) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in grid.items())


def _shown(value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sortable(value) -> tuple:
    """Numbers before words; a grid axis may hold both."""
    return (0, value, "") if isinstance(value, int | float) else (1, 0, str(value))


def choices(table: pd.DataFrame) -> pd.DataFrame:
    """One row per tensor and statistic of ``load`` or ``load_vectors``, in the order logged.

    ``layers`` lists the layers (empty for tensors outside them), ``runs`` counts the runs that
    log it, ``steps`` is the largest number of steps in any of them.
    """
    grouped = table.groupby(["tensor", "stat"], sort=False, observed=True)
    layers = grouped["layer"].agg(lambda values: sorted(map(int, values.dropna().unique())))
    steps = table.groupby(["tensor", "stat", "run"], sort=False, observed=True)["step"].nunique()
    steps = steps.groupby(level=["tensor", "stat"], sort=False, observed=True).max()
    columns = {"layers": layers, "runs": grouped["run"].nunique(), "steps": steps}
    return pd.DataFrame(columns).reset_index()


def kept(scalars: pd.DataFrame, vectors: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """What the tables hold of each seed.

    The columns count the tensors with a whole course (as many steps as any seed has of that arm
    and grid point), those with only some steps, and those with vectors; and list these steps.
    """
    runs = named(runs)
    own = seeded(runs)[["run", "point"]]
    frame = scalars.merge(own, on="run")
    series = ["arm", "point", "tensor"]
    steps = frame.groupby([*series, "seed"], observed=True)["step"].nunique().rename("steps")
    whole = steps == steps.groupby(level=series, observed=True).transform("max")
    frame = frame.join(whole.rename("whole"), on=[*series, "seed"])
    by_seed = {}
    for seed, rows in frame.groupby("seed"):
        partly = rows[~rows["whole"]]
        of_vectors = vectors[vectors["run"].isin(rows["run"].unique())]
        by_seed[seed] = {
            "runs": rows["run"].nunique(),
            "tensors over training": rows["tensor"].nunique() - partly["tensor"].nunique(),
            "tensors at some steps": partly["tensor"].nunique(),
            "those steps": _listed(partly["step"]),
            "tensors with vectors": of_vectors["tensor"].nunique(),
            "steps of vectors": _listed(of_vectors["step"]),
        }
    return pd.DataFrame.from_dict(by_seed, orient="index").rename_axis("seed")


def _listed(steps: pd.Series, most: int = 6) -> str:
    values = sorted(map(int, steps.unique()))
    if len(values) > most:
        return f"{len(values)} from {values[0]} to {values[-1]}"
    return ", ".join(map(str, values))


def select(
    runs: pd.DataFrame,
    arms: str | Collection[str] | None = None,
    points: str | Collection[str] | None = None,
    seeds: int | Collection[int] | None = None,
    brownian: bool = True,
) -> pd.DataFrame:
    """The runs of these arms, grid points (as in ``point``) and seeds, in order; None: all.

    One of each may stand by itself. ``brownian`` keeps the Brownian motions of those arms and
    points. Raises UserError where a name is unknown or no run is left, naming what there is.
    """
    runs = named(runs)
    noise = runs["kind"] == "brownian"
    there = {
        "arms": list(runs["arm"].unique()),
        "points": [point for point in runs["point"].unique() if point],
        "seeds": sorted(map(int, runs.loc[~noise, "seed"].unique())),
    }
    asked = {"arms": _many(arms), "points": _many(points), "seeds": _many(seeds)}
    listed = "; ".join(f"{name}: {', '.join(map(str, v))}" for name, v in there.items())
    for name, values in asked.items():
        # Runs without a grid have the empty point.
        unknown = [value for value in values or () if value not in there[name] and value != ""]
        if unknown:
            raise UserError(f"there is none of {', '.join(map(str, unknown))}; there are {listed}")
    wanted = pd.Series(True, index=runs.index)
    for column, values in (("arm", asked["arms"]), ("point", asked["points"])):
        if values is not None:
            wanted &= runs[column].isin(values)
    of_seeds = True if asked["seeds"] is None else runs["seed"].isin(asked["seeds"])
    selected = runs[wanted & np.where(noise, brownian, of_seeds)]
    if selected.empty:
        raise UserError(f"no run is of these arms, points and seeds; there are {listed}")
    return selected


def _many(values: str | int | Collection | None) -> list | None:
    """Names or seeds as a list, also of one that stands by itself."""
    if values is None:
        return None
    return [values] if isinstance(values, str | int | np.integer) else list(values)


def default_runs(runs: pd.DataFrame, arms: int = 2, points: int = 2) -> pd.DataFrame:
    """A choice for a page: few arms, few grid points of each, the first seed.

    Both are spread evenly, the first and the last included. Brownian motions of those come along.
    Of five points and more the outermost are left out: a sweep goes further than what is judged
    of it.
    """
    runs = named(runs)
    own = seeded(runs)
    if own.empty:
        return runs.head(arms * points)
    own = own[own["seed"] == own["seed"].min()]
    pairs = set()
    for arm in _spread(own["arm"].unique(), arms):
        there = own.loc[own["arm"] == arm, "point"].unique()
        there = there[1:-1] if len(there) > 4 else there
        pairs |= {(arm, point) for point in _spread(there, points)}
    chosen = pd.Series(
        [pair in pairs for pair in zip(runs["arm"], runs["point"], strict=True)], index=runs.index
    )
    return runs[chosen & ((runs["kind"] == "brownian") | runs["run"].isin(own["run"]))]


def _spread(values: np.ndarray, most: int) -> list:
    return [values[int(i)] for i in np.linspace(0, len(values) - 1, min(len(values), most))]


def about(runs: pd.DataFrame, scale: str, source: str) -> Context:
    """What a drawing of these runs states: scale, seeds, corpus, whose.

    Brownian motions alone have no seeds and no corpus. Raises UserError where there are
    several corpora.
    """
    own = seeded(runs)
    corpus = corpus_name(own)
    return Context(scale, sorted(map(int, own["seed"].unique())), corpus, source)
