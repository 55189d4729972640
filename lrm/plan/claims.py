"""What a claim asks of an experiment: entries of its ``criteria.yaml``. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lrm.cli import FIRST_JUDGING_SEED, parse_seeds
from lrm.errors import UserError, shown
from lrm.plan.scales import SCALES
from lrm.plan.yaml import read_yaml

# What every entry says, whatever its judge reads besides.
_NEEDED = ("experiment", "statement", "criterion", "thresholds", "seeds")


def judging_seeds(criterion: Mapping[str, Any]) -> list[int]:
    """The seeds that judge by an entry of ``criteria.yaml``."""
    return parse_seeds(f"{criterion['seeds']['judge']},")


def criteria_in(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of an experiment's ``criteria.yaml`` by claim; none without the file.

    Raises UserError where the file cannot be parsed, and where an entry in it is no mapping, or
    lacks what judging reads.
    """
    path = folder / "criteria.yaml"
    entries = read_yaml(path) if path.exists() else {}
    for claim, entry in entries.items():
        if not isinstance(entry, dict):
            raise UserError(f"{path}: {claim}: expected a mapping with experiment, statement and "
                            f"seeds, found {shown(entry)}; experiments/README.md shows one"
                            )  # fmt: skip
        _check(f"{path}: {claim}", entry)
    return entries


def _check(where: str, entry: Mapping[str, Any]) -> None:
    """UserError for an entry that nobody could judge: its seeds would have run for nothing."""
    if missing := [name for name in _NEEDED if name not in entry]:
        raise UserError(f"{where}: no {', '.join(missing)}; experiments/README.md shows an entry")
    seeds, only = entry["seeds"], entry.get("only", [])
    if not isinstance(seeds, dict) or "judge" not in seeds:
        raise UserError(
            f"{where}: no seeds that judge; write seeds: {{judge: 100-107, planned: 8}}"
        )
    _check_seeds(f"{where}: seeds", seeds)
    if not isinstance(only, list) or not all(isinstance(pattern, str) for pattern in only):
        raise UserError(f"{where}: only: expected a list of patterns, found {shown(only)}; write "
                        "only: ['FPN *']")  # fmt: skip
    if "at" in entry and entry["at"] not in SCALES[1:]:
        raise UserError(
            f"{where}: at: {shown(entry['at'])} is no scale that judges; write one of "
            f"{', '.join(SCALES[1:])}, or leave it out"
        )


def _check_seeds(where: str, seeds: Mapping[str, Any]) -> None:
    """UserError where seeds could never decide a claim."""
    judge = _seeds_in(where, seeds, "judge")
    if min(judge) < FIRST_JUDGING_SEED:
        raise UserError(
            f"{where}.judge: seeds below {FIRST_JUDGING_SEED} explore; write judge: 100-107"
        )
    spare = _seeds_in(where, seeds, "spare") if seeds.get("spare") is not None else []
    if not {*spare} < {*judge}:
        raise UserError(
            f"{where}.spare: {shown(seeds['spare'])} must be some of the seeds that judge, not "
            f"all; choose from {shown(seeds['judge'], quoted=False)}"
        )
    name = "planned" if "planned" in seeds else "minimum"
    planned, most, what = seeds.get(name), len(judge) - len(spare), "seeds that judge"
    if type(planned) is not int:
        raise UserError(f"{where}: no planned, how many have to judge; write planned: 8")
    if spare:
        what += " without spare ones"
    # A seed may give several draws, and all seeds together one value of each draw.
    for key in ("draws", "values"):
        if key in seeds:
            if type(seeds[key]) is not int or seeds[key] < 1:
                raise UserError(f"{where}.{key}: {shown(seeds[key])} is no number; write {key}: 48")
            most, what = seeds[key] * (most if key == "draws" else 1), key
    if not 1 <= planned <= most:
        raise UserError(
            f"{where}.{name}: {planned} is not from 1 to {most}, the number of {what}; correct "
            "one of the two"
        )


def _seeds_in(where: str, seeds: Mapping[str, Any], key: str) -> list[int]:
    try:
        return parse_seeds(f"{seeds[key]},")
    except UserError:
        raise UserError(
            f"{where}.{key}: {shown(seeds[key])} names no seeds; write {key}: 100-107"
        ) from None


def is_judged_at(criterion: Mapping[str, Any], scale: str) -> bool:
    """Whether an entry judges at ``scale``: at all of them, unless it names one (``at``)."""
    return criterion.get("at", scale) == scale


def asked_by(folder: Path, claim: str, scale: str | None = None) -> tuple[list[int], list[str]]:
    """What judges a claim of the experiment in ``folder``: its seeds, and patterns of its runs.

    Without ``spare`` seeds, which run by name where another one diverged. Without patterns it reads
    all runs. Raises UserError for a claim that the experiment has not, or that is not judged at
    ``scale``, and as ``criteria_in``.
    """
    entries = criteria_in(folder)
    if claim not in entries:  # also in other case, as analysis.claims finds it
        claim = next((one for one in entries if one.lower() == claim.lower()), claim)
    if claim not in entries:
        known = f"it has {', '.join(entries)}" if entries else "it has none"
        raise UserError(f"{folder.name} has no claim {shown(claim)}; {known}")
    entry = entries[claim]
    if scale is not None and not is_judged_at(entry, scale):
        raise UserError(f"{claim} is judged at {entry['at']} alone; add --scale {entry['at']}")
    said = entry["seeds"].get("spare")
    spare = [] if said is None else parse_seeds(f"{said},")
    seeds = [seed for seed in judging_seeds(entry) if seed not in spare]
    return seeds, entry.get("only", [])
