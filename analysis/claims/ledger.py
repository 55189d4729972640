"""Every claim's record: its criterion, what its judge found, and the verdict.

The claim ``M5a`` of ``experiments/mlp_scale/criteria.yaml`` is judged by the function ``m5a`` of
``analysis/claims/mlp_scale.py``, given the experiment's ``Tables`` and its entry of that file.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.claims import bench
from analysis.claims.judging import OPEN, TESTED, UNJUDGED, Component, Judgement
from analysis.tables.criteria import every_criterion
from analysis.tables.find import NothingFound, unfinished
from analysis.tables.results import FIRST_JUDGING_SEED, Tables, corpus_name
from lrm.plan.identity import criterion_hash
from lrm.store.files import make_folder, read_json, write_json

Judge = Callable[[Tables, dict], Judgement]


def judge_of(experiment: str, claim: str) -> Judge | None:
    """The function that judges a claim of an experiment; None where nobody has written it."""
    name = f"analysis.claims.{experiment}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
    return getattr(module, claim.lower(), None)


def left_out(scale: str, folder: Path) -> list[str]:
    """A line a seed of own runs that is judged nowhere: who reads means over seeds must know."""
    criteria = every_criterion().values()
    experiments = dict.fromkeys(c["experiment"] for c in criteria if "experiment" in c)
    return [
        f"left out: {experiment}, seed {seed}: stopped, diverged or not begun: {labels[0]}"
        + (f" and {len(labels) - 1} more" if len(labels) > 1 else "")
        for experiment in experiments
        for seed, labels in unfinished(experiment, scale, folder).items()
    ]


def judge_and_write(scale: str, source: str, folder: Path) -> tuple[list[dict[str, Any]], Path]:
    """``judge_all``, and claims.json beside the figures of that source."""
    records = judge_all(scale, source, folder)
    target = make_folder(folder / ("figures" if source == "runs" else "reference") / scale)
    write_json(target / "claims.json", records)
    return records, target / "claims.json"


def of_experiments(
    experiments: Collection[str], scale: str, source: str, folder: Path
) -> pd.DataFrame:
    """The claims that ``experiments`` decide, by id: the records of ``judge_all`` as a table.

    Of the reference, what is published in claims.json; of own runs, what they say now.
    """
    if source == "reference":
        criteria = every_criterion()
        records = [
            record
            for record in read_json(folder / "reference" / scale / "claims.json")
            if criteria.get(record["id"], {}).get("experiment") in experiments
        ]
    else:
        records = judge_all(scale, source, folder, experiments)
    return pd.DataFrame(records).set_index("id")


def judge_all(
    scale: str, source: str, folder: Path, experiments: Collection[str] = ()
) -> list[dict[str, Any]]:
    """One record per claim; claims without runs are ``not judged``.

    Fields: id, statement, scale, value, interval, n, criterion, verdict; then stage
    (exploration or judging), components and a note. ``experiments``: their claims alone.
    """
    criteria = every_criterion()
    if experiments:
        criteria = {k: c for k, c in criteria.items() if c.get("experiment") in experiments}
    tables_of = cache(lambda experiment: _tables(experiment, scale, source, folder))
    verdicts: dict[str, str] = {}
    records = []
    for claim, criterion in criteria.items():
        record = {"id": claim, "statement": criterion["statement"], "scale": scale}
        if "experiment" in criterion:
            tables = tables_of(criterion["experiment"])
            record |= _of_experiment(claim, criterion, tables, verdicts)
            verdicts[claim] = record["verdict"]
        else:
            record |= _apart(claim, criterion, source, folder)
        records.append(record)
    return records


def _tables(experiment: str, scale: str, source: str, folder: Path) -> Tables | None:
    """Of the seeds that judge alone, where there are any."""
    try:
        tables = Tables.load(experiment, scale, source, folder)
    except NothingFound:
        return None
    corpus_name(tables.runs)  # one corpus, or an error
    return tables.judging()


def _of_experiment(
    claim: str, criterion: dict, tables: Tables | None, verdicts: dict[str, str]
) -> dict[str, Any]:
    """``verdicts`` are those of the claims before this one, which may be its gates."""
    experiment = criterion["experiment"]
    if tables is None:
        return _without(criterion, UNJUDGED, f"no runs of {experiment}")
    judge = judge_of(experiment, claim)
    if judge is None:
        missing = f"no function {claim.lower()} in analysis/claims/{experiment}.py"
        return _without(criterion, UNJUDGED, missing)
    gates = {gate: verdicts.get(gate, UNJUDGED) for gate in criterion.get("gates", [])}
    judgement = dataclasses.replace(judge(tables, criterion), gates=gates)
    stage = "judging" if min(tables.seeds) >= FIRST_JUDGING_SEED else "exploration"
    record = _record(judgement, criterion, stage)
    if stage == "judging" and _criterion_changed(tables, claim, criterion):
        record["verdict"] = OPEN
        record["note"] = "the criterion changed after these seeds ran: run new seeds"
    return record


def _apart(claim: str, criterion: dict, source: str, folder: Path) -> dict[str, Any]:
    """A claim that no experiment decides, but the benchmark or the tests; of no scale."""
    if "tests" in criterion:
        note = "asserted by " + ", ".join(criterion["tests"])
        return _without(criterion, TESTED, note) | {"scale": None}
    found = bench.record(source, folder, criterion["bench"])
    if found is None:
        return _without(criterion, UNJUDGED, "no record of make bench") | {"scale": None}
    judgement = judge_of("bench", claim)(found, criterion)
    return _record(judgement, criterion, None) | {"scale": None}


def _without(criterion: dict, verdict: str, note: str) -> dict[str, Any]:
    empty = {"value": None, "interval": None, "n": 0, "criterion": criterion["criterion"]}
    return empty | {"verdict": verdict, "stage": None, "note": note}


def _criterion_changed(tables: Tables, claim: str, criterion: dict) -> bool:
    now = criterion_hash(criterion)
    return any(d["criteria"].get(claim) != now for d in tables.trained["description"])


def _record(judgement: Judgement, criterion: dict, stage: str | None) -> dict[str, Any]:
    components = [_component(c, judgement.minimum) for c in judgement.components]
    contrast = [_component(c, judgement.minimum) for c in judgement.contrast]
    first = components[0] if components else {"value": None, "interval": None, "n": 0}
    return {
        "value": first["value"],
        "interval": first["interval"],
        "n": first["n"],
        "criterion": criterion["criterion"],
        "verdict": judgement.verdict,
        "stage": stage,
        "components": components,
        "contrast": contrast,
        "note": judgement.note,
    }


def _component(component: Component, minimum: int) -> dict[str, Any]:
    return {
        "name": component.name,
        "part": component.part,
        "value": component.interval.mean,
        "interval": _finite([component.interval.low, component.interval.high]),
        "n": component.interval.n,
        "required": f"{'>=' if component.at_least else '<='} {component.threshold:g}",
        "holds": component.holds(minimum),
    }


def _finite(pair: list[float]) -> list[float] | None:
    return pair if all(map(math.isfinite, pair)) else None
