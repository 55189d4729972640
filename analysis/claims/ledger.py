"""The ledger: every claim with its criterion, the parts that its judge found, and the verdicts.

The claim ``M5a`` of ``experiments/mlp_scale/criteria.yaml`` is judged by the function ``m5a`` of
``analysis/claims/mlp_scale.py``, given the experiment's ``Tables`` and its entry of that file. A
second entry for the same claim, with new seeds, is ``M5a.2``, judged by ``m5a_2``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims import bench
from analysis.claims.judges import function_name, is_locked, judge_of
from analysis.claims.judging import HOLDS, OPEN, TESTED, UNJUDGED, Judgement, Part, planned_seeds
from analysis.claims.stored import claims_file, read_ledger, tested_parts
from analysis.quantities.stats import holm
from analysis.tables.criteria import every_criterion, locks_of
from analysis.tables.find import NothingFound, find, left_out_line, unfinished
from analysis.tables.results import FIRST_JUDGING_SEED, Tables, corpus_name, seeded
from analysis.tables.trials import load_tables
from lrm.cli import parse_seeds
from lrm.errors import UserError
from lrm.plan.claims import is_judged_at, judging_seeds
from lrm.plan.experiment import NoSuchRun
from lrm.plan.identity import criterion_hash
from lrm.store.files import as_json, make_folder, write_json, write_listed
from lrm.store.lock import publishing

# Half of what lies outside of a 95% interval: how often a part holds although it is not so.
_FALSE_ALARM = 0.025
# Seeds whose values lie this close together, in parts of the value or of 1, do not differ.
_ROUNDING = 1e-9
UNJUDGED_LINE = "Not judged."
CHANGED = "what judges changed after these seeds ran: run new seeds"


def left_out(scale: str, folder: Path) -> list[str]:
    """A line for each seed of the user's own runs that no claim reads, and why."""
    criteria = every_criterion().values()
    experiments = dict.fromkeys(c["experiment"] for c in criteria if "experiment" in c)
    return [
        left_out_line(experiment, seed, labels)
        for experiment in experiments
        for seed, labels in unfinished(experiment, scale, folder).items()
        if not _is_read_by_all(seed, experiment, scale, folder)
    ]


def _is_read_by_all(seed: int, experiment: str, scale: str, folder: Path) -> bool:
    """Whether a seed that lacks runs has what each entry reads that asks for it at this scale."""
    asking = [
        entry
        for entry in every_criterion().values()
        if entry.get("experiment") == experiment
        and is_judged_at(entry, scale)
        and seed in judging_seeds(entry)
    ]
    return bool(asking) and all(_has_all(seed, entry, scale, folder) for entry in asking)


def _has_all(seed: int, entry: dict, scale: str, folder: Path) -> bool:
    """Whether all runs of an own seed that an entry names under ``only`` have finished."""
    with contextlib.suppress(NothingFound, NoSuchRun):
        if only := tuple(entry.get("only", ())):
            runs = find(entry["experiment"], scale, "runs", folder, only=only)
            return seed in {description["seed"] for description, _ in runs}
    return False


