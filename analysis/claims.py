"""``python -m analysis.claims``: judge every claim whose runs are there, by criteria.yaml.

Seeds below 100 explore, seeds from 100 on judge; they are never mixed. With exploration seeds
the same numbers are shown, and the stage is named beside the verdict. A claim on cost names a
record of the benchmark instead of an experiment, and an identity the tests that assert it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import (
    bench_claims,
    equilibrium_claims,
    grad_clipping_claims,
    gradient_noise_claims,
    mlp_scale_claims,
    multiplier_lr_claims,
    projector_claims,
    results,
    scale_diversity_claims,
    symmetry_claims,
    table1_claims,
    width_scaling_claims,
)
from analysis.criteria import CRITERIA, FIRST_JUDGING_SEED
from analysis.judging import OPEN, TESTED, UNJUDGED, Component, Judgement
from lrm.compose import read_yaml
from lrm.experiment import criterion_hash, guarded
from lrm.rundir import make_folder, read_json, write_json

JUDGES = {
    **projector_claims.JUDGES,
    **equilibrium_claims.JUDGES,
    **multiplier_lr_claims.JUDGES,
    **mlp_scale_claims.JUDGES,
    **grad_clipping_claims.JUDGES,
    **gradient_noise_claims.JUDGES,
    **scale_diversity_claims.JUDGES,
    **symmetry_claims.JUDGES,
    **width_scaling_claims.JUDGES,
}
# Of whole rows, columns and multipliers too.
VECTOR_JUDGES = {
    **mlp_scale_claims.VECTOR_JUDGES,
    **scale_diversity_claims.VECTOR_JUDGES,
    **symmetry_claims.VECTOR_JUDGES,
    **table1_claims.VECTOR_JUDGES,
}
VECTOR_TENSORS = (
    mlp_scale_claims.VECTOR_TENSORS
    | scale_diversity_claims.VECTOR_TENSORS
    | symmetry_claims.VECTOR_TENSORS
    | table1_claims.VECTOR_TENSORS
)


def main() -> None:
    """Parse the command line, print a table, write claims.json beside the figures."""
    parser = argparse.ArgumentParser(prog="python -m analysis.claims")
    parser.add_argument("--scale", default="tiny")
    parser.add_argument(
        "--source",
        default="reference",
        choices=results.SOURCES,
        help="runs (yours) or reference (published)",
    )
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    options = parser.parse_args()
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    records, path = judge_and_write(options.scale, options.source, options.results)
    print(text(records))
    whose = {"runs": "your own runs", "reference": "the published reference"}[options.source]
    if options.source == "runs":
        for line in left_out(options.scale, options.results):
            print(line)
    print(f"\njudged from {whose}; wrote {path}")


def left_out(scale: str, folder: Path) -> list[str]:
    """A line a seed of own runs that is judged nowhere: who reads means over seeds must know."""
    criteria = read_yaml(CRITERIA).values()
    experiments = dict.fromkeys(c["experiment"] for c in criteria if "experiment" in c)
    return [
        f"left out: {experiment}, seed {seed}: stopped, diverged or not begun: {labels[0]}"
        + (f" and {len(labels) - 1} more" if len(labels) > 1 else "")
        for experiment in experiments
        for seed, labels in results.unfinished(experiment, scale, folder).items()
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
        criteria = read_yaml(CRITERIA)
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
    """One record per claim of criteria.yaml; claims without runs are ``not judged``.

    Fields: id, statement, scale, value, interval, n, criterion, verdict; then stage
    (exploration or judging), components and a note. ``experiments``: their claims alone.
    """
    criteria = read_yaml(CRITERIA)
    if experiments:
        criteria = {k: c for k, c in criteria.items() if c.get("experiment") in experiments}
    loaded: dict[str, tuple | None] = {}
    verdicts: dict[str, str] = {}
    records = []
    for claim, criterion in criteria.items():
        record = {"id": claim, "statement": criterion["statement"], "scale": scale}
        if "experiment" not in criterion:
            records.append(record | _apart(claim, criterion, source, folder))
            continue
        experiment = criterion["experiment"]
        if experiment not in loaded:
            loaded[experiment] = _load(experiment, scale, source, folder)
        if loaded[experiment] is None:
            records.append(record | _without(criterion, UNJUDGED, f"no runs of {experiment}"))
            continue
        frame, vectors, runs, stage = loaded[experiment]
        if claim in VECTOR_JUDGES:
            judgement = VECTOR_JUDGES[claim](frame, vectors(), runs, criterion)
        else:
            judgement = JUDGES[claim](frame, runs, criterion)
        gates = {gate: verdicts.get(gate, UNJUDGED) for gate in criterion.get("gates", [])}
        judgement = dataclasses.replace(judgement, gates=gates)
        changed = stage == "judging" and _criterion_changed(runs, claim, criterion)
        record |= _record(judgement, criterion, stage)
        if changed:
            record["verdict"] = OPEN
            record["note"] = "the criterion changed after these seeds ran: run new seeds"
        verdicts[claim] = record["verdict"]
        records.append(record)
    return records


def _apart(claim: str, criterion: dict, source: str, folder: Path) -> dict[str, Any]:
    """A claim that no experiment decides, but the benchmark or the tests; of no scale."""
    if "tests" in criterion:
        note = "asserted by " + ", ".join(criterion["tests"])
        return _without(criterion, TESTED, note) | {"scale": None}
    found = bench_claims.record(source, folder, criterion["bench"])
    if found is None:
        return _without(criterion, UNJUDGED, "no record of make bench") | {"scale": None}
    judgement = bench_claims.JUDGES[claim](found, criterion)
    return _record(judgement, criterion, None) | {"scale": None}


def _without(criterion: dict, verdict: str, note: str) -> dict[str, Any]:
    empty = {"value": None, "interval": None, "n": 0, "criterion": criterion["criterion"]}
    return empty | {"verdict": verdict, "stage": None, "note": note}


def _load(experiment: str, scale: str, source: str, folder: Path) -> tuple | None:
    try:
        frame = results.load(experiment, scale, source, folder)
    except results.NothingFound:
        return None
    runs = results.load_runs(experiment, scale, source, folder)
    results.corpus_name(runs)  # one corpus, or an error
    trained = runs[runs["kind"] == "train"]
    judging = trained["seed"].ge(FIRST_JUDGING_SEED).any()

    def chosen(table: pd.DataFrame) -> pd.DataFrame:
        late = table["seed"] >= FIRST_JUDGING_SEED
        return table[(late == judging) | (table["kind"] == "brownian")]

    @functools.cache
    def vectors() -> pd.DataFrame:
        return chosen(results.load_vectors(experiment, scale, source, folder))

    return chosen(frame), vectors, chosen(runs), "judging" if judging else "exploration"


def _criterion_changed(runs: pd.DataFrame, claim: str, criterion: dict) -> bool:
    now = criterion_hash(criterion)
    return any(
        description["criteria"].get(claim) != now
        for description, kind in zip(runs["description"], runs["kind"], strict=True)
        if kind == "train"
    )


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


def text(records: list[dict[str, Any]]) -> str:
    """A table for the terminal."""
    lines = []
    for record in records:
        stage = f" ({record['stage']} seeds)" if record["stage"] else ""
        lines.append(f"{record['id']:<4} {record['verdict']}{stage}: {record['statement']}")
        for component in record.get("components", []) + record.get("contrast", []):
            interval = component["interval"]
            spread = f" [{interval[0]:.3g}, {interval[1]:.3g}]" if interval else ""
            mark = {True: "+", False: "-", None: "?"}[component["holds"]]
            lines.append(
                f"     {mark} {component['name']}: {component['value']:.3g}{spread}, "
                f"n = {component['n']}, required {component['required']}"
            )
        if record.get("note"):
            lines.append(f"       {record['note']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