def judge_and_write(scale: str, source: str, folder: Path) -> tuple[dict[str, Any], Path]:
    """The ledger of all claims, and claims.json beside the figures of that source.

    UserError where there is no ``folder``.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; --results names the one with runs/ in it")
    target = claims_file(scale, source, folder)
    make_folder(target.parent)
    if source == "reference":
        with publishing(folder):
            ledger = as_ledger(judge_all(scale, source, folder), scale, source)
            write_listed(target.parent, {target.name: as_json(ledger)})
    else:
        ledger = as_ledger(judge_all(scale, source, folder), scale, source)
        write_json(target, ledger)
    return ledger, target


def as_ledger(records: list[dict[str, Any]], scale: str, source: str) -> dict[str, Any]:
    """The records with what can be said of all their parts together: ``multiplicity``.

    The benchmark's parts, which have no scale and no seeds, are left out.
    ``tested`` parts had enough seeds, which differ; ``expected_false`` of them would hold by chance
    if the truth lay on the border of every criterion; of the ``held``, ``survive_holm`` hold after
    Holm's correction for testing all of them (family-wise 5%), and each part says so.
    """
    tested = tested_parts(record for record in records if record["scale"] is not None)
    for part, survives in zip(tested, holm([part["p"] for part in tested]), strict=True):
        part["survives_holm"] = bool(survives)
    held = [part for part in tested if part["verdict"] == HOLDS]
    multiplicity = {
        "tested": len(tested),
        "held": len(held),
        "expected_false": round(_FALSE_ALARM * len(tested), 1),
        "survive_holm": sum(part["survives_holm"] for part in held),
    }
    return {"scale": scale, "source": source, "multiplicity": multiplicity, "claims": records}


def of_experiments(
    experiments: str | Collection[str], scale: str, source: str, folder: Path
) -> pd.DataFrame:
    """The claims that ``experiments`` decide, by id: the records of ``judge_all`` as a table.

    From the published runs: what is published in claims.json; from own runs: what they say now.
    Raises UserError for an experiment that decides no claim there, naming those that do.
    """
    experiments = [experiments] if isinstance(experiments, str) else list(experiments)
    if source == "reference":
        criteria = every_criterion()
        records = [
            record
            for record in read_ledger(claims_file(scale, source, folder))["claims"]
            if criteria.get(record["id"], {}).get("experiment") in experiments
        ]
    else:
        records = judge_all(scale, source, folder, experiments)
    if not records:
        those = ", ".join(
            sorted({c["experiment"] for c in every_criterion().values() if "experiment" in c})
        )
        raise UserError(f"no claim of {', '.join(experiments)} at {scale}; claims have {those}")
    return pd.DataFrame(records).set_index("id")


def findings(claims: pd.DataFrame) -> pd.DataFrame:
    """``of_experiments`` for reading: the statement, what was found, the verdict, n, the note."""
    shown = claims[["statement", "line", "verdict", "n", "stage", "note"]]
    return shown.rename(columns={"line": "found", "stage": "seeds"}).fillna("")


def parts_of(claims: pd.DataFrame, *ids: str) -> pd.DataFrame:
    """The parts of some claims for reading: estimate with its 95% interval, n, criterion, verdict.

    Contrasts, which other parts need, come last. Raises UserError for a claim that is not there.
    """
    if unknown := [claim for claim in ids if claim not in claims.index]:
        raise UserError(f"no claim {', '.join(unknown)}; there are {', '.join(claims.index)}")
    rows = [
        {
            "claim": claim,
            "group": part["group"] or "",
            "part": part["name"],
            "estimate": part["value"],
            "low": (part["interval"] or [math.nan, math.nan])[0],
            "high": (part["interval"] or [math.nan, math.nan])[1],
            "n": part["n"],
            "required": part["required"],
            "verdict": part["verdict"],
        }
        for claim in ids
        for part in claims.loc[claim, "parts"] + claims.loc[claim, "contrast"]
    ]
    names = ["claim", "group", "part", "estimate", "low", "high", "n", "required", "verdict"]
    return pd.DataFrame(rows, columns=names).set_index(names[:2]).round(4)


def judge_all(
    scale: str,
    source: str,
    folder: Path,
    experiments: Collection[str] = (),
    as_locked: Mapping[str, dict] | None = None,
) -> list[dict[str, Any]]:
    """One record per claim; claims without runs are *not judged*.

    Fields: id, statement, scale, verdict (one word), line (one plain sentence of the groups), n,
    planned, stage (exploration or judging), criterion, groups, parts, contrast, note, if_open (what
    would decide an open part, and its cost). ``experiments``: their claims alone. With
    ``as_locked``, locks that may replace those on disk, today's code is taken for that of all
    locks, to ask whether it judges alike.
    """
    criteria = every_criterion()
    if experiments:
        criteria = {k: c for k, c in criteria.items() if c.get("experiment") in experiments}
    tables_of = cache(lambda experiment, only: _tables(experiment, scale, source, folder, only))
    chosen = cache(lambda experiment, only, *seeds: _of_seeds(tables_of(experiment, only), *seeds))
    verdicts: dict[str, str] = {}
    records = []
    for claim, criterion in criteria.items():
        record = {"id": claim, "statement": criterion["statement"], "scale": scale}
        if "experiment" in criterion:
            only = tuple(criterion.get("only", ()))
            seeds = criterion["seeds"]
            spared = seeds.get("spare")
            spare = () if spared is None else (str(spared), planned_seeds(criterion))
            here = is_judged_at(criterion, scale)
            given = (criterion["experiment"], only, str(seeds["judge"]), *spare)
            tables = chosen(*given) if here else None
            record |= _of_experiment(claim, criterion, tables, verdicts, as_locked)
            verdicts[claim] = record["verdict"]
        else:
            record |= _apart(claim, criterion, source, folder) | {"scale": None}
        records.append(record | {"if_open": _if_open(criterion, record)})
    return records


def _tables(
    experiment: str, scale: str, source: str, folder: Path, only: Collection[str]
) -> Tables | None:
    try:
        tables = load_tables(experiment, scale, source, folder, only)
    except (NothingFound, NoSuchRun):  # a smaller scale may lack the runs that a claim reads
        return None
    try:
        corpus_name(tables.runs)
    except UserError as error:
        raise UserError(
            f"{experiment} at {scale}: {error} (with EXPERIMENT={experiment}, clean-runs takes its "
            "runs alone)"
        ) from None
    return tables


def _of_seeds(
    tables: Tables | None, seeds: str, spare: str | None = None, planned: int = 0
) -> Tables | None:
    """Those of the seeds that judge a claim; where no seed that judges has run, those that
    explore.

    Of ``spare`` seeds as many count, the lowest first, as others lack to be ``planned``.
    """
    if tables is None:
        return None
    there = set(seeded(tables.runs)["seed"])
    chosen = set(parse_seeds(f"{seeds},")) & there
    if spare is not None:
        kept = set(parse_seeds(f"{spare},"))
        first = chosen - kept
        lacking = max(0, planned - len(first))
        chosen = first | set(sorted(chosen & kept)[:lacking])
    if not chosen and max(there, default=0) < FIRST_JUDGING_SEED:
        chosen = there
    return tables.of_seeds(chosen) if chosen else None


def _of_experiment(
    claim: str,
    criterion: dict,
    tables: Tables | None,
    verdicts: dict[str, str],
    as_locked: Mapping[str, dict] | None,
) -> dict[str, Any]:
    """``verdicts`` are those of the claims before this one, which may be its gates."""
    experiment = criterion["experiment"]
    if tables is None:
        seeds, at = criterion["seeds"]["judge"], criterion.get("at")
        none = f"no runs of {experiment}, seeds {seeds}" + (f"; judged at {at} alone" if at else "")
        return _without(criterion, UNJUDGED, none)
    judge = judge_of(experiment, claim)
    if judge is None:
        missing = f"no function {function_name(claim)} in analysis/claims/{experiment}.py"
        return _without(criterion, UNJUDGED, missing)
    gates = {gate: verdicts.get(gate, UNJUDGED) for gate in criterion.get("gates", [])}
    judgement = dataclasses.replace(judge(tables, criterion), gates=gates)
    stage = "judging" if seeded(tables.runs)["seed"].min() >= FIRST_JUDGING_SEED else "exploration"
    record = _record(judgement, criterion, stage)
    if stage == "judging" and _changed(tables, claim, criterion, as_locked):
        record |= {
            "verdict": OPEN,
            "line": "Open.",
            "groups": dict.fromkeys(record["groups"], OPEN),
            "note": CHANGED,
        }
        for part in (*record["parts"], *record["contrast"]):
            part |= {"verdict": OPEN, "p": None}
    return record


def _apart(claim: str, criterion: dict, source: str, folder: Path) -> dict[str, Any]:
    """A claim that no experiment decides, but the benchmark or the tests; of no scale."""
    if "tests" in criterion:
        return _without(criterion, TESTED, "asserted by " + ", ".join(criterion["tests"]))
    measured = bench.record(source, folder, criterion["bench"])
    if measured is None:
        return _without(criterion, UNJUDGED, "no record of make bench")
    return _record(judge_of("bench", claim)(measured, criterion), criterion, None)


def _without(criterion: dict, verdict: str, note: str) -> dict[str, Any]:
    """The record of a claim that has no parts."""
    return {
        "verdict": verdict,
        "line": "Yes, by tests." if verdict == TESTED else UNJUDGED_LINE,
        "n": 0,
        "planned": planned_seeds(criterion) if "seeds" in criterion else None,
        "stage": None,
        "criterion": criterion["criterion"],
        "groups": {},
        "parts": [],
        "contrast": [],
        "note": note,
    }


def _changed(
    tables: Tables, claim: str, criterion: dict, as_locked: Mapping[str, dict] | None
) -> bool:
    """Whether the criterion, the judging code or the configuration changed after these runs."""
    if as_locked is None and not is_locked(criterion["experiment"], claim):
        return True
    lock = (locks_of(criterion["experiment"]) | dict(as_locked or {})).get(claim)
    now = criterion_hash(criterion, lock)
    return any(d["criteria"].get(claim) != now for d in seeded(tables.runs)["description"])


def _record(judgement: Judgement, criterion: dict, stage: str | None) -> dict[str, Any]:
    planned = judgement.planned
    parts = [
        _part(part, planned, judgement.part_verdict(part), _missing(judgement, part))
        for part in judgement.parts
    ]
    contrast = [_part(part, planned, part.verdict(planned)) for part in judgement.contrast]
    # Some numbers cannot be had of any seed, as where the best of a sweep is at its edge.
    n = min((part["n"] for part in parts if part["n"]), default=0)
    # A few seeds that explore say how the claim may come out, which is no verdict.
    explored = stage == "exploration" and n < planned
    return {
        "verdict": UNJUDGED if explored else judgement.verdict,
        "line": UNJUDGED_LINE if explored else judgement.line,
        "n": n,
        "planned": planned,
        "stage": stage,
        "criterion": criterion["criterion"],
        "groups": judgement.groups,
        "parts": parts,
        "contrast": contrast,
        "note": judgement.note,
    }


def _missing(judgement: Judgement, part: Part) -> str:
    """``judgement.missing``; of a contrast that no run has measured nothing is known."""
    said = judgement.missing(part)
    return next(
        (f"not measured yet: {needed.name}" for needed in judgement.contrast
         if said.endswith(f": {needed.name}") and not np.isfinite(needed.values).any()),
        said,
    )  # fmt: skip


def _part(part: Part, planned: int, verdict: str, missing: str = "") -> dict[str, Any]:
    seen = part.interval
    # An identity, or a number that every seed shares, is no matter of chance.
    varies = seen.high - seen.low > _ROUNDING * max(abs(seen.mean), 1.0)
    tested = seen.n >= planned and math.isfinite(seen.mean) and varies
    return {
        "name": part.name,
        "group": part.group,
        "ours": part.ours,
        "value": seen.mean if math.isfinite(seen.mean) else None,
        "interval": _finite([seen.low, seen.high]) if varies else None,
        "n": int(np.isfinite(part.values).sum()),
        "required": part.required,
        "region": [bound if math.isfinite(bound) else None for bound in (part.low, part.high)],
        "matters": part.matters,
        "p": part.p_value if tested else None,
        "verdict": verdict,
        "missing": missing,
    }


def _if_open(criterion: dict, record: dict[str, Any]) -> str | None:
    """What would decide what is open in this claim, and its cost; None where all is decided.

    An entry may say it for each scale apart.
    """
    undecided = record["verdict"] in (OPEN, UNJUDGED) or OPEN in record["groups"].values()
    said = criterion.get("if_open") if undecided else None
    return said.get(record["scale"]) if isinstance(said, dict) else said


def _finite(pair: list[float]) -> list[float] | None:
    return pair if all(map(math.isfinite, pair)) else None
